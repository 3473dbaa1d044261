"""The Simple RepGraph layer (SRG): a non-local block that looks at representative nodes only."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from repgraph.layers import options
from repgraph.layers.batch_norm import check_eval, fold_first
from repgraph.layers.fusion import fuse
from repgraph.layers.offset import Unit, View
from repgraph.layers.options import Activation, Norm
from repgraph.layers.pointwise import Pointwise
from repgraph.layers.repgraph import RepGraph, Result
from repgraph.layers.spread import Points


class SimpleRepGraph(RepGraph):
    """Simple RepGraph layer: query, key and value by ``theta``, ``phi`` and ``g``, the way back by ``w_y``.

    The nodes are regressed by ``offset`` from the input itself.

    Args:
        channels: C, of the input.
        mid_channels: C', inside; half of C by default.
        nodes, grid, groups, fusion, spread, radius, offset_view, offset_unit, node_view, learn_scale, backend:
            as in :class:`~repgraph.layers.BottleneckRepGraph`.
        scale: factor on the logits; None for one over the root of a group's width. The paper has none (1.0).
        norm_qk: normalisation and activation after ``theta`` and ``phi``.
        norm_layer, act_layer: those of ``norm_qk``.
        zero_init: start as the identity (for "sum"): ``w_y`` is zero.

    Example:
        >>> layer = SimpleRepGraph(64, 16, grid=4, groups=2, fusion="concat")
        >>> layer(torch.randn(2, 64, 17, 23)).shape, layer.out_channels
        (torch.Size([2, 128, 17, 23]), 128)
    """

    SCALE_POWER: ClassVar[float] = -0.5
    INSERTED: ClassVar[dict[str, Any]] = {"fusion": "sum", "zero_init": True}  # for a place in a trained network

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
        norm_qk: bool = False,
        norm_layer: Norm = nn.BatchNorm2d,
        act_layer: Activation = nn.ReLU,
        spread: str | Points = "ring",
        radius: float | None = None,
        offset_view: View = 1,
        offset_unit: Unit = "pixels",
        node_view: int = 1,
        learn_scale: bool = False,
        zero_init: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        placed: dict[str, Any] = dict(device=device, dtype=dtype)
        super().__init__(
            channels, mid_channels, nodes, grid, groups, fusion, scale, spread, radius, offset_view, offset_unit,
            node_view, learn_scale, backend, placed,
        )  # fmt: skip
        self.theta = Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.phi = Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.g = Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.theta_norm = options.norm_act(norm_qk, norm_layer, act_layer, self.mid_channels, **placed)
        self.phi_norm = options.norm_act(norm_qk, norm_layer, act_layer, self.mid_channels, **placed)
        self.offset = self.make_offset(channels, placed)
        self.w_y = Pointwise(self.mid_channels, channels, **placed)
        if zero_init:
            self.zero_()

    def forward(self, x: Tensor, return_nodes: bool = False) -> Result:
        query, key = self.theta_norm(self.theta(self.check(x))), self.phi_norm(self.phi(x))
        response, *nodes = self.attend(query, key, self.g(x), self.offset(x), return_nodes)
        del query, key  # what follows needs the memory
        y = fuse(x, response, self.w_y, nn.Identity(), self.fusion)
        return (y, *nodes) if return_nodes else y

    def zero_(self) -> "SimpleRepGraph":
        """Make what is added to the input zero."""
        options.zero_(self.w_y)
        return self

    def fuse(self) -> "SimpleRepGraph":
        """Fold batch normalisation into ``theta`` and ``phi``, for inference; in place, and for good."""
        check_eval(self)
        self.theta, self.theta_norm = fold_first(self.theta, self.theta_norm)
        self.phi, self.phi_norm = fold_first(self.phi, self.phi_norm)
        return self
