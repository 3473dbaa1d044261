"""A small Mask R-CNN, and small data sets with objects in COCO's format, for the tests of commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from repgraph.data.coco import InstanceData
from repgraph.data.labels import Labels
from repgraph.inference import Detections, Trained
from repgraph.inference import network as networks
from repgraph.models import MaskRCNN

LABELS = Labels(("cat", "dog", "kite"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)), ids=(3, 7, 90))
CATEGORIES = [dict(id=number, name=name) for number, name in zip(LABELS.ids, LABELS.names, strict=True)]
NAMES = ("1.png", "2.png", "3.png")
SIZE = (20, 30)  # (H, W) of images
SQUARE = [[2.0, 3.0, 8.0, 3.0, 8.0, 9.0, 2.0, 9.0]]  # columns 2 to 7, rows 3 to 8


def network(classes: int = 3, labels: Labels | None = LABELS, **options) -> MaskRCNN:
    """Return a network with random weights that detects something everywhere."""
    torch.manual_seed(0)
    given = {"min_size": 32, "max_size": 64, "score_threshold": 0.0, "detections": 4, **options}
    known = None if labels is None else labels.to_dict()
    model = MaskRCNN(classes, "resnet18", context="repgraph", labels=known, **given).eval()
    rpn = model.detector.rpn
    rpn._pre_nms_top_n = rpn._post_nms_top_n = {"training": 50, "testing": 20}
    return model


def use(monkeypatch: pytest.MonkeyPatch, model: MaskRCNN, recipe: Any = None) -> None:
    """Make commands use this network for any path, because loading one from disk takes a second."""
    labels = None if model.labels is None else Labels.from_dict(model.labels)
    monkeypatch.setattr(networks, "load", lambda path, device="cpu": Trained(model, labels, recipe))


def annotation(number: int, image: int = 1, category: int = 7, **changes: Any) -> dict[str, Any]:
    """Return the annotation of a square."""
    entry = dict(id=number, image_id=image, category_id=category, iscrowd=0, area=36.0, bbox=[2, 3, 6, 6])
    return {**entry, "segmentation": SQUARE, **changes}


def crowd(number: int, image: int = 1) -> dict[str, Any]:
    """Return the annotation of a crowd in the first two columns."""
    runs = {"size": list(SIZE), "counts": [0, 2 * SIZE[0], (SIZE[1] - 2) * SIZE[0]]}
    return annotation(number, image, 3, iscrowd=1, segmentation=runs, bbox=[0, 0, 2, 20], area=40.0)


def write(
    root: Path, *annotations: Any, split: str = "val", images: Sequence[str] = ("1.png", "2.png"), **changes: Any
) -> Path:
    """Write a data set in COCO's layout; ``changes`` of the annotation file's content, None removes an entry."""
    listed = [dict(id=k, file_name=name, height=SIZE[0], width=SIZE[1]) for k, name in enumerate(images, 1)]
    content = {"images": listed, "annotations": list(annotations), "categories": CATEGORIES, **changes}
    for image in content["images"]:
        path = root / f"{split}2017" / image["file_name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(image["id"]).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    path = root / "annotations" / f"instances_{split}2017.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return root


def save_data(root: Path, split: str = "val") -> Path:
    """Write three images with squares, a crowd, and an image without objects."""
    large = annotation(2, category=90, segmentation=[[12, 4, 25, 4, 25, 16, 12, 16]], bbox=[12, 4, 13, 12], area=156.0)
    return write(root, annotation(1), large, crowd(3), annotation(4, image=2, category=3), split=split, images=NAMES)


def truth(data: InstanceData, index: int, score: float = 1.0) -> Detections:
    """Return the detections of a perfect detector: all objects except crowds."""
    _, target = data[index]
    single = target["iscrowd"] == 0
    found = {key: target[key][single] for key in ("boxes", "labels", "masks")}
    return Detections.from_output({**found, "scores": torch.full((int(single.sum()),), score)}, data.sizes[index])
