"""TensorFloat-32: whether it is enabled, through either interface of PyTorch, and that settings are restored."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from repgraph.ops import tf32
from repgraph.ops.tf32 import tensor_float_32

MATMUL, MKLDNN, CUDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def restored_settings() -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = MKLDNN.fp32_precision = "none"
    convolutions = CUDNN.allow_tf32
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    CUDNN.allow_tf32 = convolutions
    MATMUL.fp32_precision = MKLDNN.fp32_precision = "none"


def settings() -> list[Any]:
    """Return the settings of both interfaces, None if unreadable."""
    seen = [place.fp32_precision for place in (torch.backends, MATMUL, MKLDNN, CUDNN.conv, CUDNN.rnn)]
    older = (torch.get_float32_matmul_precision, lambda: MATMUL.allow_tf32, lambda: CUDNN.allow_tf32)
    return seen + [tf32._read(setting) for setting in older]


def test_allowed_through_either_interface() -> None:
    assert not tf32.allowed()
    MATMUL.allow_tf32 = True
    assert tf32.allowed()
    torch.set_float32_matmul_precision("highest")
    assert not tf32.allowed()
    MATMUL.fp32_precision = "tf32"
    assert tf32.allowed()
    MATMUL.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32"
    assert tf32.allowed()


CHANGES: dict[str, list[tuple[Any, str, Any]]] = {
    "nothing": [],
    "no convolutions": [(CUDNN, "allow_tf32", False)],
    "products": [(MATMUL, "fp32_precision", "tf32")],
    "no products": [(MATMUL, "fp32_precision", "ieee")],
    "everything": [(torch.backends, "fp32_precision", "tf32")],
    "all but products": [(torch.backends, "fp32_precision", "tf32"), (MATMUL, "fp32_precision", "ieee")],
}


@pytest.mark.parametrize("precision", ["highest", "medium"])
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_settings_are_restored(changes: list[tuple[Any, str, Any]], precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    for owner, name, value in changes:
        setattr(owner, name, value)
    before = settings()
    with pytest.raises(ZeroDivisionError), tensor_float_32():
        assert tf32.allowed() and torch.get_float32_matmul_precision() == "high" and CUDNN.allow_tf32
        raise ZeroDivisionError
    assert settings() == before


@pytest.mark.parametrize("first", ["none", "tf32", "ieee"])
def test_the_global_setting_is_still_inherited(first: str) -> None:
    torch.backends.fp32_precision = first
    with tensor_float_32():
        pass
    for precision in ("ieee", "tf32"):
        torch.backends.fp32_precision = precision
        assert tf32.allowed() is (precision == "tf32") and MKLDNN.fp32_precision == precision
