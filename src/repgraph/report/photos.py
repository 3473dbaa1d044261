"""The photos on the demo's page, with the nodes of the network in ``weights/``."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from repgraph import files
from repgraph.constants import PHOTOS, SHIPPED
from repgraph.data.files import read_image
from repgraph.drawing.page import Picture, data_uri
from repgraph.errors import UsageError
from repgraph.inference.network import load
from repgraph.visualize.collect import find_layer
from repgraph.visualize.explorer import ExplorerImage, explore
from repgraph.visualize.figures import figure_style
from repgraph.visualize.nodes_figure import Cell, draw_nodes, figure_rows

CAPTION = "The prediction, and the nodes (red) of three positions (blue) in the last round of attention."


def segment_photos(folder: Path) -> list[Picture]:
    """Return a figure of each photo in ``examples/photos``, with the nodes of a few positions.

    Also writes ``photos.html``, the explorer page of the photos. The result is empty outside of a clone of the
    repository, which has the photos and the network, and if one of them cannot be read.
    """
    weights, photos = files.in_clone(SHIPPED), files.in_clone(PHOTOS)
    paths = sorted(photos.glob("*.jpg")) if photos else []
    if weights is None or not paths:
        return []
    try:
        network = load(weights)
        images = {path.stem: read_image(path, upright=True) for path in paths}
    except UsageError as error:
        print(f"the first page has no photos: {error}", file=sys.stderr)
        return []
    model, labels = network.model, network.labels_or_numbers()
    shown = [ExplorerImage(name, image) for name, image in images.items()]
    page = explore(model, shown, labels, title="RepGraph demo: photos", about="RGNet, trained on PASCAL VOC")
    files.write(folder / "photos.html", page)
    layer = find_layer(model)
    rows = [figure_rows(model, name, image, layer, labels, count=3)[-1] for name, image in images.items()]
    return [nodes_picture([row], CAPTION) for row in rows]


def nodes_picture(rows: Sequence[Sequence[Cell]], caption: str) -> Picture:
    """Draw the nodes of positions for a page."""
    with figure_style():
        draw_nodes(rows, width=10).savefig(buffer := io.BytesIO(), format="png", dpi=120)
    with Image.open(buffer) as picture:
        return Picture(data_uri(picture.convert("RGB"), photo=True), *picture.size, caption, caption)
