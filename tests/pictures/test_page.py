"""Pages: text is escaped, pictures are inside and exact, nothing is fetched."""

import base64
import io
import itertools
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from repgraph.pictures import page
from repgraph.pictures.curves import curves
from repgraph.pictures.page import Html, tag

NASTY = "<script>alert(\"1\")</script> & 'more'"


class Reader(HTMLParser):
    """Checks that all elements are closed, in the right order; collects text and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.addresses: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        if name not in ("img", "meta", "br", "hr", "link"):
            self.open.append(name)
        self.addresses += [value or "" for key, value in attributes if key in ("src", "href")]

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


@pytest.mark.parametrize(
    "make",
    [
        lambda text: tag("p", text),
        lambda text: tag("p", [text, [text]]),
        lambda text: page.figure(tag("i"), text),
        lambda text: page.table([text], [[text, tag("td", text)]]),
        lambda text: page.legend([text], [(1, 2, 3)]),
        lambda text: page.document(text, text),
        lambda text: tag("img", alt=text),
        lambda text: page.image(np.zeros((2, 2, 3), np.uint8), text),
        lambda text: curves({text: [(0, 1), (1, 2)]}, text, text),
    ],
)
def test_text_is_never_markup(make):
    made = make(NASTY)
    assert "<script" not in made
    assert NASTY in read(made).text or 'alt="&lt;script' in made


def test_what_was_made_here_goes_in_as_it_is():
    assert tag("p", tag("b", "x"), None, 3, class_="a", stroke_width=2, title=None) == (
        '<p class="a" stroke-width="2"><b>x</b>3</p>'
    )
    assert isinstance(tag("p"), Html) and tag("meta", name="n") == '<meta name="n">'


def test_a_page_stands_alone():
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    text = page.document("a title", page.image(picture, "noise"), page.image(picture, "photo", photo=True))
    reader = read(text)
    assert text.startswith("<!doctype html>")
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert len(reader.addresses) == 2 and all(a.startswith("data:image/") for a in reader.addresses)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", text)


def test_pictures_come_back_from_their_address():
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    address = page.data_uri(picture)
    stored = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    np.testing.assert_array_equal(np.asarray(stored), picture)
    assert page.data_uri(picture, photo=True).startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(("highest", "shown"), [(0.83, "1<"), (0.31, "0.4<"), (17, "20<"), (100, "100<"), (0.0, "1<")])
def test_curves_have_round_numbers(highest, shown):
    drawn = curves({"one": [(0, highest), (10, 0)], "two": []}, "iteration", "loss")
    assert f">{shown}" in drawn and drawn.count("<polyline") == 2
    read(drawn)


# How colours look to those without one of the three kinds of cones: Machado, Oliveira and Fernandes (2009), linear RGB.
EYES = {
    "all": np.eye(3),
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(text: str) -> np.ndarray:
    parts = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour: np.ndarray) -> np.ndarray:
    """CIELAB, in which a distance of 2.3 can just be seen."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ colour.clip(0, 1)
    x, y, z = np.cbrt((xyz / (0.9505, 1, 1.089)).clip(0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("without", EYES)
@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_of_lines_can_be_told_apart_and_read(scheme, without):
    names = (*page.COLOURS, "ground")
    values = {name: re.findall(rf"--{name}: (#[0-9a-f]{{6}})", page.STYLE)[scheme] for name in names}
    ground = linear(values.pop("ground")) @ (0.2126, 0.7152, 0.0722) + 0.05
    seen = [lab(np.array(EYES[without]) @ linear(value)) for value in values.values()]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14
    light = [linear(value) @ (0.2126, 0.7152, 0.0722) + 0.05 for value in values.values()]
    assert all(max(each, ground) / min(each, ground) > 4.4 for each in light)  # WCAG asks for 4.5 of small text
