"""RepGraph over several maps, against its equations, and pyramid pooling."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tests.layers import mechanics
from tests.layers.equations import build

import repgraph
from repgraph.errors import UsageError
from repgraph.layers.pooling import PyramidPooling
from repgraph.layers.pyramid import PyramidRepGraph

SIZES = ((9, 13), (5, 7), (2, 3))


def maps(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 16, *size, generator=generator, dtype=dtype) for size in SIZES]


def expected(layer: PyramidRepGraph, given: list[torch.Tensor]) -> torch.Tensor:
    """Compute the equations position by position, with grid_sample for single points."""

    def conv(module, y):
        return F.conv2d(y, module.weight, module.bias)

    updated = list(given)
    for number, level in [(number, level) for number in range(len(layer.rounds)) for level in (2, 1, 0)]:
        each = layer.rounds[number][level]
        if number == 0 and level < 2:
            above = F.interpolate(updated[level + 1], updated[level].shape[2:], mode="bilinear", align_corners=False)
            updated[level] = updated[level] + above
        x, found = updated[level], updated[level:]
        query = conv(each.query, x)
        values = [conv(value, y) for value, y in zip(each.values, found, strict=True)]
        start = each.offset.bias * min(1, (min(x.shape[2:]) - 1) / (2 * each.nodes))  # the rays shrink on small maps
        offsets = F.conv2d(x, each.offset.weight, start).unflatten(1, (each.groups, each.maps, each.nodes, 2))
        bias = each.bias.view(each.groups, each.maps, each.nodes)
        (height, width), part = x.shape[2:], x.shape[1] // each.groups
        response = torch.empty_like(x)
        for k in range(each.groups):
            own = slice(k * part, (k + 1) * part)
            logits, read = [], []
            for other, value in enumerate(values):
                h, w = value.shape[2:]
                ys, xs = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
                for n in range(each.nodes):
                    px = (xs + 0.5) * w / width - 0.5 + offsets[:, k, other, n, 0]
                    py = (ys + 0.5) * h / height - 0.5 + offsets[:, k, other, n, 1]
                    grid = torch.stack(((px + 0.5) * 2 / w - 1, (py + 0.5) * 2 / h - 1), -1)
                    at = F.grid_sample(value[:, own], grid, align_corners=False)
                    logits.append((query[:, own] * at).sum(1) * part**-0.5 + bias[k, other, n])
                    read.append(at)
            weights = torch.stack(logits, 1).softmax(1)
            response[:, own] = sum(weights[:, i, None] * each_read for i, each_read in enumerate(read))
        x = x + each.project_norm(conv(each.project, response))
        hidden = F.relu(each.widen_norm(conv(each.widen, x)))
        updated[level] = x + each.narrow_norm(conv(each.narrow, hidden))
    return updated[0]


@pytest.mark.parametrize("training", [False, True])
def test_output_matches_the_equations(training: bool) -> None:
    options = dict(rounds=2, nodes=3, groups=4, expansion=2, dtype=torch.float64)
    layer = build(PyramidRepGraph, 16, maps=3, training=training, fan_in=True, **options)
    twin = copy.deepcopy(layer)
    y, want = layer(maps()), expected(twin, maps())
    torch.testing.assert_close(y, want)
    cotangent = torch.randn_like(y)
    for network, result in ((layer, y), (twin, want)):
        result.backward(cotangent)
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in network.parameters())
    for (name, p), q in zip(layer.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-8, msg=name)
    for (name, p), q in zip(layer.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(p, q, msg=name)


def test_nodes_of_all_rounds_and_their_reach() -> None:
    layer, given = PyramidRepGraph(16, 3, rounds=2, nodes=4, groups=4).eval(), maps(dtype=torch.float32)
    y, nodes, weights = layer(given, return_nodes=True)
    torch.testing.assert_close(layer(given), y)
    assert len(nodes) == len(weights) == 2
    for n, w in zip(nodes, weights, strict=True):
        assert n.shape == (2, 4, 12, 2, 9, 13) and w.shape == (2, 4, 12, 9, 13)
        torch.testing.assert_close(w.sum(2), torch.ones(2, 4, 9, 13))
    # On the first map, node i of group 1 starts i + 1 pixels below its query.
    below = nodes[0][0, 1, :4, :, 3, 5] - torch.tensor([5.0, 3.0])
    torch.testing.assert_close(below, torch.tensor([[0.0, i + 1.0] for i in range(4)]))
    found = repgraph.reach(layer, given)
    assert list(found) == [f"rounds.{number}.{level}" for number in range(2) for level in range(3)]
    steps = [i * math.hypot(*(u * c for u, c in zip((13 / w, 9 / h), d, strict=True)))
             for d in ((1, 0), (0, 1), (-1, 0), (0, -1)) for h, w in SIZES for i in range(1, 5)]  # fmt: skip
    assert found["rounds.0.0"].mean == pytest.approx(sum(steps) / len(steps))


def test_fused_and_compiled_and_copied() -> None:
    options = dict(maps=3, rounds=1, groups=2, dtype=torch.float64)
    layer, given = build(PyramidRepGraph, 16, fan_in=True, **options), maps()
    mechanics.assert_copies_compute_the_same(layer, PyramidRepGraph(16, **options).eval(), given)
    want = layer(given)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), want)
    last = layer([each.to(memory_format=torch.channels_last) for each in given])
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, want)
    with pytest.raises(RuntimeError, match="training mode"):
        repgraph.fuse(PyramidRepGraph(16, groups=2))
    torch.testing.assert_close(repgraph.fuse(layer)(given), want)


def test_mistakes() -> None:
    given = maps(dtype=torch.float32)
    with pytest.raises(UsageError, match=r"got 2 maps; expected 3 \(16, 16, 16 channels\)"):
        PyramidRepGraph(16, 3)(given[:2])
    with pytest.raises(UsageError, match="the maps have batch sizes 1, 2; expected the same"):
        PyramidRepGraph(16)([given[0][:1], given[1]])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("batch", [0, 2])
def test_nodes_of_one_map_have_a_dimension_for_groups(groups: int, batch: int) -> None:
    y, nodes, weights = PyramidRepGraph(16, 1, groups=groups).eval()([torch.randn(batch, 16, 5, 6)], return_nodes=True)
    assert y.shape == (batch, 16, 5, 6) and nodes[0].shape == (batch, groups, 4, 2, 5, 6)
    assert weights[0].shape == (batch, groups, 4, 5, 6)


def test_pyramid_pooling() -> None:
    layer, x = PyramidPooling(8, bins=(1, 2)).eval(), torch.randn(2, 8, 6, 10)
    y = layer(x)
    assert y.shape == (2, 16, 6, 10) == (2, layer.out_channels, 6, 10) and torch.equal(y[:, :8], x)
    conv, (norm, _) = layer.branches[0]
    want = F.relu(norm(F.conv2d(x.mean((2, 3), keepdim=True), conv.weight)))
    torch.testing.assert_close(y[:, 8:12], want.expand(-1, -1, 6, 10))
    assert layer(x.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last)
