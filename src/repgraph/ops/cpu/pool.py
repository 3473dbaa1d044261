"""Run kernels on several threads.

A kernel takes its tasks from a shared counter until none are left, and no result depends on which thread runs which
task. Helper calls that have not started when the tasks run out are cancelled: a call never waits for a busy pool.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch

# Work per thread, in channel reads, below which a thread costs more than it saves (waking one takes about 50 us).
GRAIN = 1 << 19

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _reset_after_fork() -> None:
    """Drop the pool in a forked child, which has none of its parent's threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def submit(kernel: Callable, *args: Any) -> Future | None:
    """Submit a call to the pool. Return None if no thread can be started (at interpreter shutdown)."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "repgraph")
        try:
            return _pool.submit(kernel, *args)
        except RuntimeError:
            return None


def run(kernel: Callable, tasks: int, work: int, *args: Any) -> None:
    """Call ``kernel(counter, tasks, *args)`` on up to ``torch.get_num_threads()`` threads, as ``work`` allows."""
    counter = np.zeros(1, np.int64)
    threads = min(torch.get_num_threads(), tasks, 1 + work // GRAIN)
    if threads < 2:
        kernel(counter, tasks, *args)
        return
    helpers: list[Future | None] = []
    try:
        helpers += (submit(kernel, counter, tasks, *args) for _ in range(threads - 1))
        kernel(counter, tasks, *args)
    except BaseException:
        counter[0] = tasks  # no thread starts another task
        raise
    finally:
        _join([h for h in helpers if h is not None and not h.cancel()])


def _join(helpers: list[Future]) -> None:
    """Wait until no helper runs, even if interrupted meanwhile, then raise the interruption or a helper's error."""
    raised: BaseException | None = None
    while not all(h.done() for h in helpers):
        try:
            wait(helpers)
        except BaseException as error:  # such as KeyboardInterrupt: helpers still write to memory of this call
            raised = error
    if raised is not None:
        raise raised
    for h in helpers:
        h.result()
