"""Attention to nodes on several maps, by every kernel: results and all gradients against the reference in float64."""

import math
from functools import partial

import pytest
import torch
from tests.ops import problem
from tests.ops.problem import LAYOUTS, device_of, distance
from torch import Tensor

from repgraph.ops import geometry, multi_scale_deformable_attention, representative_attention

FLOAT, DOUBLE, BFLOAT, HALF = torch.float32, torch.float64, torch.bfloat16, torch.float16
SIZES = [(3, 5), (2, 3)]
normal = partial(problem.normal, dtype=DOUBLE, device="cpu")


class Case:
    """A call of representative attention: tensors in float64 on the CPU, and options."""

    def __init__(
        self, sizes=SIZES, size=(3, 5), channels=8, values=8, groups=2, nodes=2, own=True, grid=1, batch=1,
        shared=False, bias=(1, 1, 1), sigma=2.0,
    ):  # fmt: skip
        cells = [geometry.cells(n, grid) for n in size]
        sets = groups if own else 1
        self.query = normal(batch, channels, *size)
        self.keys = [normal(batch, channels, *each, seed=1) for each in sizes]
        self.values = self.keys if shared else [normal(batch, values, *each, seed=2) for each in sizes]
        self.offsets = normal(batch, 2 * sets * len(sizes) * nodes, *cells) * sigma
        self.bias = None if bias is None else normal(bias[0], groups * len(sizes) * nodes, *bias[1:])
        self.options = dict(groups=groups, grid=grid, scale=0.6, own_nodes=own)
        self.grad = normal(batch, channels if shared else values, *size, seed=3)
        self.grad_weights = normal(batch, groups, len(sizes) * nodes, *size, seed=4)

    def run(self, backend: str, dtype=FLOAT, wide=FLOAT, layout: str = "contiguous") -> dict[str, Tensor]:
        """Return results and gradients, of inputs in ``dtype``; offsets and bias in ``wide``."""
        device = device_of(backend)

        def leaf(t: Tensor, dtype: torch.dtype) -> Tensor:
            return LAYOUTS[layout](t.to(device, dtype)).detach().requires_grad_()

        leaves = {"query": leaf(self.query, dtype), "offsets": leaf(self.offsets, wide)}
        keys = [leaf(t, dtype) for t in self.keys]
        values = keys if self.values is self.keys else [leaf(t, dtype) for t in self.values]
        leaves |= {f"key {i}": t for i, t in enumerate(keys)} | {f"value {i}": t for i, t in enumerate(values)}
        if self.bias is not None:
            leaves["bias"] = leaf(self.bias, wide)
        offsets, bias = leaves["offsets"], leaves.get("bias")
        y, nodes, weights = representative_attention(
            leaves["query"], keys, values, offsets, bias=bias, backend=backend, return_nodes=True, **self.options
        )
        grads = [LAYOUTS[layout](self.grad.to(y)), self.grad_weights.to(weights)]
        found = torch.autograd.grad([y, weights], list(leaves.values()), grads, allow_unused=True)
        zeros = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves.values(), found, strict=True)]
        found = {"y": y, "weights": weights, "nodes": nodes} | dict(zip(leaves, zeros, strict=True))
        return {name: t.cpu() for name, t in found.items()}

    def rounded(self, dtype: torch.dtype, wide: torch.dtype) -> "Case":
        """Round the tensors to the dtypes that a backend gets."""
        self.query, self.grad = (t.to(dtype).double() for t in (self.query, self.grad))
        keys = [t.to(dtype).double() for t in self.keys]
        self.values = keys if self.values is self.keys else [t.to(dtype).double() for t in self.values]
        self.keys, self.offsets = keys, self.offsets.to(wide).double()
        self.bias = None if self.bias is None else self.bias.to(wide).double()
        return self


def compare(got: dict[str, Tensor], low: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Assert that errors against float64 are at most twice those of the reference, plus a few roundings."""
    for name, t in got.items():
        assert t.shape == want[name].shape and t.dtype == low[name].dtype, name
        if t.numel():
            allowed = 2 * distance(low[name], want[name], 1.0) + 8 * torch.finfo(t.dtype).eps
            assert distance(t, want[name], 1.0) <= allowed, name


def check(case: Case, kernel: str, dtype=FLOAT, wide=FLOAT, layout: str = "contiguous") -> None:
    case = case.rounded(dtype, wide)
    low, want = case.run("reference", dtype, wide), case.run("reference", DOUBLE, DOUBLE)
    compare(case.run(kernel, dtype, wide, layout), low, want)


CASES = {
    "maps of other sizes": dict(),
    "shared nodes": dict(own=False, groups=4, bias=(1, 3, 5)),
    "shared value": dict(shared=True, bias=None, batch=2),
    "wide keys": dict(channels=34, values=4, bias=(1, 3, 1)),
    "wide values": dict(channels=2, values=36, sizes=[(2, 2), (3, 5), (1, 9)], bias=(1, 1, 5)),
    "own bias": dict(batch=2, bias=(2, 1, 1), own=False, groups=1),
    "one map with bias": dict(sizes=[(3, 5)], own=False, groups=1, shared=True),
    "grid": dict(size=(5, 4), grid=2, bias=(1, 5, 4)),
    "grid of 3, shared": dict(size=(4, 5), grid=3, shared=True, own=False),
    "huge grid": dict(size=(2, 3), grid=2**40, bias=None),
    "an empty map": dict(sizes=[(0, 4), (2, 2)], bias=None),
    "only empty maps": dict(sizes=[(3, 0), (0, 2)]),
    "far offsets": dict(sigma=100.0),
    "single pixels": dict(size=(1, 1), sizes=[(1, 1), (1, 2)], nodes=5),
}


MAIN = ["maps of other sizes", "shared value", "wide keys", "grid of 3, shared"]  # also in Triton's interpreter


@pytest.mark.parametrize("name", MAIN)
def test_accuracy(kernel: str, name: str, poisoned: None) -> None:
    check(Case(**CASES[name]), kernel)


@pytest.mark.parametrize("name", [name for name in CASES if name not in MAIN])
def test_accuracy_of_other_cases(any_kernel: str, name: str, poisoned: None) -> None:
    check(Case(**CASES[name]), any_kernel)


@pytest.mark.slow  # compiles the kernels for each
@pytest.mark.parametrize(
    ("dtype", "wide"), [(DOUBLE, DOUBLE), (DOUBLE, BFLOAT), (BFLOAT, FLOAT), (BFLOAT, BFLOAT)], ids=str
)
def test_dtypes_on_the_cpu(dtype: torch.dtype, wide: torch.dtype, poisoned: None) -> None:
    check(Case(channels=34, values=36, size=(5, 20), bias=(1, 5, 20)), "cpu", dtype, wide)


@pytest.mark.parametrize("wide", [HALF, BFLOAT], ids=str)
def test_offsets_and_bias_in_half_precision(any_kernel: str, wide: torch.dtype, poisoned: None) -> None:
    check(Case(bias=(1, 3, 5)), any_kernel, FLOAT, wide)


def test_larger_maps_on_the_cpu(poisoned: None) -> None:
    """Whole vectors, blocks and tiles, and remainders."""
    check(Case([(9, 11), (20, 7)], (13, 37), 102, 70, groups=2, nodes=5, batch=2), "cpu")
    check(Case([(9, 11), (20, 7)], (13, 37), 96, 96, groups=3, nodes=3, own=False, grid=5, shared=True), "cpu")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
def test_layouts(any_kernel: str, layout: str, poisoned: None) -> None:
    check(Case(batch=2, bias=(2, 3, 5)), any_kernel, layout=layout)


def test_positions_are_rounded_as_in_the_reference(kernel: str) -> None:
    """At integers, derivatives are right-hand ones: a node on the other side has another gradient."""
    case = Case(sizes=[(7, 13), (3, 11)], size=(5, 9))
    nodes = case.run("reference", DOUBLE, DOUBLE)["nodes"]  # (B, K, L S, 2, H, W)
    anchors = nodes - case.offsets.reshape(nodes.shape)
    case.offsets = (case.offsets.reshape(nodes.shape).round() - anchors).flatten(1, 3).float().double()
    got, want = case.run(kernel)["offsets"], case.run("reference")["offsets"]
    assert distance(got, want) < 1e-5


def test_offsets_that_are_not_finite(kernel: str) -> None:
    case = Case()
    case.offsets[0, 0, 0, 1], case.offsets[0, 5, 1, 1], case.offsets[0, 2, 2, 2] = math.inf, -math.inf, 1e30
    far = case.run("reference")
    case.offsets[0, 3, 0, 0] = math.nan
    got = case.run(kernel)
    for name in ("y", "query"):
        assert got[name][0, :4, 0, 0].isnan().all()
        got[name][..., 0, 0] = far[name][..., 0, 0] = 0
        torch.testing.assert_close(got[name], far[name], rtol=1e-4, atol=1e-5)


def test_no_images(kernel: str) -> None:
    got = Case(batch=0).run(kernel)
    assert got["y"].shape == (0, 8, 3, 5) and not got["bias"].any()


def test_threads_change_no_bit_on_the_cpu() -> None:
    case = Case([(9, 11), (20, 7)], (13, 37), 64, 64, nodes=3, batch=2)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = case.run("cpu")
        torch.set_num_threads(4)
        four = case.run("cpu")
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one[name], four[name]) for name in one)


SHAPES = [(4, 5), (2, 3), (0, 2)]


def deform(backend, value, locations, weights, points, dtypes):
    device = device_of(backend)
    tensors = (value, locations, weights)
    leaves = [t.to(device, dtype).detach().requires_grad_() for t, dtype in zip(tensors, dtypes, strict=True)]
    y = multi_scale_deformable_attention(leaves[0], SHAPES, *leaves[1:], points=points, backend=backend)
    grads = torch.autograd.grad(y, leaves, normal(*y.shape).to(y))
    return {name: t.cpu() for name, t in zip(("y", "value", "locations", "weights"), (y, *grads), strict=True)}


@pytest.mark.parametrize("points", [None, [3, 0, 1]], ids=str)
@pytest.mark.parametrize("wide", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("channels", [3, 32])
def test_deformable_attention(any_kernel: str, points, wide: torch.dtype, channels: int, poisoned: None) -> None:
    each = (3, 2) if points is None else (4,)
    value = normal(2, 26, 2, channels).float().double()
    locations = (normal(2, 5, 2, *each, 2) * 0.4 + 0.5).to(wide).double()
    weights = normal(2, 5, 2, *each).to(wide).double()
    arguments = (value, locations, weights, points)
    low, want = (deform("reference", *arguments, d) for d in ((FLOAT, wide, wide), (DOUBLE,) * 3))
    compare(deform(any_kernel, *arguments, (FLOAT, wide, wide)), low, want)


@pytest.mark.filterwarnings("ignore:`torch.jit.*is deprecated")
@pytest.mark.parametrize("sizes", [SIZES, SIZES[:1]], ids=["two maps", "one map with a bias"])
def test_traces(sizes):
    case = Case(sizes, grid=1, batch=1)
    options = case.options | {"bias": case.bias}
    traced = torch.jit.trace(
        lambda query, offsets, *maps: representative_attention(query, maps, maps, offsets, **options),
        (case.query, case.offsets, *case.keys),
    )
    expected = representative_attention(case.query, case.keys, case.keys, case.offsets, backend="reference", **options)
    torch.testing.assert_close(traced(case.query, case.offsets, *case.keys), expected)
