"""Training of a small detector: its runs and batches, and annotations that cannot be used."""

import io
import json
import os
import signal

import pytest
import torch
from PIL import Image as PILImage
from tests.train.shapes import ONE_STEP, annotation, edit, make_data, outline, recipe
from tests.train.tiny import assert_same, at_iteration, fail, gradients, last, rows

from repgraph.errors import UsageError
from repgraph.train import resume, train
from repgraph.train.detection import Detection
from repgraph.train.session import make_task
from repgraph.train.stream import batch_indices


@pytest.fixture(scope="module")
def whole(objects, tmp_path_factory):
    """The folder and the outcome of an uninterrupted run: 6 iterations in periods of 3."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return run, train(recipe(objects), run)


def test_run(whole):
    run, outcome = whole
    assert (outcome.iteration, outcome.exit_code) == (6, 0) and set(last(run)["best"]) == {"mask_ap", "iteration"}
    config = json.loads((run / "model" / "config.json").read_text())
    assert config["context"] == "repgraph" and config["labels"]["names"] == ["box", "triangle"]
    found = rows(run)
    assert [int(row["iteration"]) for row in found] == [2, 4, 6]
    for row in found:
        parts = [float(row[name]) for name in Detection.losses[1:]]
        assert float(row["loss"]) == pytest.approx(sum(parts), rel=1e-4) and min(parts) >= 0
    assert [row["rate"] for row in found] == ["0.0025025", "0.005", "5e-05"]  # warm-up, and after both steps
    reaches = [float(value) for name, value in found[-1].items() if name.startswith("reach_")]
    assert len(reaches) == 2 and min(reaches) > 0
    scores = [name for name in found[0] if name.startswith("val_")]
    assert len(scores) == 12 and not any(found[0][name] for name in scores)
    assert float(found[-1]["val_mask_ap"]) == outcome.validation.scores.mask.ap


@pytest.mark.slow  # same loop as segmentation
def test_exact_resume(whole, objects, tmp_path, monkeypatch):
    """After a signal, and after a failure; with images read from files, and from memory."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        at_iteration(patch, 0, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        assert train(recipe(objects), run).exit_code == 143 and last(run)["iteration"] == 1
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        at_iteration(patch, 4, fail)
        resume(run, ["data.cache=true"])
    assert last(run)["iteration"] == 3
    torch.manual_seed(99)
    assert resume(run).exit_code == 0
    assert_same(run, whole[0])


@pytest.mark.parametrize(
    ("more", "images"),
    [
        (("train.precision=bf16", "model.context=non_local", "train.accumulate=2", "model.min_size=48,64"), 3),
        (("model.context=none", "model.norm=batch", "model.trainable_stages=5", "data.hold_out=2"), 2),
    ],
    ids=["bf16", "no layer"],
)
@pytest.mark.slow
def test_other_settings(objects, tmp_path, more, images):
    outcome = train(recipe(objects, *ONE_STEP, "optim.clip=0.5", *more), tmp_path / "run")
    assert outcome.exit_code == 0 and outcome.validation.scores.images == images
    assert float(gradients(tmp_path / "run").double().norm()) == pytest.approx(0.5, rel=1e-3)


def test_images_of_one_orientation_in_a_batch(objects):
    task = make_task(recipe(objects))
    images, _ = task.splits()
    landscape = [width >= height for height, width in images.sizes]
    batches = [batch_indices(0, task.groups(images), 2, iteration) for iteration in range(10)]
    found = [{landscape[index] for index in batch} for batch in batches]
    assert {True} in found and {False} in found and {True, False} not in found


def test_colors_do_not_change_other_draws(objects):
    """The image changes, but the flips of boxes do not."""
    plain, colored = (make_task(recipe(objects, f"data.photometric={strength}")) for strength in (0, 1))
    image, target = plain.splits()[0][0]
    same = 0
    for seed in range(8):
        draws = [task.transform(None)(image, target, torch.Generator().manual_seed(seed)) for task in (plain, colored)]
        assert torch.equal(draws[0][1]["boxes"], draws[1][1]["boxes"])
        same += torch.equal(draws[0][0], draws[1][0])
    assert same < 4


def test_validation_on_other_classes_is_refused(tmp_path):
    root = make_data(tmp_path / "data", 2, 1)
    edit(root, "val", lambda content: content["categories"][0].update(name="cup"))
    with pytest.raises(UsageError, match=r"'val' has different classes from 'train': class 0"):
        make_task(recipe(root)).splits()


def test_objects_that_cannot_be_used(tmp_path):
    """Of 5 images, one has no objects, and one is too narrow for the network's size."""
    root, shown, square = make_data(tmp_path / "data"), io.StringIO(), outline(7, 5, 5, 9)
    crowd = {"size": [60, 72], "counts": [0, 60 * 72]}
    extra = [
        annotation(900, 1, 7, square, bbox=[5, 5, 0.01, 9]),  # nothing would be left of its box
        annotation(904, 1, 7, square, bbox=[5, 5, 9, 0.01]),
        annotation(901, 2, 99, square),
        annotation(902, 1, 7, square, iscrowd=1, segmentation=crowd, bbox=[0, 0, 72, 60]),
        annotation(903, 3, 7, [20, 0, 90, 0, 90, 1, 20, 1]),
    ]

    def change(content):
        content["annotations"] = [each for each in content["annotations"] if each["image_id"] not in (3, 4)] + extra
        content["images"][2] |= {"width": 300, "height": 1}

    edit(root, "train", change)
    PILImage.new("RGB", (300, 1)).save(root / "images" / "train-2.png")
    task = make_task(recipe(root, "data.flip=false"))
    _, target = task.transform(None)(*task.splits()[0][0], torch.Generator())
    assert len(target["boxes"]) == 2
    given = recipe(root, *ONE_STEP, "train.batch=3", "data.by_orientation=false")
    assert train(given, tmp_path / "run", show=shown).exit_code == 0
    (line,) = (line for line in shown.getvalue().splitlines() if "skipped" in line)
    assert line.startswith("coco train: skipped images without objects: 1, ")
    assert "annotations that cannot be used: 1" in line
    assert "4 training and 3 validation images" in shown.getvalue()
