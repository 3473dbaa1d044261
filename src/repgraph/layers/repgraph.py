"""The RepGraph layers: each position attends to a few representative nodes.

:class:`BottleneckRepGraph` (BRG) is the form that the paper's networks use, :class:`SimpleRepGraph` (SRG) is a
non-local block that attends to the nodes alone.
"""

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks, pointwise
from repgraph.layers.non_local import ContextLayer
from repgraph.layers.offset import ONE_CELL, Offset
from repgraph.layers.pointwise import Activation, Norm, Pointwise, fuse_input, is_plain
from repgraph.layers.spread import Points, make_spread
from repgraph.ops import representative_attention
from repgraph.ops.backends import NAMES
from repgraph.ops.product import fork, relu_product
from repgraph.ops.separable import around

Result = Tensor | tuple[Tensor, ...]  # y, or (y, nodes, weights)


class RepGraph(ContextLayer):
    """Base class of the RepGraph layers: options, node offsets and attention."""

    # The paper's plain form: unscaled logits, and offsets as PyTorch initializes a convolution.
    PAPER: ClassVar[dict[str, Any]] = {"scale": 1.0, "spread": "default"}

    offset: Offset

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        nodes: int = 9,
        grid: int | Literal["map"] = 1,
        groups: int = 1,
        fusion: str = "sum",
        scale: float | None = None,
        spread: str | Points = "ring",
        radius: float | None = None,
        node_view: int = 1,
        map_size: Sequence[int] | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(channels, mid_channels, groups, fusion, scale)
        self.nodes = checks.check_int("nodes", nodes)
        self.grid: Any = "map" if grid == "map" else checks.check_int("grid", grid)
        self.spread = make_spread(spread, self.nodes, grid, radius)
        self.map_size = None if map_size is None else checks.check_size("map_size", map_size)
        self.node_view = checks.check_int("node_view", node_view)
        if node_view % 2 == 0:
            raise UsageError(f"node_view is {node_view}; expected an odd integer")
        self.backend = checks.check_choice("backend", backend, NAMES)

    def __init_subclass__(cls) -> None:
        """Add the options of this class, which a layer takes as ``**options``, to the signature of the layer."""
        common, own = (inspect.signature(each.__init__).parameters for each in (RepGraph, cls))
        if "options" in own:
            merged = {name: p for name, p in (*common.items(), *own.items()) if name not in ("self", "options")}
            cls.__signature__ = inspect.Signature(list(merged.values()))  # type: ignore[attr-defined]

    @classmethod
    def paper(cls, channels: int, mid_channels: int | None = None, **options: Any) -> Self:
        """Build the layer in the paper's plain form (:data:`PAPER`); ``options`` take precedence."""
        return cls(channels, mid_channels, **{**cls.PAPER, **options})

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, return_nodes: bool
    ) -> tuple[Tensor, ...]:
        """Return the response (B, C', H, W), followed by nodes and weights if ``return_nodes``."""
        if self.node_view != 1:
            same, key = value is key, around(key, self.node_view)
            value = key if same else around(value, self.node_view)
        grid = ONE_CELL if self.grid == "map" else self.grid
        options: dict[str, Any] = dict(groups=self.groups, grid=grid, scale=self.scale, backend=self.backend)
        result = representative_attention(query, key, value, offsets, **options, return_nodes=return_nodes)
        return result if isinstance(result, tuple) else (result,)

    def extra_repr(self) -> str:
        options = f"nodes={self.nodes}, grid={self.grid!r}, groups={self.groups}, fusion={self.fusion!r}"
        options += f", scale={self.scale}, spread={self.spread.name!r}, node_view={self.node_view}"
        return f"{self.channels}, {self.mid_channels}, {options}, backend={self.backend!r}"


class BottleneckRepGraph(RepGraph):
    """Bottleneck RepGraph layer: reduce, attend to representative nodes, expand, fuse with the input.

    ``reduce`` (1 x 1, C -> C'), ``reduce_norm`` and the activation give one feature, which is query, key and value, and
    from which ``offset`` regresses the nodes. ``expand`` (1 x 1, C' -> C) and ``expand_norm`` project back.

    Args:
        channels: channels C of the input.
        mid_channels: inner channels C'. Default: C / 2.
        nodes: number S of representative nodes per position.
        grid: side of the cells whose positions share their nodes (Grid RG), or "map" for a single cell.
        groups: number of channel groups with attention of their own (Group RG); a divisor of C'.
        fusion: "sum" (C output channels) or "concat" of input and result (2C output channels).
        scale: factor on the logits. Default: 1 / (C' / groups), which makes them mean products of two features. The
            paper has none (1.0).
        norm_layer: normalization after ``reduce`` and ``expand``; None for none.
        norm_expand: whether ``expand`` is followed by a normalization, as in the paper. It amplifies a response that
            differs little between positions, and its gradients; heads train better without it.
        act_layer: activation after ``reduce_norm`` and after the fusion.
        final_act: whether there is an activation after the fusion; a layer inserted into a trained network has none.
        spread: initial nodes: "ring", "grid" (over the map, around the query), "default" (PyTorch's initialization) or
            one (x, y) per node in pixels. See :func:`repgraph.layers.spread.make_spread`.
        radius: radius of the ring in pixels.
        node_view: side of the window of positions whose mean is a node: an odd integer; 1 as in the paper.
        map_size: height and width of the map in training, if it was too small for the ring, which then shrank: nodes
            start equally far on maps of other sizes. Default: the ring is scaled to each map.
        zero_init: start as the identity (for "sum" without final activation): weight and bias of the last normalization
            are zero, or the last convolution if there is none.
        backend: of :func:`repgraph.representative_attention`.

    Shape:
        - Input: (B, C, H, W)
        - Output: (B, C, H, W) or (B, 2C, H, W). With ``return_nodes=True`` also the nodes (B, S, 2, Hc, Wc), [x, y] in
          pixels, and the weights (B, groups, S, H, W).

    Example:
        >>> layer = BottleneckRepGraph(64, nodes=9)
        >>> layer(torch.randn(2, 64, 17, 23)).shape
        torch.Size([2, 64, 17, 23])
        >>> y, nodes, weights = layer(torch.randn(2, 64, 17, 23), return_nodes=True)
    """

    # Query and key are one feature behind a ReLU: products grow with the width, not with its square root.
    SCALE_POWER: ClassVar[float] = -1.0
    # Options of layers that are inserted into a trained network.
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
        last_norm = norm_layer if checks.check_bool("norm_expand", norm_expand) else None
        self.reduce = Pointwise(channels, self.mid_channels, bias=False, **factory)
        self.reduce_norm = norm_layer(self.mid_channels).to(**factory) if norm_layer else nn.Identity()
        self.act = act_layer().to(**factory)
        self.offset = Offset(self.mid_channels, self.spread, self.nodes, self.grid, self.map_size, **factory)
        self.expand = Pointwise(self.mid_channels, channels, bias=False, **factory)
        self.expand_norm = last_norm(channels).to(**factory) if last_norm else nn.Identity()
        self.final_act = act_layer().to(**factory) if final_act else nn.Identity()
        if zero_init:
            pointwise.zero_(self.expand, self.expand_norm)

    def forward(self, x: Tensor, return_nodes: bool = False) -> Result:
        feature, offsets, x = self.regressed(checks.check_map(x, self.channels))
        response, *nodes = self.attend(feature, feature, feature, offsets, return_nodes)
        del feature  # free its memory
        y = fuse_input(x, response, self.expand, self.expand_norm, self.fusion, self.final_act)
        return (y, *nodes) if return_nodes else y

    def regressed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the feature (B, C', H, W), the offsets (B, 2S, Hc, Wc), and the input for the residual."""
        reduce, norm, act, offset = self.reduce, self.reduce_norm, self.act, self.offset
        plain, fused = type(reduce) is Pointwise and is_plain(reduce, norm, act), type(norm) is nn.Identity
        if plain and reduce.bias is None and not fused:
            feature, x = fork(x, reduce.weight.flatten(1))
            feature = pointwise.norm_act(feature, norm, act)
        elif plain and reduce.bias is not None and fused and type(act) is nn.ReLU and not torch.is_grad_enabled():
            feature = relu_product(x, reduce.weight.flatten(1), reduce.bias)  # bias and ReLU in one product
        else:
            feature = act(norm(reduce(x)))
        if not is_plain(offset):
            return feature, offset(feature), x
        offsets, feature = offset.fork(feature)
        return feature, offsets, x

    def fuse(self) -> Self:
        """Fold batch normalization into the convolutions for inference, in place. This cannot be undone."""
        checks.check_eval(self)
        self.reduce, self.reduce_norm = pointwise.fold(self.reduce, self.reduce_norm)
        self.expand, self.expand_norm = pointwise.fold(self.expand, self.expand_norm)
        return self


class SimpleRepGraph(RepGraph):
    """Simple RepGraph layer: query, key and value by ``theta``, ``phi`` and ``g``, output projection ``w_y``.

    The nodes are regressed by ``offset`` from the input itself.

    Args:
        channels: channels C of the input.
        mid_channels: inner channels C'. Default: C / 2.
        nodes, grid, groups, fusion, spread, radius, node_view, map_size, backend: see :class:`BottleneckRepGraph`.
        scale: factor on the logits. Default: 1 / sqrt(C' / groups). The paper has none (1.0).
        norm_qk: whether ``theta`` and ``phi`` are followed by batch normalization and ReLU.
        zero_init: start as the identity (for "sum"): ``w_y`` is zero.
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
        self.offset = Offset(channels, self.spread, self.nodes, self.grid, self.map_size, **factory)
        self.w_y = Pointwise(self.mid_channels, channels, **factory)
        if zero_init:
            pointwise.zero_(self.w_y, nn.Identity())

    def forward(self, x: Tensor, return_nodes: bool = False) -> Result:
        query, key = self.query_and_key(x)
        response, *nodes = self.attend(query, key, self.g(x), self.offset(x), return_nodes)
        del query, key  # free their memory
        y = fuse_input(x, response, self.w_y, nn.Identity(), self.fusion)
        return (y, *nodes) if return_nodes else y
