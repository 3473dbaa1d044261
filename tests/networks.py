"""Small networks for tests, with known dependence of each pixel's logits on the input."""

import torch
from torch import Tensor, nn


class Pointwise(nn.Module):
    """The logits of a pixel depend only on that pixel."""

    def __init__(self, classes: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, 3, generator=generator, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("kc,bchw->bkhw", self.weight, x)


class Local(Pointwise):
    """Logits also depend on neighbours up to two pixels away, differently to the left and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (2, 1, 0, 2))
        return super().forward(x + 0.5 * padded[..., : x.shape[-2], : x.shape[-1]] - 0.25 * padded[..., 2:, 3:])


class Global(Local):
    """Logits depend on the whole input, and on its size."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 0.01 * x.shape[-1]) + x.mean((1, 2, 3), keepdim=True)


class Spy(nn.Module):
    """Calls another network and records the shapes of its inputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.shapes: list[tuple[int, ...]] = []
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.shapes.append(tuple(x.shape))
        self.inputs.append(x)
        return self.inner(x)
