"""Batch normalization folded into products gives the same results as separate modules."""

import copy

import pytest
import torch
from tests.layers.equations import build
from tests.layers.mechanics import FORMATS, Calls
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, NonLocal, SimpleRepGraph, fuse
from repgraph.layers.pointwise import Pointwise, add_conv_norm

NORMS = [
    dict(),
    dict(momentum=None),
    dict(momentum=0.3, eps=0.1),
    dict(affine=False),
    dict(track_running_stats=False),
    dict(track_running_stats=False, affine=False),
]
EXACT, CLOSE = dict(rtol=1e-11, atol=1e-11), dict(rtol=1e-4, atol=1e-4)


def problem(dtype=torch.float64, memory_format=torch.contiguous_format) -> list[Tensor]:
    """Return x, and a map ``a`` whose channels have a mean and are correlated."""
    mix = torch.randn(5, 5, dtype=dtype)
    a = torch.einsum("oc,bchw->bohw", mix, torch.randn(3, 5, 4, 7, dtype=dtype)) + torch.randn(5, 1, 1, dtype=dtype)
    x = torch.randn(3, 9, 4, 7, dtype=dtype)
    return [t.contiguous(memory_format=memory_format).requires_grad_() for t in (x, a)]


def plain(x: Tensor, a: Tensor, convolution: nn.Conv2d, norm: nn.Module) -> Tensor:
    return x + norm(torch.conv2d(a, convolution.weight, convolution.bias))


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", NORMS, ids=str)
def test_add_conv_norm_matches_the_modules(options: dict, training: bool, memory_format) -> None:
    norm = build(nn.BatchNorm2d, 9, training=training, **options).double()
    convolution = Pointwise(5, 9, bias=False).double()
    twin = copy.deepcopy(norm)
    for _ in range(3):
        x, a = problem(memory_format=memory_format)
        with Calls() as calls:
            got = add_conv_norm(x, a, convolution, norm)
        if not options:  # the wide map is not normalized separately
            assert not any("batch_norm" in call for call in calls.seen)
        want = plain(x, a, convolution, twin)
        torch.testing.assert_close(got, want, **EXACT)
        assert got.is_contiguous(memory_format=memory_format)
        cotangent = torch.randn_like(got)
        grads = [
            torch.autograd.grad(y, (x, a, convolution.weight, *module.parameters()), cotangent)
            for y, module in ((got, norm), (want, twin))
        ]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        for (key, one), (_, other) in zip(norm.named_buffers(), twin.named_buffers(), strict=True):
            torch.testing.assert_close(one, other, **EXACT, msg=key)
    if norm.num_batches_tracked is not None:
        assert norm.num_batches_tracked == (3 if training else 0)


@pytest.mark.parametrize("mean", [1.0, 30.0, 1000.0])
def test_a_large_mean_does_not_hide_a_small_variance(mean: float) -> None:
    torch.manual_seed(0)
    convolution, norm = Pointwise(8, 16, bias=False), nn.BatchNorm2d(16)
    a = (mean + mean * 1e-3 * torch.randn(2, 8, 17, 19)).requires_grad_()
    x = torch.zeros(2, 16, 17, 19)
    exact = plain(x.double(), a.double(), copy.deepcopy(convolution).double(), copy.deepcopy(norm).double())
    low = plain(x, a, convolution, copy.deepcopy(norm))
    got = add_conv_norm(x, a, convolution, norm)
    assert (got - exact).norm() < 2 * (low - exact).norm() + 1e-5 * exact.norm()
    cotangent = torch.randn_like(x)
    grads = [torch.autograd.grad(y, a, cotangent.to(y), retain_graph=True)[0] for y in (got, low, exact)]
    assert (grads[0] - grads[2]).norm() < 2 * (grads[1] - grads[2]).norm() + 1e-5 * grads[2].norm()


class Louder(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Shifted(Pointwise):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("convolution", "norm"),
    [
        (Pointwise(5, 9, bias=False), nn.Identity()),
        (Pointwise(5, 9), nn.Identity()),
        (Pointwise(5, 9), build(nn.BatchNorm2d, 9)),
        (Pointwise(5, 9, bias=False), nn.GroupNorm(3, 9)),
        (Pointwise(5, 9, bias=False), nn.Sequential(build(nn.BatchNorm2d, 9), nn.Dropout(0.0))),
        (Pointwise(5, 9, bias=False), Louder(9)),
        (Shifted(5, 9, bias=False), build(nn.BatchNorm2d, 9)),
        (nn.Conv2d(5, 9, 3, padding=1), build(nn.BatchNorm2d, 9)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_other_modules_are_called(convolution: nn.Module, norm: nn.Module, training: bool) -> None:
    norm.train(training)
    x, a = problem(torch.float32)
    torch.testing.assert_close(add_conv_norm(x, a, convolution, norm), x + norm(convolution(a)), **CLOSE)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_synchronised_batch_norm(training: bool) -> None:
    layer, x = build(BottleneckRepGraph, training=training, nodes=3), torch.randn(2, 8, 5, 7)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer))
    want = layer(x)
    torch.testing.assert_close(synchronised(x), want, **CLOSE)
    for a, b in zip(synchronised.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    if not training:
        torch.testing.assert_close(fuse(synchronised)(x), want, **CLOSE)


def test_autocast_does_not_round_the_statistics() -> None:
    convolution, norm = Pointwise(5, 9, bias=False), build(nn.BatchNorm2d, 9)
    norm.num_batches_tracked = None  # as in old checkpoints
    twin = copy.deepcopy(norm)
    x, a = problem(torch.float32)
    a = a.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = add_conv_norm(x, a, convolution, norm)
    want = plain(x, a.float(), convolution, twin)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, want, rtol=0.05, atol=0.1)
    torch.testing.assert_close(norm.running_mean, twin.running_mean, **CLOSE)
    torch.testing.assert_close(norm.running_var, twin.running_var, **CLOSE)


class TestFuse:
    @pytest.mark.parametrize("fusion", ["sum", "concat"])
    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            (BottleneckRepGraph, dict(nodes=3, backend="reference")),
            (SimpleRepGraph, dict(nodes=3, backend="reference", norm_qk=True)),
            (NonLocal, dict(norm_qk=True)),
            (NonLocal, dict(norm_qk=True, share_query_key=True)),
        ],
    )
    def test_output_and_gradients_are_the_same(self, kind: type, options: dict, fusion: str) -> None:
        layer = build(kind, fusion=fusion, **options).double()
        fused = copy.deepcopy(layer)
        assert fuse(fused) is fused
        for memory_format in FORMATS:
            x = torch.randn(2, 8, 5, 7, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
            with torch.no_grad(), Calls() as calls:
                torch.testing.assert_close(fused(x), layer(x.detach()), **EXACT)
                calls.seen.clear()
                fused(x)
            assert not any("batch_norm" in call for call in calls.seen)
            found = [(y, *torch.autograd.grad(y.pow(2).sum(), x)) for y in (fused(x), layer(x))]
            for a, b in zip(*found, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
            assert torch.equal(fuse(fused)(x), fused(x))

    def test_names_of_fused_parameters(self) -> None:
        layer = fuse(build(BottleneckRepGraph))
        names = {"reduce.weight", "reduce.bias", "offset.weight", "offset.bias", "expand.weight", "expand.bias"}
        assert set(layer.state_dict()) == names

    @pytest.mark.parametrize(
        "norm", [None, lambda c: nn.GroupNorm(2, c), Louder, lambda c: nn.BatchNorm2d(c, track_running_stats=False)]
    )
    def test_other_normalisations_are_kept(self, norm) -> None:
        layer, x = build(BottleneckRepGraph, norm_layer=norm, nodes=3), torch.randn(2, 8, 5, 7)
        want, last = layer(x), layer.expand_norm
        torch.testing.assert_close(fuse(layer)(x), want, **CLOSE)
        assert layer.expand_norm is last
