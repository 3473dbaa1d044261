"""What has to hold on every backend, by the definition of the operator."""

import math

import pytest
import torch
from tests.ops.problem import NAMES, Problem, attention, device_of, distance, exact, prepare, run, vary

from repgraph.ops import representative_attention


def inputs(problem: Problem, backend: str, dtype=torch.float32):
    t = prepare(problem, dtype, device_of(backend))
    return t["query"], t["key"], t["value"], t["offsets"]


def test_non_local_is_a_special_case(backend: str) -> None:
    problem = vary(height=3, width=4, nodes=12, scale=1.0)
    query, key, value, _ = inputs(problem, backend)
    y, x = torch.meshgrid(torch.arange(3.0), torch.arange(4.0), indexing="ij")
    place = torch.stack((x, y)).to(query.device)  # [2, 3, 4]
    offsets = (place.flatten(1).T[:, :, None, None] - place).flatten(0, 1)[None]  # every position for every query
    got = representative_attention(query, key, value, offsets, backend=backend)
    q, k, v = (t.flatten(2).double() for t in (query, key, value))
    want = (v @ torch.softmax(q.transpose(1, 2) @ k, 2).transpose(1, 2)).view(value.shape)
    assert distance(got, want) < 1e-6


def test_zero_offsets_give_the_value(backend: str) -> None:
    query, key, value, offsets = inputs(vary(batch=2, nodes=4, groups=2), backend)
    got = representative_attention(query, key, value, torch.zeros_like(offsets), groups=2, backend=backend)
    torch.testing.assert_close(got, value, rtol=1e-6, atol=1e-6)


def test_order_of_nodes_does_not_matter(backend: str) -> None:
    query, key, value, offsets = inputs(vary(nodes=6), backend)
    order = torch.randperm(6, device=offsets.device)
    shuffled = offsets.unflatten(1, (6, 2))[:, order].flatten(1, 2)
    got, want = (representative_attention(query, key, value, o, backend=backend) for o in (shuffled, offsets))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("grid", [1, 2])
def test_translation(backend: str, grid: int) -> None:
    """Away from the borders it is equivariant: for a grid, to steps of its size."""
    problem = vary(height=12, width=14, grid=grid, channels=4, values=4)
    query, key, value, offsets = inputs(problem, backend)
    offsets = offsets.clamp(-2, 2)
    shifted = [t.roll((2, 2), (2, 3)) for t in (query, key, value)]
    moved = offsets.roll((2 // grid, 2 // grid), (2, 3))
    got = representative_attention(*shifted, moved, grid=grid, backend=backend)
    want = representative_attention(query, key, value, offsets, grid=grid, backend=backend).roll((2, 2), (2, 3))
    torch.testing.assert_close(got[:, :, 5:-4, 5:-4], want[:, :, 5:-4, 5:-4], rtol=1e-5, atol=1e-6)


def test_outside_counts_as_zero_and_is_not_masked(backend: str) -> None:
    query, key, value, offsets = inputs(vary(nodes=2), backend)
    offsets = torch.zeros_like(offsets)
    offsets[:, 2] = 1000.0  # the second node lies outside: logit 0, value 0
    y, _, weights = representative_attention(query, key, value, offsets, backend=backend, return_nodes=True)
    own = torch.sigmoid((query * key).sum(1, keepdim=True))
    torch.testing.assert_close(weights[:, 0, :1], own, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y, own * value, rtol=1e-5, atol=1e-6)


def test_the_derivative_at_integers_is_the_right_hand_one(backend: str) -> None:
    problem = vary(height=6, width=6, nodes=3, channels=4, values=4)
    tensors = prepare(problem, torch.float32, device_of(backend))
    tensors["offsets"] = tensors["offsets"].round()
    got = run(attention(problem, backend), tensors, False)["grad offsets"]
    right = dict(tensors, offsets=tensors["offsets"].double() + 1e-7)  # just right of the integers
    left = dict(tensors, offsets=tensors["offsets"].double() - 1e-7)
    assert distance(got, exact(problem, right)["grad offsets"]) < 1e-5
    assert distance(got, exact(problem, left)["grad offsets"]) > 0.1


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("grid", [1, 2])
def test_infinite_offsets_read_as_outside(backend: str, value: float, grid: int) -> None:
    problem = vary(grid=grid, groups=2)
    tensors = prepare(problem, torch.float32, device_of(backend))
    tensors["offsets"][:, 2, 1:, :2] = value
    tensors["offsets"][:, 5, :, 1] = value
    far = dict(tensors, offsets=tensors["offsets"].clamp(-500, 500))
    got, want = run(attention(problem, backend), tensors, False), run(attention(problem, backend), far, False)
    for name in NAMES:
        torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("grid", [1, 3])
def test_nan_offsets_stay_at_their_query(backend: str, grid: int) -> None:
    problem = vary(height=6, width=7, grid=grid)
    clean = prepare(problem, torch.float32, device_of(backend))
    dirty = dict(clean, offsets=clean["offsets"].clone())
    dirty["offsets"][0, 3, 1, 1] = math.nan
    far = dict(clean, offsets=clean["offsets"].clone())
    far["offsets"][0, 3, 1, 1] = 1e9
    got, want = run(attention(problem, backend), dirty, False), run(attention(problem, backend), far, False)
    own = (slice(None), slice(None), slice(grid, 2 * grid), slice(grid, 2 * grid))
    for name in ("y", "grad query"):
        got[name][own] = want[name][own] = 0
        torch.testing.assert_close(got[name], want[name], rtol=1e-6, atol=1e-6, msg=name)
    got["grad offsets"][:, :, 1, 1] = want["grad offsets"][:, :, 1, 1] = 0
    torch.testing.assert_close(got["grad offsets"], want["grad offsets"], rtol=1e-6, atol=1e-6)


def test_a_nan_in_the_maps_is_not_hidden(backend: str) -> None:
    query, key, value, offsets = inputs(vary(), backend)
    value = value.clone()
    value[0, :, 2, 3] = math.nan
    y = representative_attention(query, key, value, torch.zeros_like(offsets), backend=backend)
    assert y[0, :, 2, 3].isnan().all()
    y[0, :, 1:4, 2:5] = 0  # zero weights of corners may carry it to direct neighbours
    assert y.isfinite().all()
