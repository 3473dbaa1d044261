"""Random numbers that are functions of what they are for, not of what was drawn before."""

import hashlib
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


@lru_cache(maxsize=4)
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
