"""Linear maps along rows and columns, and the box filter."""

import pytest
import torch
from tests.ops.problem import LAYOUTS

from repgraph.ops.separable import around, separable


def by_loops(x, side):
    """Return the mean of the positions at most side // 2 rows and columns away from each position."""
    near, out = side // 2, torch.empty_like(x)
    for row in range(x.shape[2]):
        for column in range(x.shape[3]):
            window = x[:, :, max(row - near, 0) : row + near + 1, max(column - near, 0) : column + near + 1]
            out[:, :, row, column] = window.mean((2, 3))
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("before", "after"), [((1, 1), (1, 1)), ((5, 7), (3, 9)), ((4, 1), (6, 2))], ids=str)
def test_rows_times_map_times_columns(before, after, layout):
    x = LAYOUTS[layout](torch.randn(2, 3, *before, dtype=torch.float64))
    rows, columns = (torch.randn(a, b, dtype=torch.float64) for a, b in zip(after, before, strict=True))
    found = separable(x, rows, columns)
    torch.testing.assert_close(found, torch.einsum("hi,wj,bcij->bchw", rows, columns, x))
    if layout == "channels last" and after != (1, 1):
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_autocast_does_not_change_the_dtype():
    x, weights = torch.randn(1, 2, 5, 5), torch.randn(5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        found = separable(x, weights, weights)
    assert torch.equal(found, separable(x, weights, weights)) and found.dtype == torch.float32


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("size", "side"), [((1, 1), 3), ((5, 7), 3), ((5, 7), 9), ((9, 4), 41)], ids=str)
def test_means(size, side, layout):
    x = LAYOUTS[layout](torch.randn(2, 3, *size, dtype=torch.float64))
    torch.testing.assert_close(around(x, side), by_loops(x, side))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("size", "side"), [((1, 1), 3), ((40, 37), 15), ((13, 70), 25)], ids=str)
def test_means_and_their_gradient_on_the_gpu(size, side, layout, dtype):
    x = LAYOUTS[layout](torch.randn(2, 8, *size, dtype=torch.float64)).to(dtype)
    grad = torch.randn(2, 8, *size, dtype=torch.float64).to(dtype)
    found, want = x.cuda().requires_grad_(), x.double().requires_grad_()
    y, z = around(found, side), around(want, side)
    y.backward(grad.cuda())
    z.backward(grad.double())
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}[dtype]
    for ours, theirs in ((y, z), (found.grad, want.grad)):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.detach().double().cpu(), theirs.detach(), rtol=tolerance, atol=tolerance)
