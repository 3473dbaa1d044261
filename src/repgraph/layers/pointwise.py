"""1 x 1 convolutions as the matrix products they are."""

import torch
from torch import Tensor, nn

from repgraph.ops.product import product


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution: an ``nn.Conv2d`` in every respect but speed.

    Channels-last maps take PyTorch's matrix product, which is faster than its convolution; see
    :func:`repgraph.ops.product.product`.

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
        return product(x, self.weight.flatten(1), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}" + ("" if self.bias is not None else ", bias=False")
