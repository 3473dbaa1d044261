"""Random problems, their reference results, and tolerances from the errors of plain PyTorch."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops import geometry, representative_attention
from repgraph.ops.reference import sample

NAMES = ("y", "weights", "grad query", "grad key", "grad value", "grad offsets")
LAST = torch.channels_last
FORMATS = (torch.contiguous_format, LAST)
HALF_KERNELS = [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]  # not in the interpreter


def device_of(backend: str) -> torch.device:
    """Return the device a backend is tested on."""
    if backend != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


DEVICE = device_of("triton")  # where the Triton kernels are tested


def normal(*shape: int, dtype=torch.float32, seed: int = 0, device=DEVICE) -> Tensor:
    """Return normal numbers, the same for a shape and seed on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


@dataclass(frozen=True)
class Problem:
    """Sizes and options of a call, and its random inputs (float64, on the CPU)."""

    batch: int = 1
    channels: int = 8
    values: int = 8
    height: int = 3
    width: int = 5
    nodes: int = 2
    groups: int = 1
    grid: int = 1
    shared: bool = False
    sigma: float = 2.0
    scale: float = 0.6
    seed: int = field(default=0, repr=False)

    def __repr__(self) -> str:
        """Return the fields that differ from the defaults, for test names."""
        default = Problem.__dataclass_fields__
        changed = {name: value for name, value in self.__dict__.items() if value != default[name].default}
        return ",".join(f"{name}={value}" for name, value in changed.items()) or "default"

    def tensors(self) -> dict[str, Tensor]:
        """Return query, key, value, offsets, and cotangents of y and of the weights."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        size = (self.height, self.width)
        cells = (geometry.cells(self.height, self.grid), geometry.cells(self.width, self.grid))
        key = normal(self.batch, self.channels, *size)
        value = key if self.shared else normal(self.batch, self.values, *size)
        return {
            "query": normal(self.batch, self.channels, *size),
            "key": key,
            "value": value,
            "offsets": normal(self.batch, 2 * self.nodes, *cells) * self.sigma,
            "grad": normal(*value.shape),
            "grad_weights": normal(self.batch, self.groups, self.nodes, *size),
        }

    def options(self) -> dict:
        return {"groups": self.groups, "grid": self.grid, "scale": self.scale}


def vary(**changes) -> Problem:
    return replace(Problem(), **changes)


def surrounded(t: Tensor) -> Tensor:
    """Return a window of a larger channels-last map whose surroundings are NaN."""
    return F.pad(t, (1, 2, 2, 2), value=math.nan).contiguous(memory_format=LAST)[:, :, 2:-2, 1:-2]


def channel_slice(t: Tensor) -> Tensor:
    """Return channels out of the middle of a wider channels-last map of NaN."""
    return F.pad(t, (0, 0, 0, 0, 3, 2), value=math.nan).contiguous(memory_format=LAST)[:, 3:-2]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels last": lambda t: t.contiguous(memory_format=LAST),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "channel slice": channel_slice,
    "window": surrounded,
    "every other column": lambda t: t.repeat_interleave(2, 3)[..., ::2],
    "flipped batch": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN, which reveals elements that a kernel does not write."""

    def poison(function):
        def poisoned(*args, **kwargs):
            t = function(*args, **kwargs)
            if t.dtype == torch.bool:
                return t
            return t.fill_(math.nan if t.is_floating_point() else torch.iinfo(t.dtype).max // 2)

        return poisoned

    with contextlib.ExitStack() as stack:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            stack.enter_context(mock.patch.object(owner, name, poison(getattr(owner, name))))
        yield


def prepare(problem: Problem, dtype: torch.dtype, device: torch.device, memory_format=torch.contiguous_format):
    """Return the problem's tensors in a dtype (offsets in float32 at least), on a device, in a memory format."""
    wide = torch.promote_types(dtype, torch.float32)
    tensors = problem.tensors()
    ready = {}
    for name in ("query", "key", "value", "grad"):
        ready[name] = tensors[name].to(device, dtype).contiguous(memory_format=memory_format)
    if problem.shared:
        ready["value"] = ready["key"]
    for name in ("offsets", "grad_weights"):
        ready[name] = tensors[name].to(device, wide)
    return ready


def run(function, tensors: dict[str, Tensor], shared: bool) -> dict[str, Tensor]:
    """Return result, weights and all gradients of ``function(query, key, value, offsets) -> (y, weights)``."""
    leaves = {name: tensors[name].detach().requires_grad_() for name in ("query", "key", "value", "offsets")}
    if shared:
        leaves["value"] = leaves["key"]
    y, weights = function(**leaves)
    wanted = [leaf for name, leaf in leaves.items() if not (shared and name == "value")]
    grads = torch.autograd.grad([y, weights], wanted, [tensors["grad"], tensors["grad_weights"].to(weights.dtype)])
    if shared:
        grads = (*grads[:2], grads[1], grads[2])
    return dict(zip(NAMES, (y.detach(), weights.detach(), *grads), strict=True))


def attention(problem: Problem, backend: str):
    def function(query, key, value, offsets):
        y, _, weights = representative_attention(
            query, key, value, offsets, backend=backend, return_nodes=True, **problem.options()
        )
        return y, weights

    return function


def plain(problem: Problem):
    """Return the function as plain PyTorch computes it, with every step in the dtype of the features."""

    def function(query, key, value, offsets):
        _, _, height, width = query.shape
        nodes = geometry.nodes(offsets, problem.grid, offsets.dtype)[:, 0, 0]
        row = torch.arange(height, device=query.device) // problem.grid
        column = torch.arange(width, device=query.device) // problem.grid

        def read(feature: Tensor) -> Tensor:
            found = sample(feature.to(offsets.dtype), nodes).to(query.dtype)
            found = found.index_select(3, row).index_select(4, column)
            return found.unflatten(1, (problem.groups, feature.shape[1] // problem.groups))

        keys, values = read(key), read(value)
        q = query.unflatten(1, (problem.groups, query.shape[1] // problem.groups))[:, :, :, None]
        weights = torch.softmax((q * keys).sum(2) * problem.scale, 2)
        return (weights[:, :, None] * values).sum(3).flatten(1, 2), weights

    return function


def exact(problem: Problem, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the result of the reference in float64, for the same (rounded) inputs."""
    doubled = {name: t.double() for name, t in tensors.items()}
    return run(attention(problem, "reference"), doubled, problem.shared)


def distance(a: Tensor, b: Tensor, least: float = 0.0) -> float:
    """Return the relative error of ``a`` against ``b``, or against numbers of size ``least``; infinite for NaN."""
    size = b.double().norm().clamp(min=max(least * b.numel() ** 0.5, 1e-30))
    error = ((a.double() - b.double()).norm() / size).item()
    return error if error == error else float("inf")


def check(
    problem: Problem, backend: str, dtype: torch.dtype, tensors: dict[str, Tensor] | None = None, least: float = 0.0
) -> dict[str, Tensor]:
    """Assert that the error against float64 is at most that of plain PyTorch in the same dtype plus a few roundings.

    ``least``: size below which errors are absolute, for small maps, on which terms of order 1 may cancel.
    """
    device = device_of(backend)
    if tensors is None:
        tensors = prepare(problem, dtype, device)
    with poisoned_memory():
        got = run(attention(problem, backend), tensors, problem.shared)
    low = run(plain(problem), tensors, problem.shared)
    want = exact(problem, tensors)
    rounding = (8 if dtype in (torch.float32, torch.float64) else 1) * torch.finfo(dtype).eps
    for name in NAMES:
        assert got[name].shape == want[name].shape, name
        error = distance(got[name], want[name], least)
        allowed = distance(low[name], want[name], least) + rounding
        assert error <= allowed, f"{name} of {problem} by {backend}: error {error:.2e}, allowed {allowed:.2e}"
    return got


def as_convolution(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W a + b at every position, in float64."""
    y = torch.einsum("oc,bchw->bohw", weight.double(), a.double())
    return y if bias is None else y + bias.double()[:, None, None]


def conv(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W a + b at every position by PyTorch's convolution."""
    return F.conv2d(a, weight[:, :, None, None], None if bias is None else bias.to(a.dtype))


def assert_as_good_as(got: Tensor, plain: Tensor, want: Tensor) -> None:
    """Assert that the error against float64 is at most that of plain PyTorch plus a few roundings."""
    assert got.shape == want.shape and got.dtype == plain.dtype
    assert distance(got, want) <= distance(plain, want) + 2 * torch.finfo(got.dtype).eps
