"""TensorFloat-32: whether it is on, however it was allowed, and that settings come back."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from repgraph.ops import tf32
from repgraph.ops.tf32 import tensor_float_32

MATMUL, MKLDNN, CUDNN = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.cudnn


@pytest.fixture(autouse=True)
def settings_come_back() -> Iterator[None]:
    """Whatever a test does to them."""
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = MKLDNN.fp32_precision = "none"
    convolutions = CUDNN.allow_tf32
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    CUDNN.allow_tf32 = convolutions
    MATMUL.fp32_precision = MKLDNN.fp32_precision = "none"


def settings() -> list[Any]:
    """All of both ways; None for what cannot be read."""
    seen = [place.fp32_precision for place in (torch.backends, MATMUL, MKLDNN, CUDNN.conv, CUDNN.rnn)]
    older = (torch.get_float32_matmul_precision, lambda: MATMUL.allow_tf32, lambda: CUDNN.allow_tf32)
    return seen + [tf32._read(setting) for setting in older]


def test_allowed_the_older_way() -> None:
    assert not tf32.allowed()
    MATMUL.allow_tf32 = True
    assert tf32.allowed()
    torch.set_float32_matmul_precision("highest")
    assert not tf32.allowed()
    for name in ("high", "medium"):
        torch.set_float32_matmul_precision(name)
        assert tf32.allowed()


def test_allowed_the_newer_way() -> None:
    MATMUL.fp32_precision = "tf32"
    assert tf32.allowed()
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):  # what it must not stumble over
        MATMUL.allow_tf32  # noqa: B018
    MATMUL.fp32_precision = "ieee"
    assert not tf32.allowed()


def test_allowed_for_everything() -> None:
    torch.backends.fp32_precision = "tf32"
    assert tf32.allowed()


def medium() -> None:
    torch.set_float32_matmul_precision("medium")


def no_convolutions() -> None:
    CUDNN.allow_tf32 = False


def one_place(place: Any, precision: str) -> Any:
    def change() -> None:
        place.fp32_precision = precision

    return change


def two_places() -> None:
    torch.backends.fp32_precision = "tf32"
    MATMUL.fp32_precision = "ieee"


CHANGES = {
    "nothing": lambda: None,
    "medium": medium,
    "no convolutions": no_convolutions,
    "products": one_place(MATMUL, "tf32"),
    "no products": one_place(MATMUL, "ieee"),
    "bfloat16 on the CPU": one_place(MKLDNN, "bf16"),
    "some convolutions": one_place(CUDNN.conv, "ieee"),
    "everything": one_place(torch.backends, "tf32"),
    "nothing at all": one_place(torch.backends, "ieee"),
    "all but products": two_places,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_come_back(change: Any) -> None:
    change()
    before = settings()
    with pytest.raises(ZeroDivisionError), tensor_float_32():
        assert tf32.allowed() and torch.get_float32_matmul_precision() == "high" and CUDNN.allow_tf32
        raise ZeroDivisionError
    assert settings() == before


@pytest.mark.parametrize("first", ["none", "tf32", "ieee"])
def test_what_is_set_for_everything_holds_later_too(first: str) -> None:
    torch.backends.fp32_precision = first
    with tensor_float_32():
        pass
    for precision in ("ieee", "tf32"):
        torch.backends.fp32_precision = precision
        assert tf32.allowed() is (precision == "tf32") and MKLDNN.fp32_precision == precision
