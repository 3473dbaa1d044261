"""The deformable attention layer against that of transformers, and its support of PyTorch's features."""

import copy

import pytest
import torch
from torch import Tensor

from repgraph import DeformableAttention
from repgraph.errors import UsageError

# (height, width) of each map
SIZES = [(7, 9), (4, 5), (1, 3)]
TOTAL = sum(height * width for height, width in SIZES)


def build(perturb: bool = True, **options) -> DeformableAttention:
    """Return a layer whose points are not at whole pixels, where derivatives jump."""
    torch.manual_seed(0)
    layer = DeformableAttention(32, heads=4, levels=3, points=2, **options)
    with torch.no_grad():
        for parameter in layer.parameters() if perturb else ():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return layer


def problem(coordinates: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 11, 32, generator=generator).requires_grad_()
    points = torch.rand(2, 11, 3, coordinates, generator=generator).requires_grad_()
    value = torch.randn(2, TOTAL, 32, generator=generator).requires_grad_()
    return dict(query=query, reference_points=points, value=value)


def gradients(y: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).to(y).view_as(y))]


def of_transformers():
    """Return the module of Deformable DETR, a config, and the layer with the same sizes."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.deformable_detr import modeling_deformable_detr as detr

    config = transformers.DeformableDetrConfig(d_model=32, num_feature_levels=3)
    return detr, config, detr.DeformableDetrMultiscaleDeformableAttention(config, num_heads=4, n_points=2)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("coordinates", [2, 4])
def test_computes_what_transformers_does(coordinates, masked):
    layer, (*_, theirs) = build(), of_transformers()
    theirs.load_state_dict(layer.state_dict())
    given = problem(coordinates)
    padding = torch.zeros(2, TOTAL, dtype=torch.bool)
    padding[1, 5:20] = masked
    y = layer(**given, spatial_shapes=SIZES, padding_mask=padding if masked else None)
    ours = gradients(y, [*given.values(), *layer.parameters()])
    y, _ = theirs(
        given["query"], ~padding if masked else None, given["value"], reference_points=given["reference_points"],
        spatial_shapes=torch.tensor(SIZES), spatial_shapes_list=SIZES,
    )  # fmt: skip
    parameters = dict(theirs.named_parameters())
    expected = gradients(y, [*given.values(), *(parameters[name] for name, _ in layer.named_parameters())])
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item())


def test_initial_values_are_those_of_transformers():
    detr, config, theirs = of_transformers()
    detr.DeformableDetrPreTrainedModel._init_weights(detr.DeformableDetrPreTrainedModel(config), theirs)
    ours, expected = build(perturb=False).state_dict(), theirs.state_dict()
    assert ours.keys() == expected.keys()
    for name, t in ours.items():
        if name in ("value_proj.weight", "output_proj.weight"):  # random
            bound = (6 / 64) ** 0.5
            assert 0.8 * bound < t.abs().max() <= bound and expected[name].abs().max() <= bound
        else:
            torch.testing.assert_close(t, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # compiles the kernels for bfloat16
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_keeps_positions_in_float32(autocast):
    layer = build()
    with torch.no_grad():
        layer.sampling_offsets.bias.mul_(8)
    given = problem(2)
    narrow = {name: t.detach().bfloat16().float() for name, t in given.items()}
    layer.bfloat16().float()  # equal weights in both precisions
    exact = copy.deepcopy(layer).double()(**{n: t.double() for n, t in narrow.items()}, spatial_shapes=SIZES)
    if not autocast:
        layer.bfloat16()
        narrow |= {name: narrow[name].bfloat16() for name in ("query", "value")}
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(**narrow, spatial_shapes=SIZES)
    assert y.dtype == torch.bfloat16
    assert (y - exact).norm() < 0.01 * exact.norm()


def test_shapes_in_a_tensor_dtype_and_device():
    layer, given = build(), problem(2)
    with pytest.raises(UsageError, match=r"reference_points has shape .* 3\); expected \(B, Q, L, 2 or 4\)"):
        layer(**given | {"reference_points": problem(4)["reference_points"][..., :3]}, spatial_shapes=SIZES)
    assert torch.equal(layer(**given, spatial_shapes=SIZES), layer(**given, spatial_shapes=torch.tensor(SIZES)))
    layer = DeformableAttention(32, device="meta", dtype=torch.float64)
    assert {(p.dtype, p.device.type) for p in layer.parameters()} == {(torch.float64, "meta")}
