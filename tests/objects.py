"""A small Mask R-CNN, and small data sets with objects in COCO's format, for the tests of commands."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.coco.files import CATEGORIES, SIZE, annotation, crowd
from tests.data.layouts import picture

from repgraph.data.coco import InstanceData
from repgraph.data.labels import Labels
from repgraph.inference import Detections, Trained
from repgraph.inference import network as networks
from repgraph.models import MaskRCNN

LABELS = Labels(("cat", "dog", "kite"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)), ids=(3, 7, 90))
NAMES = ("1.png", "2.png", "3.png")


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


def write(
    root: Path, *annotations: Any, split: str = "val", images: Sequence[str] = ("1.png", "2.png"), **changes: Any
) -> Path:
    """Write a data set in COCO's layout; ``changes`` of the annotation file's content, None removes an entry."""
    listed = [dict(id=k, file_name=name, height=SIZE[0], width=SIZE[1]) for k, name in enumerate(images, 1)]
    content = {"images": listed, "annotations": list(annotations), "categories": CATEGORIES, **changes}
    for image in content["images"]:
        picture(root / f"{split}2017" / image["file_name"], SIZE, seed=image["id"])
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
