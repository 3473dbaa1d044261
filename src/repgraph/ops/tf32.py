"""TensorFloat-32, in which PyTorch may multiply float32 numbers on CUDA: 11 bits of each, several times as fast.

PyTorch has two ways to allow it: ``allow_tf32`` and ``set_float32_matmul_precision``, and from 2.9 on
``fp32_precision``. The first cannot be read where the second has been used.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def allowed() -> bool:
    """Whether PyTorch's own products of float32 matrices on CUDA are in TF32."""
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return matmul.allow_tf32 if precision is None else precision == "tf32"


@contextlib.contextmanager
def tensor_float_32() -> Iterator[None]:
    """TF32 on, for products and convolutions, as it is used for training; as it was before, afterwards."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    places: list[Any] = [cuda.matmul, *(getattr(cudnn, name, None) for name in ("conv", "rnn"))]
    newer = [(place, place.fp32_precision) for place in places if hasattr(place, "fp32_precision")]
    precision, convolutions = _read(torch.get_float32_matmul_precision), _read(lambda: cudnn.allow_tf32)
    try:
        torch.set_float32_matmul_precision("high")
        cudnn.allow_tf32 = True
        yield
    finally:
        if precision is not None:
            torch.set_float32_matmul_precision(precision)
        if convolutions is not None:
            cudnn.allow_tf32 = convolutions
        for place, value in newer:
            place.fp32_precision = value


def _read(setting: Any) -> Any:
    """A setting of the first way; None where it cannot be read."""
    try:
        return setting()
    except RuntimeError:
        return None
