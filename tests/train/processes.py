"""Run ``repgraph train`` in processes forked from one that has imported everything, which is fast."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys

import numba  # noqa: F401 - imported here once, not in every process
import pytest
import torch
from tests.train import shapes, tiny

import repgraph.train.segmentation  # noqa: F401
from repgraph.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])


def run(arguments, log, incident=None, **environment):
    """Start ``repgraph train ARGUMENTS``; an incident is an iteration and a function that is called after it."""
    process = CONTEXT.Process(target=_child, args=([*map(str, arguments)], log, incident, environment))
    process.start()
    return process


def _child(arguments, log, incident, environment):
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update({name: str(value) for name, value in environment.items()})
    multiprocessing.set_start_method("fork", force=True)  # as in other processes, for the workers
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    shapes.shrink_detectors(patch)
    if incident is not None:
        tiny.at_iteration(patch, *incident)
    sys.exit(main(["train", *arguments]))


def torchrun(arguments, folder, nodes=1, incidents=(None, None), gpu=""):
    """Start two processes as torchrun does, on one node or two, and return their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free.getsockname()[1], TORCHELASTIC_RUN_ID="x")
    started = []
    for rank, incident in enumerate(incidents):
        node, local = (rank, 0) if nodes == 2 else (0, rank)
        sizes = dict(WORLD_SIZE=2, LOCAL_WORLD_SIZE=2 // nodes, CUDA_VISIBLE_DEVICES=gpu)
        ranks = dict(RANK=rank, LOCAL_RANK=local, GROUP_RANK=node)
        started.append(run(arguments, folder / f"{rank}.log", incident, **common, **sizes, **ranks))
    return exit_codes(*started)


def exit_codes(*processes):
    """Wait for processes and return their exit codes; kill those that do not end."""
    try:
        for process in processes:
            process.join(120)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
