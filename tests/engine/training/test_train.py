"""Runs from beginning to end, and those that do not get there."""

import io
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from PIL import Image as Picture
from tests.engine.training.tiny import assert_same_weights, at_iteration, make_data, recipe, rows, weights

from repgraph import models, recipes
from repgraph.engine import tasks
from repgraph.engine.train import resume, train
from repgraph.engine.training import checkpoint
from repgraph.errors import UsageError


def test_a_run_leaves_all_that_is_needed_to_know_it(whole, pictures):
    run, outcome = whole
    assert sorted(p.name for p in run.iterdir()) == [
        "checkpoints", "metrics.csv", "model", "recipe.json", "tensorboard", "versions.json",
    ]  # fmt: skip
    assert recipes.load(run / "recipe.json") == recipe(pictures)
    session = json.loads((run / "versions.json").read_text())["sessions"][0]
    assert session["seed"] == 0 and session["from_iteration"] == 0
    assert session["versions"]["torch"] == torch.__version__ and session["versions"]["lightning"]
    assert (outcome.iteration, outcome.stop, outcome.code) == (10, None, 0)
    assert {p.name for p in (run / "checkpoints").iterdir()} >= {"last.ckpt", "previous.ckpt", "best.ckpt"}


def test_the_network_knows_its_classes(whole, pictures):
    model = models.load(whole[0])
    assert model.labels["names"] == ["sea", "fire", "forest"]
    assert model.config["backbone"] == "test_resnet" and model.config["channels"] == 16


def test_what_is_noted(whole, pictures):
    run, outcome = whole
    noted = rows(run)
    assert [int(row["iteration"]) for row in noted] == [3, 4, 6, 8, 9, 10]
    for row in noted:
        assert bool(row["loss"]) == (row["iteration"] not in ("4", "8"))  # between looks there are scores alone
        assert bool(row["val_miou"]) == (row["iteration"] in ("4", "8", "10"))
    last = noted[-1]
    assert float(last["val_miou"]) == pytest.approx(outcome.scores.miou, abs=1e-5)
    assert float(last["rate"]) == pytest.approx(0.02 * 0.1**0.9, rel=1e-4)
    assert float(noted[0]["loss"]) > float(last["loss"]) > 0
    assert float(noted[0]["auxiliary_loss"]) > 0
    assert float(last["images_per_second"]) > 0 and float(last["peak_memory_mib"]) > 100
    assert 0 < float(last["reach_mean/head.context"]) <= float(last["reach_p95/head.context"])


def test_the_best_checkpoint_is_the_one_with_the_best_score(whole):
    run, outcome = whole
    scores = {int(row["iteration"]): float(row["val_miou"]) for row in rows(run) if row["val_miou"]}
    best = max(scores, key=lambda iteration: scores[iteration])
    assert outcome.best.iteration == best
    assert checkpoint.read(run / "checkpoints" / "best.ckpt")["iteration"] == best


def test_a_checkpoint_holds_everything(whole, pictures):
    found = checkpoint.read(whole[0] / "checkpoints" / "last.ckpt")
    assert (found["iteration"], found["seed"]) == (10, 0)
    assert recipes.from_dict(found["recipe"]) == recipe(pictures)
    assert found["versions"]["torch"] == torch.__version__
    buffers = [state["momentum_buffer"] for state in found["optimizer_states"][0]["state"].values()]
    assert buffers and all(buffer.abs().max() > 0 for buffer in buffers)
    assert found["best"]["miou"] > 0


def test_the_same_again_is_the_same(whole, pictures, tmp_path):
    train(recipe(pictures), tmp_path / "run")
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))


def test_a_run_knows_its_data_from_elsewhere(pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(pictures.parent)
    train(recipe(pictures.name, "train.iterations=1"), tmp_path / "run")
    assert recipes.load(tmp_path / "run" / "recipe.json").data.root == str(pictures)
    monkeypatch.chdir(tmp_path)
    assert resume("run").code == 0


def test_how_often_is_looked_and_saved_plays_no_part(whole, pictures, tmp_path):
    train(recipe(pictures, "train.period=7", "train.log_every=2", "train.validate_every=0"), tmp_path / "run")
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))
    assert [row["iteration"] for row in rows(tmp_path / "run") if row["val_miou"]] == ["10"]


def test_another_seed_is_another_network(whole, pictures, tmp_path):
    train(recipe(pictures, "train.seed=1"), tmp_path / "run")
    ours, theirs = weights(whole[0]), weights(tmp_path / "run")
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("name", "iteration"), [("SIGINT", 5), ("SIGTERM", 5), ("SIGINT", 3)], ids=["SIGINT", "SIGTERM", "end of a period"]
)
def test_a_signal_stops_after_the_iteration_and_the_run_goes_on_exactly(
    whole, pictures, tmp_path, monkeypatch, name, iteration
):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    at_iteration(monkeypatch, iteration, lambda _: os.kill(os.getpid(), number))
    shown = io.StringIO()
    outcome = train(recipe(pictures), tmp_path / "run", show=shown)
    assert outcome.stop.signal == number and outcome.code == 128 + number
    assert outcome.iteration == iteration + 1
    assert f"{name}: stopping after this iteration" in shown.getvalue()
    assert signal.getsignal(number) == before
    assert not (tmp_path / "run" / "model").exists()
    monkeypatch.undo()
    assert resume(tmp_path / "run").iteration == 10
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))
    unmeasured = ("images_per_second", "peak_memory_mib")
    expected, found = rows(whole[0]), rows(tmp_path / "run")
    for row in (*expected, *found):
        for column in unmeasured:
            del row[column]
    assert found == expected
    sessions = json.loads((tmp_path / "run" / "versions.json").read_text())["sessions"]
    assert [session["from_iteration"] for session in sessions] == [0, iteration + 1]


def test_a_second_interrupt_does_not_wait(pictures, tmp_path, monkeypatch):
    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    at_iteration(monkeypatch, 2, twice)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(recipe(pictures), tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) == before


def test_training_in_a_thread_hears_no_signals(whole, pictures, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, recipe(pictures), tmp_path / "run").result().code == 0
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))


def test_a_run_that_broke_before_its_first_checkpoint_starts_again(whole, pictures, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("power cut")

    at_iteration(monkeypatch, 2, fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(pictures), tmp_path / "run")
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))


def test_a_finished_run_has_nothing_left_to_do(whole):
    run, _ = whole
    before = (run / "metrics.csv").read_text()
    shown = io.StringIO()
    outcome = resume(run, show=shown)
    assert (outcome.iteration, outcome.code) == (10, 0)
    assert "this run had finished: nothing is left to train" in shown.getvalue()
    assert (run / "metrics.csv").read_text() == before


def test_a_damaged_checkpoint_and_the_one_before_it(whole, pictures, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("power cut")

    at_iteration(monkeypatch, 9, fail)
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe(pictures), tmp_path / "run")
    monkeypatch.undo()
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    content = last.read_bytes()
    last.unlink()
    last.write_bytes(content[:-1000])
    with pytest.raises(UsageError, match=r"last\.ckpt is damaged .* --resume .*previous\.ckpt"):
        resume(tmp_path / "run")
    resume(last.with_name("previous.ckpt"))
    assert_same_weights(weights(whole[0]), weights(tmp_path / "run"))


def gradients(run):
    """After one iteration without decay the momentum is the gradient."""
    states = checkpoint.read(run / "checkpoints" / "last.ckpt")["optimizer_states"][0]["state"]
    return [state["momentum_buffer"] for state in states.values()]


ONE = ("train.iterations=1", "optim.weight_decay=0", "train.norm=frozen", "model.dropout=0", "data.val_split=")


@pytest.mark.parametrize("more", [(), ("optim.class_weights=1,2,0.5",)], ids=["plain", "weighted"])
def test_accumulated_gradients_are_those_of_the_whole_batch(pictures, tmp_path, more):
    """Parts of a batch have different numbers of labelled pixels: each counts with its own."""
    for parts in (1, 2, 4):
        train(recipe(pictures, *ONE, *more, f"train.accumulate={parts}"), tmp_path / str(parts))
    expected = gradients(tmp_path / "1")
    for parts in (2, 4):
        for ours, theirs in zip(gradients(tmp_path / str(parts)), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6 * float(theirs.abs().max() + 1))


def test_long_gradients_are_shortened(pictures, tmp_path):
    for clip in (0, 0.01):
        train(recipe(pictures, *ONE, f"optim.clip={clip}"), tmp_path / str(clip))
    free, clipped = (torch.cat([g.flatten() for g in gradients(tmp_path / str(clip))]) for clip in (0, 0.01))
    assert float(free.norm()) > 0.02
    torch.testing.assert_close(clipped, free * 0.01 / free.norm(), rtol=1e-3, atol=1e-8)


def test_frozen_normalisation_keeps_its_statistics(pictures, tmp_path):
    train(recipe(pictures, *ONE), tmp_path / "run")
    found = weights(tmp_path / "run")
    assert all((found[name] == 0).all() for name in found if name.endswith("running_mean"))
    assert all((found[name] == 1).all() for name in found if name.endswith("running_var"))


def test_groups_have_their_own_rates(pictures, tmp_path):
    train(recipe(pictures, "train.iterations=1", "optim.head=10", "optim.offset=3"), tmp_path / "run")
    groups = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.ckpt")["optimizer_states"][0]["param_groups"]
    rates = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert rates["backbone weights"] == (0.02, 1e-4) and rates["backbone norms and biases"] == (0.02, 0.0)
    assert rates["new weights"] == (0.2, 1e-4) and rates["new norms and biases"] == (0.2, 0.0)
    assert rates["offset weights"] == (pytest.approx(0.06), 1e-4)


def test_a_batch_without_labels_teaches_nothing(pictures, tmp_path):
    data = tmp_path / "data"
    for path in pictures.rglob("*.*"):
        target = data / path.relative_to(pictures)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for path in (data / "masks" / "train").iterdir():
        with Picture.open(path) as mask:
            size = mask.size
        Picture.new("L", size, 255).save(path)
    shown = io.StringIO()
    assert train(recipe(data, *ONE), tmp_path / "run", show=shown).code == 0
    assert "warning: up to iteration 1, not one pixel was labelled" in shown.getvalue()
    assert float(rows(tmp_path / "run")[0]["loss"]) == 0
    assert all((gradient == 0).all() for gradient in gradients(tmp_path / "run"))


def test_labels_are_missed_where_there_are_none(pictures, tmp_path):
    data, shown = make_data(tmp_path / "data"), io.StringIO()
    for path in (data / "masks" / "val").iterdir():
        with Picture.open(path) as mask:
            size = mask.size
        Picture.new("L", size, 255).save(path)
    outcome = train(recipe(data, "train.iterations=2"), tmp_path / "run", show=shown)
    assert "2/2  no score: not one pixel of the validation images is labelled" in shown.getvalue()
    assert "warning" not in shown.getvalue() and "nan" not in shown.getvalue()
    assert outcome.told.startswith("no score: ")


@pytest.mark.parametrize(
    "more",
    [
        ("train.precision=bf16",),
        ("optim.ohem=0.7", "optim.ohem_least=100", "train.accumulate=2"),
        ("model.context=none", "model.auxiliary=false", "train.channels_last=false"),
        ("model.inserted.layer3=1", "model.context=non_local"),
        ("train.deterministic=true",),
        ("data.limit=2", "data.val_limit=1", "data.cache=true"),
    ],
    ids=lambda more: more[0].partition("=")[0],
)
def test_other_settings(pictures, tmp_path, more):
    outcome = train(recipe(pictures, "train.iterations=2", *more), tmp_path / "run")
    assert outcome.code == 0 and 0 <= outcome.scores.miou <= 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_hard_pixels_are_fewer(pictures, tmp_path):
    """With hard pixels only, the mean loss is that of harder pixels."""
    train(recipe(pictures, *ONE), tmp_path / "all")
    train(recipe(pictures, *ONE, "optim.ohem=0.3", "optim.ohem_least=10"), tmp_path / "hard")
    every, hard = (rows(tmp_path / name)[0] for name in ("all", "hard"))
    assert float(hard["loss"]) > float(every["loss"]) + 0.01
    assert hard["auxiliary_loss"] == every["auxiliary_loss"]


def test_the_network_starts_the_same_whatever_was_drawn_before(pictures):
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        task = tasks.of(recipe(pictures))
        made.append(task.network(task.splits()[0].labels))
    assert_same_weights(made[0].state_dict(), made[1].state_dict())


@pytest.mark.slow
def test_a_compiled_network_learns_the_same(whole, pictures, tmp_path):
    train(recipe(pictures, "train.compile=true"), tmp_path / "run")
    ours, theirs = weights(tmp_path / "run"), weights(whole[0])
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-2, atol=1e-3)
    assert float(rows(tmp_path / "run")[0]["reach_mean/head.context"]) > 0


def test_images_that_are_held_out_are_tested_on_and_not_learned_from(pictures, tmp_path):
    """Of 6 images every third is held out, and of the 4 that are left the first 3 are taken."""
    asked = recipe(pictures, "data.hold_out=3", "data.val_split=nowhere", "data.limit=3", "train.iterations=2")
    announced = recipes.with_settings(asked, ["data.val_limit=1"])
    shown = io.StringIO()
    train(announced, tmp_path / "limited", show=shown)
    assert "3 images, 1 to test on" in shown.getvalue()
    images, tests = tasks.of(asked).splits()
    assert [item.name for item in images.items] == ["0", "1", "3", "4"]
    assert [item.name for item in tests.items] == ["2", "5"]
    shown = io.StringIO()
    outcome = train(asked, tmp_path / "run", show=shown)
    assert "3 images, 2 to test on" in shown.getvalue()
    shapes = [tests[k][1].shape for k in range(2)]
    labelled = sum((height - 1) * width for height, width in shapes)  # the first row is not
    assert outcome.scores.pixels == labelled
    with pytest.raises(UsageError, match=r"data\.hold_out is 7, and there are only 6 images"):
        tasks.of(recipe(pictures, "data.hold_out=7")).splits()
