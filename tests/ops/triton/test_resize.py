"""The kernels of bilinear resizing, in the interpreter or on a GPU, against PyTorch's interpolation."""

import pytest
import torch
import torch.nn.functional as F

from repgraph.ops import library

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.usefixtures("kernels")
SIZES = [((1, 1), (7, 5)), ((5, 7), (23, 31)), ((9, 8), (4, 3)), ((6, 5), (6, 10)), ((3, 4), (12, 17))]


@pytest.mark.parametrize("small, large", SIZES, ids=str)
@pytest.mark.parametrize("channels, dtype, contiguous", [(21, torch.bfloat16, True), (130, torch.float16, False)])
def test_result_and_gradient(small, large, channels, dtype, contiguous) -> None:
    kernels, shape = library.kernels("triton"), (2, channels, *small)
    x = torch.randn(shape).to(DEVICE, dtype, memory_format=torch.channels_last)
    exact = x.double().requires_grad_()
    expected = F.interpolate(exact, large, mode="bilinear", align_corners=False)
    y = kernels.resize(x, large, torch.float32, contiguous)
    layout = torch.contiguous_format if contiguous else torch.channels_last
    assert y.is_contiguous(memory_format=layout)
    torch.testing.assert_close(y.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    grad = torch.randn(y.shape).to(DEVICE).contiguous(memory_format=layout)
    expected.backward(grad.double())
    found = kernels.resize_backward(grad, x.shape, torch.float32, contiguous)
    torch.testing.assert_close(found.double(), exact.grad, rtol=1e-5, atol=1e-5)
    rounded = kernels.resize(x, large, dtype, False)
    torch.testing.assert_close(rounded, y.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
