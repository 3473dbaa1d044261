"""HTML pages in one file: Jinja2 templates that extend ``base.html``, images as data URIs, and a content policy."""

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from repgraph.drawing.overlay import as_picture, colour

MAX_SIDE = 640  # of pictures: sharp at half the width of the page, or at a quarter on a high-density screen


def read_asset(package: str, name: str) -> str:
    """Return a text file of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def render(
    template: str, package: str = __package__, *, title: str, style: str, script: str = "", **values: Any
) -> str:
    """Render a template of a package.

    Values are escaped, unless they are ``markupsafe.Markup``, and never parsed as templates; ``style`` (CSS, added to
    ``base.css``) and ``script`` (JavaScript) are trusted. The page's content policy allows no requests, and no other
    styles and scripts except for ``style`` attributes.
    """
    style = read_asset(__package__, "base.css") + style
    styles = f"style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'"
    scripts = _hash(script) if script else "'none'"
    policy = f"default-src 'none'; img-src data:; {styles}; script-src {scripts}"
    trusted = {"style": Markup(style), "script": Markup(script)}
    return _environment(package).get_template(template).render(title=title, policy=policy, **trusted, **values)


def data_uri(picture: Image.Image, *, photo: bool = False) -> str:
    """Return a picture as a data URI: an exact PNG, or a JPEG for a photo."""
    kind, options = ("jpeg", {"quality": 88}) if photo else ("png", {"optimize": True})
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


@dataclass(frozen=True)
class Picture:
    """A picture with its caption; a label map is shown with sharp pixels."""

    src: str
    width: int
    height: int
    caption: str
    alt: str
    is_label_map: bool = False


def photo(image: Any, caption: str, side: int = MAX_SIDE) -> Picture:
    """Return an image, uint8 (H, W, 3) or (3, H, W), as a JPEG with sides of at most ``side`` pixels."""
    picture = as_picture(image)
    picture.thumbnail((side, side), Image.Resampling.BOX)
    return Picture(data_uri(picture, photo=True), *picture.size, caption, caption)


def label_map(classes: Any, palette: Sequence[Sequence[int]], caption: str, alt: str = "") -> Picture:
    """Return classes (H, W) in their colors, as a PNG with sides of at most ``MAX_SIDE`` pixels."""
    picture = Image.fromarray(colour(classes, palette))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
    return Picture(data_uri(picture), *picture.size, caption, alt or caption, is_label_map=True)


@cache
def _environment(package: str) -> Environment:
    loaders = [PackageLoader(name, ".") for name in (package, __package__)]
    environment = Environment(loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
