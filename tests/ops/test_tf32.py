"""TensorFloat-32: whether it is on, however it was allowed, and that settings come back."""

import pytest
import torch

from repgraph.ops import tf32
from repgraph.ops.tf32 import tensor_float_32

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
HAS_NEWER = hasattr(MATMUL, "fp32_precision")
newer = pytest.mark.skipif(not HAS_NEWER, reason="this PyTorch has allow_tf32 alone")


@pytest.fixture(autouse=True)
def settings_come_back():
    """Whatever a test does to them."""
    with tensor_float_32():
        torch.set_float32_matmul_precision("highest")
        CUDNN.allow_tf32 = True
        if HAS_NEWER:
            MATMUL.fp32_precision = "none"
        yield


def newer_settings() -> list[str]:
    return [place.fp32_precision for place in (MATMUL, CUDNN.conv, CUDNN.rnn)] if HAS_NEWER else []


def test_allowed_the_older_way() -> None:
    assert not tf32.allowed()
    MATMUL.allow_tf32 = True
    assert tf32.allowed()
    torch.set_float32_matmul_precision("highest")
    assert not tf32.allowed()
    for name in ("high", "medium"):
        torch.set_float32_matmul_precision(name)
        assert tf32.allowed()


@newer
def test_allowed_the_newer_way() -> None:
    MATMUL.fp32_precision = "tf32"
    assert tf32.allowed()
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):  # what it must not stumble over
        MATMUL.allow_tf32  # noqa: B018
    MATMUL.fp32_precision = "ieee"
    assert not tf32.allowed()


@newer
def test_allowed_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends, "fp32_precision", "tf32")
    assert tf32.allowed()


def test_older_settings_come_back() -> None:
    for precision, convolutions in (("highest", False), ("medium", True)):
        torch.set_float32_matmul_precision(precision)
        CUDNN.allow_tf32 = convolutions
        before = newer_settings()
        with tensor_float_32():
            assert torch.get_float32_matmul_precision() == "high" and CUDNN.allow_tf32 and tf32.allowed()
        assert (torch.get_float32_matmul_precision(), CUDNN.allow_tf32) == (precision, convolutions)
        assert newer_settings() == before


@newer
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_newer_settings_come_back(precision: str) -> None:
    MATMUL.fp32_precision = precision
    CUDNN.conv.fp32_precision = "ieee"  # not what CUDNN.rnn has: the older setting cannot be read
    before = newer_settings()
    with tensor_float_32():
        assert newer_settings() == ["tf32"] * 3
    assert newer_settings() == before
    with pytest.raises(ZeroDivisionError), tensor_float_32():
        raise ZeroDivisionError
    assert newer_settings() == before


@newer
def test_nothing_was_set() -> None:
    """So what a user sets for everything later holds for products as well."""
    with tensor_float_32():
        pass
    assert MATMUL.fp32_precision == "none" and torch.get_float32_matmul_precision() == "highest"
