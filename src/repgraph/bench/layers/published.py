"""The paper's complexity table, and why ours differs where it does.

The paper's input is 1 x 2048 x 128 x 256 with C' 256 and S 9; its "GFLOPs" are multiply-adds, its times are of one RTX
2080 Ti in float32.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Published(NamedTuple):
    gmacs: float  # multiply-adds, in billions
    ms: float


PAPER = {
    "nl-shared": Published(601.4, 146.65),
    "danet-head": Published(785.01, 279.56),
    "simple": Published(45.31, 60.89),
    "bottleneck": Published(34.96, 25.96),
}

_WHY = {
    "nl-shared": (
        "paper, NL: OCNet's block, in which phi is theta. Three 2048 <-> 256 convolutions (51.54 G) and two N x N x "
        "256 products (549.76 G) are 601.295; with biases, and its batch norm at 2 and ReLU at 1 for each element, "
        "601.404. With a phi of its own it is 618.475."
    ),
    "danet-head": (
        "paper, DANet: the whole published head at 512 inner channels and 19 classes without the products of its "
        "attentions. Its convolutions are 784.788 G; with biases, batch norm at 2 and ReLU at 1, 785.012. The products "
        "of both attentions add 635.655 G: 1420.443."
    ),
    "simple": (
        "paper, Simple: 45.31 G is not explained by the paper's equations. Four 2048 <-> 256 convolutions (68.72 G), "
        "offsets, products and sampling are 70.682; without W_y 53.502."
    ),
    "bottleneck": (
        "paper, Bottleneck: two convolutions (34.360 G), offsets 0.151, both products 0.151, sampling 0.302 at 4 for "
        "each sampled channel: 34.964."
    ),
}


def notes(names: Iterable[str]) -> list[str]:
    """What the paper's figures for these blocks count."""
    return [_WHY[name] for name in names if name in _WHY]
