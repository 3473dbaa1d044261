"""Forked children, whose parent has used the kernels and PyTorch's own threads."""

import multiprocessing
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from repgraph.ops.cpu import pool

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]


@pytest.fixture
def used(monkeypatch, make_case):
    """A case that the parent has run on several threads, and its results."""
    monkeypatch.setattr(pool, "GRAIN", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.randn(512, 512) @ torch.randn(512, 512)  # PyTorch's own pool is up
    case = make_case(1, 20, 20, 30, 12, 4)
    tensors = [t.detach() for t in case.tensors(torch.float32)]
    expected = _call(case, tensors)
    assert pool._pool is not None
    yield case, tensors, expected
    torch.set_num_threads(before)


def _call(case, tensors):
    """Forward and backward, without autograd (whose threads PyTorch does not let a child use)."""
    import repgraph.ops.cpu as cpu

    y, lse, _ = cpu.forward(*tensors, 1, 1, 0.3, False)
    return (y, *cpu.backward(tensors[0], None, *tensors, y, lse, 1, 1, 0.3))


def _child(case, tensors, expected, queue):
    import numpy as np

    assert pool._pool is None
    torch.set_num_threads(2)
    same = all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(_call(case, tensors), expected, strict=True))
    queue.put((same, pool._pool is not None))


def test_forked_process(used):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_child, args=(*used, queue), daemon=True)
    process.start()
    process.join(30)
    alive = process.is_alive()
    if alive:
        process.kill()
    assert not alive, "the child hangs"
    assert process.exitcode == 0
    assert queue.get() == (True, True)


class _Results(Dataset):
    def __init__(self, used):
        self.used = used

    def __len__(self):
        return 4

    def __getitem__(self, i):
        case, tensors, expected = self.used
        got = _call(case, tensors)
        return torch.tensor([bool((a.numpy() == b.numpy()).all()) for a, b in zip(got, expected, strict=True)])


def test_data_loader_workers(used):
    loader = DataLoader(_Results(used), num_workers=2, timeout=30, multiprocessing_context="fork")
    assert torch.cat(list(loader)).all()
