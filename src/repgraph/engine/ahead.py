"""Reading ahead: files are read by threads while the network works on what came before."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(read: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """``read(item)`` for each item, in order, at most ``workers`` + 1 of them before they are asked for.

    What ``read`` raises is raised when its item's turn comes. Without workers, items are read when they are asked for.

    >>> list(ahead(str.upper, ["a", "b", "c"], workers=2))
    ['A', 'B', 'C']
    """
    if not workers:
        yield from map(read, items)
        return
    left = iter(items)
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="repgraph-read")
    try:
        for item in left:
            waiting.append(pool.submit(read, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
