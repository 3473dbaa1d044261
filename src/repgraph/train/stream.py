"""The batches of training: their images, augmentation, and the worker processes that load them.

A batch is a function of (seed, iteration) for any number of devices and workers: device r of n takes the r-th of n
equal parts of the batch, and an image is augmented with random numbers from (seed, iteration, index).
"""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from repgraph.errors import UsageError, out_of_memory

MAX_WORKERS = 16
SIGTERM_GRACE = 600  # seconds that workers keep running after SIGTERM, for the training process to finish its iteration

Transform = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]
Collate = Callable[[Sequence[tuple[Any, Any]]], tuple[Any, Any]]


def seed_from(*parts: int | str) -> int:
    """Derive a seed from numbers and words; the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # positive as a signed number of 64 bits


def generator(*parts: int | str) -> torch.Generator:
    """Return a random number generator seeded with :func:`seed_from` these parts."""
    return torch.Generator().manual_seed(seed_from(*parts))


@lru_cache(maxsize=8)
def _permutation(seed: int, length: int, epoch: int) -> list[int]:
    return torch.randperm(length, generator=generator(seed, "order", epoch)).tolist()


def batch_indices(seed: int, groups: Sequence[Sequence[int]], batch: int, iteration: int) -> list[int]:
    """Return the images of an iteration's batch, all of them from one of one or two groups.

    Every epoch of a group has each of its images once, in a new order; a batch may span two epochs. A group's share of
    the batches is its share of the images, to within one batch over any stretch of iterations.
    """
    first, *others = [group for group in groups if group]
    group, turn = first, iteration
    if others:
        (second,) = others
        length = len(first) + len(second)
        start = seed_from(seed, "groups") % length
        # Number of batches of the second group before this iteration, and before the next.
        before, after = ((number * len(second) + start) // length for number in (iteration, iteration + 1))
        group, turn = (second, before) if after > before else (first, iteration - before)
        seed = seed_from(seed, "group", int(after > before))
    positions, length = range(turn * batch, (turn + 1) * batch), len(group)
    return [group[_permutation(seed, length, at // length)[at % length]] for at in positions]


class Batch(NamedTuple):
    """One device's part of a batch: uint8 images and their targets, as tensors or lists (see :meth:`Task.collate`)."""

    iteration: int
    images: Any
    targets: Any

    def split(self, parts: int) -> list["Batch"]:
        """Split the batch into equal parts."""
        size = len(self.images) // parts
        starts = range(0, len(self.images), size)
        return [Batch(self.iteration, self.images[at : at + size], self.targets[at : at + size]) for at in starts]


class Failure(NamedTuple):
    """An error in a worker process, raised in the training process without the worker's traceback."""

    message: str


def batch_keys(
    indices: Callable[[int], list[int]], start: int, stop: int, rank: int = 0, world_size: int = 1
) -> Iterator[list[tuple[int, int]]]:
    """Yield (iteration, index) of the images in a process's part of the batches ``start`` to ``stop`` (excluded)."""
    for iteration in range(start, stop):
        batch = indices(iteration)
        part = slice(rank * len(batch) // world_size, (rank + 1) * len(batch) // world_size)
        yield [(iteration, index) for index in batch[part]]


class Augmented(Dataset[Any]):
    """Augmented images and targets by keys (iteration, index), or a :class:`Failure`."""

    def __init__(self, images: Any, transform: Transform, seed: int, memory_hint: str = "") -> None:
        self.images, self.transform, self.seed, self.memory_hint = images, transform, seed, memory_hint

    def __getitem__(self, key: tuple[int, int]) -> tuple[int, Any, Any] | Failure:
        iteration, index = key
        try:
            image, target = self.images[index]
            if target is None:
                raise UsageError(f"image {index} of {self.images} has no labels to learn from")
            return iteration, *self.transform(image, target, generator(self.seed, "augment", iteration, index))
        except UsageError as error:
            return Failure(str(error))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return Failure(f"image {index} of {self.images}: out of memory; {self.memory_hint}")


def _collate(collate: Collate, items: Sequence[Any]) -> Batch | Failure:
    failure = next((item for item in items if isinstance(item, Failure)), None)
    return failure or Batch(items[0][0], *collate([(image, target) for _, image, target in items]))


def batches(
    data: Augmented, keys: Iterator[Any], collate: Collate, *, workers: int = 0, pin_memory: bool = False
) -> Iterator[Batch]:
    """Yield the batches of :func:`batch_keys`, loaded by worker processes (0: in this one); ``close()`` ends them."""
    options: dict[str, Any] = dict(prefetch_factor=2, worker_init_fn=_init_worker) if workers else {}
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_sampler=keys,  # type: ignore[arg-type]  # any iterable of lists of keys
        collate_fn=partial(_collate, collate),
        num_workers=workers,
        pin_memory=pin_memory,
        **options,
    )
    for batch in loader:
        if isinstance(batch, Failure):
            raise UsageError(batch.message)
        yield batch


def num_workers(requested: int, local_size: int = 1) -> int:
    """Return the number of workers of each training process on this machine; -1 divides the cores among them."""
    if requested >= 0:
        return requested
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cores // local_size))


def _init_worker(worker: int) -> None:
    """Defer signals: the training process finishes its iteration, and then ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(SIGTERM_GRACE))
