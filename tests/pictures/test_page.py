"""Pages: text is escaped, pictures are inside and exact, nothing is fetched."""

import base64
import io
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
