"""The two RepGraph layers from their equations, position by position and node by node; shares no code with them."""

import math

import torch
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph

CELL = 10**9  # of grid "map"


def build(kind: type, channels: int = 8, seed: int = 0, training: bool = False, **options):
    """A layer whose weights, biases and statistics are all of some size, and whose nodes are all over a small map."""
    torch.manual_seed(seed)
    layer = kind(channels, **options)
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
        layer.offset.weight.mul_(0.5)
    return layer.train(training)


def project(convolution: nn.Module, x: Tensor) -> Tensor:
    y = torch.einsum("oc,bchw->bohw", convolution.weight[:, :, 0, 0], x)
    return y if convolution.bias is None else y + convolution.bias[:, None, None]


def normalise(norm: nn.Module, z: Tensor) -> Tensor:
    if not isinstance(norm, nn.BatchNorm2d):
        return norm(z)
    if norm.training:
        mean = z.mean((0, 2, 3))
        variance = (z - mean[:, None, None]).square().mean((0, 2, 3))
    else:
        mean, variance = norm.running_mean, norm.running_var
    scale = norm.weight / (variance + norm.eps).sqrt()
    return (z - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]


def cells(size: int, grid: int) -> list[slice]:
    return [slice(start, min(start + grid, size)) for start in range(0, size, grid)]


def offsets_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Offsets (B, 2S, Hc, Wc): a convolution of the cells' means, and a bias that is scaled to the map."""
    grid = CELL if layer.grid == "map" else layer.grid
    height, width = x.shape[2:]
    rows = [
        torch.stack([x[:, :, row, column].mean((2, 3)) for column in cells(width, grid)], -1)
        for row in cells(height, grid)
    ]
    means = torch.stack(rows, -2)
    moved = window(layer.offset.weight, means)
    if layer.offset_view == "map":
        average = torch.stack([means[:, :, i, j] for i in range(means.shape[2]) for j in range(means.shape[3])]).mean(0)
        moved = moved + (average @ layer.offset.around.t())[:, :, None, None]
    bias, spread = layer.offset.bias, layer.spread
    sides = torch.tensor([width - 1, height - 1]).repeat(layer.nodes).to(bias)
    if layer.offset_unit == "map":
        moved = moved * (sides / 64)[:, None, None]
    if spread.unit == "maps":
        if layer.offset_unit == "map":
            bias = bias * sides / 64
        start = torch.tensor(spread.points, dtype=torch.float64).flatten().to(bias) * sides
        here = torch.stack(
            torch.meshgrid(torch.arange(0, width, grid), torch.arange(0, height, grid), indexing="xy")
        ).repeat(layer.nodes, 1, 1)
        return moved + bias[:, None, None] + start[:, None, None] - here
    if spread.unit == "half maps":
        bias = bias * sides / 2
    elif layer.offset_unit == "map":
        middle = 0 if spread.points is None else (layer.grid - 1) / 2
        bias = middle + (bias - middle) * sides / 64
    elif spread.points is not None and (extent := max(abs(c) for point in spread.points for c in point)):
        bias = bias * min(1, (min(height, width) - 1) / (2 * extent))
    return moved + bias[:, None, None]


def window(weight: Tensor, x: Tensor) -> Tensor:
    """A convolution of a map with zeros around it, shift by shift."""
    side, (height, width) = weight.shape[2] // 2, x.shape[2:]
    wide = x.new_zeros(*x.shape[:2], height + 2 * side, width + 2 * side)
    wide[:, :, side : side + height, side : side + width] = x
    return sum(
        torch.einsum("oc,bchw->bohw", weight[:, :, i, j], wide[:, :, i : i + height, j : j + width])
        for i in range(2 * side + 1)
        for j in range(2 * side + 1)
    )


def read(feature: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """A feature (C, H, W) at one point: (C,)."""
    left, top = math.floor(x.item()), math.floor(y.item())
    tx, ty = x - left, y - top
    corners = ((top, left, (1 - ty) * (1 - tx)), (top, left + 1, (1 - ty) * tx))
    corners += ((top + 1, left, ty * (1 - tx)), (top + 1, left + 1, ty * tx))
    value = feature.new_zeros(feature.shape[0])
    for row, column, share in corners:
        if 0 <= row < feature.shape[1] and 0 <= column < feature.shape[2]:
            value = value + feature[:, row, column] * share
    return value


def surroundings(feature: Tensor, side: int) -> Tensor:
    """Of each position the mean of those that are at most side // 2 rows and columns away."""
    near, (height, width) = side // 2, feature.shape[2:]
    means = [
        feature[:, :, max(y - near, 0) : y + near + 1, max(x - near, 0) : x + near + 1].mean((2, 3))
        for y in range(height)
        for x in range(width)
    ]
    return torch.stack(means, -1).view(feature.shape)


def respond(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    key, value = (surroundings(feature, layer.node_view) for feature in (key, value))
    batch, channels, height, width = query.shape
    grid = CELL if layer.grid == "map" else layer.grid
    d = channels // layer.groups
    found = []
    for b in range(batch):
        for py in range(height):
            for px in range(width):
                cy, cx = py // grid, px // grid
                keys, values = [], []
                for n in range(layer.nodes):
                    x, y = cx * grid + offsets[b, 2 * n, cy, cx], cy * grid + offsets[b, 2 * n + 1, cy, cx]
                    keys.append(read(key[b], x, y))
                    values.append(read(value[b], x, y))
                k, v = torch.stack(keys).view(-1, layer.groups, d), torch.stack(values).view(-1, layer.groups, d)
                q = query[b, :, py, px].view(layer.groups, d)
                factor = layer.scale * (1 if layer.temperature is None else layer.temperature)
                powers = (factor * (q * k).sum(-1)).exp()  # [S, G]
                found.append(((powers / powers.sum(0))[:, :, None] * v).sum(0).flatten())
    return torch.stack(found).view(batch, height, width, channels).permute(0, 3, 1, 2)


def equations(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, BottleneckRepGraph):
        feature = layer.act(normalise(layer.reduce_norm, project(layer.reduce, x)))
        response = respond(layer, feature, feature, feature, offsets_of(layer, feature))
        added = normalise(layer.expand_norm, project(layer.expand, response))
        return layer.final_act(x + added if layer.fusion == "sum" else torch.cat((x, added), 1))
    assert isinstance(layer, SimpleRepGraph)

    def normalised(z: Tensor, after: nn.Module) -> Tensor:
        return after[1](normalise(after[0], z)) if isinstance(after, nn.Sequential) else z

    query, key = (
        normalised(project(layer.theta, x), layer.theta_norm),
        normalised(project(layer.phi, x), layer.phi_norm),
    )
    added = project(layer.w_y, respond(layer, query, key, project(layer.g, x), offsets_of(layer, x)))
    return x + added if layer.fusion == "sum" else torch.cat((x, added), 1)
