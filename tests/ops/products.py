"""What products of channels are compared with, and the maps that they are tried on."""

import pytest
import torch
import torch.nn.functional as F
from tests.ops.problem import distance
from torch import Tensor

LAST = torch.channels_last
FORMATS = (torch.contiguous_format, LAST)
HALF = [torch.float16, torch.bfloat16]
HALF_KERNELS = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]  # the interpreter has no such dot


def as_convolution(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """In float64: W a + b at every position."""
    y = torch.einsum("oc,bchw->bohw", weight.double(), a.double())
    return y if bias is None else y + bias.double()[:, None, None]


def assert_as_good_as(got: Tensor, plain: Tensor, want: Tensor, roundings: float = 2) -> None:
    """No further from float64 than plain PyTorch in the same dtype, and a few roundings."""
    assert got.shape == want.shape and got.dtype == plain.dtype
    allowed = distance(plain, want) + roundings * torch.finfo(got.dtype).eps
    assert distance(got, want) <= allowed


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "channels last": lambda t: t.contiguous(memory_format=LAST),
    "slice": lambda t: torch.cat((t, t), 1).contiguous(memory_format=LAST)[:, : t.shape[1]],
    "window": lambda t: F.pad(t, (1, 2, 3, 1)).contiguous(memory_format=LAST)[:, :, 3:-1, 1:-2],
    "flipped batch": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda t: t[:1].expand_as(t),
}
