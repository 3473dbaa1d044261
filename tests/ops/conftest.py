"""Every test here runs where it can: Triton on a GPU if there is one, else in its interpreter on the CPU."""

import math
from types import ModuleType

import pytest
import torch
from tests.ops.problem import device_of

from repgraph.ops import backends, library


def _skip_unless_it_runs(backend: str) -> str:
    reason = backends.why_not(backend, device_of(backend))
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    return backend


@pytest.fixture(params=["cpu", "triton"])
def kernel(request: pytest.FixtureRequest) -> str:
    """A backend with kernels."""
    return _skip_unless_it_runs(request.param)


@pytest.fixture(params=["reference", "cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """Any backend."""
    return _skip_unless_it_runs(request.param)


@pytest.fixture
def kernels() -> ModuleType:
    """The Triton kernels themselves."""
    return library.kernels(_skip_unless_it_runs("triton"))


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN: what a kernel fails to write cannot pass for a result."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(math.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(math.nan))


@pytest.fixture
def convolutions_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in TensorFloat-32, which is PyTorch's default for them on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
