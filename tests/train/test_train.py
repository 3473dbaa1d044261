"""Runs from the first iteration to the last: files, results and resumption."""

import copy
import io
import json
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.train.tiny import (
    ONE_STEP,
    assert_same,
    at_iteration,
    fail,
    gradients,
    last,
    make_data,
    recipe,
    rows,
    weights,
)

from repgraph import models, recipes
from repgraph.errors import UsageError
from repgraph.train import checkpoint, loop, resume, train
from repgraph.train.session import make_task


def test_files_of_a_run(whole, data):
    run, outcome = whole
    names = {"checkpoints", "metrics.csv", "model", "recipe.json", "tensorboard", "versions.json"}
    assert {path.name for path in run.iterdir()} >= names
    assert recipes.load(run / "recipe.json") == recipe(data)
    session = json.loads((run / "versions.json").read_text())["sessions"][0]
    assert session["seed"] == session["from_iteration"] == 0 and session["ended"]["reason"] == "finished"
    assert session["versions"]["torch"] == torch.__version__
    assert (outcome.iteration, outcome.stop, outcome.exit_code) == (10, None, 0)
    assert models.load(run).labels["names"] == ["sea", "fire", "forest"]


def test_metrics_of_a_run(whole):
    run, outcome = whole
    found = rows(run)
    assert [int(row["iteration"]) for row in found] == [3, 4, 6, 8, 9, 10]
    assert [int(row["iteration"]) for row in found if row["loss"]] == [3, 6, 9, 10]
    assert [int(row["iteration"]) for row in found if row["val_miou"]] == [4, 8, 10]
    final = {name: float(value) for name, value in found[-1].items()}
    assert final["val_miou"] == pytest.approx(outcome.validation.scores.miou, abs=1e-5)
    assert final["rate"] == pytest.approx(0.02 * 0.1**0.9, rel=1e-4)
    assert float(found[0]["loss"]) > final["loss"] > 0 and final["auxiliary_loss"] > 0
    assert final["images_per_second"] > 0 and final["peak_memory_mib"] > 100
    assert 0 < final["reach_mean/head.context"] <= final["reach_p95/head.context"]


def test_checkpoints_of_a_run(whole, data):
    run, outcome = whole
    found = last(run)
    assert (found["iteration"], recipes.from_dict(found["recipe"])) == (10, recipe(data))
    scores = {int(row["iteration"]): float(row["val_miou"]) for row in rows(run) if row["val_miou"]}
    best = max(scores, key=scores.get)
    assert outcome.best == {"miou": pytest.approx(scores[best], abs=1e-5), "iteration": best}
    for name, iteration in (("best", best), ("previous", 8)):
        assert checkpoint.read(run / "checkpoints" / f"{name}.ckpt")["iteration"] == iteration


def test_weights_depend_on_neither_logging_nor_saving_nor_the_thread(whole, data, tmp_path):
    other = recipe(data, "train.period=7", "train.log_every=2", "train.validate_every=0", "data.cache=true")
    with ThreadPoolExecutor(1) as pool:  # where no signals are received
        pool.submit(train, other, tmp_path / "run").result()
    torch.testing.assert_close(weights(tmp_path / "run"), weights(whole[0]), rtol=0, atol=0)
    assert [row["iteration"] for row in rows(tmp_path / "run") if row["val_miou"]] == ["10"]


@pytest.mark.parametrize(("name", "iteration"), [("SIGINT", 5), ("SIGTERM", 3)], ids=["SIGINT", "at a period's end"])
def test_exact_resume_after_a_signal(whole, data, tmp_path, monkeypatch, name, iteration):
    run, shown, number = tmp_path / "run", io.StringIO(), getattr(signal, name)
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_iteration(patch, iteration, lambda _: os.kill(os.getpid(), number))
        outcome = train(recipe(data), run, show=shown)
    assert (outcome.stop.signal, outcome.exit_code, outcome.iteration) == (number, 128 + number, iteration + 1)
    assert f"{name}: stopping after this iteration" in shown.getvalue()
    assert signal.getsignal(number) == before and not (run / "model").exists()
    assert resume(run).iteration == 10
    assert_same(run, whole[0])
    sessions = json.loads((run / "versions.json").read_text())["sessions"]
    assert [session["from_iteration"] for session in sessions] == [0, iteration + 1]
    assert sessions[0]["ended"]["reason"] == f"stopped by {name} after iteration {iteration + 1}"


def test_speed_after_a_resume_is_that_of_the_session(data, tmp_path, monkeypatch):
    """Losses are averaged over both sessions, but the time of the first one is not known."""
    run, settings = tmp_path / "run", ("train.iterations=4", "train.log_every=4", "data.val_split=")
    with monkeypatch.context() as patch:
        at_iteration(patch, 2, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        train(recipe(data, *settings), run)
    at_iteration(monkeypatch, 3, lambda _: time.sleep(0.2))
    resume(run)
    assert float(rows(run)[-1]["images_per_second"]) <= 4 / 0.2


def test_second_interrupt_stops_at_once(data, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    at_iteration(monkeypatch, 2, lambda _: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        train(recipe(data), tmp_path / "run")
    assert signal.getsignal(signal.SIGINT) == before


def test_exact_resume_after_failures(whole, data, tmp_path, monkeypatch):
    """Before the first checkpoint; then after the second, which is damaged."""
    run = tmp_path / "run"
    for iteration, go in ((2, lambda: train(recipe(data), run)), (9, lambda: resume(run))):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
            at_iteration(patch, iteration, fail)
            go()
    damaged = run / "checkpoints" / "last.ckpt"
    content = damaged.read_bytes()
    damaged.unlink()
    damaged.write_bytes(content[:-1000])
    with pytest.raises(UsageError, match=r"last\.ckpt is damaged.* --resume .*previous\.ckpt"):
        resume(run)
    resume(damaged.with_name("previous.ckpt"))
    assert_same(run, whole[0])


OPTIONS = (
    *("optim.optimizer=adamw", "optim.lr=0.002", "optim.warmup=6", "optim.layer_decay=0.5"),
    *("data.photometric=1", "train.ema=0.6", "train.accumulate=2"),
)


@pytest.fixture(scope="module")
def with_options(data, tmp_path_factory):
    """The folder of a run with options that are off by default, and the weights after each of its iterations."""
    run, task, found = tmp_path_factory.mktemp("options") / "run", make_task(recipe(data, *OPTIONS)), []
    found.append(task.network(task.splits()[0].labels).state_dict())
    with pytest.MonkeyPatch.context() as patch:
        for iteration in range(10):
            at_iteration(patch, iteration, lambda model: found.append(copy.deepcopy(model.state_dict())))
        train(recipe(data, *OPTIONS), run)
    return run, found


def test_exact_resume_with_options(with_options, data, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        at_iteration(patch, 6, fail)
        train(recipe(data, *OPTIONS), run)
    assert resume(run).iteration == 10
    assert_same(run, with_options[0])
    rates = {int(row["iteration"]): float(row["rate"]) for row in rows(run) if row["rate"]}
    expected = 0.002 * (0.001 + 0.999 * 2 / 6) * 0.8**0.9  # in a warm-up of 6 iterations
    assert rates[3] == pytest.approx(expected, rel=1e-5) and rates[9] == pytest.approx(0.002 * 0.2**0.9, rel=1e-5)


def test_averages_of_weights_are_saved_and_validated(with_options, data):
    run, (start, *iterations) = with_options
    average = {name: value.double() for name, value in start.items()}
    for t, weights_then in enumerate(iterations):
        decay = min(0.6, (1 + t) / (10 + t))
        for name, value in weights_then.items():
            average[name] = decay * average[name] + (1 - decay) * value if value.is_floating_point() else value.double()
    saved = weights(run)
    for name, value in average.items():
        torch.testing.assert_close(saved[name].double(), value, rtol=1e-5, atol=1e-6)
    assert float((saved["head.classifier.weight"] - iterations[-1]["head.classifier.weight"]).abs().max()) > 1e-4
    file = run / "checkpoints" / "last.ckpt"
    torch.testing.assert_close(models.load(file).state_dict(), saved, rtol=0, atol=0)
    torch.testing.assert_close(last(run)["unaveraged"], dict(iterations[-1]))
    task = make_task(recipe(data, *OPTIONS))
    assert rows(run)[-1]["val_miou"] == f"{task.validate(models.load(run), task.splits()[1]).metrics['miou']:.6g}"


def test_resume_of_a_finished_run_in_another_environment(whole, monkeypatch):
    run, shown = whole[0], io.StringIO()
    before = (run / "metrics.csv").read_text()
    monkeypatch.setattr(torch, "__version__", "9.9")
    outcome = resume(run, show=shown)
    assert (outcome.iteration, outcome.exit_code) == (10, 0) and (run / "metrics.csv").read_text() == before
    changed, finished = shown.getvalue().splitlines()
    assert changed.startswith("the environment changed (torch 2.") and " -> 9.9" in changed
    assert finished.startswith("this run has finished; to continue it, pass --iterations N")


@pytest.mark.parametrize("more", [(), ("optim.class_weights=1,2,0.5",)], ids=["plain", "weighted"])
def test_accumulated_gradients_are_those_of_the_whole_batch(data, tmp_path, more):
    """Parts of a batch have different numbers of labelled pixels, and each pixel counts equally."""
    for parts in (1, 4):
        train(recipe(data, *ONE_STEP, *more, f"train.accumulate={parts}"), tmp_path / str(parts))
    torch.testing.assert_close(gradients(tmp_path / "4"), gradients(tmp_path / "1"), rtol=1e-4, atol=1e-6)


def test_clipping_frozen_norm_and_hard_pixels(data, tmp_path):
    for name, more in {"plain": (), "clip": ("optim.clip=0.01",), "hard": ("optim.ohem=0.3",)}.items():
        train(recipe(data, *ONE_STEP, "optim.ohem_least=10", *more), tmp_path / name)
    plain, clipped = gradients(tmp_path / "plain"), gradients(tmp_path / "clip")
    assert plain.norm() > 0.02
    torch.testing.assert_close(clipped, plain * 0.01 / plain.norm(), rtol=1e-3, atol=1e-8)
    found = weights(tmp_path / "plain")
    assert not any(found[name].any() for name in found if name.endswith("running_mean"))
    assert all((found[name] == 1).all() for name in found if name.endswith("running_var"))
    (every,), (hard,) = rows(tmp_path / "plain"), rows(tmp_path / "hard")
    assert float(hard["loss"]) > float(every["loss"]) + 0.01
    assert hard["auxiliary_loss"] == every["auxiliary_loss"]


@pytest.mark.parametrize("more", [(), ("optim.optimizer=adamw", "optim.betas=0.8,0.99")], ids=["sgd", "adamw"])
def test_rates_and_decay_of_parameter_groups(data, tmp_path, more):
    settings = ("train.iterations=1", "data.val_split=", "optim.head=10", "optim.offset=3", *more)
    train(recipe(data, *settings), tmp_path / "run")
    groups = last(tmp_path / "run")["optimizer_states"][0]["param_groups"]
    rates = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert rates["backbone weights"] == (0.02, 1e-4) and rates["backbone norms and biases"] == (0.02, 0.0)
    assert rates["new weights"] == (0.2, 1e-4) and rates["new norms and biases"] == (0.2, 0.0)
    assert rates["offset weights"] == (pytest.approx(0.06), 1e-4)
    assert {group.get("betas") for group in groups} == ({(0.8, 0.99)} if more else {None})


def test_images_without_labels(tmp_path):
    """Nothing is learned from them, and nothing can be scored."""
    root, run, shown = make_data(tmp_path / "data", labelled=False), tmp_path / "run", io.StringIO()
    assert train(recipe(root, *ONE_STEP, "data.val_split=val"), run, show=shown).exit_code == 0
    assert "warning: the loss is 0; run repgraph data check to see whether pixels are labeled" in shown.getvalue()
    assert "1/1  no score: no pixel of the validation images is labeled" in shown.getvalue()
    assert float(rows(run)[0]["loss"]) == 0 and not gradients(run).any()


@pytest.mark.parametrize(
    "more",
    [
        ("train.precision=bf16", "data.limit=2", "data.val_limit=1"),
        ("optim.ohem=0.7", "optim.ohem_least=100", "train.accumulate=2", "train.deterministic=true"),
        ("model.context=none", "model.auxiliary=false", "train.channels_last=false"),
        ("model.backbone=test_resnet", "model.output_stride=8", "model.inserted.layer3=1", "model.context=non_local"),
    ],
    ids=["bf16", "ohem", "no layer", "inserted"],
)
def test_other_settings(data, tmp_path, more):
    outcome = train(recipe(data, "train.iterations=2", *more), tmp_path / "run")
    assert outcome.exit_code == 0 and 0 <= outcome.validation.scores.miou <= 1
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_compiled_network_learns_the_same(whole, data, tmp_path):
    train(recipe(data, "train.compile=true"), tmp_path / "run")
    torch.testing.assert_close(weights(tmp_path / "run"), weights(whole[0]), rtol=1e-2, atol=1e-3)
    assert float(rows(tmp_path / "run")[0]["reach_mean/head.context"]) > 0


def test_held_out_images_are_validated_on(data, tmp_path):
    """Every third of 6 images is held out; training is limited to the first 3 of the others."""
    shown = io.StringIO()
    given = recipe(data, "data.hold_out=3", "data.val_split=nowhere", "data.limit=3", "train.iterations=1")
    images, held_out = make_task(given).splits()
    assert [[item.name for item in split.items] for split in (images, held_out)] == [["0", "1", "3", "4"], ["2", "5"]]
    outcome = train(given, tmp_path / "run", show=shown)
    assert "3 training and 2 validation images" in shown.getvalue()
    assert outcome.validation.scores.pixels == sum(int((held_out[k][1] != 255).sum()) for k in range(2))
    with pytest.raises(UsageError, match=r"data\.hold_out is 7; expected at most 6"):
        make_task(recipe(data, "data.hold_out=7")).splits()


def test_a_finished_run_can_be_continued(whole, data, tmp_path):
    """The run continues with the schedule for the larger number of iterations."""
    run, shown = tmp_path / "run", io.StringIO()
    shutil.copytree(whole[0], run)
    assert resume(run, ["train.iterations=14"], show=shown).iteration == 14
    assert (
        "14 iterations instead of 10: the schedule is stretched; the learning rate is now 0.00648" in shown.getvalue()
    )
    assert [int(row["iteration"]) for row in rows(run) if row["loss"]] == [3, 6, 9, 10, 12, 14]
    assert float(rows(run)[-1]["rate"]) == pytest.approx(0.02 * (1 / 14) ** 0.9, rel=1e-4)
    assert recipes.load(run / "recipe.json") == recipe(data, "train.iterations=14")
    assert not torch.equal(weights(run)["head.classifier.weight"], weights(whole[0])["head.classifier.weight"])
    assert resume(run).iteration == 14
    with pytest.raises(UsageError, match=r"train\.iterations is 12; expected at least 14"):
        resume(run, ["train.iterations=12"])


@pytest.mark.parametrize("warmup", [11, 12])
def test_a_warm_up_as_long_as_training_is_noted(data, warmup):
    notes = make_task(recipe(data, "train.iterations=12", f"optim.warmup={warmup}")).notes
    assert any(note.startswith("optim.warmup is 12: training ends before") for note in notes) == (warmup == 12)


def test_a_trained_network_is_the_start_for_other_classes(whole, data, tmp_path):
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "classes.txt").write_text("sea\nfire\nmeadow\n")
    starts = []
    for root, new in ((data, "nothing"), (tmp_path / "data", "head.classifier, auxiliary.classifier")):
        task = make_task(recipe(root, f"model.weights={whole[0]}"))
        starts.append(task.network(task.splits()[0].labels).state_dict())
        file = whole[0] / "model" / "model.safetensors"
        assert f"initial weights: {file}: loaded the backbone and heads; new: {new}" in task.notes
    same, other = ({name for name in each if torch.equal(each[name], weights(whole[0])[name])} for each in starts)
    assert same == set(starts[0])
    assert same - other == {
        f"{head}.classifier.{kind}" for head in ("head", "auxiliary") for kind in ("weight", "bias")
    }


def test_slow_training_on_a_cpu_is_noticed_after_the_first_iteration(data, tmp_path, monkeypatch):
    for limit in (0, 3600):
        monkeypatch.setattr(loop, "SLOW", limit)
        shown = io.StringIO()
        train(recipe(data, "train.iterations=2", "data.val_split="), tmp_path / str(limit), show=shown)
        lines = shown.getvalue().splitlines()
        first = [number for number, line in enumerate(lines) if line.startswith("training: 1/2 iterations")]
        warned = [number for number, line in enumerate(lines) if "without a GPU, training takes about" in line]
        assert warned == ([first[0] + 1] if limit == 0 else [])
