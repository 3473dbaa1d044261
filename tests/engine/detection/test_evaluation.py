"""Results and scores of detections: against the package called directly, over processes against one, and without it."""

import contextlib
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.coco.files import annotation, content, crowd, write
from tests.engine.detection.test_split import Knowing
from tests.shared_data import shared
from torch import Tensor

from repgraph.data.coco import InstanceData, load, rle
from repgraph.engine.detection import CocoEvaluation, Precision, evaluate
from repgraph.engine.detection import evaluation as module
from repgraph.errors import UsageError

FIELDS = ("ap", "ap50", "ap75", "small", "medium", "large")


def truth_as_detections(data: InstanceData, index: int, score: float = 1.0) -> tuple[int, dict[str, Tensor]]:
    """What a perfect detector finds: all objects, but no crowds."""
    _, target = data[index]
    single = target["iscrowd"] == 0
    found = {key: target[key][single] for key in ("boxes", "labels", "masks")}
    return target["image_id"], {**found, "scores": torch.full((int(single.sum()),), score)}


def rough(data: InstanceData, index: int) -> tuple[int, dict[str, Tensor]]:
    """What a middling detector finds: moved, with wrong labels, and some objects that are not there."""
    image, found = truth_as_detections(data, index)
    generator = torch.Generator().manual_seed(index)
    count = len(found["labels"])
    boxes = found["boxes"].as_subclass(Tensor)
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    boxes = boxes + torch.randn(count, 4, generator=generator) * sides / 20
    masks = found["masks"].as_subclass(Tensor).roll(1, -1).float()[:, None] * 0.9
    labels = found["labels"].clone()
    labels[::4] = labels[::4] % len(data.labels) + 1
    twice = {"boxes": boxes, "labels": labels, "masks": masks, "scores": torch.rand(count, generator=generator)}
    return image, {key: torch.cat((value, value[: count // 3])) for key, value in twice.items()}


def evaluated(data: InstanceData, find=rough, indices=None) -> CocoEvaluation:
    evaluation = CocoEvaluation(data)
    for index in range(len(data)) if indices is None else indices:
        image, found = find(data, index)
        evaluation.update([image], [found])
    return evaluation


def direct(annotations: Path, results: Path, kind: str) -> list[float]:
    """The package alone, on two files."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(str(annotations))
        evaluation = COCOeval(known, known.loadRes(str(results)), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [value if value > -1 else math.nan for value in evaluation.stats[:6].tolist()]


def numbers(precision: Precision | None) -> list[float]:
    assert precision is not None
    return [getattr(precision, name) for name in FIELDS]


@pytest.fixture
def small(tmp_path: Path) -> InstanceData:
    given = content(annotation(1), annotation(2, category=90), crowd(3), annotation(0, image=2))
    return load(write(tmp_path, given))


def package() -> None:
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")


def test_the_truth_scores_one(tmp_path):
    """Real objects, with crowds and images without objects among them."""
    package()
    data = part(load(shared("data/coco"), "val"), 2, tmp_path / "part.json")
    scores = evaluated(data, truth_as_detections).scores()
    assert scores.images == 33 and any(each.crowd for item in data.items for each in item.picture.objects)
    for precision in (scores.box, scores.mask):
        assert numbers(precision) == pytest.approx([1.0] * 6, abs=1e-9)
        found = [value for value in precision.classes if not math.isnan(value)]
        assert len(precision.classes) == 80 and found == pytest.approx([1.0] * len(found)) and len(found) > 30


def part(data: InstanceData, every: int, path: Path) -> InstanceData:
    """Some of the images, with an annotation file of their own."""
    whole = json.loads(data.annotations.path.read_text())
    whole["images"] = whole["images"][::every]
    kept = {image["id"] for image in whole["images"]}
    whole["annotations"] = [entry for entry in whole["annotations"] if entry["image_id"] in kept]
    path.write_text(json.dumps(whole))
    return load(data.root, "val", annotations=str(path), images=str(data.items[0].image.parent))


@pytest.mark.parametrize(("root", "every"), [("coco", 3), ("VOC2012", 20)])
def test_scores_are_the_packages(root, every, tmp_path):
    """Its own reading of the annotation file, and of the results file that is written."""
    package()
    data = part(load(shared(f"data/{root}"), "val"), every, tmp_path / "part.json")
    evaluation = evaluated(data)
    scores = evaluation.scores()
    for kind, precision in (("bbox", scores.box), ("segm", scores.mask)):
        path = evaluation.write(tmp_path / f"{kind}.json", kind)
        wanted = direct(data.annotations.path, path, kind)
        assert numbers(precision) == pytest.approx(wanted, abs=0, nan_ok=True)
        assert 0.02 < precision.ap < 0.98
        mean = np.nanmean(precision.classes)
        assert mean == pytest.approx(precision.ap)


def test_results_are_those_of_the_format(small, tmp_path):
    evaluation = evaluated(small, truth_as_detections)
    path = evaluation.write(tmp_path / "deep" / "results.json")
    results = json.loads(path.read_text())
    assert [set(result) for result in results] == [{"image_id", "category_id", "bbox", "score", "segmentation"}] * 3
    assert [(r["image_id"], r["category_id"]) for r in results] == [(1, 7), (1, 90), (2, 7)]
    assert results[0]["bbox"] == [2, 3, 6, 6] and results[0]["score"] == 1
    segmentation = results[0]["segmentation"]
    assert segmentation["size"] == [20, 30]
    mask = rle.decode(rle.unpack(segmentation["counts"]), 20, 30)
    assert np.array_equal(mask, small[0][1]["masks"][0].numpy())
    assert "segmentation" not in evaluation.results("bbox")[0] and "bbox" not in evaluation.results("segm")[0]
    with pytest.raises(UsageError, match="unknown kind of results 'mask'; choose one of both, bbox, segm"):
        evaluation.results("mask")
    assert evaluation.results() == results  # as before


def test_an_object_with_the_id_0_counts(small):
    """The package takes 0 for "no object": such an object would never be found."""
    package()
    assert evaluated(small, truth_as_detections).scores().box.ap == pytest.approx(1.0)


def test_nothing_found(small):
    package()
    evaluation = CocoEvaluation(small)
    empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    evaluation.update([1, 2], [empty, {**empty, "masks": torch.zeros(0, 1, 20, 30)}])
    scores = evaluation.scores()
    assert (scores.box.ap, scores.mask.ap, scores.images) == (0, 0, 2) and evaluation.results() == []
    assert math.isnan(scores.box.classes[0])  # crowds alone are nothing to find
    assert scores.to_dict(small.labels.names)["box"]["classes"] == {"cat": None, "dog": 0.0, "kite": 0.0}
    json.dumps(scores.to_dict(), allow_nan=False)


def test_only_images_that_were_seen_count(small):
    package()
    evaluation = evaluated(small, truth_as_detections, [1])
    assert evaluation.seen == [2]
    scores = evaluation.scores()
    assert scores.images == 1 and scores.box.ap == pytest.approx(1.0)
    evaluation.reset()
    assert evaluation.seen == [] and evaluation.results() == []


def test_boxes_without_masks(small):
    package()

    def boxes_alone(data: InstanceData, index: int) -> tuple[int, dict[str, Tensor]]:
        image, found = truth_as_detections(data, index)
        return image, {key: value for key, value in found.items() if key != "masks"}

    scores = evaluated(small, boxes_alone).scores()
    assert scores.mask is None and scores.box.ap == pytest.approx(1.0) and scores.to_dict()["mask"] is None


def test_an_image_counts_once(small):
    """A sampler that fills up the last batch deals some images twice."""
    evaluation = evaluated(small, truth_as_detections, [0, 1, 0])
    assert len(evaluation.results()) == 3


def one(**changes: Tensor) -> dict[str, Tensor]:
    found = {
        "boxes": torch.tensor([[1.0, 1, 5, 5]]),
        "scores": torch.ones(1),
        "labels": torch.ones(1, dtype=torch.int64),
    }
    return {**found, **changes}


@pytest.mark.parametrize(
    ("image", "found", "message"),
    [
        (9, one(), "image 9 is not in coco train: 2 images"),
        (1, one(labels=torch.tensor([4])), "image 1: label 4; there are 1 to 3"),
        (1, one(labels=torch.tensor([0])), "image 1: label 0; there are 1 to 3"),
        (1, one(scores=torch.ones(2)), "image 1: boxes, scores, labels and masks differ in number"),
        (1, one(masks=torch.ones(1, 1, 30, 20)), r"its masks have another size than the image: \(30, 20\) instead of"),
        (1, one(scores=torch.tensor([math.nan])), "image 1: a box or score is not finite"),
    ],
)
def test_detections_that_cannot_be(small, image, found, message):
    with pytest.raises(ValueError, match=message):
        CocoEvaluation(small).update([image], [found])


def test_a_split_without_annotations_has_results_only(tmp_path):
    given = content()
    del given["annotations"]
    data = load(write(tmp_path, given))
    evaluation = CocoEvaluation(data)
    evaluation.update([1], [one()])
    assert len(json.loads(evaluation.write(tmp_path / "r.json").read_text())) == 1
    with pytest.raises(UsageError, match=r"instances_train2017.json has no annotations to compare with; COCO's server"):
        evaluation.scores()


def test_without_the_package_results_are_written_all_the_same(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "available", lambda: False)
    evaluation = evaluated(small, truth_as_detections).reduce()
    told = "scores need pycocotools: pip install 'repgraph[detection]'"
    assert evaluation.missing() == told
    with pytest.raises(UsageError, match=re.escape(told)):
        evaluation.scores()
    path = evaluation.write(tmp_path / "results.json")
    assert path is not None and len(json.loads(path.read_text())) == 3


def test_nothing_is_printed(small, capsys):
    package()
    evaluated(small, truth_as_detections).scores()
    assert capsys.readouterr() == ("", "")


WORKER = """
import json, sys, torch.distributed as dist
from pathlib import Path
from tests.engine import objects
from tests.engine.detection.test_evaluation import rough
from tests.engine.detection.test_split import Knowing
from repgraph.data.coco import load
from repgraph.engine.detection import CocoEvaluation, evaluate
from repgraph.engine.detection.files import Collected, Numbered
rank, store, root, out = int(sys.argv[1]), *sys.argv[2:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
data = load(root)
evaluation = CocoEvaluation(data)
for index in ([4, 0, 1, 2], [3, 0])[rank]:  # one image is dealt twice
    image, found = rough(data, index)
    evaluation.update([image], [dict(found, scores=found["scores"] / (1 + rank))])
evaluation.reduce()
evaluation.reduce()
try:
    evaluation.update([], [])
except RuntimeError as error:
    assert "reset() starts new ones" in str(error)
else:
    raise AssertionError("detections of all processes were mixed with those of one")
assert (evaluation.write(out) is None) == (rank > 0)
found = evaluate(Knowing(data, 1.0, rank, 2), data, rank=rank, world=2, workers=1)
collected = Collected()
for index in range(rank, 5, 2):
    collected.add(Numbered(index + 1, f"{index}.png"), objects.truth(data, index), data.labels.ids)
collected.gather()
if rank == 0:
    Path(out).with_name("all.json").write_bytes(collected.annotations(data.labels))
whole = [found.scores.to_dict(), found.images, found.results.results()]
print(json.dumps([evaluation.scores().to_dict(), whole]))
dist.destroy_process_group()
"""


def test_processes_with_uneven_shards_equal_one(tmp_path):
    package()
    given = content(*[annotation(k, image=k % 5 + 1, category=(3, 7, 90)[k % 3]) for k in range(12)], images=5)
    data = load(write(tmp_path / "data", given, images=5))
    command = [sys.executable, "-c", WORKER]
    more = [str(tmp_path / "store"), str(data.root), str(tmp_path / "results.json")]
    root = Path(__file__).resolve().parents[3]
    runs = [
        subprocess.Popen(
            [*command, str(rank), *more], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    ends = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], "".join(err for _, err in ends)
    alone = CocoEvaluation(data)
    for index, rank in ((0, 0), (1, 0), (2, 0), (3, 1), (4, 0)):
        image, found = rough(data, index)
        alone.update([image], [{**found, "scores": found["scores"] / (1 + rank)}])
    wanted = json.loads(json.dumps(alone.scores().to_dict()))
    told = [json.loads(out) for out, _ in ends]
    assert [scores for scores, _ in told] == [wanted] * 2
    by_one = evaluate(Knowing(data, 1.0), data)
    assert by_one.scores is not None
    assert told[0][1] == json.loads(json.dumps([by_one.scores.to_dict(), 5, by_one.results.results()]))
    assert told[1][1][:2] == told[0][1][:2]  # what was found is in the first
    together = json.loads((tmp_path / "all.json").read_text())
    assert [image["file_name"] for image in together["images"]] == [f"{k}.png" for k in range(5)]
    assert [each["id"] for each in together["annotations"]] == list(range(1, 13))
    assert json.loads((tmp_path / "results.json").read_text()) == alone.results()
    assert 0 < wanted["box"]["ap"] < 1
