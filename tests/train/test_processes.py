"""Runs that are killed, and runs in several processes."""

import os
import resource
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
from tests.train import processes, shapes
from tests.train.tiny import ONE_STEP, assert_same, gradients, last, recipe, rows, settings

from repgraph.train import resume, train

SEVERAL = (*ONE_STEP, "data.val_split=val", "train.accumulate=2")


def command(data, run, *more):
    return ["folder-r50-rgnet", "--out", run, "--set", *settings(data, *more)]


def kill(_):
    os.kill(os.getpid(), signal.SIGKILL)


def terminate_group(_):
    os.killpg(os.getpgid(0), signal.SIGTERM)


@pytest.mark.parametrize(
    ("act", "code", "iteration"), [pytest.param(kill, -9, 4, marks=pytest.mark.slow), (terminate_group, 143, 6)]
)
def test_exact_resume_after_kill_9_and_sigterm(whole, data, tmp_path, act, code, iteration):
    """Workers keep running for a few seconds after SIGKILL, and receive SIGTERM too."""
    run, log = tmp_path / "run", tmp_path / "log"
    process = processes.run(command(data, run, "data.workers=1"), log, (5, act))
    process.join(120)
    assert process.exitcode == code and last(run)["iteration"] == iteration
    assert resume(run).exit_code == 0
    assert_same(run, whole[0])
    if act is terminate_group:
        assert log.read_text().endswith(f"iteration 6; resume with: repgraph train --resume {run}\n")
    processes.exit_codes(process)


@pytest.fixture(scope="module")
def one(data, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    train(recipe(data, *SEVERAL), run)
    return run


def assert_close(run, one, tolerance=1.0):
    """Compare gradients, losses and scores; ``tolerance`` is a multiple of the rounding on the CPU."""
    torch.testing.assert_close(gradients(run), gradients(one), rtol=tolerance * 1e-4, atol=tolerance * 1e-6)
    (ours,), (theirs,) = rows(run), rows(one)
    for name in ("loss", "auxiliary_loss"):
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=tolerance * 1e-5)
    for name in ("val_miou", "val_pixel_accuracy", "val_mean_accuracy"):  # over 2 images and 1
        assert ours[name] == theirs[name]


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_match_one(one, data, tmp_path, nodes):
    assert processes.torchrun(command(data, tmp_path / "run", *SEVERAL), tmp_path, nodes) == [0, 0]
    assert_close(tmp_path / "run", one)
    assert "the network after 1 iterations" in (tmp_path / "0.log").read_text()
    assert (tmp_path / "1.log").read_text() == ""


def test_two_processes_with_averages(data, tmp_path):
    more = (*ONE_STEP, "data.val_split=val", "train.ema=0.5")
    train(recipe(data, *more), tmp_path / "one")
    assert processes.torchrun(command(data, tmp_path / "run", *more), tmp_path) == [0, 0]
    assert_close(tmp_path / "run", tmp_path / "one")
    torch.testing.assert_close(*(last(tmp_path / name)["state_dict"] for name in ("run", "one")), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["--devices", "torchrun"])
def test_processes_of_a_launcher_match_one(one, data, tmp_path, launcher):
    words = ["repgraph", "train", *map(str, command(data, tmp_path / "run", *SEVERAL))]
    if launcher == "torchrun":
        words = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", *words]
    else:
        words += ["--devices", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", *words], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.count("the network after 1 iterations") == 1, done.stderr
    assert "lightning" not in done.stderr.lower() and "Warning" not in done.stderr
    assert_close(tmp_path / "run", one)


LOST = """
import os, sys
from repgraph.cli import main
from repgraph.train import loop

step = loop.step

def stepped(fabric, session, model, optimizer, batch):
    losses = step(fabric, session, model, optimizer, batch)
    if batch.iteration == 5 and fabric.global_rank == 1:
        os.kill(os.getpid(), 9)
    return losses

loop.step = stepped
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow  # processes take long to start
def test_a_process_that_dies_is_named(data, tmp_path):
    run, script = tmp_path / "run", tmp_path / "script.py"
    script.write_text(LOST)
    words = [sys.executable, script, "train", *command(data, run), "--devices", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*map(str, words)], env=environment, capture_output=True, text=True, timeout=240)
    reason = "the process of rank 1 was killed by SIGKILL"
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.endswith(f"repgraph train: {reason}; resume with: repgraph train --resume {run}\n")
    assert last(run)["iteration"] == 4 and resume(run, ["train.devices=1"]).iteration == 10


def terminate(_):
    os.kill(os.getpid(), signal.SIGTERM)


def spoil(value, model):
    model.head.classifier.weight.data.fill_(value)


def fill_disk(_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("incidents", "codes", "words"),
    [
        ((None, (5, terminate)), [143, 0], "stopped by SIGTERM after iteration 6"),
        ((None, (5, partial(spoil, torch.nan))), [3, 0], "the loss is not finite after iteration 7"),
        (
            (None, (7, partial(spoil, 1e38))),
            [3, 0],
            "the network's outputs are not finite in validation after iteration 8",
        ),
        (((5, fill_disk), None), [2, 2], "last.ckpt: File too large; "),
    ],
    ids=["SIGTERM", "loss", "validation", "full disk"],
)
@pytest.mark.slow
def test_failures_in_one_process_stop_both(data, tmp_path, incidents, codes, words):
    run = tmp_path / "run"
    assert processes.torchrun(command(data, run), tmp_path, incidents=incidents) == codes
    assert words in (tmp_path / "0.log").read_text()
    assert last(run)["iteration"] == (6 if 143 in codes else 4)
    assert not list(run.rglob("*.part"))
    assert resume(run).iteration == 10  # another number of processes can resume
    assert [row["iteration"] for row in rows(run)] == ["3", "4", "6", "8", "9", "10"]


@pytest.mark.slow
def test_two_processes_train_a_detector(objects, tmp_path):
    """Losses are means over samples, so they differ from a single process."""
    options = ("optim.optimizer=adamw", "optim.layer_decay=0.5", "train.ema=0.9", "data.photometric=1")
    more = shapes.settings(objects, *shapes.ONE_STEP, "train.batch=4", "model.trainable_stages=2", *options)
    arguments = ["voc_instances-r50-repgraph", "--out", tmp_path / "run", "--set", *more]
    assert processes.torchrun(arguments, tmp_path) == [0, 0]
    (row,) = rows(tmp_path / "run")
    assert float(row["loss_mask"]) > 0 and row["val_mask_ap"]


@pytest.mark.gpu
def test_synchronized_batch_norm_of_two_processes_on_one_gpu(data, tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # with TF32 runs differ by 10 %
    more = ("train.accelerator=cuda", *SEVERAL, "train.accumulate=1")
    process = processes.run(command(data, tmp_path / "one", *more, "train.norm=sync"), tmp_path / "log")
    assert processes.exit_codes(process) == [0]
    for norm in ("sync", "local"):
        given = command(data, tmp_path / norm, *more, f"train.norm={norm}")
        assert processes.torchrun(given, tmp_path, gpu="0") == [0, 0]
    assert_close(tmp_path / "sync", tmp_path / "one", tolerance=10)
    with pytest.raises(AssertionError):  # statistics of half the images
        assert_close(tmp_path / "local", tmp_path / "one", tolerance=10)
