"""Goldens of training: seeded loss curves, and bit-exact resumption of killed or interrupted runs.

``python tests/goldens/regenerate.py`` rewrites the stored values. Curves are compared to 2e-3 in their first
iterations, where machines only differ in the last bits; these differences grow later.
"""

import json
import math
import shutil
import signal
from pathlib import Path

import pytest
from tests.goldens.conftest import DETECTION, SEGMENTATION
from tests.goldens.drawings import CATEGORIES
from tests.goldens.harness import assert_same_network, golden, metrics, repgraph, started, wait_until

OPTIONS = (
    *("optim.ohem=0.7", "optim.ohem_least=500", "optim.clip=1", "optim.head=3", "train.accumulate=2"),
    *("data.hold_out=4", "data.scales=0.75,1,1.5"),
)


def numbers(rows, name):
    return [float(row[name]) for row in rows if row[name]]


def assert_curves(name, rows, early, tolerance=2e-3):
    """Compare losses, rates and reaches with the stored ones."""
    columns = [column for column in rows[0] if "loss" in column or column.startswith(("rate", "reach"))]
    found = {column: numbers(rows, column) for column in columns}
    stored = golden("training.json", name, found)
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(stored["loss"]) + 1))
    assert stored.keys() <= found.keys()
    for column, values in stored.items():
        assert found[column][:early] == pytest.approx(values[:early], rel=tolerance, abs=1e-9), column
        assert found[column] == pytest.approx(values, rel=0.05, abs=1e-9), column


def test_loss_curve_of_segmentation(segmentation_run):
    rows = metrics(segmentation_run)
    assert_curves("segmentation curves", rows, early=10)
    scores = {name: numbers(rows, name) for name in ("val_miou", "val_pixel_accuracy", "val_mean_accuracy")}
    for name, values in golden("training.json", "segmentation scores", scores).items():
        assert scores[name] == pytest.approx(values, abs=0.02), name


def test_loss_curve_with_other_options(tmp_path):
    run = tmp_path / "run"
    repgraph("train", *SEGMENTATION, *OPTIONS, "--iterations", 6, "--out", run)
    # Resized images differ by one step of 256 in some pixels, depending on the CPU.
    assert_curves("segmentation curves with other options", metrics(run), early=6, tolerance=6e-3)


def test_loss_curve_of_detection(detection_run):
    rows = metrics(detection_run)
    assert_curves("detection curves", rows, early=4)
    scores = {name: float(value) for name, value in rows[-1].items() if name.startswith("val_")}
    known = {name: value for name, value in scores.items() if not math.isnan(value)}  # no object is large
    assert known == pytest.approx(golden("training.json", "detection scores", known), abs=0.02)


@pytest.fixture(scope="module")
def detections(detection_run, objects, tmp_path_factory):
    """The detections of ``repgraph predict``, by descending score."""
    out, images = tmp_path_factory.mktemp("found"), [objects / "images" / f"val-{number}.png" for number in range(2)]
    repgraph("predict", "--model", detection_run, *images, "--out", out, "--device", "cpu")
    assert sorted(path.name for path in (out / "overlays").iterdir()) == ["val-0.png", "val-1.png"]
    content = json.loads((out / "detections.json").read_text())
    content["annotations"].sort(key=lambda each: -each["score"])
    return content


def test_objects_found_after_training(detections):
    assert [(each["height"], each["width"]) for each in detections["images"]] == [(60, 72), (60, 74)]
    assert detections["categories"] == CATEGORIES
    columns = ("score", "bbox", "area", "category_id", "image_id")
    found = [[each[name] for name in columns] for each in detections["annotations"][:6]]
    for ours, stored in zip(found, golden("training.json", "detections", found), strict=True):
        assert ours[0] == pytest.approx(stored[0], abs=2e-3)
        assert ours[1] == pytest.approx(stored[1], abs=0.1)
        assert ours[2] == pytest.approx(stored[2], rel=0.02)
        assert ours[3:] == stored[3:]


def test_scores_of_objects(detections, detection_run, objects, tmp_path):
    """Every third of the strongest detections is used as ground truth; the others are false positives."""
    images = [each | {"file_name": Path(each["file_name"]).name} for each in detections["images"]]
    truth = detections | {"images": images, "annotations": detections["annotations"][1:12:3]}
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "val.json").write_text(json.dumps(truth))
    shutil.copytree(objects / "images", tmp_path / "images")
    printed = json.loads(repgraph("eval", detection_run, "--data", tmp_path, "--json", "--device", "cpu"))
    scores = {kind: {name: printed[kind][name] for name in ("ap", "ap50", "ap75")} for kind in ("box", "mask")}
    stored = golden("training.json", "detection AP", scores)
    for kind in ("box", "mask"):
        assert scores[kind] == pytest.approx(stored[kind], abs=0.02)


@pytest.fixture(scope="module", params=["segmentation", pytest.param("detection", marks=pytest.mark.slow)])
def task(request):
    """The arguments of ``repgraph train``."""
    if request.param == "detection":
        return (*DETECTION, "--data", request.getfixturevalue("objects"))
    return (*SEGMENTATION, "model.dropout=0.1")


@pytest.fixture(scope="module")
def uninterrupted(task, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    repgraph("train", *task, "--out", run)
    return run


def assert_same_run(run, uninterrupted):
    assert_same_network(run, uninterrupted)
    ours, theirs = ([(row["iteration"], row["loss"]) for row in metrics(each)] for each in (run, uninterrupted))
    assert ours == theirs


@pytest.mark.slow  # tests/train kills runs too
def test_resume_after_kill_9(task, uninterrupted, tmp_path):
    run = tmp_path / "run"
    with started("train", *task, "--out", run) as process:
        wait_until((run / "checkpoints" / "last.ckpt").exists, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (run / "model").exists()
    repgraph("train", "--resume", run)
    assert_same_run(run, uninterrupted)


@pytest.mark.slow
def test_resume_after_sigint(task, uninterrupted, tmp_path):
    run, period = tmp_path / "run", 5 if "scenes-rgnet" in task else 2
    with started("train", *task, "--out", run) as process:
        wait_until(lambda: len(metrics(run)) > period, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=200) == 130
    stopped = metrics(run)
    assert period < len(stopped) < len(metrics(uninterrupted))
    repgraph("train", "--resume", run)
    assert metrics(run)[: len(stopped)] == stopped  # with the times in them: no iteration was done twice
    assert_same_run(run, uninterrupted)
