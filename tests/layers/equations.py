"""The two RepGraph layers from their equations, position by position and node by node; shares no code with them."""

import math

import torch
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph

ONE_CELL = 10**9  # for grid "map"


def build(kind: type, channels: int = 8, seed: int = 0, training: bool = False, fan_in: bool = False, **options):
    """Build a layer with random parameters and statistics of order 1, and nodes all over a small map.

    With ``fan_in``, weights are divided by the root of the number of their inputs.
    """
    torch.manual_seed(seed)
    layer = kind(channels, **options)
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
            if fan_in and tensor.dim() > 1:
                tensor.div_(tensor[0].numel() ** 0.5)
        for offset in layer.offsets() if hasattr(layer, "offset") else ():
            offset.weight.mul_(0.5)
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


def offsets_of(layer: nn.Module, x: Tensor, offset: nn.Module) -> Tensor:
    """Return offsets (B, 2S, Hc, Wc): a product with the means of the cells, and a bias that is scaled to the map."""
    grid = ONE_CELL if layer.grid == "map" else layer.grid
    height, width = x.shape[2:]
    rows = [
        torch.stack([x[:, :, row, column].mean((2, 3)) for column in cells(width, grid)], -1)
        for row in cells(height, grid)
    ]
    means = torch.stack(rows, -2)
    moved = torch.einsum("oc,bchw->bohw", offset.weight[:, :, 0, 0], means)
    bias, spread = offset.bias, offset.spread
    if spread.relative:
        bias = bias * torch.tensor([width - 1, height - 1]).repeat(layer.nodes).to(bias) / 2
    elif spread.points is not None and (extent := max(abs(c) for point in spread.points for c in point)):
        bias = bias * min(1, (min(height, width) - 1) / (2 * extent))
    return moved + bias[:, None, None]


def read(feature: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate a feature (C, H, W) at one point."""
    left, top = math.floor(x.item()), math.floor(y.item())
    tx, ty = x - left, y - top
    corners = ((top, left, (1 - ty) * (1 - tx)), (top, left + 1, (1 - ty) * tx))
    corners += ((top + 1, left, ty * (1 - tx)), (top + 1, left + 1, ty * tx))
    value = feature.new_zeros(feature.shape[0])
    for row, column, share in corners:
        if 0 <= row < feature.shape[1] and 0 <= column < feature.shape[2]:
            value = value + feature[:, row, column] * share
    return value


def window_means(feature: Tensor, side: int) -> Tensor:
    """Return the mean of the window around each position, clipped to the map."""
    near, (height, width) = side // 2, feature.shape[2:]
    means = [
        feature[:, :, max(y - near, 0) : y + near + 1, max(x - near, 0) : x + near + 1].mean((2, 3))
        for y in range(height)
        for x in range(width)
    ]
    return torch.stack(means, -1).view(feature.shape)


def respond(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    key, value = (window_means(feature, layer.node_view) for feature in (key, value))
    batch, channels, height, width = query.shape
    grid = ONE_CELL if layer.grid == "map" else layer.grid
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
                powers = (layer.scale * (q * k).sum(-1)).exp()  # [S, G]
                found.append(((powers / powers.sum(0))[:, :, None] * v).sum(0).flatten())
    return torch.stack(found).view(batch, height, width, channels).permute(0, 3, 1, 2)


def respond_in_rounds(layer: nn.Module, response: Tensor) -> Tensor:
    """Return the responses of all rounds, concatenated, given the response of the first."""
    responses = [response]
    for offset in layer.next_offsets:
        last = responses[-1]
        responses.append(respond(layer, last, last, last, offsets_of(layer, last, offset)))
    return torch.cat(responses, 1)


def equations(layer: nn.Module, x: Tensor) -> Tensor:
    if isinstance(layer, BottleneckRepGraph):
        feature = layer.act(normalise(layer.reduce_norm, project(layer.reduce, x)))
        response = respond(layer, feature, feature, feature, offsets_of(layer, feature, layer.offset))
        added = normalise(layer.expand_norm, project(layer.expand, respond_in_rounds(layer, response)))
        return layer.final_act(x + added if layer.fusion == "sum" else torch.cat((x, added), 1))
    assert isinstance(layer, SimpleRepGraph)

    def norm_act(z: Tensor, after: nn.Module) -> Tensor:
        return after[1](normalise(after[0], z)) if isinstance(after, nn.Sequential) else z

    query = norm_act(project(layer.theta, x), layer.theta_norm)
    key = norm_act(project(layer.phi, x), layer.phi_norm)
    response = respond(layer, query, key, project(layer.g, x), offsets_of(layer, x, layer.offset))
    added = project(layer.w_y, respond_in_rounds(layer, response))
    return x + added if layer.fusion == "sum" else torch.cat((x, added), 1)
