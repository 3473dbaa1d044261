"""Pages that are one file: HTML with its pictures inside, which needs no network, in light and dark, on any screen.

Text is escaped unless it was made here: :func:`tag` takes children of any kind, and only those of type :class:`Html`,
which other calls of it give, go into the page as they are.

    >>> print(tag("p", "1 < 2, ", tag("b", "and so on"), class_="note"))
    <p class="note">1 &lt; 2, <b>and so on</b></p>
"""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

# Of lines and bars side by side: people who are colour-blind can tell them apart, and dashes help.
COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth")
_VOID = ("img", "meta", "br", "hr", "link")
# Nothing may be fetched, whatever gets into the page.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """\
:root { color-scheme: light dark; --ground: #fbfbfa; --card: #fff; --ink: #1c1d20; --soft: #5d6068; --line: #dedfe3;
  --first: #b8541b; --second: #1668b0; --third: #1d8554; --fourth: #6d20c0; --fifth: #10141c; --sixth: #5a2408;
  --tint: #eef3f8; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #15171b; --card: #1d2026; --ink: #e8e9ec; --soft: #a3a7b0; --line: #343841;
    --first: #f0904f; --second: #6cb4ee; --third: #2a9d7a; --fourth: #a07bff; --fifth: #f6f6f8; --sixth: #f0dc3c;
    --tint: #222a34; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 66rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.3rem); line-height: 1.15; margin: 0.5rem 0; letter-spacing: -0.015em; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 3rem 0 0.6rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0.4rem; }
p, ul { max-width: 46rem; margin: 0.6rem 0; }
a { color: var(--second); }
code { font: 0.88em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--tint);
  padding: 0.1em 0.35em; border-radius: 4px; overflow-wrap: anywhere; }
.lead { font-size: 1.1rem; color: var(--soft); }
.note { font-size: 0.9rem; color: var(--soft); }
figure { margin: 0; }
figure img, figure svg { display: block; width: 100%; height: auto; border-radius: 8px; }
figure img.labels { image-rendering: pixelated; outline: 1px solid var(--line); outline-offset: -1px; }
figure svg.chart { max-width: 42rem; border-radius: 0; }
figcaption { font-size: 0.86rem; line-height: 1.4; color: var(--soft); margin: 0.35rem 0 0; }
.grid { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, var(--cell, 15rem)), 1fr));
  margin: 0.9rem 0; }
.rows { display: grid; gap: 0.6rem; grid-template-columns: repeat(var(--columns, 4), minmax(0, 1fr));
  margin: 0.9rem 0; }
@media (max-width: 40rem) { .rows { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
.tiles { display: flex; flex-wrap: wrap; gap: 0.8rem; margin: 1.2rem 0; }
.tile { flex: 1 1 13rem; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.8rem 1rem; }
.tile b { display: block; font-size: 2rem; line-height: 1.15; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.8rem 0; }
th, td { text-align: left; padding: 0.32rem 0.9rem 0.32rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
th { font-size: 0.86rem; color: var(--soft); font-weight: 600; }
td.number { text-align: right; white-space: nowrap; }
td.name { white-space: nowrap; }
td.bar { min-width: 4rem; width: 22rem; }
.bar i { display: block; height: 0.7rem; border-radius: 3px; background: var(--fill); width: var(--share);
  min-width: 2px; }
.first { --fill: var(--first); color: var(--first); } .second { --fill: var(--second); color: var(--second); }
.third { --fill: var(--third); color: var(--third); } .fourth { --fill: var(--fourth); color: var(--fourth); }
.fifth { --fill: var(--fifth); color: var(--fifth); } .sixth { --fill: var(--sixth); color: var(--sixth); }
.chart .stop > g { visibility: hidden; pointer-events: none; } .chart .stop:hover > g { visibility: visible; }
.chart .tip { fill: var(--card); stroke: var(--line); }
.chip { display: inline-block; width: 0.95em; height: 0.95em; border-radius: 3px; margin-right: 0.45em;
  vertical-align: -0.1em; border: 1px solid var(--soft); background: var(--colour); }
.legend { display: flex; flex-wrap: wrap; gap: 0.3rem 1.1rem; font-size: 0.9rem; margin: 0.6rem 0; }
"""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element; text in it and in its attributes is escaped, None is left out, lists are taken apart.

    Attributes are written with an underscore at their end where Python has the word, and inside for a dash.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Html:
    """Children one after the other, text escaped."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, (list, tuple)):
            parts.append(join(child))
        elif child is not None:
            parts.append(Html(html.escape(str(child))))
    return Html("".join(parts))


def document(title: str, *body: Any, style: str = "") -> str:
    """A whole page; ``style`` is added to the common one."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Html(STYLE + style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n"


def figure(content: Html, *caption: Any) -> Html:
    """A picture with what it shows."""
    return tag("figure", content, tag("figcaption", *caption) if caption else None)


def table(heads: Sequence[Any], rows: Iterable[Sequence[Any]]) -> Html:
    """A table; a cell that is a ``td`` or ``th`` already stays as it is, others are put into one."""

    def cell(content: Any, kind: str) -> Html:
        made = isinstance(content, Html) and content.startswith(("<td", "<th"))
        return content if made else tag(kind, content)

    lines = [tag("tr", *(cell(content, "td") for content in row)) for row in rows]
    head = tag("thead", tag("tr", *(cell(content, "th") for content in heads)))
    return tag("div", tag("table", head, tag("tbody", *lines)), class_="scroll")


def image(picture: Any, alt: str, *, photo: bool = False) -> Html:
    """An array (H, W, 3) of bytes as a picture in the page; ``photo`` packs it as JPEG, else it stays exact."""
    height, width = np.asarray(picture).shape[:2]
    kind = None if photo else "labels"
    return tag("img", src=data_uri(picture, photo=photo), alt=alt, width=width, height=height, class_=kind)


def data_uri(picture: Any, *, photo: bool = False) -> str:
    """A picture (H, W, 3) as an address that holds it."""
    buffer = io.BytesIO()
    made = Image.fromarray(np.ascontiguousarray(picture))
    if photo:
        made.save(buffer, "JPEG", quality=88)
    else:
        made.save(buffer, "PNG", optimize=True)
    return f"data:image/{'jpeg' if photo else 'png'};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def legend(names: Sequence[str], palette: Sequence[Sequence[int]]) -> Html:
    """The classes and their colours."""
    return tag("div", *(tag("span", chip(c), n) for n, c in zip(names, palette, strict=True)), class_="legend")


def chip(colour: Sequence[int]) -> Html:
    """A small square of a colour."""
    red, green, blue = (int(part) for part in colour)
    return tag("span", class_="chip", style=f"--colour: rgb({red} {green} {blue})")
