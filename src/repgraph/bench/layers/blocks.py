"""Who takes part: non-local attention plain and through SDPA, DANet, and the RepGraph layers.

All are sum-fused, in the form that is inserted into a network: the bottleneck has no activation at its end. DANet's
attentions are plain, as published: values eight times as wide as queries are not what SDPA's kernels are for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from repgraph.bench import sdpa
from repgraph.bench.layers import formulas
from repgraph.bench.layers.formulas import CLASSES, Count, head_width
from repgraph.bench.layers.row import COMPILED, DANET, NON_LOCAL, REPGRAPH, SDPA
from repgraph.bench.layers.setting import Setting
from repgraph.errors import UsageError
from repgraph.layers.bottleneck import BottleneckRepGraph
from repgraph.layers.danet import DANetHead
from repgraph.layers.dual_attention import DualAttention, Gated
from repgraph.layers.non_local import NonLocal
from repgraph.layers.repgraph import RepGraph
from repgraph.layers.simple import SimpleRepGraph

Make = Callable[[Setting, bool], nn.Module]


@dataclass(frozen=True)
class Block:
    """A layer to measure.

    ``make`` makes it for a setting; with True it is the plain version of the same layer, composed of PyTorch's
    operations, with the same parameters. ``formula`` counts its work. ``why_not`` says why it cannot run, or gives
    None. ``all_pairs`` tells that it has weights for all N x N pairs of positions in memory.
    """

    name: str
    label: str  # in tables and plots
    family: str
    make: Make
    formula: Callable[[Setting], Count]
    why_not: Callable[[Setting], str | None] = lambda setting: None
    all_pairs: bool = False

    @property
    def compiled(self) -> bool:
        return self.family == COMPILED

    def bytes_needed(self, setting: Setting, backward: bool) -> float:
        """A low estimate of what a call takes beyond its input, so that what cannot fit is not tried."""
        item = setting.dtype.itemsize
        maps = (3 if backward else 1) * setting.map_bytes  # the result; its gradient, and the input's
        if not self.all_pairs:
            return maps
        # Logits and weights, which are in float32 at first; backward the gradients of both.
        each = item + max(4, item) + (item if backward else 0)
        return maps + setting.batch * setting.positions**2 * each


class ByKernel(nn.Module):
    """A layer whose attention is computed by one kernel of SDPA."""

    def __init__(self, layer: nn.Module, kernel: SDPBackend) -> None:
        super().__init__()
        self.layer, self.kernel = layer, kernel

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(self.kernel):
            return self.layer(x)


class AllPredictions(nn.Module):
    """DANet's head with the predictions of both branches and of their sum, side by side: its loss takes all three."""

    def __init__(self, head: DANetHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.head(x, all_outputs=True), 1)


def _non_local(s: Setting, plain: bool, shared: bool = False, kernel: SDPBackend | None = None) -> nn.Module:
    attention = "plain" if plain or kernel is None else "sdpa"
    layer = NonLocal(
        s.channels, s.mid_channels, attention=attention, share_query_key=shared, device=s.device, dtype=s.dtype
    )
    return layer if kernel is None else ByKernel(layer, kernel)  # plain too: parameters keep their names


def _usual(s: Setting, plain: bool) -> nn.Module:
    """The non-local block as it is usually written, of ``nn.Conv2d``, with the kernel of SDPA that suits a GPU best."""
    layer = NonLocal(s.channels, s.mid_channels, attention="plain" if plain else "sdpa", device=s.device, dtype=s.dtype)
    for name, child in list(layer.named_children()):
        if isinstance(child, nn.Conv2d):
            size, bias = (child.in_channels, child.out_channels, 1), child.bias is not None
            setattr(layer, name, nn.Conv2d(*size, bias=bias, device=s.device, dtype=s.dtype))
    return ByKernel(layer, _best_kernel(s))


def _best_kernel(s: Setting) -> SDPBackend:
    return SDPBackend.CUDNN_ATTENTION if s.device.type == "cuda" else SDPBackend.FLASH_ATTENTION


def _dual_attention(s: Setting, plain: bool) -> nn.Module:
    return DualAttention(s.channels, attention="plain", device=s.device, dtype=s.dtype)


def _danet_head(s: Setting, plain: bool) -> nn.Module:
    width = head_width(s.channels)
    # Without dropout: results could not be checked, and its time is nothing beside the rest.
    head = DANetHead(
        s.channels, width, num_classes=CLASSES, attention="plain", dropout=0.0, device=s.device, dtype=s.dtype
    )
    return AllPredictions(head)


def _simple(s: Setting, plain: bool) -> nn.Module:
    backend = "reference" if plain else "auto"
    return SimpleRepGraph(s.channels, s.mid_channels, nodes=s.nodes, backend=backend, device=s.device, dtype=s.dtype)


def _bottleneck(s: Setting, plain: bool, grid: int = 1, groups: int = 1) -> nn.Module:
    return BottleneckRepGraph(
        s.channels,
        s.mid_channels,
        nodes=s.nodes,
        grid=grid,
        groups=groups,
        final_act=False,
        backend="reference" if plain else "auto",
        device=s.device,
        dtype=s.dtype,
    )


def _sdpa(name: str) -> Block:
    kernel = sdpa.KERNELS[name]
    return Block(
        f"nl-sdpa-{name}",
        f"NL (SDPA: {name})",
        SDPA,
        partial(_non_local, kernel=kernel),
        formulas.non_local,
        lambda s: sdpa.why_not(kernel, s.mid_channels, s.dtype, s.device),
        all_pairs=kernel == SDPBackend.MATH,
    )


def _grid(grid: int) -> Block:
    name, label = f"bottleneck-grid-{grid}", f"Bottleneck, grid {grid}"
    make, formula = partial(_bottleneck, grid=grid), partial(formulas.bottleneck, grid=grid)
    return Block(name, label, REPGRAPH, make, formula)


def _groups(groups: int) -> Block:
    def reason(s: Setting) -> str | None:
        return f"{groups} groups do not divide C' {s.mid_channels}" if s.mid_channels % groups else None

    name, label = f"bottleneck-groups-{groups}", f"Bottleneck, groups {groups}"
    make, formula = partial(_bottleneck, groups=groups), partial(formulas.bottleneck, groups=groups)
    return Block(name, label, REPGRAPH, make, formula, reason)


BLOCKS = (
    Block("nl-plain", "NL (plain)", NON_LOCAL, _non_local, formulas.non_local, all_pairs=True),
    Block(
        "nl-shared",
        "NL (phi = theta)",
        NON_LOCAL,
        partial(_non_local, shared=True),
        partial(formulas.non_local, shared=True),
        all_pairs=True,
    ),
    *map(_sdpa, sdpa.KERNELS),
    Block(
        "nl-conv2d",
        "NL (nn.Conv2d)",
        NON_LOCAL,
        _usual,
        formulas.non_local,
        lambda s: sdpa.why_not(_best_kernel(s), s.mid_channels, s.dtype, s.device),
    ),
    Block("danet-block", "DANet block", DANET, _dual_attention, formulas.dual_attention, all_pairs=True),
    Block("danet-head", "DANet head", DANET, _danet_head, formulas.danet_head, all_pairs=True),
    Block("simple", "Simple", REPGRAPH, _simple, formulas.simple),
    Block("bottleneck", "Bottleneck", REPGRAPH, _bottleneck, formulas.bottleneck),
    *map(_grid, (2, 4, 8)),
    *map(_groups, (4, 8, 16)),
)


def compiled(block: Block) -> Block:
    """The same through ``torch.compile``."""
    return replace(block, name=f"{block.name}-compiled", label=f"{block.label}, compiled", family=COMPILED)


def select(names: list[str] | None, with_compiled: bool = False) -> tuple[Block, ...]:
    """The blocks with these names, all for None, in the order of :data:`BLOCKS`; each compiled too, if asked."""
    known = [block.name for block in BLOCKS]
    for name in names or ():
        if name not in known:
            raise UsageError(f"unknown block {name!r}; choose from {', '.join(known)}")
    chosen = [block for block in BLOCKS if names is None or block.name in names]
    return tuple(b for block in chosen for b in ((block, compiled(block)) if with_compiled else (block,)))


def new(block: Block, setting: Setting) -> nn.Module:
    """The layer as it is measured: random parameters that belong to the setting's seed, and spread offsets."""
    cuda = [setting.device] if setting.device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        torch.manual_seed(setting.seed)
        layer = block.make(setting, False)
        for module in layer.modules():
            if isinstance(module, RepGraph):
                spread_(module, setting.sigma)
            elif isinstance(module, Gated):
                nn.init.ones_(module.gamma)  # from zero, where training starts, nothing but gamma gets a gradient
    return layer


def spread_(layer: RepGraph, sigma: float) -> None:
    """Make offsets normal around the middle of each cell, with standard deviation ``sigma``, for a normal input.

    In a trained layer nodes lie anywhere; a fresh one has its nodes on a ring, the same for all positions. So the
    offset convolution gets random weights of such a size, without a constant part: each position has offsets of its
    own. The bottleneck's features are rectified normal numbers of variance 1 if the rows of ``reduce`` have length 1.
    """
    grid = int(layer.grid)
    deviation = 1.0  # of the numbers from which the offsets are computed
    with torch.no_grad():
        if isinstance(layer, BottleneckRepGraph):
            weight = layer.reduce.weight
            weight.div_(weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
            deviation = (0.5 - 0.5 / torch.pi) ** 0.5
        weight = layer.offset.weight
        rows = torch.randn(weight.shape, device=weight.device)
        rows = rows - rows.mean(1, keepdim=True)  # all features have one mean: it drops out
        length = rows.flatten(1).norm(dim=1).clamp_min(1e-6).view(-1, 1, 1, 1)
        weight.copy_(rows / length * (sigma * grid / deviation))  # a mean over a cell has 1 / grid of the deviation
        assert layer.offset.bias is not None
        layer.offset.bias.fill_((grid - 1) / 2)
