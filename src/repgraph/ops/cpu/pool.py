"""Run kernels on several threads.

A kernel takes its tasks from a shared counter until none are left, and no result depends on which thread runs which
task. Helper calls that have not started when the tasks run out are cancelled: a call never waits for a busy pool.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import torch

# Work per thread, in channel reads, below which a thread costs more than it saves (waking one takes about 50 us).
GRAIN = 1 << 19


@lru_cache(maxsize=1)
def executor(process: int) -> ThreadPoolExecutor:
    """Return the pool of a process: a forked child has none of its parent's threads."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "repgraph")


def run(kernel: Callable, tasks: int, work: int, *args: Any) -> None:
    """Call ``kernel(counter, tasks, *args)`` on up to ``torch.get_num_threads()`` threads, as ``work`` allows."""
    counter = np.zeros(1, np.int64)
    threads = min(torch.get_num_threads(), tasks, 1 + work // GRAIN)
    if threads < 2:
        kernel(counter, tasks, *args)
        return
    helpers: list[Future] = []
    try:
        with suppress(RuntimeError):  # at interpreter shutdown no thread can be started
            helpers += (executor(os.getpid()).submit(kernel, counter, tasks, *args) for _ in range(threads - 1))
        kernel(counter, tasks, *args)
    except BaseException:
        counter[0] = tasks  # no thread starts another task
        raise
    finally:
        _join([h for h in helpers if not h.cancel()])


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
