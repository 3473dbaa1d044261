"""The bottleneck layer as one autograd function: on a GPU, else in Triton's interpreter."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.layers.mechanics import CHANNELS_LAST
from tests.layers.test_repgraph_precision import assert_no_worse, gradients, in_float64, make_smooth, plain_pytorch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repgraph.layers import BottleneckRepGraph
from repgraph.ops import backends, bottleneck, product

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(backends.why_not("triton", DEVICE) is not None, reason="Triton cannot run here")
OPTIONS: dict[str, Any] = dict(channels=24, mid_channels=16, nodes=3)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Calls of the fused pass, with whether they were in training; maps on the CPU count as maps on a GPU."""
    made: list[bool] = []
    run: Callable = bottleneck.bottleneck

    def recorded(*arguments: Any) -> Any:
        made.append(arguments[3])
        return run(*arguments)

    monkeypatch.setattr("repgraph.layers.repgraph.bottleneck", recorded)
    if DEVICE.type == "cpu":
        for module in (bottleneck, product):
            monkeypatch.setattr(module, "fits", lambda *maps: all(map(fits, maps)))
    return made


def fits(t: Tensor) -> bool:
    dense = t.dim() != 4 or t.is_contiguous(memory_format=CHANNELS_LAST)
    return dense and t.numel() > 0 and t.dtype != torch.float64


def make(training: bool = True, dtype: torch.dtype = torch.float16, **options: Any) -> tuple[nn.Module, Tensor]:
    """Return a layer, and an input in half precision."""
    layer = make_smooth(BottleneckRepGraph, OPTIONS | options, training).to(DEVICE, dtype)
    torch.manual_seed(1)
    x = torch.randn(2, 24, 5, 7).to(DEVICE, torch.float16).contiguous(memory_format=CHANNELS_LAST)
    return layer, x.requires_grad_()


def results(layer: nn.Module, x: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    return gradients(layer(x), layer, x, cotangent)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("options", [dict(), dict(groups=4)], ids=str)
def test_as_exact_as_plain_pytorch(options: dict, autocast: bool, calls: list) -> None:
    layer, x = make(dtype=torch.float32 if autocast else torch.float16, **options)
    plain, exact = copy.deepcopy(layer), in_float64(layer)
    cotangent = torch.randn(x.shape)
    with torch.autocast(DEVICE.type, torch.float16, enabled=autocast):
        y = layer(x)
        theirs = plain_pytorch(plain, x)
    assert calls == [True]
    assert y.dtype == torch.float16 and y.is_contiguous(memory_format=CHANNELS_LAST)
    doubled = x.detach().double().cpu().requires_grad_()
    true = gradients(exact(doubled), exact, doubled, cotangent)
    mine, low = gradients(y, layer, x, cotangent), gradients(theirs, plain, x, cotangent)
    assert_no_worse(mine, low, true, BottleneckRepGraph, "odd", torch.finfo(torch.float16).eps, True)
    for name, buffer in layer.named_buffers():
        want = exact.get_buffer(name).double()
        torch.testing.assert_close(buffer.double().cpu(), want, rtol=0.01, atol=0.01, msg=name)
    offsets, height, width = layer.offset.seen
    assert (offsets.shape, offsets.requires_grad, height, width) == ((2, 6, 5, 7), False, 5, 7)


def test_in_evaluation(calls: list) -> None:
    layer, x = make(training=False)
    exact = in_float64(layer)
    with torch.no_grad():
        y = layer(x)
    assert calls == [False]
    want = exact(x.detach().double().cpu())
    assert (y.double().cpu() - want).norm() < 1e-3 * want.norm()
    layer(x).sum().backward()  # with gradients, part by part
    assert calls == [False]


def assert_same(got: Tensor, want: Tensor) -> None:
    """On a GPU, the order of sums varies from run to run."""
    assert (got - want).double().norm() <= 4 * torch.finfo(want.dtype).eps * want.double().norm()


@pytest.mark.parametrize("final_act", [False, True])
def test_only_what_is_needed(final_act: bool, calls: list) -> None:
    """Frozen parameters, an input without gradient, checkpoints, and gradients with other strides."""
    layer, x = make()
    layer.final_act = nn.ReLU() if final_act else nn.Identity()
    cotangent = torch.randn(x.shape, device=DEVICE)  # channels first
    twins = [copy.deepcopy(layer) for _ in range(3)]
    want = results(layer, x, cotangent)
    twins[0].requires_grad_(False)
    assert_same(torch.autograd.grad(twins[0](x), x, cotangent.half())[0], want["x"])
    twins[1](x.detach()).backward(cotangent.half())
    checkpoint(twins[2], x, use_reentrant=False).backward(cotangent.half())
    assert_same(x.grad, want["x"])
    for twin in twins[1:]:
        for name, parameter in twin.named_parameters():
            assert_same(parameter.grad, want[name])
    assert len(calls) == 5 and layer.reduce_norm.num_batches_tracked == 1


def test_second_order_is_an_error() -> None:
    layer, x = make()
    (grad,) = torch.autograd.grad(layer(x).float().square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


class Halved(BottleneckRepGraph):
    def attend(self, *arguments: Any) -> Any:
        return tuple(t / 2 for t in super().attend(*arguments))


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "__class__", Halved),
        lambda layer: layer.expand_norm.register_forward_hook(lambda *_: None),
        lambda layer: layer.act.register_full_backward_hook(lambda *_: None),
        lambda layer: layer.offset.register_forward_pre_hook(lambda *_: None),
        lambda layer: setattr(layer, "expand_norm", nn.SyncBatchNorm(24)),
        lambda layer: setattr(layer, "act", nn.GELU()),
        lambda layer: setattr(layer.reduce_norm, "momentum", None),
        lambda layer: layer.reduce_norm.eval(),
        lambda layer: setattr(layer, "grid", 2),
        lambda layer: setattr(layer, "fusion", "concat"),
        lambda layer: setattr(layer, "backend", "reference"),
        lambda layer: torch.nn.utils.parametrize.register_parametrization(layer.expand, "weight", nn.Identity()),
    ],
)
def test_other_layers_are_not_fused(change: Callable, calls: list) -> None:
    layer, x = make()
    assert layer.fused(x) is not None
    change(layer)
    assert layer.fused(x) is None and len(calls) == 1


def test_other_inputs_are_not_fused(calls: list) -> None:
    layer, x = make()
    for other in (x.detach().contiguous(), x[:0], x[:1, :, :1, :1].contiguous(memory_format=CHANNELS_LAST), x.float()):
        assert layer.fused(other) is None
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert layer.fused(x) is None
    assert not calls
