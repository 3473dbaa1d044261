"""DANet's attentions and head against their equations, and their support of PyTorch's features."""

from functools import partial

import pytest
import torch
from tests.layers import mechanics
from tests.layers.equations import build as build_layer
from tests.layers.equations import project
from tests.layers.mechanics import FORMATS
from torch import Tensor, nn

from repgraph.layers.danet import ChannelAttention, DANetHead, DualAttention, PositionAttention

build = partial(build_layer, DualAttention, fan_in=True)
head = partial(build_layer, DANetHead, 10, fan_in=True, mid_channels=8, num_classes=3)


def position_by_position(module: PositionAttention, x: Tensor) -> Tensor:
    query, key, value = (project(each, x).flatten(2) for each in (module.query, module.key, module.value))
    columns = []
    for b in range(x.shape[0]):
        for p in range(query.shape[2]):
            powers = torch.stack([query[b, :, p] @ k for k in key[b].T]).exp()
            columns.append(value[b] @ (powers / powers.sum()))
    return torch.stack(columns).view(x.shape[0], -1, x.shape[1]).mT.reshape(x.shape)


def channel_by_channel(x: Tensor) -> Tensor:
    result = []
    for own in x:
        energy = torch.stack([torch.stack([(a * b).sum() for b in own]) for a in own])
        for row in energy:
            powers = (row.max() - row - (row.max() - row.min())).exp()
            result.append(sum(w * other for w, other in zip(powers / powers.sum(), own, strict=True)))
    return torch.stack(result).view(x.shape)


def equations(layer: DualAttention, x: Tensor) -> Tensor:
    return (
        x + layer.position.gamma * position_by_position(layer.position, x) + layer.channel.gamma * channel_by_channel(x)
    )


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("mid_channels", [None, 3, 8])
def test_output_and_gradients_match_the_equations(mid_channels: int | None, attention: str) -> None:
    layer = build(mid_channels=mid_channels, attention=attention)
    assert layer.position.query.out_channels == (mid_channels or 1)
    mechanics.assert_equal_to(layer, equations, (2, 8, 3, 5), (1, 8, 1, 1), (1, 8, 7, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_energies_of_half_precision_maps_are_in_float32(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """Over 2145 positions, similar channels have energies of 8e4 +- 5e2. Their differences matter, while float16 ends
    at 65504, and bfloat16 has steps of 512 there."""
    torch.manual_seed(0)
    x = 6 * torch.randn(2, 1, 33, 65) + 2 * torch.randn(2, 4, 33, 65)
    x = x.to(dtype).contiguous(memory_format=memory_format)
    flat = x.double().flatten(2)
    energy = flat @ flat.mT
    want = (torch.softmax(energy.amax(-1, keepdim=True) - energy, -1) @ flat).view(x.shape)
    rough = x.flatten(2) @ x.flatten(2).mT
    rough = (torch.softmax(rough.amax(-1, keepdim=True) - rough, -1) @ x.flatten(2)).view(x.shape)
    module = ChannelAttention(dtype=dtype)
    nn.init.ones_(module.gamma)
    got = module(x)
    assert got.dtype == dtype and got.is_contiguous(memory_format=memory_format)
    step = torch.finfo(dtype).eps * want.abs().max()
    assert (got.double() - want).abs().max() < 2 * step
    assert not (rough.double() - want).abs().max() < 8 * step  # the error of a sum in half precision


def test_outputs_of_the_head() -> None:
    """tests/goldens compares the values."""
    x = torch.randn(2, 10, 3, 5)
    fused, position, channel = head()(x, all_outputs=True)
    assert torch.equal(head()(x), fused) and fused.shape == position.shape == channel.shape == (2, 3, 3, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "channels"), [(build, 8), (head, 10)], ids=["layer", "head"])
def test_formats_copies_compile_and_export(make, channels: int, tmp_path) -> None:
    mechanics.assert_works_with_pytorch(make, channels, str(tmp_path / "layer.onnx"))
