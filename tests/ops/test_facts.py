"""Properties of the operator that follow from its definition, on every backend."""

import math

import pytest
import torch
from tests.ops.problem import NAMES, Problem, attention, device_of, distance, exact, prepare, run, surrounded, vary

from repgraph.ops import representative_attention


def inputs(problem: Problem, backend: str):
    t = prepare(problem, torch.float32, device_of(backend))
    return t["query"], t["key"], t["value"], t["offsets"]


def test_derivative_at_integers_is_the_right_hand_one(backend: str) -> None:
    problem = vary(channels=4, values=4, height=4)
    tensors = prepare(problem, torch.float32, device_of(backend))
    tensors["offsets"] = tensors["offsets"].round()
    got = run(attention(problem, backend), tensors, False)["grad offsets"]
    right = dict(tensors, offsets=tensors["offsets"].double() + 1e-7)
    left = dict(tensors, offsets=tensors["offsets"].double() - 1e-7)
    assert distance(got, exact(problem, right)["grad offsets"]) < 1e-5
    assert distance(got, exact(problem, left)["grad offsets"]) > 0.1


@pytest.mark.parametrize("grid", [1, 2])
def test_infinite_and_huge_offsets_are_off_the_map(backend: str, grid: int) -> None:
    """Maps are surrounded by NaN, which reveals reads outside of them."""
    problem = vary(grid=grid, groups=2, nodes=4)
    tensors = prepare(problem, torch.float32, device_of(backend))
    for name in ("query", "key", "value", "grad"):
        tensors[name] = surrounded(tensors[name])
    for channel, value in enumerate((math.inf, -math.inf, 1e30, -1e30, 3e9, -(2.0**31) - 1, 2.0**31)):
        tensors["offsets"][:, channel, channel % 2 :: 2, channel % 3 :: 2] = value
    clamped = dict(tensors, offsets=tensors["offsets"].clamp(-500, 500))
    got, want = run(attention(problem, backend), tensors, False), run(attention(problem, "reference"), clamped, False)
    for name in NAMES:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("grid", [1, 2])
def test_a_nan_offset_affects_its_own_queries_only(backend: str, grid: int) -> None:
    problem = vary(height=4, width=4, grid=grid)
    clean = prepare(problem, torch.float32, device_of(backend))
    dirty, far = (dict(clean, offsets=clean["offsets"].clone()) for _ in range(2))
    dirty["offsets"][0, 3, 1, 1] = math.nan
    far["offsets"][0, 3, 1, 1] = 1e9
    got, want = run(attention(problem, backend), dirty, False), run(attention(problem, "reference"), far, False)
    own = (slice(None), slice(None), slice(grid, 2 * grid), slice(grid, 2 * grid))
    for name in ("y", "grad query"):
        assert got[name][own].isnan().all()
        got[name][own] = want[name][own] = 0
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5, msg=name)
    got["grad offsets"][:, :, 1, 1] = want["grad offsets"][:, :, 1, 1] = 0
    torch.testing.assert_close(got["grad offsets"], want["grad offsets"], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of numpy, in the interpreter
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_in_the_maps_that_are_not_finite_are_not_hidden(backend: str, number: float) -> None:
    query, key, value, offsets = inputs(vary(height=4), backend)
    value = value.clone()
    value[0, :, 2, 3] = number
    y = representative_attention(query, key, value, torch.zeros_like(offsets), backend=backend)
    assert not y[0, :, 2, 3].isfinite().any()
    y[0, :, 1:4, 2:5] = 0  # corners of weight zero may carry it to direct neighbours
    assert y.isfinite().all()
