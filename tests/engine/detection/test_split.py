"""A detector over a whole split: the truth scores one, scores are the package's, shares add up."""

import contextlib
import io
from pathlib import Path

import pytest
import torch
from tests.data.coco import files
from tests.engine import objects
from torch import nn

from repgraph.data.coco import InstanceData, load
from repgraph.engine.detection import detect, evaluate
from repgraph.engine.detection import split as module
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.training.parts import Part
from repgraph.errors import UsageError

FIELDS = ("ap", "ap50", "ap75", "small", "medium", "large")
RECALL = ("ar1", "ar10", "ar100", "small", "medium", "large")


class Knowing(nn.Module):
    """Knows what is in the images, which have to come in order; finds some of it a little beside where it is."""

    classes = 3

    def __init__(self, data: InstanceData, moved: float = 0.0, first: int = 0, every: int = 1) -> None:
        super().__init__()
        self.order = iter([data[index][1] for index in range(first, len(data), every)])
        self.moved = moved

    def forward(self, images):
        target = next(self.order)
        assert len(images) == 1 and images[0].shape[-2:] == target["masks"].shape[-2:]
        single = target["iscrowd"] == 0
        found = {key: target[key][single].as_subclass(torch.Tensor) for key in ("boxes", "labels", "masks")}
        found["boxes"] = found["boxes"] + self.moved
        found["masks"] = found["masks"].roll(round(self.moved), -1)
        return [{**found, "scores": torch.linspace(1, 0.5, int(single.sum()))}]


@pytest.fixture
def data(tmp_path: Path) -> InstanceData:
    return load(objects.save_data(tmp_path / "coco"), "val")


def package() -> None:
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_truth_scores_one(data, workers):
    package()
    seen = []
    found = evaluate(Knowing(data), data, workers=workers, progress=lambda *done: seen.append(done))
    assert found.scores is not None and found.images == 3 and found.seconds > 0
    assert found.scores.box.ap == found.scores.mask.ap == pytest.approx(1.0)
    assert found.scores.mask.recall.ar100 == pytest.approx(1.0)
    assert seen == [(1, 3), (2, 3), (3, 3)] and len(found.results.results()) == 3


def test_scores_are_the_packages_on_the_files_that_are_written(data, tmp_path):
    package()
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    found = evaluate(Knowing(data, moved=1.0), data)
    assert found.scores is not None
    for kind, precision in (("bbox", found.scores.box), ("segm", found.scores.mask)):
        path = found.results.write(tmp_path / f"{kind}.json", kind)
        with contextlib.redirect_stdout(io.StringIO()):
            known = COCO(str(data.annotations.path))
            direct = COCOeval(known, known.loadRes(str(path)), kind)
            direct.evaluate()
            direct.accumulate()
            direct.summarize()
        ours = [getattr(precision, name) for name in FIELDS] + [getattr(precision.recall, name) for name in RECALL]
        wanted = [value if value > -1 else float("nan") for value in direct.stats.tolist()]
        assert ours == pytest.approx(wanted, abs=0, nan_ok=True) and 0.1 < precision.ap < 0.9


def test_without_the_package_there_are_results(data, monkeypatch):
    from repgraph.engine.detection import evaluation

    monkeypatch.setattr(evaluation, "available", lambda: False)
    found = evaluate(Knowing(data), data)
    assert found.scores is None and len(found.results.results("segm")) == 3


def test_shares_of_the_images_add_up(data):
    parts = [evaluate(Knowing(data, first=rank, every=2), data, rank=rank, world=2) for rank in range(2)]
    assert [part.results.seen for part in parts] == [[1, 3], [2]]
    assert sum(len(part.results.results()) for part in parts) == 3
    assert evaluate(Knowing(data), data, limit=1).results.seen == [1]


def test_a_part_of_a_set_has_its_own_images(data, monkeypatch):
    part = Part(data, [2, 0])
    seen = []
    monkeypatch.setattr(module, "detect", lambda model, image, **more: seen.append(image) or objects.truth(data, 1))
    found = evaluate(Knowing(data), part)
    assert found.results.seen == [3, 1] and [torch.equal(s, data[k][0]) for s, k in zip(seen, (2, 0), strict=True)]


def test_what_cannot_be_scored(data, tmp_path):
    model = objects.network(classes=2, labels=None)
    with pytest.raises(UsageError, match="the network has 2 classes, the data set 3; give the data set it was trained"):
        evaluate(model, data)
    given = files.content()
    del given["annotations"]
    bare = load(files.write(tmp_path / "test", given, "test"), "test")
    with pytest.raises(UsageError, match=r"no annotations to compare with; repgraph predict --split writes results"):
        evaluate(Knowing(data), bare)


def test_numbers_that_are_not_finite_name_the_image(data, monkeypatch):
    def broken(model, image, **more):
        raise NotFinite("the backbone gives numbers that are not finite")

    monkeypatch.setattr(module, "detect", broken)
    with pytest.raises(NotFinite, match=r"val2017.1.png: the backbone gives"):
        evaluate(Knowing(data), data)


def test_one_class(tmp_path):
    package()
    given = files.content(files.annotation(1), categories=[{"id": 7, "name": "dog"}])
    data = load(files.write(tmp_path, given))
    model = objects.network(classes=1, labels=None)
    found = evaluate(model, data)
    assert found.scores is not None and 0 <= found.scores.box.ap <= 1
    assert {result["category_id"] for result in found.results.results()} == {7}
    assert len(detect(model, data.read(data.items[0]))) > 0
