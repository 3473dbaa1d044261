"""How much work a layer is, in closed form.

Two counts, both in multiply-adds of the forward pass:

- **products**, the paper's way: convolutions without bias, the offset convolution, both products of an attention, and
  the sampling at 4 multiply-adds for each sampled channel (once where the value is the key, else twice). Nothing else.
- **all**: the same and the work on single elements, each of which counts one: a bias or a residual addition, batch
  normalisation (one multiply-add; folded into a convolution it is the bias), an activation, a mean over a cell (each
  element that is read); the softmax counts three for each weight (exponential, sum, division). A multiplication by a
  single number (a scale on logits, DANet's gamma) is taken to be part of the product beside it, and moving or
  converting data counts nothing.

:mod:`repgraph.bench.layers.count` counts the same in a layer that runs; the two have to agree exactly.
"""

from dataclasses import dataclass
from typing import NamedTuple

from repgraph.bench.layers.setting import Setting

SAMPLE = 4  # multiply-adds of a bilinear interpolation
SOFTMAX = 3  # for each weight: exponential, sum, division
CLASSES = 19  # of DANet's head, as in the paper's table


class Work(NamedTuple):
    """Multiply-adds of products, and of what is done to single elements."""

    products: int
    elements: int


@dataclass(frozen=True)
class Count:
    """Multiply-adds of a layer's forward pass, by what they are spent on."""

    convolutions: int
    attention: int
    sampling: int
    elements: int

    @property
    def products(self) -> int:
        """The count in the paper's way."""
        return self.convolutions + self.attention + self.sampling

    @property
    def all(self) -> int:
        return self.products + self.elements

    @property
    def work(self) -> Work:
        return Work(self.products, self.elements)


def non_local(s: Setting, shared: bool = False) -> Count:
    """``shared``: phi is theta.

    >>> round(non_local(Setting(128, 256), shared=True).products / 1e9, 3)
    601.295
    """
    b, n, c, mid = s.batch, s.positions, s.channels, s.mid_channels
    return Count(
        convolutions=b * n * c * mid * (3 if shared else 4),
        attention=b * n * n * mid * 2,
        sampling=0,
        elements=b * (SOFTMAX * n * n + 2 * n * c),  # bias of w_y, residual
    )


def simple(s: Setting, grid: int = 1, groups: int = 1) -> Count:
    b, n, c, mid = s.batch, s.positions, s.channels, s.mid_channels
    nodes = s.nodes * s.cells(grid)  # of the whole map
    return Count(
        convolutions=b * (4 * n * c * mid + 2 * nodes * c),
        attention=b * n * s.nodes * mid * 2,
        sampling=b * nodes * mid * 2 * SAMPLE,
        elements=b * (_offsets(n, nodes, c, grid) + SOFTMAX * n * s.nodes * groups + 2 * n * c),
    )


def bottleneck(s: Setting, grid: int = 1, groups: int = 1) -> Count:
    """The inserted form, without an activation after the fusion.

    >>> round(bottleneck(Setting(128, 256)).products / 1e9, 3)
    34.964
    """
    b, n, c, mid = s.batch, s.positions, s.channels, s.mid_channels
    nodes = s.nodes * s.cells(grid)
    normalised = 2 * n * mid + 2 * n * c  # after reduce: norm and activation; after expand: norm and residual
    return Count(
        convolutions=b * (2 * n * c * mid + 2 * nodes * mid),
        attention=b * n * s.nodes * mid * 2,
        sampling=b * nodes * mid * SAMPLE,
        elements=b * (_offsets(n, nodes, mid, grid) + SOFTMAX * n * s.nodes * groups + normalised),
    )


def _offsets(positions: int, nodes: int, channels: int, grid: int) -> int:
    """Elements on the way to the offsets: the mean of each cell, and the bias of 2S channels."""
    return (positions * channels if grid > 1 else 0) + 2 * nodes


def dual_attention(s: Setting) -> Count:
    b, n, c = s.batch, s.positions, s.channels
    return Count(
        convolutions=b * n * c * (2 * _narrow(c) + c),
        attention=b * (_position(n, c) + _channel(n, c)),
        sampling=0,
        elements=b * (_attended(n, c) + 2 * n * c),  # two additions to the input
    )


def danet_head(s: Setting, classes: int = CLASSES) -> Count:
    """Of all three predictions.

    >>> count = danet_head(Setting(128, 256))
    >>> round(count.convolutions / 1e9, 1), round(count.products / 1e9, 1)
    (784.8, 1420.4)
    """
    b, n, c, mid = s.batch, s.positions, s.channels, head_width(s.channels)
    return Count(
        convolutions=b * n * (18 * c * mid + 18 * mid * mid + mid * (2 * _narrow(mid) + mid) + 3 * mid * classes),
        attention=b * (_position(n, mid) + _channel(n, mid)),
        sampling=0,
        # Norm and activation of four convolutions, two residuals and the sum of the branches, biases.
        elements=b * (_attended(n, mid) + 8 * n * mid + 3 * n * mid + 3 * n * classes),
    )


def head_width(channels: int) -> int:
    """Inner channels of DANet's head: as published, a quarter of the input's."""
    return max(1, channels // 4)


def _narrow(channels: int) -> int:
    """Channels of query and key in DANet's position attention."""
    return max(1, channels // 8)


def _position(n: int, channels: int) -> int:
    return n * n * (_narrow(channels) + channels)


def _channel(n: int, channels: int) -> int:
    return 2 * channels * channels * n


def _attended(n: int, channels: int) -> int:
    """Elements of DANet's attentions: biases and softmax over positions; sign and softmax over channels."""
    biases = n * (2 * _narrow(channels) + channels)
    return biases + SOFTMAX * n * n + (1 + SOFTMAX) * channels * channels
