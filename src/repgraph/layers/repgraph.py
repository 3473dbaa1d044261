"""What the two RepGraph layers share: nodes, attention, and fusion with the input."""

from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from repgraph.layers import options
from repgraph.layers.offset import UNITS, WHOLE, Offset, Unit, View
from repgraph.layers.spread import Points, make
from repgraph.ops import representative_attention
from repgraph.ops.backends import NAMES
from repgraph.ops.separable import around

Result = Tensor | tuple[Tensor, ...]  # y, or (y, nodes, weights)


class RepGraph(nn.Module):
    """A layer in which each position attends to S representative nodes; the base of Simple and Bottleneck."""

    # As in the paper: logits as they are, and the offsets' convolution as PyTorch initialises it.
    PAPER: ClassVar[dict[str, Any]] = {"scale": 1.0, "spread": "default"}
    # Without a scale given, logits are multiplied by this power of a group's width.
    SCALE_POWER: ClassVar[float]

    offset: Offset
    temperature: nn.Parameter | None  # a learned factor on the logits

    def __init__(
        self,
        channels: int,
        mid_channels: int | None,
        nodes: int,
        grid: int | Literal["map"],
        groups: int,
        fusion: str,
        scale: float | None,
        spread: str | Points,
        radius: float | None,
        offset_view: View,
        offset_unit: Unit,
        node_view: int,
        learn_scale: bool,
        backend: str,
        placed: dict[str, Any],
    ) -> None:
        super().__init__()
        self.channels = options.whole("channels", channels)
        self.mid_channels = options.mid(channels, mid_channels, groups)
        self.nodes = options.whole("nodes", nodes)
        self.grid = options.grid(grid)
        self.groups = groups
        self.fusion = options.fusion(fusion)
        self.scale = options.scale(scale, (self.mid_channels / groups) ** self.SCALE_POWER)
        self.spread = make(spread, self.nodes, self.grid, radius)
        self.offset_view = options.view(offset_view)
        self.offset_unit = options.choice("offset_unit", offset_unit, UNITS)
        self.node_view = options.odd("node_view", node_view)
        if backend not in NAMES:
            raise ValueError(f"unknown backend {backend!r}: choose one of {', '.join(map(repr, NAMES))}")
        self.backend = backend
        self.register_parameter(
            "temperature", nn.Parameter(torch.ones(1, **placed)) if options.flag("learn_scale", learn_scale) else None
        )

    @classmethod
    def paper(cls, channels: int, mid_channels: int | None = None, **options: Any) -> Self:
        """The layer in the paper's plain form (:data:`PAPER`), but for the options that are given."""
        return cls(channels, mid_channels, **{**cls.PAPER, **options})

    def make_offset(self, channels: int, placed: dict[str, Any]) -> Offset:
        """The regression of this layer's nodes from so many channels."""
        return Offset(channels, self.spread, self.nodes, self.grid, self.offset_view, self.offset_unit, **placed)

    @property
    def out_channels(self) -> int:
        return self.channels if self.fusion == "sum" else 2 * self.channels

    def check(self, x: Tensor) -> Tensor:
        return options.check(x, self.channels)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, with_nodes: bool
    ) -> tuple[Tensor, ...]:
        """The response (B, C', H, W), and if asked for, nodes and weights."""
        if self.temperature is not None:
            query = query * self.temperature.to(query.dtype)
        if self.node_view != 1:
            same, key = value is key, around(key, self.node_view)
            value = key if same else around(value, self.node_view)
        result = representative_attention(
            query, key, value, offsets,
            groups=self.groups,
            grid=WHOLE if self.grid == "map" else self.grid,
            scale=self.scale,
            backend=self.backend,
            return_nodes=with_nodes,  # type: ignore[call-overload]
        )  # fmt: skip
        return result if isinstance(result, tuple) else (result,)

    def extra_repr(self) -> str:
        shown: dict[str, Any] = dict(nodes=self.nodes, grid=self.grid, groups=self.groups, fusion=self.fusion)
        shown |= dict(scale=self.scale, spread=self.spread.name)
        if self.offset_view != 1:
            shown["offset_view"] = self.offset_view
        if self.offset_unit != "pixels":
            shown["offset_unit"] = self.offset_unit
        if self.node_view != 1:
            shown["node_view"] = self.node_view
        if self.temperature is not None:
            shown["learn_scale"] = True
        if self.backend != "auto":
            shown["backend"] = self.backend
        return f"{self.channels}, {self.mid_channels}, {options.given(**shown)}"
