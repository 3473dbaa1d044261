"""A small Mask R-CNN, and small sets of objects, for the tests of commands."""

from pathlib import Path

import pytest
import torch
from tests.data.coco import files

from repgraph.data.coco import InstanceData
from repgraph.data.labels import Labels
from repgraph.engine import trained
from repgraph.engine.detection import Found
from repgraph.models import MaskRCNN

LABELS = Labels(("cat", "dog", "kite"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)), ids=(3, 7, 90))


def network(classes: int = 3, labels: Labels | None = LABELS, **more) -> MaskRCNN:
    """One that finds something everywhere: random weights, and no least score."""
    torch.manual_seed(0)
    known = None if labels is None else labels.to_dict()
    given = {"min_size": 32, "max_size": 64, "score_threshold": 0.0, "detections": 4, **more}
    return MaskRCNN(classes, "resnet18", context="repgraph", labels=known, **given).eval()


def use(monkeypatch: pytest.MonkeyPatch, model: MaskRCNN) -> None:
    """Let commands have this network, whatever path they are given: reading one from disk takes a second."""
    labels = None if model.labels is None else Labels.from_dict(model.labels)
    monkeypatch.setattr(trained, "load", lambda path, device="cpu": trained.Trained(model, labels, None))


def save_data(root: Path, split: str = "val", images: int = 3) -> Path:
    """Images of 20 x 30 pixels with squares, a crowd, and an image without objects."""
    squares = [files.annotation(1), files.annotation(2, category=90, segmentation=[[12, 4, 25, 4, 25, 16, 12, 16]])]
    squares[1].update(bbox=[12, 4, 13, 12], area=156.0)
    given = files.content(*squares, files.crowd(3), files.annotation(4, image=2, category=3), images=images)
    return files.write(root, given, split, images)


def truth(data: InstanceData, index: int, score: float = 1.0) -> Found:
    """What a perfect detector finds: all objects, but no crowds."""
    _, target = data[index]
    single = target["iscrowd"] == 0
    found = {key: target[key][single] for key in ("boxes", "labels", "masks")}
    return Found.of({**found, "scores": torch.full((int(single.sum()),), score)}, data.sizes[index])
