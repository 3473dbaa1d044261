"""The kernels behind PyTorch's scaled_dot_product_attention (SDPA), and why one cannot run."""

import warnings

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from repgraph.bench.measure import require_memory
from repgraph.bench.row import first_line

KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def why_not(kernel: SDPBackend, channels: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why a kernel cannot run forward and backward with one head of that width, in PyTorch's words; found by trying."""
    if device.type == "cpu" and kernel not in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        return "PyTorch has this kernel for CUDA only"
    shape = (1, 1, 64, channels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            require_memory(4.0 * 64 * channels)
            x = torch.zeros(shape, dtype=dtype, device=device, requires_grad=True)
            with sdpa_kernel(kernel):
                y = F.scaled_dot_product_attention(x, x, x, scale=1.0)
            torch.autograd.grad(y, x, torch.ones_like(y))
        except Exception as error:
            said = [str(w.message).split(" (Triggered")[0].strip() for w in caught]
            said = [s for s in said if "runtime disabled" not in s and "not used because" not in s]
            return " ".join(dict.fromkeys(said)) or first_line(error)
    return None
