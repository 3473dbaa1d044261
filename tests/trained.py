"""A small network on disk, and small data sets, for the tests of commands."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from repgraph.data.labels import Labels
from repgraph.models import RGNet
from repgraph.recipes import get, to_json, with_settings

NAMES = ("field", "[bold]wood[/bold]", "water")
LABELS = Labels(NAMES, ((200, 180, 40), (20, 120, 30), (30, 60, 200)), ids=(2, 5, 9), ignored=(0,))


def save_network(folder: Path, labels: Labels | None = LABELS, classes: int = 3, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    known = None if labels is None else labels.to_dict()
    model = RGNet(classes, "resnet10t", channels=16, output_stride=32, auxiliary=False, labels=known)
    model.save_pretrained(folder)
    return folder


def save_run(folder: Path, *settings: str) -> Path:
    """A run's folder: the network, and beside it the recipe with these settings."""
    save_network(folder / "model")
    (folder / "recipe.json").write_text(to_json(with_settings(get("folder-r50-rgnet"), settings)))
    return folder


def picture(height: int = 40, width: int = 56, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_picture(path: Path, height: int = 40, width: int = 56, seed: int = 0) -> Path:
    return save_image(path, picture(height, width, seed))


def save_image(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def save_data(root: Path, count: int = 5, split: str = "val") -> Path:
    """A folder of images and masks in the ids 2, 5, 9 and 0, of different sizes."""
    columns = zip(LABELS.names, LABELS.ids, LABELS.palette, strict=True)
    classes = [dict(name=name, id=number, colour=colour) for name, number, colour in columns]
    for i in range(count):
        height, width = 24 + 3 * i, 40 - 2 * i
        save_picture(root / "images" / split / f"{i}.png", height, width, seed=i)
        mask = np.random.default_rng(100 + i).choice(np.array([0, 2, 5, 9], np.uint8), (height, width))
        save_image(root / "masks" / split / f"{i}.png", mask)
    (root / "classes.json").write_text(json.dumps({"classes": classes, "ignored": [0]}))
    return root
