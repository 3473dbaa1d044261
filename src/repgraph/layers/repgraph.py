"""The RepGraph layers, in which each position attends to a few representative nodes."""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks, pointwise
from repgraph.layers.non_local import ContextLayer
from repgraph.layers.offset import ONE_CELL, Offset
from repgraph.layers.pointwise import Activation, Norm, Pointwise, fuse_input, is_plain, is_standard
from repgraph.layers.spread import Grid, Points, make_spreads
from repgraph.ops import representative_attention
from repgraph.ops.backends import NAMES
from repgraph.ops.bottleneck import Statistics, Weights, bottleneck, bottleneck_fits
from repgraph.ops.product import fork, relu_product
from repgraph.ops.separable import around

# Of the layers that have a fused pass: modules and their types.
FUSED_MODULES = ("reduce", "reduce_norm", "act", "offset", "expand", "expand_norm", "final_act")
FUSED_KINDS = {
    (Pointwise, nn.BatchNorm2d, nn.ReLU, Offset, Pointwise, nn.BatchNorm2d, final) for final in (nn.ReLU, nn.Identity)
}


class RepGraph(ContextLayer):
    """Base class of the RepGraph layers: options, node offsets and attention."""

    # The paper's plain form: unscaled logits, and offsets as PyTorch initializes a convolution.
    PAPER: ClassVar[dict[str, Any]] = {"scale": 1.0, "spread": "default"}

    offset: Offset  # of the first round
    next_offsets: nn.ModuleList | tuple[()]  # of the others

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        nodes: int = 9,
        grid: Grid = 1,
        groups: int = 1,
        fusion: str = "sum",
        scale: float | None = None,
        spread: str | Points = "ring",
        radius: float | Sequence[float] | None = None,
        node_view: int = 1,
        rounds: int = 1,
        map_size: Sequence[int] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(channels, mid_channels, groups, fusion, scale)
        self.nodes = checks.check_int("nodes", nodes)
        self.grid: Any = "map" if grid == "map" else checks.check_int("grid", grid)
        self.rounds = checks.check_int("rounds", rounds)
        self.spreads = make_spreads(spread, self.nodes, grid, radius, self.rounds)
        self.spread = self.spreads[0]
        self.map_size = None if map_size is None else checks.check_size("map_size", map_size)
        self.node_view = checks.check_int("node_view", node_view)
        if node_view % 2 == 0:
            raise UsageError(f"node_view is {node_view}; expected an odd integer")
        self.backend = checks.check_choice("backend", backend, NAMES)

    def __init_subclass__(cls) -> None:
        """Replace ``**options`` in the signature of a layer by the options of this class."""
        common, own = (inspect.signature(each.__init__).parameters for each in (RepGraph, cls))
        if "options" in own:
            merged = {name: p for name, p in (*common.items(), *own.items()) if name not in ("self", "options")}
            cls.__signature__ = inspect.Signature(list(merged.values()))  # type: ignore[attr-defined]

    @classmethod
    def paper(cls, channels: int, mid_channels: int | None = None, **options: Any) -> Self:
        """Build the layer in the paper's plain form (:data:`PAPER`); ``options`` take precedence."""
        return cls(channels, mid_channels, **{**cls.PAPER, **options})

    def add_offsets(self, channels: int, **factory: Any) -> None:
        """Add the offset convolutions of all rounds; the first one takes ``channels``, the others a response."""
        widths = [channels] + [self.mid_channels] * (self.rounds - 1)
        first, *others = (
            Offset(width, spread, self.nodes, self.grid, self.map_size, **factory)
            for width, spread in zip(widths, self.spreads, strict=True)
        )
        self.offset = first
        self.next_offsets = nn.ModuleList(others) if others else ()

    def offsets(self) -> list[Offset]:
        return [self.offset, *self.next_offsets]  # type: ignore[list-item]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, return_nodes: bool) -> tuple[Any, ...]:
        """Return the response (B, C', H, W), followed by nodes and weights if ``return_nodes``."""
        if self.node_view != 1:
            same, key = value is key, around(key, self.node_view)
            value = key if same else around(value, self.node_view)
        grid = ONE_CELL if self.grid == "map" else self.grid
        options: dict[str, Any] = dict(groups=self.groups, grid=grid, scale=self.scale, backend=self.backend)
        result = representative_attention(query, key, value, offsets, **options, return_nodes=return_nodes)
        return result if isinstance(result, tuple) else (result,)

    def further_rounds(self, response: Tensor, nodes: list[Tensor]) -> tuple[Any, ...]:
        """Run the rounds after the first: the response of a round is the query, key and value of the next.

        Returns the responses of all T rounds side by side (B, T C', H, W). Nodes and weights follow if those of the
        first round are given: tuples of one tensor per round, for T = 1 the tensors themselves.
        """
        if self.rounds == 1:
            return response, *nodes
        responses, found = [], [nodes]
        for offset in self.next_offsets:
            responses.append(response)
            response, *nodes = self.attend(response, response, response, offset(response), bool(nodes))
            found.append(nodes)
        return torch.cat((*responses, response), 1), *zip(*found, strict=True)


class BottleneckRepGraph(RepGraph):
    """Bottleneck RepGraph layer: reduce, attend to representative nodes, expand, fuse with the input.

    ``reduce`` (1 x 1, C -> C'), ``reduce_norm`` and the activation give one feature, which is query, key and value, and
    from which ``offset`` regresses the nodes. ``expand`` (1 x 1, C' -> C) and ``expand_norm`` project back. With T > 1
    rounds, the response of each is the feature of the next, and ``expand`` (T C' -> C) projects all responses.

    Args:
        mid_channels: inner channels C'. Default: C / 2.
        nodes: number S of representative nodes per position.
        grid: side of the cells whose positions share their nodes (Grid RG), or "map" for a single cell.
        groups: number of channel groups that attend separately (Group RG); a divisor of C'.
        fusion: "sum" (C output channels) or "concat" of input and result (2C output channels).
        scale: factor on the logits. Default: 1 / (C' / groups). The paper has none (1.0).
        norm_layer: normalization after ``reduce`` and ``expand``; None for none.
        norm_expand: whether ``expand`` is followed by a normalization, as in the paper; heads train better without it.
        act_layer: activation after ``reduce_norm`` and, with ``final_act``, after the fusion (not in inserted layers).
        spread: initial nodes: "ring", "grid" (over the map, around the query), "default" (PyTorch's initialization) or
            one (x, y) per node in pixels. See :func:`repgraph.layers.spread.make_spread`.
        radius: radius of the ring in pixels, which halves in each round, or a list with one radius per round.
        node_view: side of the window (odd) over which each node is averaged; 1, as in the paper, means no averaging.
        rounds: number T of rounds, each with its own nodes; 1 in the paper.
        map_size: height and width of the map that the initial ring is shrunk to fit into. Default: those of the input.
        zero_init: start as the identity (for "sum" without final activation): the last norm or convolution is zero.
        backend: of :func:`repgraph.representative_attention`.

    Shape:
        - Input: (B, C, H, W)
        - Output: (B, C, H, W) or (B, 2C, H, W). With ``return_nodes=True`` also the nodes (B, S, 2, Hc, Wc), [x, y] in
          pixels, and the weights (B, groups, S, H, W); with several rounds, tuples of one tensor for each.

    Example:
        >>> layer = BottleneckRepGraph(64, nodes=9)
        >>> layer(torch.randn(2, 64, 17, 23)).shape
        torch.Size([2, 64, 17, 23])
        >>> y, nodes, weights = layer(torch.randn(2, 64, 17, 23), return_nodes=True)
    """

    # Query and key are the same feature after a ReLU: products grow with the width, not with its square root.
    SCALE_POWER: ClassVar[float] = -1.0
    INSERTED: ClassVar[dict[str, Any]] = {"fusion": "sum", "zero_init": True, "final_act": False}

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        norm_layer: Norm | None = nn.BatchNorm2d,
        norm_expand: bool = True,
        act_layer: Activation = nn.ReLU,
        final_act: bool = True,
        zero_init: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(channels, mid_channels, **options)
        factory: dict[str, Any] = dict(device=device, dtype=dtype)
        last_norm = norm_layer if norm_expand else None
        self.reduce = Pointwise(channels, self.mid_channels, bias=False, **factory)
        self.reduce_norm = norm_layer(self.mid_channels).to(**factory) if norm_layer else nn.Identity()
        self.act = act_layer().to(**factory)
        self.add_offsets(self.mid_channels, **factory)
        self.expand = Pointwise(self.rounds * self.mid_channels, channels, bias=False, **factory)
        self.expand_norm = last_norm(channels).to(**factory) if last_norm else nn.Identity()
        self.final_act = act_layer().to(**factory) if final_act else nn.Identity()
        if zero_init:
            pointwise.zero_(self.expand, self.expand_norm)

    def forward(self, x: Tensor, return_nodes: bool = False) -> Any:
        x = checks.check_map(x, self.channels)
        if not return_nodes and (fused := self.fused(x)) is not None:
            return fused
        feature, x = self.feature(x)
        response, *nodes = self.attend(feature, feature, feature, self.offset(feature), return_nodes)
        del feature  # free its memory
        response, *nodes = self.further_rounds(response, nodes)
        y = fuse_input(x, response, self.expand, self.expand_norm, self.fusion, self.final_act)
        return (y, *nodes) if return_nodes else y

    def fused(self, x: Tensor) -> Tensor | None:
        """Return the output computed by :func:`repgraph.ops.bottleneck.bottleneck`, None where it does not apply."""
        options = self.fusion, self.grid, self.rounds, self.node_view
        if type(self) is not BottleneckRepGraph or options != ("sum", 1, 1, 1):
            return None
        modules: list[Any] = [self._modules[name] for name in FUSED_MODULES]  # faster than nn.Module's attributes
        if tuple(map(type, modules)) not in FUSED_KINDS or not is_plain(*modules):
            return None
        reduce, norm, _, offset, expand, last, final = modules
        training = norm.training
        if self.backend not in ("auto", "triton") or training != last.training:
            return None
        if not (is_standard(norm) and is_standard(last)) or reduce.bias is not None or expand.bias is not None:
            return None
        height, width = x.shape[2:]
        p_norm, p_last, b_norm, b_last = norm._parameters, last._parameters, norm._buffers, last._buffers
        weights = Weights(
            reduce._parameters.get("weight"), p_norm["weight"], p_norm["bias"], offset._parameters.get("weight"),
            offset.scaled_bias(height, width), expand._parameters.get("weight"), p_last["weight"], p_last["bias"],
        )  # fmt: skip
        if not bottleneck_fits(x, weights, training):
            return None
        counts = [b["num_batches_tracked"] for b in (b_norm, b_last) if b["num_batches_tracked"] is not None]
        if training and counts:
            torch._foreach_add_(counts, 1)
        statistics = (
            Statistics((b_norm["running_mean"], b_norm["running_var"]), norm.eps, norm.momentum),
            Statistics((b_last["running_mean"], b_last["running_var"]), last.eps, last.momentum),
        )
        relu = type(final) is nn.ReLU
        y, offsets = bottleneck(x, weights, statistics, training, self.groups, float(self.scale), relu)
        offset.seen = offsets, height, width
        return y

    def feature(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the feature (B, C', H, W), and the input for the residual."""
        reduce, norm, act = self.reduce, self.reduce_norm, self.act
        plain, fused = type(reduce) is Pointwise and is_plain(reduce, norm, act), type(norm) is nn.Identity
        if plain and reduce.bias is None and not fused:
            feature, x = fork(x, reduce.weight.flatten(1))
            feature = pointwise.norm_act(feature, norm, act)
        elif plain and reduce.bias is not None and fused and type(act) is nn.ReLU and not torch.is_grad_enabled():
            feature = relu_product(x, reduce.weight.flatten(1), reduce.bias)  # bias and ReLU in one product
        else:
            feature = act(norm(reduce(x)))
        return feature, x


class SimpleRepGraph(RepGraph):
    """Simple RepGraph layer: query, key and value by ``theta``, ``phi`` and ``g``, output projection ``w_y``.

    ``offset`` regresses the nodes from the input. With T > 1 rounds, the response of each is query, key and value of
    the next, and ``w_y`` (T C' -> C) projects all responses.

    Args:
        scale: factor on the logits. Default: 1 / sqrt(C' / groups). The paper has none (1.0).
        norm_qk: whether ``theta`` and ``phi`` are followed by batch normalization and ReLU.
        zero_init: start as the identity (for "sum"): ``w_y`` is zero.

    The other options are those of :class:`BottleneckRepGraph`.
    """

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        norm_qk: bool = False,
        zero_init: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(channels, mid_channels, **options)
        factory: dict[str, Any] = dict(device=device, dtype=dtype)
        self.add_projections(norm_qk, **factory)
        self.add_offsets(channels, **factory)
        self.w_y = Pointwise(self.rounds * self.mid_channels, channels, **factory)
        if zero_init:
            pointwise.zero_(self.w_y, nn.Identity())

    def forward(self, x: Tensor, return_nodes: bool = False) -> Any:
        query, key = self.query_and_key(x)
        response, *nodes = self.attend(query, key, self.g(x), self.offset(x), return_nodes)
        del query, key  # free their memory
        response, *nodes = self.further_rounds(response, nodes)
        y = fuse_input(x, response, self.w_y, nn.Identity(), self.fusion)
        return (y, *nodes) if return_nodes else y
