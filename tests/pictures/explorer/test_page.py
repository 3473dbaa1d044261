import hashlib
import json
import re
from base64 import b64encode

import numpy as np
import pytest
from tests.pictures.explorer.test_packing import layer

from repgraph.data.labels import Labels
from repgraph.pictures.explorer import Picture, of_labels, of_objects, page
from repgraph.pictures.sight import Sight

NASTY = "</script><script>alert('x')</script><b>&amp;"
LABELS = Labels((NASTY, "sea"), ((200, 0, 0), (0, 0, 200)), ids=(0, 1))


def picture(size=(40, 60), name="a photo", **more) -> Picture:
    random = np.random.default_rng(0)
    seen = Sight(size, (layer(size, 5, 6, **more),))
    shown = of_labels("prediction", random.integers(0, 2, size), LABELS)
    return Picture(name, random.integers(0, 256, (*size, 3), np.uint8), seen, (shown,))


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_names_stay_text():
    text = page([picture(name=NASTY)], title=NASTY, about=NASTY)
    assert "alert" in text and "<script>alert" not in text and "<b>&amp;" not in text
    data = data_of(text)
    assert data["images"][0]["name"] == data["title"] == data["about"] == NASTY
    assert {entry["name"] for entry in data["images"][0]["underlays"][0]["entries"]} == set(LABELS.names)
    assert len(re.findall(r"<script", text)) == 2


def test_nothing_is_fetched_and_no_script_runs_but_the_pages_own():
    text = page([picture()])
    assert not re.search(r"https?://", text) and "@import" not in text and "url(" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    for kind in ("style", "script"):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)[1]
        digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert not re.search(r"<[a-z]+ [^>]*\b(?:on[a-z]+|style)=", text.replace(data_text(text), ""))


def data_text(text: str) -> str:
    return re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]


@pytest.mark.parametrize("kind", ["nodes", "affinity"])
def test_a_page_of_a_512_picture_is_small(kind):
    size = (512, 512)
    random = np.random.default_rng(0)
    layers = [layer(size, 64, 64, nodes=64 if kind == "affinity" else 9, kind=kind) for _ in range(6)]
    if kind == "nodes":
        layers.append(layer(size, 128, 128))  # the second stage has a larger map
    noise = of_labels("prediction", random.integers(0, 2, (64, 64)).repeat(8, 0).repeat(8, 1), LABELS)
    text = page(
        [Picture("x", random.integers(0, 256, (*size, 3), np.uint8), Sight(size, tuple(layers)), (noise, noise))]
    )
    assert len(text.encode()) < 5e6


def test_large_photographs_are_shrunk_and_places_are_not():
    size = (1000, 4000)
    shown = of_labels("prediction", np.zeros(size, np.uint8), LABELS)
    made = Picture("x", np.zeros((*size, 3), np.uint8), Sight(size, (layer(size, 4, 16),)), (shown,))
    image = data_of(page([made]))["images"][0]
    assert (image["width"], image["height"]) == (4000, 1000)
    assert (image["underlays"][0]["width"], image["underlays"][0]["height"]) == (2048, 512)
    assert image["layers"][0]["step"] == [250, 250]


def test_objects_lie_over_each_other_in_their_order():
    masks = np.zeros((2, 8, 8))
    masks[0, 2:6, 2:6], masks[1, 0:4] = 1, 1
    made = of_objects("prediction", (8, 8), [[2, 2, 6, 6], [0, 0, 8, 4]], [1, 0], masks, LABELS, [0.9, 0.75])
    assert [entry.name for entry in made.entries] == ["sea 0.90", f"{NASTY} 0.75"]
    assert made.boxes[0].corners == (1.5, 1.5, 5.5, 5.5)  # pixel centres are at integers
    assert made.values[3, 3] == 0 and made.values[0, 0] == 1 and made.values[7, 7] == 255
    none = of_objects("prediction", (8, 8), np.zeros((0, 4)), [], np.zeros((0, 8, 8)), LABELS)
    assert (none.values == 255).all() and none.entries == ()
