"""The reference against a naive loop, against grid_sample, and its derivatives."""

import math

import pytest
import torch
from tests.ops.problem import Problem, vary
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from repgraph.ops import representative_attention


def attend(*tensors: Tensor, **options):
    return representative_attention(*tensors, backend="reference", **options)


def read(feature, b, c, y, x):
    _, _, height, width = feature.shape
    inside = 0 <= y < height and 0 <= x < width
    return feature[b, c, y, x].item() if inside else 0.0


def naive(query, key, value, offsets, groups, grid, scale):
    """Compute the formula one number at a time."""
    batch, channels, height, width = query.shape
    values = value.shape[1]
    nodes = offsets.shape[1] // 2
    result = torch.zeros(batch, values, height, width, dtype=torch.float64)
    for b in range(batch):
        for py in range(height):
            for px in range(width):
                cy, cx = py // grid, px // grid
                places = []
                for n in range(nodes):
                    x = cx * grid + offsets[b, 2 * n, cy, cx].item()
                    y = cy * grid + offsets[b, 2 * n + 1, cy, cx].item()
                    places.append((math.floor(x), math.floor(y), x - math.floor(x), y - math.floor(y)))

                def at(feature, c, place, b=b):
                    x, y, tx, ty = place
                    return (
                        (1 - tx) * (1 - ty) * read(feature, b, c, y, x)
                        + tx * (1 - ty) * read(feature, b, c, y, x + 1)
                        + (1 - tx) * ty * read(feature, b, c, y + 1, x)
                        + tx * ty * read(feature, b, c, y + 1, x + 1)
                    )

                for g in range(groups):
                    own = range(g * channels // groups, (g + 1) * channels // groups)
                    logits = [
                        scale * sum(query[b, c, py, px].item() * at(key, c, place) for c in own) for place in places
                    ]
                    weights = [math.exp(logit - max(logits)) for logit in logits]
                    for c in range(g * values // groups, (g + 1) * values // groups):
                        total = sum(w * at(value, c, place) for w, place in zip(weights, places, strict=True))
                        result[b, c, py, px] = total / sum(weights)
    return result


@pytest.mark.parametrize(
    "problem",
    [
        vary(batch=2, channels=3, values=2, height=4, width=5),
        vary(channels=4, values=6, height=3, width=4, groups=2, sigma=4.0),
        vary(channels=3, values=3, height=5, width=4, grid=2),
        vary(channels=4, values=2, height=5, width=7, grid=3, groups=2, nodes=2),
        vary(channels=2, values=2, height=3, width=2, grid=9, nodes=4),
        vary(channels=2, values=1, height=1, width=1, nodes=1),
    ],
    ids=repr,
)
def test_naive_loop(problem: Problem) -> None:
    t = problem.tensors()
    inputs = (t["query"], t["key"], t["value"], t["offsets"])
    got = attend(*inputs, **problem.options())
    torch.testing.assert_close(got, naive(*inputs, problem.groups, problem.grid, problem.scale), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "problem",
    [
        vary(channels=2, values=3, height=3, width=4, nodes=2),
        vary(channels=2, values=2, height=4, width=3, nodes=2, grid=2, groups=2, shared=True),
    ],
    ids=repr,
)
def test_first_and_second_derivatives(problem: Problem) -> None:
    t = problem.tensors()
    offsets = (t["offsets"].floor() + 0.1 + 0.8 * torch.rand(t["offsets"].shape, dtype=torch.float64)).requires_grad_()
    query, key = t["query"].requires_grad_(), t["key"].requires_grad_()
    value = key if problem.shared else t["value"].requires_grad_()

    def function(query, key, value, offsets):
        return attend(query, key, key if problem.shared else value, offsets, return_nodes=True, **problem.options())

    assert gradcheck(function, (query, key, value, offsets))
    assert gradgradcheck(lambda *a: function(*a)[0], (query, key, value, offsets))


def test_nodes_are_anchor_plus_offset() -> None:
    problem = vary(batch=2, height=5, width=7, nodes=3, grid=3, groups=2)
    t = problem.tensors()
    offsets = t["offsets"]
    offsets[0, 0, 0, 0] = math.inf
    _, nodes, weights = attend(t["query"], t["key"], t["value"], offsets, return_nodes=True, **problem.options())
    assert nodes.shape == (2, 3, 2, 2, 3) and weights.shape == (2, 2, 3, 5, 7)
    x, y = torch.tensor([0.0, 3, 6]), torch.tensor([0.0, 3])
    torch.testing.assert_close(nodes[:, :, 0], offsets[:, 0::2] + x)
    torch.testing.assert_close(nodes[:, :, 1], offsets[:, 1::2] + y[:, None])
    torch.testing.assert_close(weights.sum(2), torch.ones(2, 2, 5, 7, dtype=torch.float64))
