"""Predicted labels and pictures as PNG files."""

import io
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from repgraph import files
from repgraph.data.labels import Labels


def label_image(classes: Tensor, labels: Labels, *, plain: bool = False) -> Image.Image:
    """Classes (H, W) in the data set's ids: 8 bits with the classes' colours as palette, or 16 bits for larger ids.

    The pixels' values are the ids either way; with ``plain`` there is no palette, as evaluation servers want it.
    """
    values = labels.to_file(classes.numpy())
    image = Image.fromarray(values)
    if values.dtype == np.uint8 and not plain:
        palette = np.zeros((256, 3), dtype=np.uint8)
        for value, colour in zip(labels.ids, labels.palette, strict=True):
            if 0 <= value < 256:
                palette[value] = colour
        image.putpalette(palette.tobytes())  # the mode becomes P
    return image


def write_png(path: Path, image: Image.Image) -> Path:
    """Write a picture as a whole or not at all."""
    content = io.BytesIO()
    image.save(content, "PNG")
    return files.write(path, content.getvalue())
