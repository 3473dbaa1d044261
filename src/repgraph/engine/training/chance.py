"""Random numbers that are functions of what they are for, not of what was drawn before."""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch


def seed_of(*parts: int | str) -> int:
    """A seed from numbers and words: the same on every machine, and another for other parts.

    >>> seed_of(0, "step", 7) == seed_of(0, "step", 7), seed_of(0, "step", 7) == seed_of(0, "step", 8)
    (True, False)
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # positive as a signed number of 64 bits


def generator(*parts: int | str) -> torch.Generator:
    """A source of random numbers that starts from :func:`seed_of` these parts."""
    return torch.Generator().manual_seed(seed_of(*parts))


@lru_cache(maxsize=8)
def _order(seed: int, length: int, turn: int) -> list[int]:
    return torch.randperm(length, generator=generator(seed, "order", turn)).tolist()


def chosen(seed: int, length: int, iteration: int, batch: int) -> list[int]:
    """Which of ``length`` images the batch of an iteration has.

    The images are taken in turns: in each, every image comes once, in an order of its own. A batch may have the last
    images of one turn and the first of the next.

    >>> chosen(0, 4, 0, 2) + chosen(0, 4, 1, 2)
    [2, 0, 1, 3]
    """
    return [_order(seed, length, at // length)[at % length] for at in range(iteration * batch, (iteration + 1) * batch)]


def grouped(seed: int, groups: Sequence[Sequence[int]], iteration: int, batch: int) -> list[int]:
    """Which images the batch of an iteration has, if it is to have images of one of two groups only.

    Each group has a share of the batches that is its share of the images, to within one batch over any stretch of
    iterations, and its images are taken in turns, as :func:`chosen` does. So every image comes about as often as any
    other: in as many iterations as make a turn over all, once, give or take the images of a batch.

    >>> [grouped(0, [[0, 1, 2, 3], [4, 5]], iteration, 2) for iteration in range(6)]
    [[5, 4], [2, 0], [3, 1], [5, 4], [1, 3], [2, 0]]
    """
    there = [group for group in groups if group]
    if len(there) == 1:
        return [there[0][at] for at in chosen(seed, len(there[0]), iteration, batch)]
    first, second = there
    length = len(first) + len(second)
    start = seed_of(seed, "groups") % length
    # How many batches of the second group come before this iteration, and before the next.
    before, after = ((number * len(second) + start) // length for number in (iteration, iteration + 1))
    group, turn = (second, before) if after > before else (first, iteration - before)
    own = seed_of(seed, "group", int(after > before))
    return [group[at] for at in chosen(own, len(group), turn, batch)]
