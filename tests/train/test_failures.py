"""Runs that cannot start, that stop early, and that cannot be resumed."""

import fcntl
import json
import os
import signal
import threading

import pytest
import torch
from tests.train import shapes, tiny
from tests.train.tiny import assert_same, at_iteration, last, make_data, recipe

from repgraph import errors
from repgraph.errors import UsageError
from repgraph.train import checkpoint, loop, resume, run_folder, segmentation, train


@pytest.mark.parametrize(
    ("task", "name", "iteration", "value", "reason"),
    [
        (tiny, "head.classifier.weight", 5, torch.nan, "the loss is not finite after iteration 7"),
        (tiny, "head.classifier.weight", 7, torch.nan, "the weights are not finite after iteration 8"),
        (
            tiny,
            "head.classifier.weight",
            7,
            1e38,
            "the network's outputs are not finite in validation after iteration 8",
        ),
        (shapes, "detector.rpn.head.cls_logits.weight", 3, torch.nan, "the loss is not finite after iteration 5"),
        pytest.param(
            *(shapes, "detector.roi_heads.box_predictor.cls_score.weight", 5, 3e38, "the network's outputs are not"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_numbers_that_are_not_finite(data, objects, tmp_path, monkeypatch, task, name, iteration, value, reason):
    at_iteration(monkeypatch, iteration, lambda model: model.get_parameter(name).data.fill_(value))
    run = tmp_path / "run"
    outcome = train(task.recipe(data if task is tiny else objects), run)
    good = f"the last good checkpoint is {run / 'checkpoints' / 'last.ckpt'}"
    assert outcome.exit_code == 3 and outcome.stop.reason.startswith(reason)
    assert outcome.stop.reason.endswith(f"; {good}; try a lower optim.lr or optim.clip=1")
    found = last(run)
    assert found["iteration"] == (4 if task is tiny else 3) and not (run / "model").exists()
    assert all(tensor.isfinite().all() for tensor in found["state_dict"].values() if tensor.is_floating_point())
    assert json.loads((run / "versions.json").read_text())["sessions"][0]["ended"]["reason"] == outcome.stop.reason


def test_fp16_whose_loss_scale_vanishes(data, tmp_path, monkeypatch):
    def step(fabric, *_):
        fabric.strategy.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-11)
        fabric.strategy.precision.scaler.scale(torch.ones(()))  # the scale is set when it is first used
        return torch.zeros(2)

    monkeypatch.setattr(loop, "step", step)
    outcome = train(recipe(data), tmp_path / "run")
    assert outcome.exit_code == 3
    assert outcome.stop.reason.startswith("gradients overflow fp16 at any loss scale (now 0.000488281)")


def test_interrupt_while_a_checkpoint_is_written(data, tmp_path, monkeypatch):
    """torch.save raises a RuntimeError, which the command handles as an interrupt; the last checkpoint is intact."""
    run = tmp_path / "run"
    train(recipe(data, "train.iterations=4"), run)

    def interrupted(*_):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(RuntimeError) as error:
        checkpoint.write(run / "checkpoints", {}, best=True)
    assert errors.interrupted(error.value)
    assert last(run)["iteration"] == 4 and not list(run.rglob("*.part"))


def test_folders_that_cannot_be_used(whole, data, tmp_path):
    file = tmp_path / "other" / "thesis.tex"
    file.parent.mkdir()
    for path in (file, file.with_name("a.ckpt")):
        path.write_text("")
    for path, words in {
        whole[0]: "is not empty; delete it or choose another --out, or resume the run: --resume",
        file.parent: "is not empty; delete it or choose another --out$",
        file: r"cannot write .*thesis\.tex: Not a directory; choose another --out",
        file / "run": r"cannot (write|use) .*thesis\.tex/run.*: Not a directory",
    }.items():
        with pytest.raises(UsageError, match=words):
            train(recipe(data), path)
    finished = tmp_path / "finished"
    (finished / "model").mkdir(parents=True)
    (finished / "recipe.json").touch()
    for path, words in {
        finished: f"has no checkpoint; start another run from its network with --weights {finished}",
        file.parent: "is neither the folder of a run nor a checkpoint in it",
        file.with_name("n" * 300): "is neither the folder of a run",
        file: r"thesis\.tex is neither the folder of a run",
        file.with_name("a.ckpt"): r"a\.ckpt is neither the folder of a run nor a checkpoint",
        whole[0] / "checkpoints" / "none.ckpt": r"cannot read .*none\.ckpt: No such file",
    }.items():
        with pytest.raises(UsageError, match=words):
            resume(path)


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        (tiny, "data.split=test", "data.split 'test' has no labels to learn from"),
        (tiny, "data.val_split=test", "data.val_split 'test' has no labels"),
        (tiny, "data.hold_out=1", "has no images to train on"),
        (tiny, "train.accumulate=3", "train.batch is 4; expected a multiple of 3"),
        (tiny, "model.weights=", "the backbone repgraph_small needs initial weights: --weights FILE"),
        (tiny, "optim.class_weights=1,2", "optim.class_weights has 2 numbers for 3 classes"),
        (tiny, "train.devices=3", "train.batch is 4; expected a multiple of 3"),
        (tiny, "train.devices=2 train.accumulate=4", "train.batch is 4; expected a multiple of 8"),
        (shapes, "data.name=voc", "data.name is 'voc'; detection needs coco"),
        (shapes, "train.compile=true", r"train\.compile needs images of one size"),
    ],
)
def test_mistakes_leave_no_folder(data, objects, tmp_path, task, settings, words):
    (data / "images" / "test").mkdir(exist_ok=True)
    (data / "images" / "test" / "0.png").write_bytes((data / "images" / "val" / "0.png").read_bytes())
    with pytest.raises(UsageError, match=words):
        train(task.recipe(data if task is tiny else objects, *settings.split()), tmp_path / "run")
    assert not (tmp_path / "run").exists()


ALLOCATOR = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3456000000000 bytes.")
TOO_SMALL = ValueError("Expected more than 1 value per channel when training, got input size [1, 16, 1, 1]")


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ((segmentation.Segmentation, "loss"), ALLOCATOR, "^out of memory; try fewer images"),
        ((segmentation.Segmentation, "loss"), TOO_SMALL, r"batch norm needs .* train\.norm=frozen"),
        ((segmentation.TrainTransform, "__call__"), MemoryError(), "out of memory in reading images; use fewer"),
        ((segmentation, "rgnet"), ALLOCATOR, "model: DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["batch", "batch norm", "image", "network"],
)
def test_out_of_memory(data, tmp_path, monkeypatch, place, error, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(*place, fail)
    with pytest.raises(UsageError, match=words):
        train(recipe(data), tmp_path / "run")


def test_settings_that_may_change_on_resume(whole, data, tmp_path, monkeypatch):
    run, path = tmp_path / "run", tmp_path / "run" / "recipe.json"
    with monkeypatch.context() as patch:
        at_iteration(patch, 5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        train(recipe(data), run)
    with pytest.raises(UsageError, match=r"cannot resume with optim\.lr=1\.0: .*last\.ckpt has 0\.02\. Only train"):
        resume(run, ["optim.lr=1"])
    content = path.read_text()
    path.write_text(content.replace('"momentum": 0.9', '"momentum": 0.8'))
    with pytest.raises(UsageError, match=r"cannot resume with optim\.momentum=0\.8: .*last\.ckpt has 0\.9"):
        resume(run)
    path.write_text(content)
    resume(run, ["data.cache=true", f"data.root={data}/."])
    assert_same(run, whole[0])


def test_other_data_are_refused_on_resume(whole, tmp_path):
    fewer, renamed, other = make_data(tmp_path / "a", 5), make_data(tmp_path / "b"), make_data(tmp_path / "c")
    for kind in ("images", "masks"):
        (renamed / kind / "val" / "0.png").rename(renamed / kind / "val" / "00.png")
    (other / "classes.txt").write_text("sea\nfire\nwood\n")
    for root, words in {
        fewer: r"training: was 6 images \(.*\), now 5 images \(",
        renamed: r"testing: was 3 images \(.*\), now 3 images \(",
        other: "classes: was sea, fire, forest, now sea, fire, wood",
    }.items():
        with pytest.raises(UsageError, match=rf"{root}: not the data of this run \({words}"):
            resume(whole[0], [f"data.root={root}"])
    assert resume(whole[0], [f"data.root={make_data(tmp_path / 'same')}"]).exit_code == 0


def test_one_process_at_a_time(whole, monkeypatch):
    """A process that is refused changes nothing in the folder."""
    run = whole[0]
    monkeypatch.setattr(run_folder, "LOCK_TIMEOUT", 0.1)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with run_folder.locked(run):
        assert run_folder.is_locked(run)
        for given in (run, run / "checkpoints" / "previous.ckpt"):
            with pytest.raises(UsageError, match=f"another process is training in {run}; wait until it ends"):
                resume(given)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not run_folder.is_locked(run)


def test_lock_that_outlives_its_process_for_a_moment(whole):
    """Workers of a killed process may hold its lock for a few seconds."""
    handle = os.open(whole[0] / "checkpoints" / ".lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    timer = threading.Timer(0.5, os.close, [handle])
    timer.start()
    assert run_folder.is_locked(whole[0])
    assert resume(whole[0]).exit_code == 0
    timer.join()
