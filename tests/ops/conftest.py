"""Every test here runs where it can: Triton on a GPU if there is one, else in its interpreter on the CPU."""

import pytest
from tests.ops.problem import device_of

from repgraph.ops import backends


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
