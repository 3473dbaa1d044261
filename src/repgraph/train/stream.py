"""The batches of training: their images, augmentation, and the worker processes that load them.

A batch is a function of (seed, iteration) for any number of devices and workers: device r of n takes the r-th of n
equal parts of the batch, and an image is augmented with random numbers from (seed, iteration, index).
"""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from repgraph.errors import UsageError

MAX_WORKERS = 16
SIGTERM_GRACE = 600  # seconds that workers keep running after SIGTERM, for the training process to finish its iteration

Transform = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]


def seed_from(*parts: int | str) -> int:
    """Derive a seed from numbers and words; the same on every machine."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # positive as a signed number of 64 bits


def generator(*parts: int | str) -> torch.Generator:
    """Return a random number generator seeded with :func:`seed_from` these parts."""
    return torch.Generator().manual_seed(seed_from(*parts))


@lru_cache(maxsize=4)
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


class Batches(Dataset[Any]):
    """A process's part of the batch of each iteration; ``task`` is a :class:`Task`.

    A UsageError is returned, and raised by :func:`load` in the training process, without the worker's traceback.
    """

    def __init__(self, images: Any, task: Any, transform: Transform, rank: int = 0, world_size: int = 1) -> None:
        self.images, self.task, self.transform, self.rank, self.world_size = images, task, transform, rank, world_size
        self.groups = task.groups(images)

    def indices(self, iteration: int) -> list[int]:
        train = self.task.recipe.train
        share = train.batch // self.world_size
        return batch_indices(train.seed, self.groups, train.batch, iteration)[self.rank * share :][:share]

    def augmented(self, iteration: int, index: int) -> tuple[Any, Any]:
        """Return an image and its target as they are used in an iteration."""
        image, target = self.images[index]
        return self.transform(image, target, generator(self.task.recipe.train.seed, "augment", iteration, index))

    def __getitem__(self, iteration: int) -> Batch | UsageError:
        try:
            pairs = [self.augmented(iteration, index) for index in self.indices(iteration)]
            return Batch(iteration, *self.task.collate(pairs))
        except UsageError as error:
            return UsageError(str(error))
        except MemoryError:
            return UsageError("out of memory in reading images; use fewer data.workers, or smaller images")


def load(batches: Batches, start: int, stop: int, *, workers: int = 0, pin_memory: bool = False) -> Iterator[Batch]:
    """Yield batches, loaded by worker processes (0: in this process); ``close()`` ends them."""
    options: dict[str, Any] = dict(num_workers=workers, worker_init_fn=_init_worker, pin_memory=pin_memory)
    for batch in DataLoader(batches, batch_size=None, sampler=range(start, stop), **options):
        if isinstance(batch, UsageError):
            raise batch
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
