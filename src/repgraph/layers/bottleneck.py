"""The Bottleneck RepGraph layer (BRG), the one that the paper's networks have."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from repgraph.layers import options
from repgraph.layers.batch_norm import check_eval, fold, normalised, plain
from repgraph.layers.fusion import fuse
from repgraph.layers.offset import Unit, View
from repgraph.layers.options import Activation, Norm
from repgraph.layers.pointwise import Pointwise
from repgraph.layers.repgraph import RepGraph, Result
from repgraph.layers.spread import Points
from repgraph.ops.product import fork, relu_product, relu_products


class BottleneckRepGraph(RepGraph):
    """Bottleneck RepGraph layer: reduce, attend to representative nodes, expand, fuse with the input.

    ``reduce`` (1 x 1, C -> C'), ``reduce_norm`` and the activation give one feature, which is query, key and value at
    once and from which ``offset`` regresses the nodes; ``expand`` (1 x 1, C' -> C) and ``expand_norm`` lead back.

    Args:
        channels: C, of the input.
        mid_channels: C', inside; half of C by default.
        nodes: S, representative nodes of each position.
        grid: positions along the side of a cell whose positions share their nodes (Grid RG), or "map": one cell.
        groups: channel groups that attend on their own (Group RG); a divisor of C'.
        fusion: "sum" (out C) or "concat" (input and result side by side, out 2C).
        scale: factor on the logits; None for one over a group's width (C' without groups): the mean product of two
            features. The paper has none (1.0).
        norm_layer: normalisation after ``reduce`` and ``expand``; None for none.
        norm_expand: whether there is one after ``expand``, as in the paper. It blows up a response that hardly differs
            from position to position, and with it the gradient of all that comes before: heads train better without.
        act_layer: activation after ``reduce_norm`` and after the fusion.
        final_act: whether there is one after the fusion; a layer inserted into a trained network has none.
        spread: where the nodes start: "ring", "rings", "grid" (over the map, around the query), "regions" (in the
            middles of regions of the map), "default" (PyTorch's initialisation) or the (x, y) of each node in pixels.
            See :mod:`repgraph.layers.spread`.
        radius: of the (inner) ring, in pixels.
        offset_view: what a position's offsets are regressed from: 1 for its own feature, as in the paper; an odd number
            for a window of so many positions (cells, for a grid); "map" for its own feature and the mean of the map.
        offset_unit: "pixels", or "map": offsets grow with the map, and are in pixels on one of 65 x 65.
        node_view: of how many x how many positions a node is the mean: 1 for what lies at it, as in the paper; an odd
            number for its surroundings.
        learn_scale: multiply the logits by a learned ``temperature`` that starts at 1.
        zero_init: start as the identity (for "sum" without a final activation): the last normalisation's weight and
            bias are zero, or without one the last convolution.
        backend: of :func:`repgraph.representative_attention`.

    Example:
        >>> layer = BottleneckRepGraph(64, nodes=9)
        >>> layer(torch.randn(2, 64, 17, 23)).shape
        torch.Size([2, 64, 17, 23])
        >>> y, nodes, weights = layer(torch.randn(2, 64, 17, 23), return_nodes=True)
        >>> nodes.shape, weights.shape
        (torch.Size([2, 9, 2, 17, 23]), torch.Size([2, 1, 9, 17, 23]))
    """

    # A feature behind a ReLU meets itself and others like it: products grow with the width, not with its root.
    SCALE_POWER: ClassVar[float] = -1.0
    # For a place in a trained network.
    INSERTED: ClassVar[dict[str, Any]] = {"fusion": "sum", "zero_init": True, "final_act": False}

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
        norm_layer: Norm | None = nn.BatchNorm2d,
        norm_expand: bool = True,
        act_layer: Activation = nn.ReLU,
        final_act: bool = True,
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
        self.reduce = Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.reduce_norm = options.norm(norm_layer, self.mid_channels, **placed)
        self.act = options.activation(act_layer, **placed)
        self.offset = self.make_offset(self.mid_channels, placed)
        self.expand = Pointwise(self.mid_channels, channels, bias=False, **placed)
        last = norm_layer if options.flag("norm_expand", norm_expand) else None
        self.expand_norm = options.norm(last, channels, **placed)
        self.final_act = options.activation(act_layer, **placed) if final_act else nn.Identity()
        if zero_init:
            self.zero_()

    def forward(self, x: Tensor, return_nodes: bool = False) -> Result:
        feature, offsets, x = self.regressed(self.check(x))
        response, *nodes = self.attend(feature, feature, feature, offsets, return_nodes)
        del feature  # what follows needs the memory
        y = self.final_act(fuse(x, response, self.expand, self.expand_norm, self.fusion))
        return (y, *nodes) if return_nodes else y

    def regressed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The feature (B, C', H, W) that attends, the offsets, and the input for the way around."""
        if not plain(self.offset):
            feature, x = self.reduced(x)
            return feature, self.offset(feature), x
        height, width = x.shape[2:]
        own = type(self).reduced is BottleneckRepGraph.reduced  # a subclass may have another feature
        if own and self.is_relu_product() and (linear := self.offset.linear(height, width)) is not None:
            assert self.reduce.bias is not None
            feature, offsets = relu_products(x, self.reduce.weight.flatten(1), self.reduce.bias, *linear)
            return feature, self.offset.noted(offsets, height, width), x
        feature, x = self.reduced(x)
        offsets, feature = self.offset.fork(feature)
        return feature, offsets, x

    def is_relu_product(self) -> bool:
        """Whether the feature is a product, a bias and a ReLU, for inference: after ``fuse()``."""
        return (
            not torch.is_grad_enabled()
            and type(self.reduce) is Pointwise
            and type(self.reduce_norm) is nn.Identity
            and type(self.act) is nn.ReLU
            and self.reduce.bias is not None
            and plain(self.reduce, self.reduce_norm, self.act)
        )

    def reduced(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The feature (B, C', H, W) that attends, and the input for the way around it."""
        if type(self.reduce) is Pointwise and plain(self.reduce, self.reduce_norm, self.act):
            weight, bias = self.reduce.weight.flatten(1), self.reduce.bias
            if type(self.reduce_norm) is not nn.Identity and bias is None:
                # an activation right after the fork might work in place, on a view
                feature, x = fork(x, weight)
                return normalised(feature, self.reduce_norm, self.act), x
            if bias is not None and self.is_relu_product():
                return relu_product(x, weight, bias), x
        return self.act(self.reduce_norm(self.reduce(x))), x

    def zero_(self) -> "BottleneckRepGraph":
        """Make what is added to the input zero, such that everything learns from there.

        With the convolution zero as well, as the paper has it, neither it nor the normalisation's weight would ever
        get a gradient.
        """
        options.zero_(self.expand, self.expand_norm)
        return self

    def fuse(self) -> "BottleneckRepGraph":
        """Fold batch normalisation into the convolutions, for inference; in place, and for good.

        The layer has no other copy of the weights then: load weights before, not after.
        """
        check_eval(self)
        self.reduce, self.reduce_norm = fold(self.reduce, self.reduce_norm)
        self.expand, self.expand_norm = fold(self.expand, self.expand_norm)
        return self
