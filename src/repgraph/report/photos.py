"""The demo's first page: photos with the nodes of the network in ``weights/``, and links to the other pages."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from repgraph import files
from repgraph.constants import PHOTOS, SHIPPED
from repgraph.data.files import read_image
from repgraph.drawing.page import Picture, data_uri, render
from repgraph.errors import UsageError
from repgraph.inference.network import load
from repgraph.report.page import STYLE
from repgraph.visualize import figures, nodes_figure
from repgraph.visualize.collect import find_layer
from repgraph.visualize.explorer import ExplorerImage, explore

TITLE = "RepGraph demo"


def segment_photos(folder: Path) -> list[Picture]:
    """Return a figure of each photo in ``examples/photos``, with the nodes of a few positions.

    Also writes ``photos.html``, the explorer page of the photos. The result is empty outside of a clone of the
    repository, which has the photos and the network, and if one of them cannot be read.
    """
    try:
        return _segment_photos(folder)
    except UsageError as error:
        print(f"the first page has no photos: {error}", file=sys.stderr)
        return []


def _segment_photos(folder: Path) -> list[Picture]:
    weights, photos = files.in_clone(SHIPPED), files.in_clone(PHOTOS)
    paths = sorted(photos.glob("*.jpg")) if photos else []
    if weights is None or not paths:
        return []
    network = load(weights)
    labels, layer = network.labels_or_numbers(), find_layer(network.model)
    images = {path.stem: read_image(path, upright=True) for path in paths}
    page = explore(
        network.model,
        (ExplorerImage(name, image) for name, image in images.items()),
        labels,
        title="RepGraph demo: photos",
        about="RGNet with a feature pyramid, trained on PASCAL VOC",
    )
    files.write(folder / "photos.html", page)
    return [_nodes(network.model, name, image, layer, labels) for name, image in images.items()]


def _nodes(model: Any, name: str, image: Any, layer: str, labels: Any) -> Picture:
    rows = nodes_figure.figure_rows(model, name, image, layer, labels, count=3)
    with figures.figure_style():
        figure = nodes_figure.draw_nodes(rows[-1:], width=10)  # of the last round
        figure.savefig(buffer := io.BytesIO(), format="png", dpi=120)
    with Image.open(buffer) as picture:
        caption = "The prediction, and the nodes (red) of three positions (blue) in the last round of attention."
        return Picture(data_uri(picture.convert("RGB"), photo=True), *picture.size, caption, f"{name}: {caption}")


def render_first_page(pictures: Sequence[Picture], **values: Any) -> str:
    """Return the page as HTML; ``values`` are other variables of its template, about the networks on drawn scenes."""
    values |= dict(pictures=pictures, style_attributes=True)
    return render("first_page.html", __package__, title=TITLE, style=STYLE, **values)
