"""The page in a real browser: what is drawn is where the operator looks."""

import re

import numpy as np
import pytest
import torch
from tests.browser import browser
from tests.engine.sight.networks import detector, inputs, picture, rgnet

from repgraph.data.labels import Labels
from repgraph.data.transforms import normalise
from repgraph.engine.explore import Subject, explore
from repgraph.engine.explore.page import true_labels
from repgraph.engine.sight import look

WIDTH, HEIGHT = 1100, 760
NASTY = "<script>window.hacked = 1</script>"
LABELS = Labels((NASTY, "field", "wood"), ((200, 180, 40), (20, 120, 30), (30, 60, 200)), ids=(0, 1, 2))
POINTS = [(0.0, 0.0), (1.25, 0.0), (0.0, -1.5), (-2.0, 1.0)]  # in positions of the map
IMAGES = {"one": picture(72, 96, seed=1), NASTY: picture(64, 48, seed=2)}


def fixed(node_view=1):
    """A network whose nodes are known: all offsets are the bias, in the head and in a layer in the backbone."""
    more = dict(nodes=4, spread=POINTS, groups=2, node_view=node_view)
    model = rgnet(context_options=more, inserted={"layer3": 1}, inserted_options=more | {"grid": 2})
    for path in ("head.context", "backbone.body.layer3.1.repgraph"):
        model.get_submodule(path).offset.weight.data.zero_()
    return model


NETWORKS = {
    "fixed": fixed,
    "windows": lambda: fixed(node_view=3),
    "stirred": lambda: rgnet(context_options={"nodes": 5, "node_view": 1}),
    "non-local": lambda: rgnet(context="non_local", context_options={"scale": 5.0}),
    "detector": lambda: detector(score_threshold=0.05, detections=3),
}


@pytest.fixture(scope="module")
def chromium():
    with browser() as page:
        yield page


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page and its network, made when asked for."""
    made = {}

    def get(name):
        if name not in made:
            model = NETWORKS[name]()
            masks = {key: torch.randint(0, 3, image.shape[1:]) for key, image in IMAGES.items()}
            subjects = [
                Subject(key, image, None if name == "detector" else true_labels(masks[key].numpy(), LABELS))
                for key, image in IMAGES.items()
            ]
            path = tmp_path_factory.mktemp("pages") / f"{name}.html"
            path.write_text(explore(model, subjects, LABELS, title=NASTY, score=0.0), encoding="utf-8")
            made[name] = path, model, masks
        return made[name]

    return get


@pytest.fixture
def opened(chromium, pages):
    """Opens a page; at the end nothing went wrong in it, and nothing was fetched."""

    def get(name):
        chromium.requests.clear()
        path = pages(name)[0]
        chromium.size(WIDTH, HEIGHT).dark(False).open(path)
        return chromium

    yield get
    assert chromium.errors == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:image/"))] == []
    assert sum(url.startswith("file:") for url in chromium.requests) == 1
    assert chromium.evaluate("typeof window.hacked") == "undefined"


def state(page):
    return page.evaluate("explorer.state")


def screen(page, x, y):
    """Where a pixel of the image is on the screen."""
    box = page.evaluate("(({left, top}) => ({left, top}))(document.getElementById('stage').getBoundingClientRect())")
    view = state(page)["view"]
    return box["left"] + view["left"] + view["scale"] * (x + 0.5), box["top"] + view["top"] + view["scale"] * (y + 0.5)


def colour(page, x, y):
    """What one sees at a place of the screen."""
    return page.pixel(x, y)


def operator(model, path, image):
    """Nodes (S, 2, h, w) in positions of the map, and weights: as the operator itself gives them."""
    layer = model.get_submodule(path)
    x = inputs(model, layer, lambda: model(normalise(image[None], model.mean, model.std)))
    with torch.no_grad():
        _, nodes, weights = layer(x, return_nodes=True)
    return nodes[0].numpy(), weights[0].numpy()


@pytest.mark.parametrize("zoomed", [False, True])
@pytest.mark.parametrize("name", ["fixed", "stirred"])
def test_pointing_shows_the_operators_nodes_to_one_pixel(name, zoomed, opened, pages):
    page, (_, model, _) = opened(name), pages(name)
    image = IMAGES["one"]
    nodes, weights = operator(model, "head.context", image)
    rows, columns = weights.shape[2:]
    assert (rows, columns) == (9, 12)
    if zoomed:
        page.wheel(*screen(page, 50, 40), -500)
        assert state(page)["view"]["scale"] > 1.8 * 7
    seen = 0
    for x, y in ((50, 40), (46, 36), (61, 33)):
        page.move(*screen(page, x, y))
        found = state(page)
        row, column = y // 8, x // 8
        assert (found["position"]["row"], found["position"]["column"]) == (row, column)
        expected = (nodes[:, :, row, column] + 0.5) * 8 - 0.5
        weight = weights[:, :, row, column].mean(0)
        if name == "fixed":
            centre = np.array((column + 0.5, row + 0.5))
            np.testing.assert_allclose(expected, 8 * (np.array(POINTS) + centre) - 0.5, atol=1e-4)
        order = np.argsort(-weight, kind="stable")
        drawn = np.array([(node["x"], node["y"], node["weight"]) for node in found["nodes"]])
        assert len(drawn) == len(order)
        for x_node, y_node, share in drawn:
            nearest = np.abs(expected - (x_node, y_node)).max(1).argmin()
            np.testing.assert_allclose((x_node, y_node), expected[nearest], atol=0.1)
            assert share == pytest.approx(weight[nearest], abs=0.01)
        box = page.evaluate("document.getElementById('stage').getBoundingClientRect().toJSON()")
        for node in found["nodes"]:
            place = screen(page, node["x"], node["y"])
            assert np.hypot(place[0] - node["across"] - box["left"], place[1] - node["down"] - box["top"]) < 1
        strongest, here = screen(page, *expected[order[0]]), screen(page, column * 8 + 3.5, row * 8 + 3.5)
        if inside(strongest, box) and np.hypot(*np.subtract(strongest, here)) > 20:  # else the position covers it
            red, green, blue = colour(page, strongest[0] + 2.5, strongest[1])
            assert red > 150 and red > 1.5 * green and red > 1.5 * blue
            seen += 1
        red, green, blue = colour(page, *here)
        assert blue > 180 and blue > 2 * red
    assert seen


def inside(place, box):
    return box["left"] < place[0] < box["right"] - 60 and box["top"] < place[1] < box["bottom"] - 50


def test_layers_groups_and_grids(opened, pages):
    page, (_, model, _) = opened("fixed"), pages("fixed")
    image = IMAGES["one"]
    page.move(*screen(page, 50, 43))
    assert state(page)["layer"] == 1  # the head comes last, and first on the page
    page.key("[")
    nodes, weights = operator(model, "backbone.body.layer3.1.repgraph", image)
    for group in (0, 1, 2):
        found = state(page)
        assert (found["layer"], found["group"]) == (0, group)
        expected = (nodes[:, :, 43 // 16, 50 // 16] + 0.5) * 8 - 0.5  # cells of 2 x 2 positions
        shares = weights[:, :, 5, 6].mean(0) if group == 0 else weights[group - 1, :, 5, 6]
        for node in found["nodes"]:
            nearest = np.abs(expected - (node["x"], node["y"])).max(1).argmin()
            np.testing.assert_allclose((node["x"], node["y"]), expected[nearest], atol=0.1)
            assert node["weight"] == pytest.approx(shares[nearest], abs=0.01)
        page.key("g")
    assert state(page)["group"] == 0  # and from the last back to the mean
    assert "2 \u00d7 2 positions" in page.evaluate("document.getElementById('note').textContent")
    page.key("]").key("]")
    assert state(page)["layer"] == 1
    page.evaluate("document.getElementById('layer').value = 0")
    page.evaluate("document.getElementById('layer').dispatchEvent(new Event('change'))")
    assert state(page)["layer"] == 0


def test_nodes_of_several_positions_have_squares_around_them(opened, pages):
    page, (_, model, _) = opened("windows"), pages("windows")
    layer = look(model, IMAGES["one"])["head.context"]
    for x, y in ((50, 40), (4, 4), (94, 70)):
        page.move(*screen(page, x, y))
        seen = layer.look(x, y)
        for node in state(page)["nodes"]:
            nearest = np.abs(np.array(seen.nodes)[:, :2] - (node["x"], node["y"])).max(1).argmin()
            window = node["window"] and [node["window"][side] for side in ("left", "top", "right", "bottom")]
            assert window == (seen.windows[nearest] and pytest.approx(seen.windows[nearest], abs=0.1))
    assert None in seen.windows
    page.move(*screen(page, 50, 40))
    legend = "document.getElementById('legend').textContent"
    told = "!document.getElementById('windows').hidden"
    assert "3 \u00d7 3 positions, of which a node is the mean" in page.evaluate(legend) and page.evaluate(told)
    left, top, _, _ = layer.look(50, 40).windows[3]
    line = np.add(screen(page, left, top), (0, 30))
    red, green, blue = colour(page, *line)
    page = opened("fixed")
    page.move(*screen(page, 50, 40))
    assert all("window" not in node for node in state(page)["nodes"])
    assert "of which a node is the mean" not in page.evaluate(legend) and not page.evaluate(told)
    before = colour(page, *line)
    assert red - max(green, blue) > 40 + before[0] - max(before[1:])


def test_pinning_and_keys(opened):
    page = opened("fixed")
    page.click(*screen(page, 50, 40)).click(*screen(page, 20, 20))
    found = state(page)
    assert found["pins"] == [{"x": 51.5, "y": 43.5}, {"x": 19.5, "y": 19.5}]
    for x, y in ((51.5, 43.5), (19.5, 19.5)):  # the rim of the number's circle
        red, _, blue = colour(page, *np.add(screen(page, x, y), (-6, 0)))
        assert blue > 180 and blue > 2 * red
    page.key("ArrowRight").key("ArrowDown", shift=True)
    assert state(page)["position"] == {"x": 27.5, "y": 59.5, "row": 7, "column": 3}
    page.key("Enter")
    assert len(state(page)["pins"]) == 3
    page.key("Enter")
    page.click(*screen(page, 50, 40))  # the second time takes the pin away
    assert state(page)["pins"] == [{"x": 19.5, "y": 19.5}]
    page.key("Escape")
    assert state(page)["pins"] == []
    before = state(page)["view"]["scale"]
    page.key("+")
    assert state(page)["view"]["scale"] == pytest.approx(1.4 * before)
    for _ in range(20):
        page.key("ArrowRight")
    x, y = screen(page, 91.5, 43.5)
    assert state(page)["position"]["column"] == 11 and 0 < x < page.evaluate("stage.clientWidth")  # it stays in sight
    page.key("0")
    assert state(page)["view"]["scale"] == pytest.approx(before)
    page.key("?")
    assert page.evaluate("document.getElementById('keys').open")
    page.key("ArrowLeft")
    assert state(page)["position"]["column"] == 11
    page.key("Escape")
    assert not page.evaluate("document.getElementById('keys').open")


def test_places_that_are_not_on_the_image(opened):
    page = opened("fixed")
    before = state(page)["point"]
    for place in ("-1, 3", "3, 1e9", "NaN, 3", "undefined, 3", ""):
        assert page.evaluate(f"explorer.point({place})") is False, place
    assert state(page)["point"] == before


def test_zoom_and_pan_keep_the_place_under_the_pointer(opened):
    page = opened("fixed")
    at = np.rint(screen(page, 30, 50))  # the wheel turns at whole pixels of the screen
    scale, (x, y) = state(page)["view"]["scale"], screen(page, 0, 0)
    under = (at[0] - x) / scale, (at[1] - y) / scale
    page.wheel(*at, -600)
    assert np.allclose(screen(page, *under), at, atol=0.1) and state(page)["view"]["scale"] > 20
    page.drag((300, 300), (340, 280))
    assert np.allclose(screen(page, *under), np.add(at, (40, -20)), atol=0.1)
    assert state(page)["pins"] == []  # a drag is no click
    page.wheel(*at, 4000)
    box = page.evaluate("stage.getBoundingClientRect().toJSON()")
    middle = screen(page, 47.5, 35.5)
    assert np.allclose(middle, (box["left"] + box["width"] / 2, box["top"] + box["height"] / 2), atol=0.5)
    for name, greater in (("closer", True), ("farther", False)):
        before = state(page)["view"]["scale"]
        page.evaluate(f"document.getElementById('{name}').click()")
        assert (state(page.settle())["view"]["scale"] > before) is greater


def test_what_lies_underneath_and_the_classes_under_the_pointer(opened, pages):
    page, (_, _, masks) = opened("fixed"), pages("fixed")
    names = page.evaluate("[...document.querySelectorAll('#underlays input')].map(one => one.value)")
    assert names == ["none", "prediction", "ground truth", "reach", "chosen"]
    page.move(*screen(page, 80, 10))
    shown = []
    for name in names:
        page.evaluate(f"explorer.choose({{underlay: {name!r}, opacity: 1}})")
        shown.append(colour(page.settle(), *screen(page, 30, 50)))
    true = int(masks["one"][50, 30])
    assert shown[2] == LABELS.palette[true] and len(set(shown)) >= 4
    page.move(*screen(page, 30, 50))
    here = page.evaluate("document.getElementById('here').textContent")
    assert here.startswith("x 30, y 50 · prediction: ") and here.endswith(f"ground truth: {LABELS.names[true]}")
    page.key("u")
    assert state(page)["underlay"] == "none"
    page.evaluate("explorer.choose({underlay: 'ground truth'})")
    legend = page.settle().evaluate("[...document.querySelectorAll('#legend li b')].map(one => one.textContent)")
    assert set(legend) == set(LABELS.names)
    page.evaluate("const o = document.getElementById('opacity'); o.value = 25; o.dispatchEvent(new Event('input'))")
    assert state(page.settle())["opacity"] == 0.25


def test_several_images_and_names_that_are_not_text(opened):
    page = opened("fixed")
    strip = "[...document.querySelectorAll('#strip span')].map(one => one.textContent)"
    assert page.evaluate(strip) == ["one", NASTY]
    assert (
        page.evaluate("document.getElementById('title').textContent")
        == NASTY
        == page.evaluate("document.title").removesuffix(" · explorer")
    )
    page.key("Enter").key(".")
    assert state(page)["image"] == 1 and state(page)["pins"] == []
    assert (state(page)["position"]["row"], state(page)["position"]["column"]) == (4, 3)
    page.evaluate("document.querySelector('#strip button').click()")
    assert state(page.settle())["image"] == 0 and len(state(page)["pins"]) == 1


def test_a_non_local_layer_shows_its_strongest_positions_and_says_so(opened, pages):
    page, (_, model, _) = opened("non-local"), pages("non-local")
    page.move(*screen(page, 50, 40))
    image, found = IMAGES["one"], state(page)
    x = inputs(model, model.head.context, lambda: model(normalise(image[None], model.mean, model.std)))
    with torch.no_grad():
        weights = model.head.context.affinity(x, rows=[5 * 12 + 6])[0, 0, 0].numpy()
    assert len(found["nodes"]) == 64
    best = np.sort(weights)[::-1][:64]
    np.testing.assert_allclose([node["weight"] for node in found["nodes"]], best, atol=0.004)
    top = int(weights.argmax())
    first = found["nodes"][0]
    assert (first["x"], first["y"]) == pytest.approx((8 * (top % 12) + 3.5, 8 * (top // 12) + 3.5), abs=0.1)
    note = page.evaluate("document.getElementById('note').textContent")
    share = float(re.search(r"attends to all positions.* 64 strongest, which have ([\d.]+) %", note)[1])
    assert share == pytest.approx(100 * best.sum(), abs=1)


def test_a_detector_shows_its_objects(opened, pages):
    page, (_, model, _) = opened("detector"), pages("detector")
    page.evaluate("explorer.choose({underlay: 'prediction'})")
    with torch.no_grad():
        found = model([IMAGES["one"]])[0]
    names = page.settle().evaluate("[...document.querySelectorAll('#legend li b')].map(one => one.textContent)")
    assert names == [
        f"{LABELS.names[label - 1]} {score:.2f}"
        for label, score in zip(found["labels"].tolist(), found["scores"].tolist(), strict=True)
    ]
    assert len(names) > 0
    left, top = found["boxes"][0, :2].tolist()
    assert colour(page, *screen(page, left - 0.5, top + 4)) == LABELS.palette[int(found["labels"][0]) - 1]


def test_the_pointer_is_answered_within_a_frame(opened):
    page = opened("stirred")
    times = []
    for i in range(40):
        page.move(*screen(page, 10 + 2 * i, 12 + i))
        times.append(state(page)["timing"]["last"])
    assert np.median(times) < 16


@pytest.mark.parametrize("dark", [False, True])
def test_phones_and_dark(opened, dark):
    page = opened("fixed").size(390, 780, phone=True).dark(dark)
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1] == 390
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in ground[4:-1].split(",")) < 200) is dark
    page.touch("touchStart", screen(page, 20, 20))
    page.touch("touchMove", screen(page, 52, 36)).touch("touchEnd")
    assert (state(page)["position"]["row"], state(page)["position"]["column"]) == (4, 6)
    page.evaluate("document.getElementById('pin').click()")
    assert len(state(page.settle())["pins"]) == 1
    before, (x, y) = state(page)["view"]["scale"], screen(page, 48, 36)
    page.touch("touchStart", (x - 20, y), (x + 20, y)).touch("touchMove", (x - 60, y), (x + 60, y)).touch("touchEnd")
    assert state(page)["view"]["scale"] > 2 * before
    page.key("t").key("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in ground[4:-1].split(",")) < 200


def test_a_screen_reader_is_told(opened):
    page = opened("fixed")
    page.move(*screen(page, 50, 40))
    page.evaluate("new Promise(done => setTimeout(done, 500))")
    said = page.evaluate("document.querySelector('[aria-live]').textContent")
    assert said.startswith("Position 52, 44. prediction ") and "Strongest of 4: " in said
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, select, input')].filter(one => !(one.textContent.trim() "
        "|| one.getAttribute('aria-label') || (one.labels && one.labels.length))).map(one => one.outerHTML)"
    )
    assert unnamed == []
