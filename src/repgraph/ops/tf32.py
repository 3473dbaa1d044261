"""TensorFloat-32, in which PyTorch may multiply float32 numbers on CUDA: 11 bits of each, several times as fast.

PyTorch has two ways to allow it, ``allow_tf32`` with ``set_float32_matmul_precision``, and ``fp32_precision`` in many
places. The first cannot be read where the second has been used.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def allowed() -> bool:
    """Whether PyTorch's own products of float32 matrices on CUDA are in TF32."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@contextlib.contextmanager
def tensor_float_32() -> Iterator[None]:
    """TF32 on, for products and convolutions, as it is used for training; as it was before, afterwards.

    It is set the first way, which is what others read meanwhile.
    """
    matmul: Any = torch.backends.cuda.matmul
    mkldnn: Any = torch.backends.mkldnn
    cudnn: Any = torch.backends.cudnn
    products = _read(torch.get_float32_matmul_precision)
    if products is None:
        older = _read(lambda: matmul.allow_tf32)
        older = not allowed() if older is None else older  # not readable: it contradicts the newer one
        products = "high" if older else "highest"
    convolutions = _read(lambda: cudnn.allow_tf32)
    places = [matmul, mkldnn.matmul]  # all that is about to change
    if convolutions is not True:
        places += [cudnn.conv, cudnn.rnn]
    before = [place.fp32_precision for place in places]
    try:
        torch.set_float32_matmul_precision("high")
        if convolutions is not True:
            cudnn.allow_tf32 = True
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        if convolutions is False:
            cudnn.allow_tf32 = False
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = "none"
            if place.fp32_precision != precision:  # else it follows what is set for everything, and goes on to do so
                place.fp32_precision = precision


def _read(setting: Callable[[], Any]) -> Any:
    """A setting of the first way; None where it cannot be read."""
    try:
        return setting()
    except RuntimeError:
        return None
