"""The non-local layer against its equations, and its manners in PyTorch."""

import copy
import math

import pytest
import torch
from tests.layers import mechanics
from tests.layers.mechanics import CHANNELS_LAST, Calls
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from repgraph import representative_attention
from repgraph.layers import fuse, positions
from repgraph.layers.non_local import NonLocal

VARIANTS = [
    dict(),
    dict(mid_channels=3),
    dict(mid_channels=1),
    dict(mid_channels=6, groups=3),
    dict(mid_channels=6, groups=2, scale=1.0, fusion="concat"),
    dict(share_query_key=True, scale=0.3),
    dict(norm_qk=True, groups=2),
    dict(norm_qk=True, share_query_key=True, fusion="concat"),
    dict(norm_qk=True, norm_layer=lambda channels: nn.GroupNorm(1, channels), act_layer=nn.Tanh),
]


def build(channels: int = 8, seed: int = 0, **options) -> NonLocal:
    """A layer in evaluation mode whose weights, biases and statistics are all of some size."""
    torch.manual_seed(seed)
    layer = NonLocal(channels, **options).eval()
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    return layer


def equations(layer: NonLocal, x: Tensor, groups: int, scale: float | None) -> tuple[Tensor, Tensor]:
    """Update and weights, position by position."""
    batch, _, height, width = x.shape

    def project(convolution: nn.Conv2d, t: Tensor) -> Tensor:
        return torch.einsum("oc,bchw->bohw", convolution.weight[:, :, 0, 0], t)

    query = layer.theta_norm(project(layer.theta, x))
    key = query if layer.phi is None else layer.phi_norm(project(layer.phi, x))
    value = project(layer.g, x)
    d = query.shape[1] // groups
    scale = 1 / math.sqrt(d) if scale is None else scale
    weights, responses = [], []
    for b in range(batch):
        for head in range(groups):
            keys, values = (t[b, head * d : (head + 1) * d].flatten(1) for t in (key, value))  # [d, N]
            for p in range(height * width):
                at = query[b, head * d : (head + 1) * d, p // width, p % width]
                powers = torch.stack([scale * (at @ k) for k in keys.T]).exp()
                weights.append(powers / powers.sum())
                responses.append(values @ weights[-1])
    response = torch.stack(responses).view(batch, groups, height, width, d).permute(0, 1, 4, 2, 3).flatten(1, 2)
    assert layer.w_y.bias is not None
    return project(layer.w_y, response) + layer.w_y.bias[:, None, None], torch.stack(weights).view(
        batch, groups, height * width, -1
    )


def fused(layer: NonLocal, x: Tensor, update: Tensor) -> Tensor:
    return x + update if layer.fusion == "sum" else torch.cat((x, update), 1)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("options", VARIANTS, ids=" ".join)
def test_follows_the_equations(options: dict, attention: str) -> None:
    layer = build(**options, attention=attention)
    exact = copy.deepcopy(layer).double()
    for shape in [(2, 8, 3, 5), (1, 8, 1, 1), (1, 8, 1, 7)]:
        for memory_format in (torch.contiguous_format, CHANNELS_LAST):
            x = torch.randn(shape).contiguous(memory_format=memory_format)
            update, weights = equations(exact, x.double(), options.get("groups", 1), options.get("scale"))
            want = fused(layer, x.double(), update)
            assert want.shape[1] == layer.out_channels
            torch.testing.assert_close(exact(x.double()), want, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer(x).double(), want, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(exact.affinity(x.double()), weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("options", VARIANTS[3:8], ids=" ".join)
def test_gradients_are_those_of_the_equations(options: dict, attention: str) -> None:
    layer = build(**options, attention=attention).double()
    x = torch.randn(2, 8, 3, 5, dtype=torch.float64).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    update, _ = equations(layer, x, options.get("groups", 1), options.get("scale"))
    inputs = (x, *layer.parameters())
    got, want = (torch.autograd.grad(y.pow(3).sum(), inputs) for y in (layer(x), fused(layer, x, update)))
    for a, b in zip(got, want, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_is_representative_attention_that_looks_everywhere(scale: float | None) -> None:
    """With S = H W nodes whose offsets enumerate the map."""
    layer = build(mid_channels=6, groups=2, scale=scale)
    height, width = 3, 4
    x = torch.randn(2, 8, height, width)
    ys, xs = torch.meshgrid(torch.arange(float(height)), torch.arange(float(width)), indexing="ij")
    place = torch.stack((xs, ys))
    offsets = (place.flatten(1).T[:, :, None, None] - place).flatten(0, 1).expand(2, -1, -1, -1)
    response = representative_attention(
        layer.theta(x), layer.phi(x), layer.g(x), offsets, groups=2, scale=scale or 1 / math.sqrt(3)
    )
    torch.testing.assert_close(layer(x), x + layer.w_y(response), rtol=1e-4, atol=1e-4)


def test_affinity_of_some_rows() -> None:
    layer = build(mid_channels=6, groups=2)
    x = torch.randn(2, 8, 3, 5)
    weights = layer.affinity(x)
    assert weights.shape == (2, 2, 15, 15)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 15))
    for rows in ([7, 0, 14], torch.tensor([7, 0, 14])):
        torch.testing.assert_close(layer.affinity(x, rows), weights[:, :, [7, 0, 14]], rtol=1e-5, atol=1e-7)
    assert layer.bfloat16().affinity(x.bfloat16(), [3]).dtype == torch.float32


def test_channels_last_maps_are_never_copied() -> None:
    x = torch.randn(2, 8, 3, 5).contiguous(memory_format=CHANNELS_LAST)
    for groups in (1, 2):
        rows = positions.rows(x, groups)
        assert rows.shape == (2, groups, 15, 8 // groups) and rows.data_ptr() == x.data_ptr()
        layer = build(groups=groups)
        with torch.no_grad(), Calls() as calls:
            y = layer(x)
        assert y.is_contiguous(memory_format=CHANNELS_LAST)
        assert any("flash" in name for name in calls.seen)
        assert not {"clone", "copy_", "_to_copy"} & set(calls.seen)
        with torch.no_grad(), Calls() as calls:
            layer(x.contiguous())
        assert "clone" in calls.seen  # it would have been seen


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_the_response_has_the_format_of_the_value(attention: str) -> None:
    query, value = torch.randn(2, 1, 3, 5), torch.randn(2, 8, 3, 5)
    for memory_format in (torch.contiguous_format, CHANNELS_LAST):
        response = positions.attend(query, query, value.contiguous(memory_format=memory_format), attention=attention)
        assert response.shape == value.shape and response.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_caller_may_name_the_kernel(memory_format: torch.memory_format, groups: int) -> None:
    layer, x = build(groups=groups), torch.randn(2, 8, 5, 7).contiguous(memory_format=memory_format)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # refuses what it cannot take
        fast = layer(x)
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(fast, layer(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fusion", ["sum", "concat"])
def test_format_follows_the_input(fusion: str) -> None:
    for attention in ("sdpa", "plain"):
        for groups in (1, 2):
            layer = build(groups=groups, fusion=fusion, attention=attention)
            mechanics.assert_format_follows_input(layer, torch.randn(2, 8, 5, 7))


def test_zero_init_is_the_identity_and_learns() -> None:
    torch.manual_seed(0)
    mechanics.assert_starts_as_the_identity_and_learns(NonLocal(8, **NonLocal.INSERTED), {"w_y.weight", "w_y.bias"})


def test_a_shared_query_and_key_is_one_convolution() -> None:
    names = set(NonLocal(8, share_query_key=True, norm_qk=True).state_dict())
    assert {name.split(".")[0] for name in names} == {"theta", "theta_norm", "g", "w_y"}
    assert "phi_norm.0.weight" in NonLocal(8, norm_qk=True).state_dict()
    assert set(NonLocal(8).state_dict()) == {"theta.weight", "phi.weight", "g.weight", "w_y.weight", "w_y.bias"}


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_bfloat16_is_no_worse_than_pytorch_written_out(attention: str) -> None:
    layer = build(16, attention=attention).bfloat16()
    x = torch.randn(2, 16, 9, 7).bfloat16()
    want = copy.deepcopy(layer).double()(x.double())
    query, key, value = (torch.conv2d(x, c.weight).flatten(2) for c in (layer.theta, layer.phi, layer.g))
    weights = torch.softmax(query.mT @ key / math.sqrt(8), -1)
    written = x + torch.conv2d((value @ weights.mT).view(2, 8, 9, 7), layer.w_y.weight, layer.w_y.bias)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = copy.deepcopy(layer).float()(x.float())
    assert (layer(x).dtype, mixed.dtype) == (torch.bfloat16, torch.float32)
    bound = (written.double() - want).square().mean().sqrt() + want.square().mean().sqrt() / 256
    for y in (layer(x), mixed):
        assert (y.double() - want).square().mean().sqrt() < bound


def test_large_logits_are_stable() -> None:
    for attention in ("sdpa", "plain"):
        layer = build(scale=1.0, attention=attention)
        x = 100 * torch.randn(1, 8, 5, 7)
        want = copy.deepcopy(layer).double()(x.double())
        torch.testing.assert_close(layer(x).double(), want, rtol=1e-3, atol=1e-1)


def test_empty_batch_and_meta_device() -> None:
    assert build(groups=2)(torch.randn(0, 8, 3, 5)).shape == (0, 8, 3, 5)
    layer = NonLocal(8, norm_qk=True, fusion="concat", device="meta", dtype=torch.bfloat16)
    assert {p.device.type for p in layer.parameters()} == {"meta"} and layer.w_y.weight.dtype == torch.bfloat16
    y = layer(torch.empty(1, 8, 300, 400, device="meta", dtype=torch.bfloat16))
    assert y.shape == (1, 16, 300, 400) and y.device.type == "meta"


VARIED = [dict(groups=2, norm_qk=True), dict(attention="plain", share_query_key=True, fusion="concat")]


@pytest.mark.parametrize("options", VARIED, ids=str)
class TestAtHomeInPyTorch:
    def test_copies(self, options: dict) -> None:
        mechanics.assert_copies_compute_the_same(build(**options), build(seed=1, **options), torch.randn(1, 8, 3, 5))

    def test_compile(self, options: dict) -> None:
        mechanics.assert_compiles_once_for_all_sizes(build(**options), 8)

    def test_export(self, options: dict) -> None:
        mechanics.assert_exports(build(**options), 8)

    def test_onnx(self, options: dict, tmp_path) -> None:
        mechanics.assert_runs_in_onnxruntime(build(**options), 8, tmp_path)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # what PyTorch itself uses
def test_compiles_with_inductor() -> None:
    torch._dynamo.reset()
    layer, x = build(groups=2), torch.randn(1, 8, 5, 7).contiguous(memory_format=CHANNELS_LAST)
    y = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-4)
    assert y.is_contiguous(memory_format=CHANNELS_LAST)


def test_repr() -> None:
    shown = repr(NonLocal(8, groups=4, share_query_key=True)).splitlines()[1].strip()
    assert shown == "8, 4, attention='sdpa', groups=4, fusion='sum', scale=1.0, share_query_key=True"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(channels=0), ValueError, "channels is 0; at least 1"),
        (dict(channels=8.0), TypeError, "channels is 8.0; a whole number"),
        (dict(mid_channels=0), ValueError, "mid_channels is 0"),
        (dict(groups=3), ValueError, "groups=3 does not divide the 4 inner channels"),
        (dict(fusion="mean"), ValueError, "unknown fusion 'mean': choose one of 'sum', 'concat'"),
        (dict(attention="flash"), ValueError, "unknown attention 'flash': choose one of 'sdpa', 'plain'"),
        (dict(scale="root"), TypeError, "scale is 'root'; a finite number"),
        (dict(scale=math.nan), TypeError, "scale is nan"),
    ],
    ids=str,
)
def test_bad_options(options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        NonLocal(**(dict(channels=8) | options))


def test_bad_inputs() -> None:
    layer = NonLocal(8)
    for bad in (torch.zeros(8, 3, 5), torch.zeros(1, 7, 3, 5), torch.zeros(1, 8, 0, 5)):
        with pytest.raises(ValueError, match=r"the input has shape .*; \(B, 8, H, W\) is needed"):
            layer(bad)
        with pytest.raises(ValueError, match="the input has shape"):
            layer.affinity(bad)
    with pytest.raises(TypeError, match="the input is a list"):
        layer([1.0])
    for rows in ([15], [-1], [0.5], [[0]], torch.ones(15, dtype=torch.bool)):
        with pytest.raises(ValueError, match=r"(?s)rows is .*positions from 0 to 14 is needed"):
            layer.affinity(torch.zeros(1, 8, 3, 5), rows)


@pytest.mark.parametrize("shared", [False, True])
def test_fuse_folds_the_norms(shared: bool) -> None:
    layer = NonLocal(12, 6, norm_qk=True, share_query_key=shared)
    x = torch.randn(2, 12, 5, 7)
    for _ in range(3):
        layer(2 * x + 1)  # running statistics that are not where they started
    want = layer.eval()(x)
    assert layer.fuse() is layer
    assert not any(isinstance(module, nn.BatchNorm2d) for module in layer.modules())
    torch.testing.assert_close(layer(x), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError, match="fuse"):
        NonLocal(12, 6, norm_qk=True).fuse()


def test_fuse_of_a_model_finds_it() -> None:
    model = nn.Sequential(nn.Conv2d(3, 12, 1), NonLocal(12, norm_qk=True)).eval()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fuse(model).modules())
