"""The page put together: its parts from the files beside this one, and the pictures as data in it.

Everything is in the one file. Its policy lets nothing be fetched and no script run but its own; names go into the page
as data, and from there as text.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from repgraph.pictures.explorer.packing import encode, pack_layers, pack_runs
from repgraph.pictures.explorer.underlay import Underlay
from repgraph.pictures.page import data_uri
from repgraph.pictures.sight import Sight

SCRIPTS = ("data.js", "view.js", "draw.js", "panel.js", "main.js")  # one after the other
SIDE = 2048  # photographs and labels are shrunk to it; places stay those of the image
COLOURS = "viridis"  # for maps: brightness grows with the value, and the colour-blind can read it


@dataclass(frozen=True)
class Picture:
    """One image of the page: uint8 (H, W, 3), what the layers see in it, and what can be laid under the nodes."""

    name: str
    image: np.ndarray
    sight: Sight
    underlays: tuple[Underlay, ...] = ()


def page(pictures: Sequence[Picture], *, title: str = "", about: str = "") -> str:
    """The page as text. ``title`` is what the network is called, ``about`` one more line on it.

    >>> from repgraph.pictures.sight import LayerSight
    >>> nodes, weights = np.zeros((1, 2, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
    >>> layer = LayerSight("head.context", "head", "nodes", nodes, weights, (2, 2), (8.0, 8.0))
    >>> made = page([Picture("a <script>", np.zeros((16, 16, 3), np.uint8), Sight((16, 16), (layer,)))])
    >>> made.startswith("<!doctype html>"), "a <script>" in made
    (True, False)
    """
    data = {
        "title": title,
        "about": about,
        "colours": encode(_colours()),
        "images": [_image(picture) for picture in pictures],
    }
    style, script = _file("style.css"), "".join(_file(name) for name in SCRIPTS)
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    parts = {
        "{{policy}}": html.escape(policy),
        "{{title}}": html.escape(f"{title} · explorer" if title else "RepGraph explorer"),
        "{{style}}": style,
        "{{script}}": script,
        "{{data}}": _inside_script(data),
    }
    made = _file("page.html")
    for mark in ("{{policy}}", "{{title}}", "{{style}}", "{{script}}", "{{data}}"):  # the data last: it may hold marks
        before, found, after = made.partition(mark)
        assert found, mark
        made = before + parts[mark] + after
    return made


def _image(picture: Picture) -> dict[str, Any]:
    height, width = picture.image.shape[:2]
    ratio = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    photo = picture.image
    if ratio < 1:
        photo = np.asarray(Image.fromarray(np.ascontiguousarray(photo)).resize(size, Image.Resampling.BOX))
    return {
        "name": picture.name,
        "width": width,
        "height": height,
        "photo": data_uri(photo, photo=True),
        "underlays": [_underlay(underlay, size) for underlay in picture.underlays],
        "layers": pack_layers(picture.sight.layers, (height, width)),
    }


def _underlay(underlay: Underlay, size: tuple[int, int]) -> dict[str, Any]:
    values = underlay.values
    if values.shape != size[::-1]:
        values = np.asarray(Image.fromarray(values).resize(size, Image.Resampling.NEAREST))
    shares = np.bincount(underlay.values.reshape(-1), minlength=256) / max(underlay.values.size, 1)
    return {
        "title": underlay.title,
        "width": size[0],
        "height": size[1],
        "runs": pack_runs(values),
        "entries": [
            {"name": entry.name, "colour": list(entry.colour), "share": round(float(shares[i]), 5)}
            for i, entry in enumerate(underlay.entries)
        ],
        "boxes": [{"corners": [round(c, 2) for c in box.corners], "entry": box.entry} for box in underlay.boxes],
    }


def _colours() -> np.ndarray:
    """256 colours (256, 3) of matplotlib's map."""
    from matplotlib import colormaps

    return np.rint(255 * colormaps[COLOURS](np.arange(256))[:, :3]).astype(np.uint8)


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inside_script(data: Any) -> str:
    """JSON that no parser of HTML sees a tag in; the letters come back when it is read."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
