"""Batch normalisation worked into products: the same as the modules one after the other, in every respect."""

import copy
import warnings

import pytest
import torch
from tests.layers.equations import build
from tests.layers.mechanics import CHANNELS_LAST, Calls
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.batch_norm import add_normalised, fold, normalised
from repgraph.layers.pointwise import Pointwise

FORMATS = (torch.contiguous_format, CHANNELS_LAST)
NORMS = [
    dict(),
    dict(momentum=None),
    dict(momentum=0.3, eps=0.1),
    dict(affine=False),
    dict(track_running_stats=False),
    dict(track_running_stats=False, affine=False),
    dict(bias=False),
]


def norm_of(channels: int, **options) -> nn.BatchNorm2d:
    if "bias" in options:  # PyTorch has no option for it in all versions
        norm = nn.BatchNorm2d(channels)
        norm.bias = None
    else:
        norm = nn.BatchNorm2d(channels, **options)
    with torch.no_grad():
        for name, tensor in [*norm.named_parameters(), *norm.named_buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    return norm


def problem(dtype=torch.float64, shape=(3, 5, 4, 7), channels: int = 9, memory_format=torch.contiguous_format):
    """x and a map ``a``, with a mean and a correlation between its channels."""
    mix = torch.randn(shape[1], shape[1], dtype=dtype)
    a = torch.einsum("oc,bchw->bohw", mix, torch.randn(shape, dtype=dtype)) + torch.randn(shape[1], 1, 1, dtype=dtype)
    x = torch.randn(shape[0], channels, *shape[2:], dtype=dtype)
    return [t.contiguous(memory_format=memory_format).requires_grad_() for t in (x, a)]


def written(x: Tensor, a: Tensor, convolution: nn.Conv2d, norm: nn.Module) -> Tensor:
    return x + norm(torch.conv2d(a, convolution.weight, convolution.bias))


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("options", NORMS, ids=str)
def test_add_normalised_is_what_the_modules_do(options: dict, training: bool, memory_format) -> None:
    torch.manual_seed(0)
    convolution, norm = Pointwise(5, 9, bias=False).double(), norm_of(9, **options).double().train(training)
    twin = copy.deepcopy(norm)
    for _ in range(3):
        x, a = problem(memory_format=memory_format)
        got, want = add_normalised(x, a, convolution, norm), written(x, a, convolution, twin)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert got.is_contiguous(memory_format=memory_format)
        cotangent = torch.randn_like(got)
        grads = [
            torch.autograd.grad(y, (x, a, convolution.weight, *module.parameters()), cotangent)
            for y, module in ((got, norm), (want, twin))
        ]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
        for (key, one), (_, other) in zip(norm.named_buffers(), twin.named_buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=key)
    if norm.num_batches_tracked is not None:
        assert norm.num_batches_tracked == (3 if training else 0)


def test_the_wide_map_is_not_normalised_on_its_own() -> None:
    """One product for all of it: what the modules are taken apart for."""
    for training in (False, True):
        convolution, norm = Pointwise(5, 9, bias=False), norm_of(9).train(training)
        x, a = problem(torch.float32, memory_format=CHANNELS_LAST)
        with torch.no_grad(), Calls() as calls:
            add_normalised(x, a, convolution, norm)
        assert not any("batch_norm" in call for call in calls.seen)
        with torch.no_grad(), Calls() as calls:
            written(x, a, convolution, norm)
        assert any("batch_norm" in call for call in calls.seen)  # it would have been seen


@pytest.mark.parametrize("mean", [1.0, 30.0, 1000.0])
def test_a_large_mean_does_not_hide_a_small_variance(mean: float) -> None:
    torch.manual_seed(0)
    convolution, norm = Pointwise(8, 16, bias=False), nn.BatchNorm2d(16)
    a = (mean + mean * 1e-3 * torch.randn(2, 8, 17, 19)).requires_grad_()
    x = torch.zeros(2, 16, 17, 19)
    exact = written(x.double(), a.double(), copy.deepcopy(convolution).double(), copy.deepcopy(norm).double())
    plain = written(x, a, convolution, copy.deepcopy(norm))
    got = add_normalised(x, a, convolution, norm)
    assert (got - exact).norm() < 2 * (plain - exact).norm() + 1e-5 * exact.norm()
    cotangent = torch.randn_like(x)
    grads = [torch.autograd.grad(y, (a, convolution.weight), cotangent, retain_graph=True) for y in (got, plain)]
    (true,) = torch.autograd.grad(exact, a, cotangent.double())
    errors = [(grad[0] - true).norm() for grad in grads]
    assert errors[0] < 2 * errors[1] + 1e-5 * true.norm()


def test_constant_maps() -> None:
    convolution, norm = Pointwise(5, 9, bias=False), norm_of(9)
    twin = copy.deepcopy(norm)
    x, a = torch.randn(2, 9, 5, 7), torch.randn(5)[:, None, None].expand(2, 5, 5, 7)
    got, want = add_normalised(x, a, convolution, norm), written(x, a, convolution, twin)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var, twin.running_var)


def test_one_position_is_pytorchs_own_error() -> None:
    convolution, norm = Pointwise(5, 9, bias=False), nn.BatchNorm2d(9)
    x, a = torch.randn(1, 9, 1, 1), torch.randn(1, 5, 1, 1)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        add_normalised(x, a, convolution, norm)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        normalised(x, norm, nn.ReLU())
    assert add_normalised(x, a, convolution, norm.eval()).shape == x.shape
    two = torch.randn(2, 5, 1, 1)
    torch.testing.assert_close(
        add_normalised(x.expand(2, 9, 1, 1), two, convolution, norm.train()),
        written(x.expand(2, 9, 1, 1), two, convolution, norm),
        rtol=1e-4,
        atol=1e-4,
    )


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
        (Pointwise(5, 9), norm_of(9)),
        (Pointwise(5, 9, bias=False), nn.GroupNorm(3, 9)),
        (Pointwise(5, 9, bias=False), nn.InstanceNorm2d(9, affine=True)),
        (Pointwise(5, 9, bias=False), nn.Sequential(norm_of(9), nn.Dropout(0.0))),
        (Pointwise(5, 9, bias=False), Louder(9)),
        (Shifted(5, 9, bias=False), norm_of(9)),
        (nn.Conv2d(5, 9, 1, bias=False), norm_of(9)),
        (nn.Conv2d(5, 9, 3, padding=1), norm_of(9)),
    ],
    ids=lambda m: type(m).__name__,
)
def test_other_modules(convolution: nn.Module, norm: nn.Module, training: bool) -> None:
    norm.train(training)
    x, a = problem(torch.float32)
    torch.testing.assert_close(add_normalised(x, a, convolution, norm), x + norm(convolution(a)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_synchronised_batch_normalisation_is_called_as_it_is(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build(BottleneckRepGraph, training=training, nodes=3)
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(layer))
    assert type(synchronised.expand_norm) is nn.SyncBatchNorm
    calls, forward = [], nn.SyncBatchNorm.forward
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda self, x: calls.append(self) or forward(self, x))
    x = torch.randn(2, 8, 5, 7)
    torch.testing.assert_close(synchronised(x), layer(x), rtol=1e-4, atol=1e-4)
    assert calls == [synchronised.reduce_norm, synchronised.expand_norm]
    for a, b in zip(synchronised.buffers(), layer.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.GELU(), nn.ReLU(inplace=True)], ids=str)
@pytest.mark.parametrize("options", NORMS, ids=str)
def test_normalised_is_what_the_modules_do(options: dict, act: nn.Module) -> None:
    norm = norm_of(9, **options)
    twin = copy.deepcopy(norm)
    for memory_format in FORMATS:
        x = torch.randn(2, 9, 5, 7).contiguous(memory_format=memory_format)
        assert torch.equal(normalised(x, norm, act), act(twin(x)))
    for a, b in zip(norm.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)


def test_a_missing_count_of_batches_is_no_obstacle() -> None:
    """PyTorch takes a normalisation without one, as in old checkpoints."""
    convolution, norm = Pointwise(5, 9, bias=False), norm_of(9)
    norm.num_batches_tracked = None
    twin = copy.deepcopy(norm)
    x, a = problem(torch.float32)
    torch.testing.assert_close(
        add_normalised(x, a, convolution, norm), written(x, a, convolution, twin), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(norm.running_mean, twin.running_mean)


def test_autocast_does_not_round_the_statistics() -> None:
    convolution, norm = Pointwise(5, 9, bias=False), norm_of(9)
    twin = copy.deepcopy(norm)
    x, a = problem(torch.float32)
    a = a.detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = add_normalised(x, a, convolution, norm)
    want = written(x, a.float(), convolution, twin)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, want, rtol=0.05, atol=0.1)
    torch.testing.assert_close(norm.running_mean, twin.running_mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, twin.running_var, rtol=1e-4, atol=1e-4)


class TestFuse:
    @pytest.mark.parametrize("memory_format", FORMATS, ids=str)
    @pytest.mark.parametrize("fusion", ["sum", "concat"])
    @pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
    def test_changes_nothing_but_the_work(self, kind: type, fusion: str, memory_format) -> None:
        options = dict(norm_qk=True) if kind is SimpleRepGraph else {}
        layer = build(kind, nodes=3, fusion=fusion, **options).double()
        x = torch.randn(2, 8, 5, 7, dtype=torch.float64).contiguous(memory_format=memory_format)
        with torch.no_grad():
            want = layer(x)
            assert layer.fuse() is layer
            torch.testing.assert_close(layer(x), want, rtol=1e-12, atol=1e-12)
            assert torch.equal(layer.fuse()(x), layer(x))
            with Calls() as calls:
                layer(x)
        assert not any("batch_norm" in call for call in calls.seen)
        torch.testing.assert_close(layer(x), want, rtol=1e-12, atol=1e-12)  # also where gradients are recorded

    def test_gradients_of_a_fused_layer(self) -> None:
        layer = build(BottleneckRepGraph, nodes=3).double()
        x = torch.randn(2, 8, 5, 7, dtype=torch.float64, requires_grad=True)
        (want,) = torch.autograd.grad(layer(x).pow(2).sum(), x)
        (got,) = torch.autograd.grad(layer.fuse()(x).pow(2).sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)

    def test_leaves_no_stale_weights(self) -> None:
        layer = build(BottleneckRepGraph)
        old = copy.deepcopy(layer.state_dict())
        layer.fuse()
        names = {"reduce.weight", "reduce.bias", "offset.weight", "offset.bias", "expand.weight", "expand.bias"}
        assert set(layer.state_dict()) == names
        assert not torch.equal(layer.state_dict()["expand.weight"], old["expand.weight"])
        with pytest.raises(RuntimeError, match="Unexpected key"):
            layer.load_state_dict(old)
        twin = build(BottleneckRepGraph, seed=1).fuse()
        twin.load_state_dict(layer.state_dict())
        x = torch.randn(1, 8, 5, 7)
        assert torch.equal(twin(x), layer(x)) and torch.equal(copy.deepcopy(layer)(x), layer(x))

    def test_follows_weights_that_change_before(self) -> None:
        """There is no copy of the weights that a load would leave behind."""
        layer, other, x = build(BottleneckRepGraph), build(BottleneckRepGraph, seed=1), torch.randn(1, 8, 5, 7)
        layer(x)
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer(x), other(x))
        torch.testing.assert_close(layer.fuse()(x), other(x), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
    def test_is_refused_in_training(self, kind: type) -> None:
        layer = build(kind, training=True)
        before = copy.deepcopy(layer.state_dict())
        with pytest.raises(RuntimeError, match=rf"fuse\(\) is for inference, and this {kind.__name__} is in training"):
            layer.fuse()
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())

    @pytest.mark.parametrize("norm", [None, lambda c: nn.GroupNorm(2, c), nn.InstanceNorm2d, Louder])
    def test_keeps_other_normalisations(self, norm) -> None:
        layer, x = build(BottleneckRepGraph, norm_layer=norm, nodes=3), torch.randn(2, 8, 5, 7)
        want, kept = layer(x), layer.expand_norm
        assert torch.equal(layer.fuse()(x), want) and layer.expand_norm is kept

    def test_folds_the_one_normalisation_there_is(self) -> None:
        layer, x = build(BottleneckRepGraph, norm_expand=False, nodes=3, fusion="concat"), torch.randn(2, 8, 5, 7)
        want = layer(x)
        torch.testing.assert_close(layer.fuse()(x), want, rtol=1e-4, atol=1e-4)
        assert type(layer.reduce_norm) is nn.Identity and layer.expand.bias is None

    def test_keeps_what_normalises_by_the_batch(self) -> None:
        def untracked(channels):
            return nn.BatchNorm2d(channels, track_running_stats=False)

        layer, x = build(BottleneckRepGraph, norm_layer=untracked, nodes=3), torch.randn(2, 8, 5, 7)
        want = layer(x)
        torch.testing.assert_close(layer.fuse()(x), want, rtol=1e-5, atol=1e-5)
        assert type(layer.expand_norm) is nn.BatchNorm2d

    def test_takes_synchronised_normalisation(self) -> None:
        layer = nn.SyncBatchNorm.convert_sync_batchnorm(build(BottleneckRepGraph, nodes=3))
        x = torch.randn(2, 8, 5, 7)
        want = layer(x)
        torch.testing.assert_close(layer.fuse()(x), want, rtol=1e-4, atol=1e-4)
        assert type(layer.reduce_norm) is type(layer.expand_norm) is nn.Identity

    def test_in_half_precision(self) -> None:
        layer = build(BottleneckRepGraph, nodes=3).bfloat16()
        nn.init.zeros_(layer.offset.weight)
        x = torch.randn(2, 8, 9, 11).bfloat16()
        exact = copy.deepcopy(layer).double()(x.double())
        before = (layer(x).double() - exact).norm()
        layer.fuse()
        assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
        assert (layer(x).double() - exact).norm() < 2 * before + exact.norm() / 256

    def test_folding_alone(self) -> None:
        convolution, norm = nn.Conv2d(5, 9, 3), norm_of(9, affine=False).eval()
        x = torch.randn(2, 5, 7, 8)
        want = norm(convolution(x))
        before = convolution(x)
        folded, rest = fold(convolution, norm)
        assert type(rest) is nn.Identity
        torch.testing.assert_close(folded(x), want, rtol=1e-4, atol=1e-4)
        assert torch.equal(convolution(x), before)  # it may be used elsewhere too
        linear = nn.Linear(5, 9)
        assert fold(linear, norm) == (linear, norm)

    def test_keeps_convolutions_whose_weight_is_computed(self) -> None:
        convolution, norm = Pointwise(5, 9), norm_of(9).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(convolution)
        assert fold(convolution, norm) == (convolution, norm)
        convolution = nn.utils.parametrizations.weight_norm(Pointwise(5, 9))
        assert fold(convolution, norm) == (convolution, norm)
