"""Multi-scale deformable attention against loops over single points, its gradients, PyTorch's tools, and errors."""

import itertools
import math
import re
import warnings

import pytest
import torch
from tests.ops.problem import device_of, distance
from torch import Tensor

from repgraph.ops import multi_scale_deformable_attention, representative_attention

SIZES = [(3, 5), (2, 2)]


def problem(device="cpu", dtype=torch.float32, queries=3, heads=2, channels=4, points=2, sizes=SIZES):
    """Return value, locations (some off the map) and weights."""
    generator = torch.Generator().manual_seed(0)
    positions = sum(height * width for height, width in sizes)
    value = torch.randn(2, positions, heads, channels, generator=generator, dtype=torch.float64)
    locations = (
        torch.rand(2, queries, heads, len(sizes), points, 2, generator=generator, dtype=torch.float64) * 1.6 - 0.3
    )
    weights = torch.randn(2, queries, heads, len(sizes), points, generator=generator, dtype=torch.float64)
    return [t.to(device, dtype) for t in (value, locations, weights)]


def loops(value: Tensor, sizes, locations: Tensor, weights: Tensor) -> Tensor:
    """The definition, point by point and corner by corner, with gradients."""
    batch, queries, heads, levels, points, _ = locations.shape
    y: dict = dict.fromkeys(itertools.product(range(batch), range(queries), range(heads)), 0.0)
    for b, q, m, level, p in itertools.product(*map(range, (batch, queries, heads, levels, points))):
        height, width = sizes[level]
        start = sum(h * w for h, w in sizes[:level])
        x, row = (locations[b, q, m, level, p, i] * n - 0.5 for i, n in enumerate((width, height)))
        left, top = math.floor(x.item()), math.floor(row.item())
        for i, j in itertools.product((top, top + 1), (left, left + 1)):
            if 0 <= i < height and 0 <= j < width:
                share = (1 - (row - i).abs()) * (1 - (x - j).abs()) * weights[b, q, m, level, p]
                y[b, q, m] = y[b, q, m] + share * value[b, start + i * width + j, m]
    zero = value.new_zeros(value.shape[3])
    return torch.stack([zero + each for each in y.values()]).view(batch, queries, -1)


def test_definition(backend: str) -> None:
    value, locations, weights = problem(dtype=torch.float64)
    tensors = [t.to(device_of(backend), torch.float32) for t in (value, locations, weights)]
    got = multi_scale_deformable_attention(tensors[0], SIZES, *tensors[1:], backend=backend)
    assert got.shape == (2, 3, 8) and got.is_contiguous()
    assert distance(got.cpu(), loops(value, SIZES, locations, weights)) < 1e-6


@pytest.mark.parametrize("channels", [4, 21])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradients_in_float64(backend: str, channels: int) -> None:
    tensors = [t.requires_grad_() for t in problem(dtype=torch.float64, channels=channels)]
    cotangent = torch.randn(2, 3, 2 * channels, dtype=torch.float64)
    y = multi_scale_deformable_attention(tensors[0], SIZES, *tensors[1:], backend=backend)
    got = torch.autograd.grad(y, tensors, cotangent)
    want = torch.autograd.grad(loops(tensors[0], SIZES, *tensors[1:]), tensors, cotangent)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


def test_numbers_of_points_that_differ(backend: str) -> None:
    value, locations, weights = problem(device_of(backend), points=3)
    listed = (
        torch.cat((locations[:, :, :, 0, :1], locations[:, :, :, 1]), 3),
        torch.cat((weights[:, :, :, 0, :1], weights[:, :, :, 1]), 3),
    )
    weights[:, :, :, 0, 1:] = 0
    want = multi_scale_deformable_attention(value, SIZES, locations, weights, backend=backend)
    got = multi_scale_deformable_attention(value, torch.tensor(SIZES), *listed, points=[1, 3], backend=backend)
    torch.testing.assert_close(got, want)


@pytest.mark.slow  # compiles the kernels for bfloat16
def test_autocast(backend: str) -> None:
    value, locations, weights = problem(device_of(backend))
    half = torch.bfloat16 if backend != "triton" or value.is_cuda else torch.float16
    with torch.autocast(value.device.type, half):
        assert multi_scale_deformable_attention(value, SIZES, locations, weights, backend=backend).dtype == half


def test_empty(backend: str) -> None:
    value, locations, weights = problem(device_of(backend))
    for tensors in ((value[:0], locations[:0], weights[:0]), (value, locations[:, :0], weights[:, :0])):
        leaves = [t.requires_grad_() for t in tensors]
        y = multi_scale_deformable_attention(leaves[0], SIZES, *leaves[1:], backend=backend)
        assert y.numel() == 0
        grads = torch.autograd.grad(y.sum(), leaves)
        assert all(g.shape == t.shape and not g.any() for g, t in zip(grads, leaves, strict=True))


def levels_arguments(backend: str):
    """Return arguments of ``repgraph::attention`` with computed and with given weights."""
    value, locations, weights = problem(device_of(backend))
    rows = value.flatten(2)
    offsets, bias = (t.flatten(2).unsqueeze(1).permute(0, 3, 1, 2) for t in (locations.flatten(3, 5), weights))
    numbers = ([3, 5, 2, 2], [2, 2], 2, 2, 1)
    given = (None, None, rows, offsets, bias, *numbers, 1.0, backend, True, False)
    query = torch.randn(2, 8, 2, 3, device=value.device)
    offsets = torch.randn(2, 16, 2, 3, device=value.device)
    bias = torch.randn(1, 8, 1, 1, device=value.device)
    return given, (query, rows, None, offsets, bias, *numbers, 0.5, backend, True, True)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck reads it
def test_opcheck(any_kernel: str) -> None:
    for arguments in levels_arguments(any_kernel):
        leaves = [t.clone().requires_grad_() if isinstance(t, Tensor) else t for t in arguments]
        torch.library.opcheck(torch.ops.repgraph.attention.default, tuple(leaves))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # of PyTorch
def test_compiles_once_for_all_sizes(any_kernel: str) -> None:
    torch._dynamo.reset()

    def function(value, sizes, locations, weights):
        return multi_scale_deformable_attention(value, sizes, locations, weights, backend=any_kernel)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (queries, sizes) in enumerate([(11, [(6, 5), (2, 3)]), (13, [(7, 3), (5, 2)])]):
        leaves = [t.requires_grad_() for t in problem(device_of(any_kernel), queries=queries, sizes=sizes)]
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(leaves[0], sizes, *leaves[1:])
        want = function(leaves[0], sizes, *leaves[1:])
        torch.testing.assert_close(got, want)
        for a, b in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (got, want)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_deterministic(any_kernel: str, deterministic) -> None:
    value, locations, weights = problem(device_of(any_kernel), queries=200)
    leaves = [t.requires_grad_() for t in (value, locations, weights)]
    y = multi_scale_deformable_attention(leaves[0], SIZES, *leaves[1:], backend=any_kernel)
    first, second = (torch.autograd.grad(y.square().sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    y = multi_scale_deformable_attention(leaves[0], SIZES, *leaves[1:], backend="reference")
    for a, b in zip(first, torch.autograd.grad(y.square().sum(), leaves), strict=True):
        assert distance(a, b) < 1e-5


def test_not_supported(any_kernel: str) -> None:
    kernel = any_kernel
    leaves = [t.requires_grad_() for t in problem(device_of(kernel))]
    y = multi_scale_deformable_attention(leaves[0], SIZES, *leaves[1:], backend=kernel)
    (grad,) = torch.autograd.grad(y.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second-order gradients"):
        grad.sum().backward()
    value, locations, weights = (t.detach() for t in leaves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="forward-mode"), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(weights, weights)
            multi_scale_deformable_attention(value, SIZES, locations, dual, backend=kernel)
    with pytest.raises(ValueError, match="do not match the sizes"):  # a traced call has no other check
        torch.ops.repgraph.attention(
            None, None, value.flatten(2), *(t.flatten(2).mT[:, :, None] for t in (locations, weights)), [3, 5, 2, 3],
            [2, 2], 2, 2, 1, 1.0, kernel, False, False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, "value is a list; expected a torch.Tensor", {"value": [1.0]}),
        (ValueError, "value has 19 positions; expected 20", {"spatial_shapes": [(4, 4), (2, 2)]}),
        (ValueError, "spatial_shapes is [(3, 5, 1)]", {"spatial_shapes": [(3, 5, 1)]}),
        (ValueError, "expected 6 dimensions", {"sampling_locations": torch.zeros(2, 3, 2, 2, 2)}),
        (ValueError, "attention_weights has shape (2, 3, 2, 2, 1)", {"attention_weights": torch.zeros(2, 3, 2, 2, 1)}),
        (ValueError, "sampling_locations has shape (2, 3, 2, 2, 2, 2); expected 5 dimensions", {"points": [2, 2]}),
        (TypeError, "value is torch.int64", {"value": torch.zeros(2, 19, 2, 4, dtype=torch.int64)}),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)  # fmt: skip
def test_wrong_arguments(error: type, message: str, changes: dict) -> None:
    value, locations, weights = problem()
    arguments = dict(value=value, spatial_shapes=SIZES, sampling_locations=locations, attention_weights=weights)
    with pytest.raises(error, match=re.escape(message)):
        multi_scale_deformable_attention(**arguments | changes)


def test_groups_with_equal_nodes_are_shared_nodes(backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 8, 3, 4, generator=generator).to(device_of(backend))
    maps = [torch.randn(1, 8, *size, generator=generator).to(query.device) for size in ((3, 4), (2, 2))]
    offsets = torch.randn(1, 12, 3, 4, generator=generator).to(query.device)
    shared = representative_attention(query, maps, maps, offsets, groups=2, backend=backend)
    own = representative_attention(
        query, maps, maps, offsets.repeat(1, 2, 1, 1), groups=2, own_nodes=True, backend=backend
    )
    torch.testing.assert_close(own, shared)
    swapped = offsets.unflatten(1, (2, 6)).flip(1).flatten(1, 2)
    other = representative_attention(query, maps[::-1], maps[::-1], swapped, groups=2, backend=backend)
    torch.testing.assert_close(other, shared, rtol=1e-4, atol=1e-5)
