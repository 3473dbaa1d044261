"""Threads of the CPU backend: their number, concurrent callers, errors, interrupts, forked children."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from tests.ops.problem import Problem, attention, prepare, run, vary
from torch.utils.data import DataLoader, Dataset

import repgraph.ops.cpu as cpu
from repgraph.ops.cpu import pool


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets the number of threads, which are used for the least work."""
    monkeypatch.setattr(pool, "GRAIN", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def caller(problem: Problem) -> Callable[[], dict[str, torch.Tensor]]:
    tensors = prepare(problem, torch.float32, torch.device("cpu"))
    return lambda: run(attention(problem, "cpu"), tensors, problem.shared)


@pytest.mark.parametrize(("grid", "shared"), [(1, False), (1, True), (3, False), (3, True)])
def test_results_do_not_depend_on_threads(grid: int, shared: bool, threads) -> None:
    call = caller(
        vary(batch=2, channels=80, values=80, height=15, width=14, nodes=9, groups=2, grid=grid, shared=shared)
    )
    threads(1)
    expected = call()
    for count in (1, 2, 2, 5):
        threads(count)
        for name, t in call().items():
            assert torch.equal(t, expected[name]), (name, count)


def test_concurrent_callers(threads) -> None:
    threads(2)
    calls = [caller(vary(channels=24 + 8 * i, height=9 + i, width=12, nodes=5, grid=1 + i % 2)) for i in range(6)]
    expected = [call() for call in calls]
    failures, rounds, end = [], [0] * 6, time.monotonic() + 1.5

    def repeat(i: int) -> None:
        try:
            while time.monotonic() < end or rounds[i] < 2:
                failures.extend((i, name) for name, t in calls[i]().items() if not torch.equal(t, expected[i][name]))
                rounds[i] += 1
        except BaseException as error:
            failures.append((i, error))

    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(6)]
    for t in callers:
        t.start()
    for t in callers:
        t.join(60)
    assert not failures and min(rounds) > 1, (failures, rounds)


def test_error_of_a_helper_is_raised(threads) -> None:
    threads(2)
    started = threading.Event()

    def kernel(counter, tasks):
        if threading.current_thread() is threading.main_thread():
            started.wait(10)
            return
        started.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.run(kernel, 8, 100)


@pytest.mark.parametrize("moment", ["running", "waiting"])
def test_helpers_have_ended_when_the_caller_is_interrupted(moment: str, threads, monkeypatch) -> None:
    threads(2)
    started, ended, wait = threading.Event(), [], pool.wait

    def kernel(counter, tasks):
        if threading.current_thread() is threading.main_thread():
            assert started.wait(10)
            if moment == "running":
                raise KeyboardInterrupt
            return
        started.set()
        while moment == "running" and counter[0] < tasks:
            time.sleep(0.01)
        time.sleep(0.2)
        ended.append(True)

    def interrupted(helpers):
        monkeypatch.setattr(pool, "wait", wait)
        raise KeyboardInterrupt

    if moment == "waiting":
        monkeypatch.setattr(pool, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.run(kernel, 8, 100)
    assert ended == [True]


def both_passes(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    """Run forward and backward without autograd, whose threads PyTorch does not let a forked child use."""
    numbers = ([], [], 1, 1, 1, 0.3)
    y, lse, _, response = cpu.forward(*tensors, None, *numbers, True, False)
    grads = cpu.backward(tensors[0], None, *tensors, None, response, lse, *numbers)
    return [t.numpy() for t in (y, *grads[:4])]


class _Results(Dataset):
    def __init__(self, tensors, expected):
        self.tensors, self.expected = tensors, expected

    def __len__(self):
        return 4

    def __getitem__(self, i):
        torch.set_num_threads(2)
        got = both_passes(self.tensors)
        return torch.tensor([bool((a == b).all()) for a, b in zip(got, self.expected, strict=True)])


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_forked_workers(threads) -> None:
    """Of a parent that has used the kernels and PyTorch's own threads."""
    threads(2)
    torch.randn(512, 512) @ torch.randn(512, 512)  # starts PyTorch's thread pool
    t = prepare(vary(channels=20, values=20, height=30, width=12, nodes=4), torch.float32, torch.device("cpu"))
    tensors = [t[name] for name in ("query", "key", "value", "offsets")]
    expected = both_passes(tensors)
    assert pool.executor.cache_info().currsize
    loader = DataLoader(_Results(tensors, expected), num_workers=2, timeout=30, multiprocessing_context="fork")
    assert torch.cat(list(loader)).all()
