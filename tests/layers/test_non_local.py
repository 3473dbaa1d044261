"""The non-local layer against its equations, and its support of PyTorch's features."""

import math
from functools import partial

import pytest
import torch
from tests.layers import mechanics
from tests.layers.equations import build as build_layer
from tests.layers.equations import project
from tests.layers.mechanics import CHANNELS_LAST, FORMATS, Calls
from torch import Tensor

from repgraph.layers.non_local import NonLocal, to_rows

VARIANTS = [
    dict(),
    dict(mid_channels=1),
    dict(mid_channels=6, groups=3),
    dict(mid_channels=6, groups=2, scale=1.0, fusion="concat"),
    dict(share_query_key=True, scale=0.3),
    dict(norm_qk=True, groups=2),
    dict(norm_qk=True, share_query_key=True, fusion="concat"),
]
build = partial(build_layer, NonLocal)


def equations(layer: NonLocal, x: Tensor, groups: int, scale: float | None) -> Tensor:
    batch, _, height, width = x.shape

    query = layer.theta_norm(project(layer.theta, x))
    key = query if layer.phi is None else layer.phi_norm(project(layer.phi, x))
    value = project(layer.g, x)
    d = query.shape[1] // groups
    scale = 1 / math.sqrt(d) if scale is None else scale
    responses = []
    for b in range(batch):
        for head in range(groups):
            keys, values = (t[b, head * d : (head + 1) * d].flatten(1) for t in (key, value))  # [d, N]
            for p in range(height * width):
                at = query[b, head * d : (head + 1) * d, p // width, p % width]
                powers = torch.stack([scale * (at @ k) for k in keys.T]).exp()
                responses.append(values @ (powers / powers.sum()))
    response = torch.stack(responses).view(batch, groups, height, width, d).permute(0, 1, 4, 2, 3).flatten(1, 2)
    update = project(layer.w_y, response)
    return x + update if layer.fusion == "sum" else torch.cat((x, update), 1)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("options", VARIANTS, ids=" ".join)
def test_output_and_gradients_match_the_equations(options: dict, attention: str) -> None:
    own = partial(equations, groups=options.get("groups", 1), scale=options.get("scale"))
    mechanics.assert_equal_to(build(**options, attention=attention), own, (2, 8, 3, 5), (1, 8, 1, 1), (1, 8, 1, 7))


def test_affinity() -> None:
    layer = build(mid_channels=6, groups=2)
    x = torch.randn(2, 8, 3, 5)
    weights = layer.affinity(x)
    assert weights.shape == (2, 2, 15, 15)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 15))
    response = (weights @ to_rows(layer.g(x), 2)).transpose(1, 2).flatten(2).mT.reshape(2, 6, 3, 5)
    torch.testing.assert_close(x + layer.w_y(response), layer(x), rtol=1e-4, atol=1e-5)
    for rows in ([7, 0, 14], torch.tensor([7, 0, 14])):
        torch.testing.assert_close(layer.affinity(x, rows), weights[:, :, [7, 0, 14]], rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match=r"input has shape \(2, 7, 3, 5\)"):
        layer.affinity(x[:, 1:])
    assert layer.bfloat16().affinity(x.bfloat16(), [3]).dtype == torch.float32


@pytest.mark.parametrize("groups", [1, 2])
def test_channels_last_maps_are_not_copied(groups: int) -> None:
    layer, x = build(groups=groups), torch.randn(2, 8, 3, 5)
    for memory_format in FORMATS:
        given = x.contiguous(memory_format=memory_format)
        with torch.no_grad(), Calls() as calls:
            layer(given)
        copies = {"clone", "copy_", "_to_copy"} & set(calls.seen)
        assert bool(copies) == (memory_format is not CHANNELS_LAST)
        assert any("flash" in name for name in calls.seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [dict(groups=2, norm_qk=True), dict(attention="plain", share_query_key=True, fusion="concat")], ids=str
)
def test_formats_copies_compile_and_export(options: dict, tmp_path) -> None:
    mechanics.assert_works_with_pytorch(partial(build, **options), 8, str(tmp_path / "layer.onnx"))
