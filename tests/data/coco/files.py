"""Small data sets in COCO's format that tests write."""

import json
from pathlib import Path
from typing import Any

from tests.data.layouts import picture

SIZE = (20, 30)  # (H, W)
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}, {"id": 90, "name": "kite"}]
SQUARE = [[2.0, 3.0, 8.0, 3.0, 8.0, 9.0, 2.0, 9.0]]  # columns 2 to 7, rows 3 to 8


def annotation(number: int, image: int = 1, category: int = 7, **more: Any) -> dict[str, Any]:
    """Return a valid annotation of a square; keys that are None are left out."""
    entry = dict(id=number, image_id=image, category_id=category, iscrowd=0, area=36.0, bbox=[2, 3, 6, 6])
    return {key: value for key, value in {**entry, "segmentation": SQUARE, **more}.items() if value is not None}


def crowd(number: int, image: int = 1) -> dict[str, Any]:
    """Return a crowd in the first two columns, as uncompressed RLE."""
    runs = {"size": list(SIZE), "counts": [0, 2 * SIZE[0], (SIZE[1] - 2) * SIZE[0]]}
    return annotation(number, image, 3, iscrowd=1, segmentation=runs, bbox=[0, 0, 2, 20], area=40.0)


def content(*annotations: dict[str, Any], images: int = 2, **more: Any) -> dict[str, Any]:
    listed = [dict(id=k, file_name=f"{k}.png", height=SIZE[0], width=SIZE[1]) for k in range(1, images + 1)]
    return {"images": listed, "annotations": list(annotations), "categories": CATEGORIES, **more}


def write(root: Path, given: Any, split: str = "train", images: int = 2) -> Path:
    """Write a data set in the layout of COCO; ``given`` is the content of the annotation file."""
    for k in range(1, images + 1):
        picture(root / f"{split}2017" / f"{k}.png", SIZE, seed=k)
    path = root / "annotations" / f"instances_{split}2017.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return root
