"""Scores of detections: constructed cases, and comparison with pycocotools on the written files."""

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import objects
from tests.shared_data import shared
from torch import Tensor, nn

from repgraph.data.coco import InstanceData, load
from repgraph.errors import UsageError
from repgraph.evaluation import CocoEvaluation, evaluate_detection

PRECISION = ("ap", "ap50", "ap75", "small", "medium", "large")


class Oracle(nn.Module):
    """A detector that returns the true objects, slightly shifted; images have to be passed in order."""

    classes = 3

    def __init__(self, data: InstanceData, shift: float = 0.0, indices=None) -> None:
        super().__init__()
        self.targets = iter([data[index][1] for index in indices or range(len(data))])
        self.shift = shift

    def forward(self, images):
        target = next(self.targets)
        assert len(images) == 1 and images[0].shape[-2:] == target["masks"].shape[-2:]
        single = target["iscrowd"] == 0
        found = {key: target[key][single].as_subclass(Tensor) for key in ("boxes", "labels", "masks")}
        found["boxes"] = found["boxes"] + self.shift
        found["masks"] = found["masks"].roll(round(self.shift), -1)
        return [{**found, "scores": torch.linspace(1, 0.5, int(single.sum()))}]


def mediocre(data: InstanceData, index: int) -> dict[str, Tensor]:
    """Detections that are shifted, with wrong labels, and some duplicates."""
    _, target = data[index]
    single = target["iscrowd"] == 0
    boxes, masks, labels = (target[key][single].as_subclass(Tensor) for key in ("boxes", "masks", "labels"))
    generator, count = torch.Generator().manual_seed(index), len(labels)
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    boxes = boxes + torch.randn(count, 4, generator=generator) * sides / 20
    labels = labels.clone()
    labels[::4] = labels[::4] % len(data.labels) + 1
    scores = torch.rand(count, generator=generator)
    found = {"boxes": boxes, "labels": labels, "masks": masks.roll(1, -1).float()[:, None] * 0.9, "scores": scores}
    return {key: torch.cat((value, value[: count // 3])) for key, value in found.items()}


def evaluated(data: InstanceData, find=objects.truth) -> CocoEvaluation:
    evaluation = CocoEvaluation(data)
    for index in range(len(data)):
        evaluation.update([data.items[index].id], [find(data, index)])
    return evaluation


def numbers(precision) -> list[float]:
    return [getattr(precision, name) for name in PRECISION]


def by_pycocotools(annotations: Path, results: Path, kind: str) -> list[float]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        evaluation = COCOeval(truth, truth.loadRes(str(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [value if value > -1 else math.nan for value in evaluation.stats.tolist()[:6]]


def real(root: str, every: int, path: Path) -> InstanceData:
    """Some images of a real data set, with their own annotation file."""
    data = load(shared(f"data/{root}"), "val")
    content = json.loads(data.path.read_text())
    content["images"] = content["images"][::every]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in kept]
    path.write_text(json.dumps(content))
    return load(data.root, "val", annotations=str(path), images=str(data.items[0].image.parent))


@pytest.fixture
def data(tmp_path: Path) -> InstanceData:
    return load(objects.save_data(tmp_path / "coco"), "val")


def test_the_truth_scores_one(data):
    seen = []
    found = evaluate_detection(Oracle(data), data, progress=lambda *now: seen.append(now))
    assert found.scores.images == 3 and seen == [(1, 3), (2, 3), (3, 3)]
    assert found.scores.box.ap == found.scores.mask.ap == pytest.approx(1.0)
    assert len(found.results.results()) == 3


@pytest.mark.parametrize(("root", "every"), [(None, 1), ("coco", 3), ("VOC2012", 20)])
def test_scores_are_those_of_pycocotools(root, every, data, tmp_path, capsys):
    if root is not None:
        data = real(root, every, tmp_path / "part.json")
    evaluation = evaluated(data, mediocre)
    scores = evaluation.scores()
    assert capsys.readouterr() == ("", "")
    for kind, precision in (("bbox", scores.box), ("segm", scores.mask)):
        path = evaluation.write(tmp_path / f"{kind}.json", kind)
        expected = by_pycocotools(data.path, path, kind)
        assert numbers(precision) == pytest.approx(expected, abs=0, nan_ok=True)
        assert np.nanmean(precision.classes) == pytest.approx(precision.ap)
        assert 0.02 < precision.ap < 0.98 or root is None


def test_an_object_with_the_id_0_counts(tmp_path):
    """In pycocotools, 0 means "no object"."""
    data = load(objects.write(tmp_path, objects.annotation(1), objects.annotation(0, image=2)), "val")
    assert evaluated(data).scores().box.ap == pytest.approx(1.0)


def test_no_detections(data):
    evaluation = CocoEvaluation(data)
    empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    evaluation.update([1, 2], [empty, {**empty, "masks": torch.zeros(0, 1, 20, 30)}])
    scores = evaluation.scores()
    assert (scores.box.ap, scores.mask.ap, scores.images) == (0, 0, 2) and evaluation.results() == []
    only_crowds = load(objects.write(data.root / "crowds", objects.crowd(1), objects.annotation(2)), "val")
    scores = evaluated(only_crowds).scores()
    assert scores.to_dict()["box"]["classes"] == [None, pytest.approx(1), None]
    json.dumps(scores.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("image", "changes", "message"),
    [
        (9, {}, "image 9 is not in coco val: 3 images"),
        (1, dict(labels=torch.tensor([4])), r"image 1: labels are \[4\]; expected 1 to 3"),
        (1, dict(masks=torch.ones(1, 1, 30, 20)), r"masks have shape .*30, 20\), but the image has size"),
        (1, dict(scores=torch.tensor([math.nan])), "a box or a score is not finite"),
    ],
)
def test_wrong_detections(data, image, changes, message):
    found = dict(boxes=torch.tensor([[1.0, 1, 5, 5]]), scores=torch.ones(1), labels=torch.ones(1, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        CocoEvaluation(data).update([image], [{**found, **changes}])


def test_data_that_cannot_be_scored(data, tmp_path):
    with pytest.raises(UsageError, match="the network has 2 classes, but the data set has 3"):
        evaluate_detection(objects.network(classes=2, labels=None), data)
    bare = load(objects.write(tmp_path / "test", split="test", annotations=None), "test")
    with pytest.raises(UsageError, match=r"has no annotations to compare with; repgraph predict"):
        evaluate_detection(Oracle(data), bare)
    with pytest.raises(UsageError, match="has no annotations to compare with"):
        CocoEvaluation(bare)
