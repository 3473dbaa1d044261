"""The benchmark of layers: RepGraph layers, non-local blocks and DANet, as in the paper's complexity table.

All layers have sum fusion, as when they are inserted into networks; the bottleneck has no activation at its end. DANet
uses plain attention, as published: SDPA has no good kernel for values eight times as wide as queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from repgraph.bench import gate
from repgraph.bench.measure import CPU
from repgraph.bench.operator import SDPA_KERNELS, why_not_sdpa
from repgraph.bench.table import BOTH, FORWARD, Candidate, Leaves, Row, Setting, Table, number
from repgraph.layers import BottleneckRepGraph, DANetHead, NonLocal, SimpleRepGraph, fuse
from repgraph.layers.offset import Offset
from repgraph.ops.backends import choose
from repgraph.ops.tf32 import tensor_float_32

DANET, REPGRAPH = "danet", "repgraph"  # families
SAMPLE = 4  # multiply-adds of a bilinear interpolation
CLASSES = 19  # of DANet's head, as in the paper's table
MOVES = 0.03  # for the gate: standard deviation, in pixels, of the part of offsets that depends on the input
# G multiply-adds in the paper's complexity table, which calls them GFLOPs.
PAPER = {"nl-shared": 601.4, "danet-head": 785.01, "simple": 45.31, "bottleneck": 34.96}
Shape = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class LayerSetting(Setting):
    """The input of the layers: C channels, C' inside."""

    channels: int = 2048
    mid_channels: int = 256


def count_products(block: Candidate, setting: LayerSetting) -> int:
    """Count the multiply-adds of convolutions without bias, of products in attention, and of sampling, in inference."""
    setting = replace(setting, device=CPU, dtype=torch.float32)
    choose("cpu", CPU, setting.dtype)  # raises if this backend cannot run: its operator is counted, not the reference's

    def attention(query: Shape, key: Shape, value: Shape | None, offsets: Shape, *_: Any, **__: Any) -> int:
        batch, channels, height, width = query
        values = value[1] if value else 0  # none: the key, which is sampled once
        products = height * width * (channels + (values or key[1]))
        sampling = SAMPLE * offsets[2] * offsets[3] * (channels + values)
        return 2 * batch * (offsets[1] // 2) * (products + sampling)

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.repgraph.attention: attention})
    layer = prepare(block.build(setting, plain=block.family != REPGRAPH), FORWARD)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), counter:
        layer(make_input(setting))
    return counter.get_total_flops() // 2


def _factory(s: LayerSetting) -> dict[str, Any]:
    return dict(device=s.device, dtype=s.dtype)


def _non_local(s: LayerSetting, plain: bool = False, shared: bool = False, kernel: str = "") -> nn.Module:
    attention = "plain" if plain or not kernel else "sdpa"
    layer: Any = NonLocal(s.channels, s.mid_channels, attention=attention, share_query_key=shared, **_factory(s))
    if attention == "sdpa":
        layer.forward = sdpa_kernel(SDPA_KERNELS[kernel])(layer.forward)
    return layer


def _conv2d_non_local(s: LayerSetting, plain: bool = False) -> nn.Module:
    """Build the non-local block as it is usually written, with ``nn.Conv2d`` and the best kernel of SDPA."""
    layer = _non_local(s, plain, kernel="cudnn" if s.device.type == "cuda" else "flash")
    for name, child in list(layer.named_children()):
        if isinstance(child, nn.Conv2d):
            size, bias = (child.in_channels, child.out_channels, 1), child.bias is not None
            setattr(layer, name, nn.Conv2d(*size, bias=bias, **_factory(s)))
    return layer


def _danet_head(s: LayerSetting, plain: bool = False) -> nn.Module:
    """Build DANet's head with the predictions of both branches and of their sum, which its loss needs."""
    options: dict[str, Any] = dict(num_classes=CLASSES, attention="plain", dropout=0.0)  # results can be checked
    head: Any = DANetHead(s.channels, max(1, s.channels // 4), **options, **_factory(s))
    forward = head.forward
    head.forward = lambda x: torch.cat(forward(x, all_outputs=True), 1)
    return head


def _repgraph(s: LayerSetting, plain: bool = False, layer: Any = BottleneckRepGraph, **options: Any) -> nn.Module:
    backend = "reference" if plain else "auto"
    return layer(s.channels, s.mid_channels, nodes=s.nodes, backend=backend, **options, **_factory(s))


def _bottleneck(name: str, **options: Any) -> Candidate:
    return Candidate(name, partial(_repgraph, final_act=False, **options), REPGRAPH)


BLOCKS = (
    Candidate("nl-plain", _non_local),
    Candidate("nl-shared", partial(_non_local, shared=True)),
    *(Candidate(f"nl-sdpa-{n}", partial(_non_local, kernel=n), why_not=partial(why_not_sdpa, n)) for n in SDPA_KERNELS),
    Candidate("nl-conv2d", _conv2d_non_local, why_not=partial(why_not_sdpa, "flash")),  # as for cudnn on CUDA
    Candidate("danet-head", _danet_head, DANET),
    Candidate("simple", partial(_repgraph, layer=SimpleRepGraph), REPGRAPH),
    _bottleneck("bottleneck"),
    *(_bottleneck(f"bottleneck-grid-{n}", grid=n) for n in (2, 4, 8)),
    *(_bottleneck(f"bottleneck-groups-{n}", groups=n) for n in (4, 8, 16)),
    _bottleneck("bottleneck-rounds-3", rounds=3),
)


def make_input(s: LayerSetting) -> Tensor:
    shape = (s.batch, s.channels, s.height, s.width)
    x = torch.empty(shape, dtype=s.dtype, device=s.device, memory_format=s.memory_format)
    return x.normal_(generator=torch.Generator(s.device).manual_seed(0))


def prepare(layer: nn.Module, pass_: str) -> nn.Module:
    """Set up a layer for a pass, in place: fused for inference, or in training mode."""
    layer.train(pass_ == BOTH)
    return fuse(layer) if pass_ == FORWARD else layer


@torch.no_grad()
def make_layer(block: Candidate, setting: LayerSetting, *, gate: bool = False) -> nn.Module:
    """Return a layer with random parameters and spread nodes.

    For the gate, batch norms are random, and nodes stay between pixels, where the gradient of offsets is continuous.
    """
    torch.manual_seed(0)
    layer = block.build(setting)
    for module in layer.modules():
        if isinstance(module, SimpleRepGraph | BottleneckRepGraph):
            _spread_nodes(module, setting.sigma)
        elif isinstance(gamma := getattr(module, "gamma", None), nn.Parameter):
            nn.init.ones_(gamma)  # DANet's starts at zero, where only gamma gets a gradient
        elif gate and isinstance(module, nn.BatchNorm2d):
            for name, middle in (("running_mean", 0.0), ("running_var", 1.0), ("weight", 1.0), ("bias", 0.0)):
                nn.init.uniform_(getattr(module, name), middle - 0.2, middle + 0.2)
        elif gate and isinstance(module, Offset):
            assert module.bias is not None
            fractions = torch.empty_like(module.bias).uniform_(0.4, 0.6)
            module.bias.normal_(0, setting.sigma).floor_().add_(fractions)
            module.weight.mul_(MOVES / max(setting.sigma, 1e-6))
    return layer


def _spread_nodes(layer: SimpleRepGraph | BottleneckRepGraph, sigma: float) -> None:
    """Make offsets normally distributed around the middle of each cell, with deviation ``sigma``, for a normal input.

    In a new layer, unlike a trained one, they are the same for all positions. The bottleneck's features are rectified
    normal numbers of variance 1 if the rows of ``reduce`` have norm 1.
    """
    grid = int(layer.grid)
    deviation = 1.0  # of the features from which offsets are computed
    if isinstance(layer, BottleneckRepGraph):
        layer.reduce.weight.div_(layer.reduce.weight.norm(dim=1, keepdim=True))
        deviation = (0.5 - 0.5 / torch.pi) ** 0.5
    for offset in layer.offsets():
        rows = torch.randn(offset.weight.shape, device=offset.weight.device)
        rows = rows - rows.mean(1, keepdim=True)  # the mean of the features cancels
        rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
        offset.weight.copy_(rows * (sigma * grid / deviation))  # the mean over a cell has 1 / grid of the deviation
        offset.bias.fill_((grid - 1) / 2)
        deviation *= 0.8 / layer.nodes**0.5  # approximate deviation of responses, which are means over the nodes


class LayerTable(Table):
    """Multiply-adds, parameters, time and memory of layers.

    Forward: in evaluation mode, without gradients, with batch norm folded by the layer's ``fuse``. Forward and
    backward: in training mode, with the gradients of the input and of all parameters.
    """

    name = "layers"
    noun = "block"
    passes = checked = FORWARD, BOTH
    candidates = BLOCKS
    baselines: ClassVar = {"SDPA": [f"nl-sdpa-{name}" for name in SDPA_KERNELS], "plain": ["nl-plain"]}
    memory_column, counts_result = "extra_bytes", True
    context = staticmethod(tensor_float_32)

    def inputs(self, setting: LayerSetting) -> Leaves:
        return {"input": make_input(setting).requires_grad_()}

    def build(self, row: Row) -> nn.Module:
        return prepare(make_layer(row.candidate, row.setting), row.pass_)

    def versions(self, candidate: Candidate, setting: LayerSetting, pass_: str) -> tuple[nn.Module, ...]:
        layer = make_layer(candidate, setting, gate=True)
        plain = [candidate.build(replace(setting, dtype=dtype), plain=True) for dtype in (setting.dtype, torch.float64)]
        for module in plain:
            module.load_state_dict(layer.state_dict())
            module.train(pass_ == BOTH)
        return prepare(layer, pass_), *plain

    def precision(self, candidate: Candidate, setting: LayerSetting) -> gate.Precision:
        precision = super().precision(candidate, setting)
        if candidate.family == DANET:  # plain PyTorch, and its softmax of large logits amplifies rounding errors
            return precision._replace(result=float("inf"), gradient=float("inf"))
        return precision

    def facts(self, candidate: Candidate, setting: LayerSetting) -> dict[str, Any]:
        s = setting
        is_paper = (s.batch, s.channels, s.mid_channels, s.nodes, s.height, s.width) == (1, 2048, 256, 9, 128, 256)
        return {
            "backend": choose("auto", setting.device, setting.dtype) if candidate.family == REPGRAPH else "",
            "parameters": sum(p.numel() for p in candidate.build(setting).parameters()),
            "macs_products": count_products(candidate, setting),
            "paper_gmacs": PAPER.get(candidate.name) if is_paper else None,
        }

    def cells(self, row: Row) -> dict[str, str]:
        """Return multiply-adds next to the paper's, and parameters."""
        cells = {"GMACs": number(row.facts["macs_products"] / 1e9), "paper": number(row.facts["paper_gmacs"])}
        return cells | {"Mparam": number(row.facts["parameters"] / 1e6)}
