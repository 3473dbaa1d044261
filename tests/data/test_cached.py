"""Data sets in memory."""

import pytest
import torch

from repgraph.data.dataset import Cached
from repgraph.errors import UsageError


class Images:
    def __init__(self, size=3):
        self.size, self.items = size, [str(i) for i in range(20)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return torch.full((3,), index), {"masks": torch.empty(self.size, device="meta"), "more": (1, None)}

    def __repr__(self):
        return "images"


def test_cached_images():
    cached = Cached(Images())
    assert [int(image[0]) for image, _ in (cached[index] for index in range(20))] == list(range(20))
    assert cached[3] is cached[3] and repr(cached) == "images"
    with pytest.raises(UsageError, match=r"data\.cache needs about .* GiB, more"):
        Cached(Images(2**60))
