"""TensorFloat-32, in which PyTorch may multiply float32 on CUDA: 11 bits of each factor, several times as fast.

PyTorch has two interfaces for it. The older one cannot be read once the newer one (``fp32_precision``) has been used.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def allowed() -> bool:
    """Return whether PyTorch's float32 matrix products on CUDA use TF32."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@contextlib.contextmanager
def tensor_float_32() -> Iterator[None]:
    """Enable TF32 for matrix products and convolutions through the older interface; restore all settings at the end."""
    backends: Any = torch.backends
    cudnn = backends.cudnn
    places = [backends.cuda.matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn]
    before = [place.fp32_precision for place in places]
    products, convolutions = _read(torch.get_float32_matmul_precision), _read(lambda: cudnn.allow_tf32)
    try:
        torch.set_float32_matmul_precision("high")
        cudnn.allow_tf32 = True
        yield
    finally:
        torch.set_float32_matmul_precision(products or "highest")
        cudnn.allow_tf32 = convolutions is True
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = "none"
            if place.fp32_precision != precision:  # otherwise it inherits the global setting, and keeps inheriting it
                place.fp32_precision = precision


def _read(setting: Callable[[], Any]) -> Any:
    """Return a setting of the older interface, None if it cannot be read."""
    with contextlib.suppress(RuntimeError):
        return setting()
