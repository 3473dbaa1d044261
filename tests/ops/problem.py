"""Random problems, what plain low-precision PyTorch makes of them, and how wrong a backend may be."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from repgraph.ops import geometry, representative_attention
from repgraph.ops.reference import sample

NAMES = ("y", "weights", "grad query", "grad key", "grad value", "grad offsets")


def device_of(backend: str) -> torch.device:
    """Where a backend is tested."""
    if backend != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu")


DEVICE = device_of("triton")  # where the Triton kernels are tested


def normal(*shape: int, dtype=torch.float32, seed: int = 0, device=DEVICE) -> Tensor:
    """Normal numbers, the same for a shape and seed on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


@dataclass(frozen=True)
class Problem:
    """Sizes and options of a call, and its random inputs (float64, on the CPU)."""

    batch: int = 1
    channels: int = 8
    values: int = 8
    height: int = 5
    width: int = 7
    nodes: int = 3
    groups: int = 1
    grid: int = 1
    shared: bool = False
    sigma: float = 2.0
    scale: float = 0.6
    seed: int = field(default=0, repr=False)

    def tensors(self) -> dict[str, Tensor]:
        """query, key, value, offsets, and cotangents of y and of the weights."""
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


def prepare(problem: Problem, dtype: torch.dtype, device: torch.device, memory_format=torch.contiguous_format):
    """The problem's tensors in a dtype (offsets in float32 at least), on a device, in a memory format."""
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
    """Result, weights and all gradients of ``function(query, key, value, offsets) -> (y, weights)``."""
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
    """What one would write in PyTorch without care for accumulation: every step in the features' dtype."""

    def function(query, key, value, offsets):
        _, _, height, width = query.shape
        nodes = geometry.nodes(offsets, problem.grid, offsets.dtype)
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
    """The reference in float64 on the very numbers that the backend was given."""
    doubled = {name: t.double() for name, t in tensors.items()}
    return run(attention(problem, "reference"), doubled, problem.shared)


def distance(a: Tensor, b: Tensor, least: float = 0.0) -> float:
    """Relative error of ``a`` against ``b``, or against numbers of size ``least``; infinite where one is NaN."""
    size = b.double().norm().clamp(min=max(least * b.numel() ** 0.5, 1e-30))
    error = ((a.double() - b.double()).norm() / size).item()
    return error if error == error else float("inf")


def check(
    problem: Problem,
    backend: str,
    dtype: torch.dtype,
    tensors: dict[str, Tensor] | None = None,
    roundings: int = 8,
    least: float = 0.0,
) -> None:
    """A backend errs no more, against float64, than plain PyTorch in the same dtype plus a few roundings.

    ``least``: what counts as small. On a map of a few positions everything may cancel, and then an error is to be
    compared with the terms, which are of order 1, not with what is left of them.
    """
    device = device_of(backend)
    if tensors is None:
        tensors = prepare(problem, dtype, device)
    got = run(attention(problem, backend), tensors, problem.shared)
    low = run(plain(problem), tensors, problem.shared)
    want = exact(problem, tensors)
    rounding = (roundings if dtype in (torch.float32, torch.float64) else 1) * torch.finfo(dtype).eps
    for name in NAMES:
        assert got[name].shape == want[name].shape, name
        error = distance(got[name], want[name], least)
        allowed = distance(low[name], want[name], least) + rounding
        assert error <= allowed, f"{name} of {problem} by {backend}: error {error:.2e}, allowed {allowed:.2e}"


def vary(**changes) -> Problem:
    return replace(Problem(), **changes)
