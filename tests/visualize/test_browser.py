"""The explorer page in Chromium: the nodes on the screen are those of the operator."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tests.visualize.networks import detector, picture, rgnet

from repgraph.data.labels import Labels
from repgraph.visualize.collect import collect_attention
from repgraph.visualize.explorer import ExplorerImage, explore

SCRIPT = "</script><script>window.hacked = 1</script>{{script}}{% raw %}\u2028<img src=x onerror=window.hacked=1><!--"
LABELS = Labels((SCRIPT, "field", "wood"), ((200, 180, 40), (20, 120, 30), (30, 60, 200)), ids=(0, 1, 2))
SPREAD = [(0.0, 0.0), (1.25, 0.0), (0.0, -1.5), (-2.0, 1.0)]  # in positions of the map
IMAGES = {"one": picture(72, 96, seed=1), SCRIPT: picture(64, 48, seed=2)}
MASKS = {name: torch.randint(0, 3, image.shape[1:]) for name, image in IMAGES.items()}


def fixed():
    """A network with known nodes, in the head and in a layer of the backbone."""
    options = dict(nodes=4, spread=SPREAD, groups=2, node_view=3)
    model = rgnet(context_options=options, inserted={"layer3": 1}, inserted_options=options | {"grid": 2})
    for path in ("head.context", "backbone.body.layer3.1.repgraph"):
        model.get_submodule(path).offset.weight.data.zero_()
    return model


NETWORKS = {
    "fixed": fixed,
    "random": lambda: rgnet(context_options={"nodes": 5, "node_view": 1}),
    "rounds": lambda: rgnet(context_options={"nodes": 5, "node_view": 1, "groups": 2, "rounds": 3}),
    "non-local": lambda: rgnet(context="non_local", context_options={"scale": 5.0}),
    "detector": lambda: detector(score_threshold=0.05, detections=3),
}
BRIGHTNESS = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return path and network of a page, which is made once."""
    made = {}

    def get(name):
        if name not in made:
            model = NETWORKS[name]()
            truth = {} if name == "detector" else MASKS
            images = [ExplorerImage(key, image, truth.get(key)) for key, image in IMAGES.items()]
            path = tmp_path_factory.mktemp("pages") / f"{name}.html"
            path.write_text(explore(model, images, LABELS, title=SCRIPT, score=0.0), encoding="utf-8")
            made[name] = path, model
        return made[name]

    return get


@pytest.fixture
def opened(chromium, pages):
    """Open pages; assert at the end that there were no errors and no requests."""
    contexts, problems, requests = [], [], []

    def get(name, width=1100, height=760, **options):
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type != "log" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(pages(name)[0].as_uri())
        return settle(page)

    yield get
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "data:image/"))] == []
    assert all(context.pages[0].evaluate("typeof window.hacked") == "undefined" for context in contexts)
    for context in contexts:
        context.close()


def settle(page):
    """Wait until everything is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
    return page


def state(page):
    return settle(page).evaluate("() => explorer.state")


def text(page, name):
    return settle(page).locator(f"#{name}").text_content()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)
    return state(page)


def screen(page, x, y):
    """Return where a pixel of the image is on the screen."""
    box, view = page.locator("#stage").bounding_box(), state(page)["view"]
    return box["x"] + view["left"] + view["scale"] * (x + 0.5), box["y"] + view["top"] + view["scale"] * (y + 0.5)


def point(page, x, y):
    page.mouse.move(*screen(page, x, y))
    return state(page)


def colour(page, x, y):
    shot = settle(page).screenshot(clip={"x": int(x), "y": int(y), "width": 1, "height": 1})
    return Image.open(io.BytesIO(shot)).convert("RGB").getpixel((0, 0))


def wheel(page, at, amount):
    page.mouse.move(*at)
    page.mouse.wheel(0, amount)
    page.wait_for_timeout(100)
    return state(page)


CASES = [  # network, layer, whether to zoom in
    ("fixed", "head.context", False),
    ("fixed", "backbone.body.layer3.1.repgraph", False),
    ("random", "head.context", True),
    ("non-local", "head.context", False),
]


@pytest.mark.parametrize(("name", "path", "zoomed"), CASES)
def test_nodes(name, path, zoomed, opened, pages):
    page, (_, model) = opened(name), pages(name)
    attention = collect_attention(model, IMAGES["one"])
    layer, choice = attention[path], {"layer": list(attention).index(path)}
    assert state(page)["layer"] == len(attention) - 1  # the head
    page.evaluate("choice => explorer.choose(choice)", choice)
    page.evaluate("() => find('status').hidden = true")  # it can cover the position
    if zoomed:
        assert wheel(page, screen(page, 50, 40), -500)["view"]["scale"] > 12
    box, visible = page.locator("#stage").bounding_box(), 0
    for x, y in ((46, 36), (61, 33), (50, 40)) if zoomed else ((4, 4), (94, 70), (50, 40)):
        found, expected = point(page, x, y), layer.nodes_at(x, y)
        view = found["view"]
        assert (found["position"]["x"], found["position"]["y"]) == (expected.x, expected.y)
        weights = sorted((weight for _, _, weight in expected.nodes), reverse=True)
        np.testing.assert_allclose([node["weight"] for node in found["nodes"]], weights, atol=0.01)
        for node in found["nodes"]:
            index = np.abs(np.array(expected.nodes)[:, :2] - (node["x"], node["y"])).max(1).argmin()
            assert (node["x"], node["y"]) == pytest.approx(expected.nodes[index][:2], abs=0.1)
            assert node["weight"] == pytest.approx(expected.nodes[index][2], abs=0.01)
            place = view["left"] + view["scale"] * (node["x"] + 0.5), view["top"] + view["scale"] * (node["y"] + 0.5)
            assert (node["across"], node["down"]) == pytest.approx(place, abs=1)
        here = screen(page, expected.x, expected.y)
        strongest = screen(page, found["nodes"][0]["x"], found["nodes"][0]["y"])
        inside = 0 < strongest[0] - box["x"] < box["width"] - 60 and 0 < strongest[1] - box["y"] < box["height"] - 50
        if layer.kind == "nodes" and inside and np.hypot(*np.subtract(strongest, here)) > 20:  # otherwise covered
            red, green, blue = colour(page, strongest[0] + 2.5, strongest[1])
            assert red > 150 and red > 1.5 * green and red > 1.5 * blue
            visible += 1
        red, _, blue = colour(page, *here)
        assert blue > 180 and blue > 2 * red
    assert visible or name == "non-local"
    notes = {
        2: "The 2 \u00d7 2 positions of a cell",
        1: "" if layer.kind == "nodes" else "the 64 strongest, which have",
    }
    note = text(page, "note")
    assert notes[layer.grid] in note and ("the mean of the 3 \u00d7 3 positions" in note) is (name == "fixed")


def test_windows_on_demand(opened):
    assert not opened("random").locator("#windows").is_visible()
    page = opened("fixed")
    point(page, 50, 40)
    node = next(node for node in state(page)["nodes"] if node["x"] > 55)
    at = screen(page, node["x"] - 6, node["y"] - 12)  # a window has 3 x 3 positions of 8 pixels

    def redness():
        colours = [colour(page, at[0], at[1] + down) for down in (-1, 0, 1)]
        return max(red - green for red, green, _ in colours)

    before = redness()
    page.locator("#windows").check()
    assert redness() > before + 40
    assert press(page, "w")["windows"] is False and redness() == before


def test_pins_and_keys(opened):
    page = opened("fixed")
    for place in ((50, 40), (20, 20)):
        page.mouse.click(*screen(page, *place))
    assert state(page)["pins"] == [{"x": 51.5, "y": 43.5}, {"x": 19.5, "y": 19.5}]
    red, _, blue = colour(page, *np.add(screen(page, 51.5, 43.5), (-6, 0)))
    assert blue > 180 and blue > 2 * red
    assert press(page, "ArrowRight", "Shift+ArrowDown")["position"] == {"x": 27.5, "y": 59.5, "row": 7, "column": 3}
    assert len(press(page, "Enter")["pins"]) == 3 and len(press(page, "Enter")["pins"]) == 2
    assert press(page, "[")["layer"] == 0 and press(page, "]")["layer"] == 1
    page.mouse.click(*screen(page, 50, 40))
    assert state(page)["pins"] == [{"x": 19.5, "y": 19.5}] and press(page, "Escape")["pins"] == []
    before = state(page)["view"]["scale"]
    assert press(page, "+")["view"]["scale"] == pytest.approx(1.4 * before)
    assert press(page, *["ArrowRight"] * 20)["position"]["column"] == 11
    assert 0 < screen(page, 91.5, 43.5)[0] < page.locator("#stage").bounding_box()["width"]  # it stays visible
    assert press(page, "0")["view"]["scale"] == pytest.approx(before)
    at = screen(page, 30, 50)
    assert wheel(page, at, -600)["view"]["scale"] > 20 and np.allclose(screen(page, 30, 50), at, atol=2)
    page.mouse.down()
    page.mouse.move(at[0] + 40, at[1] - 20)
    page.mouse.up()
    assert np.allclose(screen(page, 30, 50), np.add(at, (40, -20)), atol=2) and state(page)["pins"] == []
    press(page, "0")
    for place in ("-1, 3", "3, 1e9", "NaN, 3", ""):
        assert page.evaluate(f"() => explorer.point({place})") is False


def test_walk_through_rounds(opened, pages):
    """From a position to its nodes in the last round, then to their nodes in the previous round, and so on."""
    page, (_, model) = opened("rounds"), pages("rounds")
    *earlier, last = collect_attention(model, IMAGES["one"]).values()
    found = point(page, 50, 40)
    assert found["layer"] == 2
    ends = last.nodes_at(50, 40).nodes
    for round_, hop in zip(reversed(earlier), found["paths"], strict=True):
        inside = [(x, y, w) for x, y, w in ends if -0.5 <= x <= 95.5 and -0.5 <= y <= 71.5]
        ends = [(a, b, w * v) for x, y, w in inside for a, b, v in round_.nodes_at(x, y).nodes]
        ends = sorted(ends, key=lambda end: -end[2])[:30]
        assert len(hop) == len(ends) > 5
        np.testing.assert_allclose([one["weight"] for one in hop], [w for _, _, w in ends], atol=0.01)
        x, y, _ = ends[0]
        assert min(abs(one["x"] - x) + abs(one["y"] - y) for one in hop[:3]) < 0.5
    here = found["position"]
    inside = [one for one in found["paths"][0] if 5 < one["x"] < 90 and 5 < one["y"] < 60]
    end = max(inside, key=lambda one: abs(one["x"] - here["x"]) + abs(one["y"] - here["y"]))  # not below other marks
    shown, place = [], screen(page, end["x"], end["y"])
    for key, hops in (("r", 0), ("r", 2)):
        assert len(press(page, key)["paths"]) == hops
        shown.append(colour(page, *place))
    assert shown[0] != shown[1]
    assert page.locator("#walk").is_checked() and len(press(page, "[")["paths"]) == 1
    assert press(page, "[")["paths"] == [] and not page.locator("#walk").is_visible()  # the first round


def test_overlays_and_images(opened):
    page = opened("fixed")
    assert page.locator("#overlay option").all_text_contents() == ["none", "prediction", "ground truth"]
    point(page, 80, 10)
    shown = []
    for number in range(3):
        page.evaluate("number => explorer.choose({overlay: number})", number)
        shown.append(colour(page, *screen(page, 30, 50)))
    truth = int(MASKS["one"][50, 30])
    blended = 0.4 * np.array(shown[0]) + 0.6 * np.array(LABELS.palette[truth])
    assert shown[2] == pytest.approx(blended, abs=2) and len(set(shown)) >= 2
    point(page, 30, 50)
    status = text(page, "status")
    assert status.startswith("x 30, y 50 · prediction: ") and status.endswith(f"ground truth: {LABELS.names[truth]}")
    assert press(page, "o")["overlay"] == 0
    page.get_by_label("Overlay").select_option("ground truth")
    assert set(settle(page).locator("#legend li b").all_text_contents()) == set(LABELS.names)
    assert page.locator("#image option").all_text_contents() == ["one", SCRIPT]
    assert text(page, "title") == SCRIPT == page.title()
    page.click("#pin")
    found = press(page, ".")
    assert (found["image"], found["pins"]) == (1, []) and found["position"]["row"] == 4
    page.locator("#image").select_option("one")
    assert state(page)["image"] == 0 and len(state(page)["pins"]) == 1


def test_zoom_and_resize(opened):
    page = opened("fixed")
    whole = state(page)["view"]["scale"]
    assert press(page, "+", "+")["view"]["scale"] == pytest.approx(1.4**2 * whole)
    page.set_viewport_size({"width": 1000, "height": 700})
    assert state(page)["view"]["scale"] == pytest.approx(1.4**2 * whole)
    assert press(page, "-")["view"]["scale"] == pytest.approx(1.4 * whole)
    assert press(page, "0")["view"]["scale"] < 1.01 * whole


def test_detector(opened, pages):
    page, (_, model) = opened("detector"), pages("detector")
    page.evaluate("() => explorer.choose({overlay: 1})")
    with torch.no_grad():
        found = model([IMAGES["one"]])[0]
    objects = list(zip(found["labels"].tolist(), found["scores"].tolist(), strict=True))
    names = settle(page).locator("#legend li b").all_text_contents()
    assert names == [f"{LABELS.names[label - 1]} {score:.2f}" for label, score in objects] and names
    left, top = found["boxes"][0, :2].tolist()
    assert colour(page, *screen(page, left - 0.5, top + 4)) == LABELS.palette[objects[0][0] - 1]


def test_speed_and_screen_readers(opened):
    page, times = opened("random"), []
    timed = "() => { const start = performance.now(); drawNow(); return performance.now() - start; }"
    for i in range(30):
        point(page, 10 + 2 * i, 12 + i)
        times.append(page.evaluate(timed))
    assert np.median(times) < 16
    point(page, 50, 40)
    assert re.match(r"x 50, y 40 · prediction: ", text(page, "status"))
    assert page.locator("#status").get_attribute("aria-live") == "polite"
    named = "one => one.textContent.trim() || one.getAttribute('aria-label') || (one.labels && one.labels.length)"
    assert page.locator("button, select, input").evaluate_all(f"all => all.every({named})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phones_and_dark(opened, scheme):
    page = opened("fixed", 390, 780, has_touch=True, is_mobile=True, device_scale_factor=2, color_scheme=scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert (page.evaluate(BRIGHTNESS) < 200) is (scheme == "dark")
    session = page.context.new_cdp_session(page)

    def touch(kind, *points):
        places = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", screen(page, 20, 20))
    touch("touchMove", screen(page, 52, 36))
    touch("touchEnd")
    assert (state(page)["position"]["row"], state(page)["position"]["column"]) == (4, 6)
    page.locator("#pin").tap()
    assert len(state(page)["pins"]) == 1
    page.evaluate("() => scrollTo(0, 0)")
    before, (x, y) = state(page)["view"]["scale"], screen(page, 48, 36)
    touch("touchStart", (x - 20, y), (x + 20, y))
    touch("touchMove", (x - 60, y), (x + 60, y))
    touch("touchEnd")
    assert state(page)["view"]["scale"] > 2 * before
