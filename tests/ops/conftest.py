"""Fixtures of the operator's tests. Triton runs on a GPU if there is one, else in its interpreter on the CPU."""

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from tests.ops.problem import device_of, poisoned_memory

from repgraph.ops import backends, library


def _skip_unless_available(backend: str) -> str:
    reason = backends.why_not(backend, device_of(backend))
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    return backend


@pytest.fixture(params=["cpu", "triton"])
def kernel(request: pytest.FixtureRequest) -> str:
    """A backend with kernels."""
    return _skip_unless_available(request.param)


@pytest.fixture(params=["cpu", pytest.param("triton", marks=pytest.mark.slow)])
def any_kernel(request: pytest.FixtureRequest) -> str:
    """A backend with kernels, for tests of what all backends share: Triton's interpreter is slow."""
    return _skip_unless_available(request.param)


@pytest.fixture(params=["reference", "cpu", pytest.param("triton", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    """Any backend."""
    return _skip_unless_available(request.param)


@pytest.fixture
def kernels() -> ModuleType:
    """The Triton kernels themselves."""
    return library.kernels(_skip_unless_available("triton"))


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN."""
    with poisoned_memory():
        yield


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def convolutions_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable TF32, PyTorch's default for convolutions on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
