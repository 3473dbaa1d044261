"""Runs that end otherwise than they should, and what can be done about them."""

import io
import json
import os
import signal

import pytest
import torch
from PIL import Image as Picture
from tests.engine.training.tiny import assert_same_weights, at_iteration, make_data, recipe, weights

from repgraph import recipes
from repgraph.engine import train as training
from repgraph.engine.tasks import segmentation
from repgraph.engine.train import resume, train
from repgraph.engine.training import callbacks, checkpoint, folder, places
from repgraph.errors import UsageError


def poison(module):
    with torch.no_grad():
        next(module.model.head.parameters()).fill_(torch.nan)


@pytest.mark.parametrize(
    ("iteration", "reason"),
    [
        (5, "the loss of iteration 7 is not finite (up to iteration 6 losses were)"),
        (7, "the weights are not finite after iteration 8 (up to iteration 8 losses were)"),
        (9, "the weights are not finite after iteration 10 (up to iteration 10 losses were)"),
    ],
    ids=["loss", "weights", "at the end"],
)
def test_numbers_that_are_not_finite_stop_the_run(pictures, tmp_path, monkeypatch, iteration, reason):
    at_iteration(monkeypatch, iteration, poison)
    run = tmp_path / "run"
    outcome = train(recipe(pictures), run)
    last = run / "checkpoints" / "last.ckpt"
    assert outcome.code == 3
    assert outcome.stop.reason.startswith(reason)
    assert outcome.stop.reason.endswith(f"the last good checkpoint is {last}")
    found = checkpoint.read(last)
    assert found["iteration"] == (8 if iteration == 9 else 4)
    assert all(value.isfinite().all() for value in found["state_dict"].values() if value.is_floating_point())
    assert not (run / "model").exists()


def test_a_rate_that_is_too_high(pictures, tmp_path):
    outcome = train(recipe(pictures, "optim.lr=1e30"), tmp_path / "run")
    assert outcome.code == 3 and "there was no checkpoint before" in outcome.stop.reason


@pytest.mark.parametrize(
    ("settings", "iteration"),
    [
        (("optim.lr=1e30", "train.iterations=1"), 1),
        (("optim.weight_decay=1e30", "train.iterations=4", "train.period=1", "train.log_every=100"), 1),
    ],
    ids=["rate", "decay"],
)
def test_weights_too_large_to_test_stop_the_run(pictures, tmp_path, settings, iteration):
    outcome = train(recipe(pictures, *settings), tmp_path / "run")
    assert outcome.code == 3 and outcome.iteration == iteration
    assert outcome.stop.reason.startswith(f"the logits in the test after iteration {iteration} are not finite")
    assert not list((tmp_path / "run" / "checkpoints").glob("*.ckpt")) and not (tmp_path / "run" / "model").exists()


def test_a_test_that_goes_wrong_later_leaves_the_last_good_checkpoint(pictures, tmp_path, monkeypatch):
    def blow_up(module):
        with torch.no_grad():
            module.model.head.classifier.weight.fill_(1e38)

    at_iteration(monkeypatch, 7, blow_up)
    outcome = train(recipe(pictures), tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert outcome.code == 3 and outcome.stop.reason.startswith("the logits in the test after iteration 8 are not")
    assert outcome.stop.reason.endswith(f"the last good checkpoint is {last}")
    assert checkpoint.read(last)["iteration"] == 4


def test_fp16_whose_scale_falls_and_falls(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "_scale", lambda trainer: 2.0**-11)
    outcome = train(recipe(pictures), tmp_path / "run")
    assert outcome.code == 3
    assert outcome.stop.reason.startswith("gradients overflow fp16 whatever their scale, now 0.000488281")


def test_a_best_checkpoint_that_cannot_be_written(pictures, tmp_path, monkeypatch):
    def refuse(path, other):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(callbacks, "also_known_as", refuse)
    with pytest.raises(UsageError, match=r"cannot write .*best\.ckpt: Read-only file system"):
        train(recipe(pictures), tmp_path / "run")
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")["iteration"] == 4


def test_a_full_disk_ends_the_run_and_loses_nothing(pictures, tmp_path, monkeypatch):
    write, run = checkpoint.write, tmp_path / "run"

    def full(path, content, previous=None):
        if content["iteration"] == 8:
            raise OSError(28, "No space left on device")
        write(path, content, previous)

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(UsageError, match=r"cannot write .*last\.ckpt: No space left on device; .* as it was before"):
        train(recipe(pictures), run)
    monkeypatch.undo()
    assert checkpoint.read(run / "checkpoints" / "last.ckpt")["iteration"] == 4
    assert resume(run).code == 0


def test_folders_that_cannot_be_used(whole, pictures, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"is not empty; give another folder .* --resume"):
        train(recipe(pictures), whole[0])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    with pytest.raises(UsageError, match=r"is not empty; give another folder with --out$"):
        train(recipe(pictures), tmp_path / "other")
    with pytest.raises(UsageError, match=r"thesis\.tex is not a folder"):
        train(recipe(pictures), tmp_path / "other" / "thesis.tex")
    with pytest.raises(UsageError, match=r"cannot (write|use) .*thesis\.tex/run: Not a directory"):
        train(recipe(pictures), tmp_path / "other" / "thesis.tex" / "run")
    assert (tmp_path / "other" / "thesis.tex").read_text() == ""


def test_a_mistake_leaves_no_folder(pictures, tmp_path):
    mistakes = {
        "data.root=": "where is folder",
        f"data.root={tmp_path / 'none'}": "none",
        "model.weights=": "say where the backbone test_resnet starts",
        "model.backbone=resnet_50": "resnet_50",
        "data.val_split=vall": "vall",
        "optim.class_weights=1,2": "2 numbers for 3 classes",
        "train.precision=fp16": "which the CPU cannot train in",
        "model.context_options.nods=3": "nods",
        "data.val_split=test": "data.val_split is 'test', which has no labels",
        "train.devices=3": "train.batch is 4, which 3 devices cannot share",
        "train.devices=2 train.accumulate=4": "train.accumulate is 4, and each of 2 devices has 2 images",
    }
    (pictures / "images" / "test").mkdir()
    (pictures / "images" / "test" / "0.png").write_bytes((pictures / "images" / "val" / "0.png").read_bytes())
    for setting, words in mistakes.items():
        with pytest.raises(UsageError, match=words):
            train(recipe(pictures, *setting.split()), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("train.batch=1", "data.crop=8"), r"learn from a single value, .* train.batch=1, .*crop=\(8, 8\); give more"),
        (("model.channels=1000000000",), "model: channels is 1000000000; at most 65536 is possible"),
        (("model.context_options.nodes=100000000",), "nodes is 100000000; at most 65536"),
    ],
    ids=["too small", "channels", "nodes"],
)
def test_sizes_that_cannot_be(pictures, tmp_path, settings, words):
    with pytest.raises(UsageError, match=words):
        train(recipe(pictures, *settings), tmp_path / "run")


TOLD = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 3456000000000 bytes."


@pytest.mark.parametrize(
    ("where", "name", "words"),
    [
        (segmentation.Segmentation, "loss", r"out of memory with train\.batch=4, .* give fewer images"),
        (segmentation.TrainTransform, "__call__", r"images, 3 classes.*: out of memory; give a smaller data\.crop"),
        (segmentation, "rgnet", "the network does not fit into memory"),
    ],
    ids=["iteration", "image", "network"],
)
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(TOLD), RuntimeError("another")], ids=repr)
def test_out_of_memory(pictures, tmp_path, monkeypatch, where, name, words, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(where, name, fail)
    other = str(error) == "another"
    with pytest.raises(RuntimeError if other else UsageError, match="another" if other else words):
        train(recipe(pictures), tmp_path / "run")


def test_an_image_that_cannot_be_read_is_named(pictures, tmp_path):
    data = tmp_path / "data"
    for path in pictures.rglob("*.*"):
        target = data / path.relative_to(pictures)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    broken = data / "images" / "train" / "3.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(UsageError, match=r"images/train/3\.png"):
        train(recipe(data), tmp_path / "run")
    Picture.new("L", (3, 3)).save(data / "masks" / "val" / "0.png")
    broken.write_bytes((data / "images" / "train" / "2.png").read_bytes())
    (data / "masks" / "train" / "3.png").write_bytes((data / "masks" / "train" / "2.png").read_bytes())
    with pytest.raises(UsageError, match=r"masks/val/0\.png"):
        train(recipe(data), tmp_path / "again")


def test_what_may_change_when_a_run_goes_on(whole, pictures, tmp_path, monkeypatch):
    run = tmp_path / "run"
    at_iteration(monkeypatch, 5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    train(recipe(pictures), run)
    monkeypatch.undo()
    with pytest.raises(UsageError, match=r"optim\.lr cannot change when a run goes on"):
        resume(run, ["optim.lr=1"])
    recipe_file = run / "recipe.json"
    said = recipe_file.read_text()
    recipe_file.write_text(said.replace('"momentum": 0.9', '"momentum": 0.8'))
    with pytest.raises(UsageError, match=r"was made with optim\.momentum = 0\.9, and recipe\.json says 0\.8"):
        resume(run)
    recipe_file.write_text(said)
    resume(run, ["data.cache=true", f"data.root={pictures}/."])
    assert_same_weights(weights(whole[0]), weights(run))


def test_other_data_are_refused_when_a_run_goes_on(whole, tmp_path):
    fewer, renamed, other = (make_data(tmp_path / name, *count) for name, *count in (("a", 5), ("b",), ("c",)))
    for kind in ("images", "masks"):
        (renamed / kind / "val" / "0.png").rename(renamed / kind / "val" / "00.png")
    (other / "classes.txt").write_text("sea\nfire\nwood\n")
    for data, words in {
        fewer: "there were 6 images for training, and are 5",
        renamed: "the images for testing have other names",
        other: "the classes were sea, fire, forest, and are sea, fire, wood",
    }.items():
        with pytest.raises(UsageError, match=f"{data}: not what the run began with: {words}; give that with --data"):
            resume(whole[0], [f"data.root={data}"])
    assert resume(whole[0], [f"data.root={make_data(tmp_path / 'same')}"]).code == 0


def test_checkpoints_that_do_not_say_of_which_data_they_are(whole, pictures):
    found = checkpoint.read(whole[0] / "checkpoints" / "last.ckpt")
    del found["data"]
    training.prepare(recipe(pictures), places.find(recipe(pictures).train), found)


def test_checkpoints_and_recipes_of_before_there_were_other_tasks(pictures, tmp_path, monkeypatch):
    """They have no task, and sections lack what came later."""
    run = tmp_path / "run"
    at_iteration(monkeypatch, 5, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    train(recipe(pictures), run)
    monkeypatch.undo()
    path = run / "checkpoints" / "last.ckpt"
    found = checkpoint.read(path)
    assert set(found["best"]) == {"miou", "iteration"} and found["best"]["iteration"] == 4 and len(found["sums"]) == 3
    said = json.loads((run / "recipe.json").read_text())
    for older in (found["recipe"], said):
        del older["task"], older["data"]["hold_out"], older["optim"]["clip"]
    checkpoint.write(path, found)
    (run / "recipe.json").write_text(json.dumps(said))
    outcome = resume(run)
    assert outcome.code == 0 and outcome.best.score >= found["best"]["miou"]


def test_a_checkpoint_of_another_task_is_refused(whole):
    found = checkpoint.read(whole[0] / "checkpoints" / "last.ckpt")
    found["recipe"] = recipes.to_dict(recipes.get("coco-r50-nl"))
    with pytest.raises(UsageError, match=r"is of a run for detection, and recipe\.json says segmentation"):
        folder.check_same(recipes.load(whole[0] / "recipe.json"), found, whole[0])


def test_what_has_changed_since_is_said(whole, pictures, monkeypatch):
    shown = io.StringIO()
    resume(whole[0], show=shown)
    assert shown.getvalue() == "this run had finished: nothing is left to train\n"
    monkeypatch.setattr(torch, "__version__", "9.9")
    resume(whole[0], show=shown)
    assert "not bit for bit: torch 2." in shown.getvalue() and " then, 9.9 now" in shown.getvalue()


def test_what_cannot_be_resumed(tmp_path):
    with pytest.raises(UsageError, match="is not the folder of a run"):
        resume(tmp_path)
    with pytest.raises(UsageError, match=r"none\.ckpt: there is no such checkpoint"):
        resume(tmp_path / "checkpoints" / "none.ckpt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"config\.json is no checkpoint: a file \.ckpt"):
        resume(tmp_path / "config.json")
    (tmp_path / "a.ckpt").write_text("")
    with pytest.raises(UsageError, match="is not in a run"):
        resume(tmp_path / "a.ckpt")
