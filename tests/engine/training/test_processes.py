"""Runs as users start them: killed and resumed, in several processes, on several nodes."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
import torch
from tests.engine.training.tiny import settings

from repgraph import models
from repgraph.engine.training import checkpoint, folder

ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
IN_FLOAT32 = {"NVIDIA_TF32_OVERRIDE": "0"}  # with TF32 one process and the same once more are 10 % apart
SEVERAL = ("train.norm=frozen", "model.dropout=0", "optim.weight_decay=0", "train.accumulate=2", "train.log_every=1")


def command(pictures, run, *more, launcher=("-m",)):
    given = [sys.executable, *launcher, "repgraph", "train", "folder-r50-rgnet", "--out", str(run), "--set"]
    return [*given, *settings(pictures, *more)]


STARTED = []


@pytest.fixture(autouse=True)
def none_left():
    """Whatever happens, no process outlives its test."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start(arguments, gpu=False):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    process = subprocess.Popen(
        arguments,
        env=environment | (IN_FLOAT32 if gpu else ALONE),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    STARTED.append(process)
    return process


def finished(process, code=0):
    try:
        out, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"still running: {process.communicate()[0]}") from None
    assert process.returncode == code, out
    return out


def rows(run):
    try:
        with open(run / "metrics.csv", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def wait_for(run, iteration, process):
    end = time.monotonic() + 150
    while not any(int(row["iteration"] or 0) >= iteration for row in rows(run)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)


def weights(run):
    return models.load(run).state_dict()


def differing(left, right):
    left, right = weights(left), weights(right)
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


LONG = ("train.iterations=60", "train.period=20", "train.log_every=1", "train.validate_every=0", "data.workers=1")


@pytest.fixture(scope="module")
def never_stopped(pictures, tmp_path_factory):
    run = tmp_path_factory.mktemp("long") / "run"
    out = finished(start(command(pictures, run, *LONG)))
    assert "val mIoU" in out and f"{run}/model: the network after 60 iterations" in out
    assert "Lightning" not in out and "lightning" not in out and "Warning" not in out, out
    return run


def test_kill_and_resume_gives_the_same_network_bit_for_bit(never_stopped, pictures, tmp_path):
    run = tmp_path / "run"
    process = start(command(pictures, run, *LONG))
    wait_for(run, 25, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    last = checkpoint.read(run / "checkpoints" / "last.ckpt")["iteration"]
    assert last in (20, 40) and not (run / "model").exists()
    assert int(rows(run)[-1]["iteration"]) > last  # what came after it is lost, and has to be done again
    finished(start([sys.executable, "-m", "repgraph", "train", "--resume", str(run)]))
    assert differing(never_stopped, run) == []
    assert [row["iteration"] for row in rows(run)] == [str(i) for i in range(1, 61)]
    columns = [name for name in rows(run)[0] if name not in ("images_per_second", "peak_memory_mib")]
    for ours, theirs in zip(rows(run), rows(never_stopped), strict=True):
        assert [ours[name] for name in columns] == [theirs[name] for name in columns]


def test_a_run_goes_on_in_one_process_at_a_time(never_stopped):
    again = [sys.executable, "-m", "repgraph", "train", "--resume", str(never_stopped)]
    with folder.locked(never_stopped):
        out = finished(start(again), 2)
    assert out.splitlines()[-1] == (
        f"repgraph train: another process is training in {never_stopped}; wait until it ends, or stop it"
    )
    finished(start(again))


def test_sigterm_to_the_whole_group_saves_and_says_how_to_go_on(never_stopped, pictures, tmp_path):
    run = tmp_path / "run"
    process = start(command(pictures, run, *LONG))
    wait_for(run, 25, process)
    os.killpg(process.pid, signal.SIGTERM)  # the worker processes get it too
    out = finished(process, 143)
    assert f"go on with: repgraph train --resume {run}" in out
    at = checkpoint.read(run / "checkpoints" / "last.ckpt")["iteration"]
    assert f"stopped by SIGTERM after iteration {at}" in out and at > 24
    finished(start([sys.executable, "-m", "repgraph", "train", "--resume", str(run)]))
    assert differing(never_stopped, run) == []


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def torchrun(nodes, node, at):
    return (
        *("-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}"),
        *(f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={at}", "-m"),
    )


def gradients(run):
    """After one iteration without decay the momentum is the gradient."""
    states = checkpoint.read(run / "checkpoints" / "last.ckpt")["optimizer_states"][0]["state"]
    return [state["momentum_buffer"] for state in states.values()]


def same_as_one(run, one, steps=1):
    """``steps``: how many times the rounding of the CPU is allowed."""
    for ours, theirs in zip(gradients(run), gradients(one), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=steps * 1e-4, atol=steps * 1e-6 * float(theirs.abs().max() + 1))
    (ours,), (theirs,) = rows(run), rows(one)
    for name in ("loss", "auxiliary_loss"):
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=steps * 1e-5)
    for name in ("val_miou", "val_pixel_accuracy", "val_mean_accuracy"):  # of 3 images, 2 and 1
        assert ours[name] == theirs[name]


@pytest.fixture(scope="module")
def one(pictures, tmp_path_factory):
    run = tmp_path_factory.mktemp("one") / "run"
    finished(start(command(pictures, run, "train.iterations=1", *SEVERAL)))
    return run


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_processes_and_two_nodes_do_as_one(one, pictures, tmp_path, nodes):
    at, run = port(), tmp_path / "run"
    given = [
        command(pictures, run, "train.iterations=1", *SEVERAL, launcher=torchrun(nodes, node, at))
        for node in range(nodes)
    ]
    for process in [start(arguments) for arguments in given]:
        out = finished(process)
        assert "lightning" not in out.lower(), out
    same_as_one(run, one)


@pytest.mark.gpu
def test_synchronised_normalisation_of_two_processes_on_one_gpu_does_as_one(pictures, tmp_path):
    more = ("train.accelerator=cuda", "train.norm=sync", "model.dropout=0", "optim.weight_decay=0", "train.log_every=1")
    more = (*more, "train.iterations=1")
    finished(start(command(pictures, tmp_path / "one", *more), gpu=True))
    launcher = torchrun(1, 0, port())
    finished(start(command(pictures, tmp_path / "two", *more, launcher=launcher), gpu=True))
    same_as_one(tmp_path / "two", tmp_path / "one", steps=10)
    local = (*more, "train.norm=local")
    finished(start(command(pictures, tmp_path / "local", *local, launcher=torchrun(1, 0, port())), gpu=True))
    with pytest.raises(AssertionError):  # each process with the statistics of its own images is something else
        same_as_one(tmp_path / "local", tmp_path / "one", steps=10)


def test_processes_started_by_the_command_itself(one, pictures, tmp_path):
    run = tmp_path / "run"
    out = finished(start(command(pictures, run, "train.iterations=1", "train.devices=2", *SEVERAL)))
    assert out.count("the network after 1 iterations") == 1
    same_as_one(run, one)


def test_a_signal_to_one_of_two_processes_stops_both_and_another_number_goes_on(pictures, tmp_path):
    run = tmp_path / "run"
    more = ("train.iterations=40", "train.period=30", "train.log_every=1", "train.devices=2")
    process = start(command(pictures, run, *more))
    wait_for(run, 5, process)
    process.send_signal(signal.SIGTERM)
    assert "stopped by SIGTERM" in finished(process, 143)
    finished(start([sys.executable, "-m", "repgraph", "train", "--resume", str(run), "--devices", "1"]))
    assert [row["iteration"] for row in rows(run)] == [str(i) for i in range(1, 41)]


def test_an_error_in_one_of_two_processes_ends_both(pictures, tmp_path):
    process = start(command(pictures, tmp_path / "run", "train.devices=2", "train.batch=5", "train.accumulate=1"))
    assert "train.batch is 5, which 2 devices cannot share evenly" in finished(process, 2)
