"""1 x 1 convolutions as the matrix products they are."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.ops.formats import is_channels_last


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution: an ``nn.Conv2d`` in every respect but speed.

    A channels-last map is a matrix (B H W, C), and the convolution a product of two matrices; PyTorch's matrix
    products are faster at it than its convolutions, with a bias above all. The result is channels-last then. Maps of
    another format take PyTorch's convolution and keep their format.

    >>> convolution = Pointwise(8, 4)
    >>> convolution(torch.randn(1, 8, 5, 6)).shape
    torch.Size([1, 4, 5, 6])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, 1, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if not is_channels_last(x):
            return super().forward(x)
        return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}" + ("" if self.bias is not None else ", bias=False")
