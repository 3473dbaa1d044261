"""Kernels on several threads.

A kernel is called with a counter and draws its tasks from it until none are left; no result depends on who
does which task. So every thread makes one call, the calling thread among them, and helpers that have not
begun when the tasks run out are called off: a call never waits for a busy pool. Helpers submit nothing.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch

# Work, in channel reads, below which a thread costs more than it saves (waking one takes about 50 us).
GRAIN = 1 << 19

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def submit(kernel: Callable, *args: Any) -> Future | None:
    """Give a call to the pool; None where there can be no threads any more (the interpreter is ending)."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "repgraph")
        try:
            return _pool.submit(kernel, *args)
        except RuntimeError:
            return None


def run(kernel: Callable, tasks: int, work: int, *args: Any) -> None:
    """Call ``kernel(counter, tasks, *args)`` on as many threads as torch may use and ``work`` is worth."""
    counter = np.zeros(1, np.int64)
    shares = min(torch.get_num_threads(), tasks, 1 + work // GRAIN)
    if shares < 2:
        kernel(counter, tasks, *args)
        return
    helpers: list[Future | None] = []
    try:
        for _ in range(shares - 1):
            helpers.append(submit(kernel, counter, tasks, *args))
        kernel(counter, tasks, *args)
    except BaseException:
        counter[0] = tasks  # nobody begins another task
        raise
    finally:
        _settle([h for h in helpers if h is not None and not h.cancel()])


def _settle(helpers: list[Future]) -> None:
    """Wait until no helper runs, whatever happens meanwhile; then raise what happened."""
    raised: BaseException | None = None
    while not all(h.done() for h in helpers):
        try:
            wait(helpers)
        except BaseException as error:  # KeyboardInterrupt: helpers still write to memory of ours
            raised = error
    if raised is not None:
        raise raised
    for h in helpers:
        h.result()
