"""Many threads, their number, reproducibility, errors in helpers."""

import threading
import time

import numpy as np
import pytest
import torch

from repgraph.ops import representative_attention
from repgraph.ops.cpu import pool


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def eager(monkeypatch):
    """Threads also for the least work."""
    monkeypatch.setattr(pool, "GRAIN", 1)


@pytest.mark.parametrize("grid", (1, 3))
@pytest.mark.parametrize("shared", (False, True))
def test_bits_do_not_depend_on_threads(grid, shared, threads, eager, make_case):
    case = make_case(2, 80, 80, 15, 14, 9, grid=grid, shared=shared, groups=2)
    tensors = case.tensors(torch.float32)
    threads(1)
    expected = case.run(tensors)
    for count in (1, 2, 2, 5):
        threads(count)
        for name, t in case.run(tensors).items():
            assert torch.equal(t, expected[name]), (name, count)


def test_number_of_threads_is_obeyed(threads, eager, monkeypatch, make_case):
    case = make_case(1, 16, 16, 40, 8, 4)
    tensors = case.tensors(torch.float32)
    submitted = []
    submit = pool.submit
    monkeypatch.setattr(pool, "submit", lambda kernel, *args: submitted.append(kernel) or submit(kernel, *args))
    for count in (1, 3):
        threads(count)
        submitted.clear()
        case.run(tensors)
        names = [kernel.py_func.__name__ for kernel in submitted]
        for name in ("attend", "differentiate_queries"):
            assert names.count(name) == count - 1
        assert names.count("scatter") <= count - 1  # 16 channels are one slice of each map


def test_little_work_stays_on_the_calling_thread(threads, monkeypatch, make_case):
    threads(4)
    asked = []
    monkeypatch.setattr(pool, "submit", lambda kernel, *args: asked.append(kernel))
    case = make_case(1, 8, 8, 6, 6, 3)
    case.run(case.tensors(torch.float32))
    assert not asked


def test_concurrent_callers(eager, threads, make_case):
    threads(2)
    cases = [make_case(1, 24 + 8 * i, 24, 9 + i, 12, 5, grid=1 + i % 2, shared=False, seed=i) for i in range(8)]
    work = [(case, case.tensors(torch.float32)) for case in cases]
    expected = [case.run(tensors) for case, tensors in work]
    failures, rounds, end = [], [0] * 8, time.monotonic() + 2.5

    def call(i):
        try:
            case, tensors = work[i]
            while time.monotonic() < end:
                for name, t in case.run(tensors).items():
                    if not torch.equal(t, expected[i][name]):
                        failures.append((i, name))
                rounds[i] += 1
        except BaseException as error:
            failures.append((i, error))

    callers = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for t in callers:
        t.start()
    for t in callers:
        t.join(60)
    assert not failures and min(rounds) > 1, (failures, rounds)


def test_a_busy_pool_is_not_waited_for(eager, threads, make_case):
    threads(2)
    case = make_case(1, 8, 8, 16, 6, 3)
    tensors = case.tensors(torch.float32)
    expected = case.run(tensors)
    release = threading.Event()
    pool.submit(int)
    blockers = [pool.submit(release.wait, 30) for _ in range(pool._pool._max_workers)]
    try:
        assert torch.equal(case.run(tensors)["grad_key"], expected["grad_key"])
        assert not any(b.done() for b in blockers)
    finally:
        release.set()


def test_error_of_a_helper_is_raised(eager, threads):
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


def test_helpers_have_ended_when_the_caller_is_interrupted(eager, threads):
    threads(2)
    started, ended = threading.Event(), []

    def kernel(counter, tasks):
        if threading.current_thread() is threading.main_thread():
            assert started.wait(10)
            raise KeyboardInterrupt
        started.set()
        while counter[0] < tasks:
            time.sleep(0.01)
        time.sleep(0.1)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        pool.run(kernel, 8, 100)
    assert ended == [True]


def test_interrupt_while_waiting_for_helpers(eager, threads, monkeypatch):
    threads(2)
    started, ended, interrupts = threading.Event(), [], []
    wait = pool.wait

    def interrupted(helpers):
        if not interrupts:
            interrupts.append(True)
            raise KeyboardInterrupt
        return wait(helpers)

    monkeypatch.setattr(pool, "wait", interrupted)

    def kernel(counter, tasks):
        if threading.current_thread() is threading.main_thread():
            assert started.wait(10)
            return
        started.set()
        time.sleep(0.2)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        pool.run(kernel, 8, 100)
    assert ended == [True]


def test_a_pool_that_has_ended_leaves_the_work_to_the_caller(eager, threads, monkeypatch):
    threads(2)
    from concurrent.futures import ThreadPoolExecutor

    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    monkeypatch.setattr(pool, "_pool", closed)
    x = torch.randn(1, 8, 20, 9)
    y = representative_attention(x, x, x, torch.zeros(1, 6, 20, 9), backend="cpu")
    np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-6)
