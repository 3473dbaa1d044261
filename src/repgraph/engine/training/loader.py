"""Batches for training: which images, how they are cut, and the processes that do it.

What an iteration sees is a function of (seed, iteration), whatever the number of devices or of worker processes: device
r of n takes the r-th of n equal parts of the batch, and the augmentation of an image is drawn from (seed, iteration,
index).
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from repgraph.engine.training.chance import chosen, generator
from repgraph.errors import UsageError, out_of_memory

MOST_WORKERS = 16
GRACE = 10  # seconds that workers go on after SIGTERM

Transform = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]
Collate = Callable[[int, Sequence[tuple[Any, Any]]], Any]


class Pairs(Protocol):
    """Images (3, H, W) and what is to be learned of them, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


class Failure(NamedTuple):
    """What a worker process could not do, to be said in one line where the batch is taken."""

    message: str


class Batches:
    """The (iteration, index) of the images of each batch, for one of ``world`` devices, from ``first`` to ``last``.

    ``choose`` says which images the batch of an iteration has; by default each comes once before any comes again.
    """

    def __init__(
        self,
        length: int,
        batch: int,
        seed: int,
        first: int,
        last: int,
        rank: int = 0,
        world: int = 1,
        choose: Callable[[int], list[int]] | None = None,
    ) -> None:
        if batch % world:
            raise UsageError(
                f"train.batch is {batch}, which {world} devices cannot share evenly; give a multiple of it"
            )
        self.seed, self.first, self.last = seed, first, last
        self.choose = choose or (lambda iteration: chosen(seed, length, iteration, batch))
        self.part = slice(rank * batch // world, (rank + 1) * batch // world)

    def __len__(self) -> int:
        return self.last - self.first

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for iteration in range(self.first, self.last):
            yield [(iteration, index) for index in self.choose(iteration)[self.part]]


Item = tuple[int, Any, Any]


class Augmented(Dataset[Item | Failure]):
    """Images and targets as an iteration sees them: item (iteration, index)."""

    def __init__(self, data: Pairs, transform: Transform, seed: int, remedy: str = "") -> None:
        self.data, self.transform, self.seed, self.remedy = data, transform, seed, remedy

    def __getitem__(self, key: tuple[int, int]) -> Item | Failure:
        iteration, index = key
        try:
            image, target = self.data[index]
            if target is None:
                raise UsageError(f"image {index} of {self.data} has no mask to learn from")
            image, target = self.transform(image, target, generator(self.seed, "augment", iteration, index))
        except UsageError as error:  # an exception from another process would come with the traceback of that process
            return Failure(str(error))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return Failure(f"image {index} of {self.data}: out of memory{self.remedy}")
        return iteration, image, target


class Collated:
    """What makes a batch of items, unless one of them is a failure."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def __call__(self, items: Sequence[Item | Failure]) -> Any:
        good: list[Item] = []
        for item in items:
            if isinstance(item, Failure):
                return item
            good.append(item)
        return self.collate(good[0][0], [(image, target) for _, image, target in good])


class Stream:
    """Batches without a break: each pass over it gives those up to the end of a period, and the next goes on there.

    The processes behind it stay, and work ahead, also while the network is tested.
    """

    def __init__(self, batches: Iterable[Any], period: int, first: int, last: int) -> None:
        self.batches, self.period, self.last = batches, period, last
        self.iteration = first
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._source is None:
            self._source = iter(self.batches)
        end = min((self.iteration // self.period + 1) * self.period, self.last)
        while self.iteration < end:
            batch = next(self._source)
            if isinstance(batch, Failure):
                raise UsageError(batch.message)
            self.iteration = batch.iteration + 1
            yield batch

    def close(self) -> None:
        """End the processes behind it."""
        end = getattr(self._source, "_shutdown_workers", None)
        self._source = None
        if end is not None:
            end()


def loader(
    data: Pairs,
    transform: Transform,
    batches: Batches,
    collate: Collate,
    *,
    workers: int,
    pin: bool,
    remedy: str = "",
) -> DataLoader[Any]:
    """What loads and cuts images, in ``workers`` processes (0: in this one).

    ``remedy`` is said where the memory does not suffice for one.
    """
    if len(data) == 0:
        raise UsageError(f"{data} has no images to learn from")
    options: dict[str, Any] = dict(prefetch_factor=2, worker_init_fn=_deaf) if workers else {}
    return DataLoader(
        Augmented(data, transform, batches.seed, remedy),
        batch_sampler=batches,  # type: ignore[arg-type]  # any iterable of lists of keys will do
        collate_fn=Collated(collate),
        num_workers=workers,
        pin_memory=pin,
        **options,
    )


def workers_for(asked: int, processes: int = 1) -> int:
    """How many worker processes each of the training processes on this machine gets: -1 shares out the cores."""
    if asked >= 0:
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_WORKERS, cores // processes))


def _deaf(worker: int) -> None:
    """Workers leave it to the training process to decide what an interrupt means, and end with it.

    A signal to all processes of a group must not end them before the iteration is done. But one who waits for their
    end, after having sent SIGTERM, shall not wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE))
