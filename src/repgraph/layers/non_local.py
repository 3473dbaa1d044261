"""The non-local layer (NL): what RepGraph is measured against."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.layers import options, positions
from repgraph.layers.batch_norm import check_eval, fold_first
from repgraph.layers.fusion import fuse
from repgraph.layers.options import Activation, Norm
from repgraph.layers.pointwise import Pointwise


class NonLocal(nn.Module):
    """Non-local layer: each position attends to all positions of the map.

    Query, key and value by ``theta``, ``phi`` and ``g`` (1 x 1, C -> C'), the way back by ``w_y`` (1 x 1, C' -> C).

    Args:
        channels: C, of the input.
        mid_channels: C', inside; half of C by default.
        attention: "sdpa" (:func:`torch.nn.functional.scaled_dot_product_attention`; PyTorch picks the kernel, or
            :func:`torch.nn.attention.sdpa_kernel` around the call does) or "plain" (matrix products and a softmax, with
            all N x N weights in memory).
        groups: heads, which attend on their own; a divisor of C'.
        fusion: "sum" (out C) or "concat" (input and result side by side, out 2C).
        scale: factor on the logits; None for one over the root of a head's width. The equation as printed has 1.0,
            with which training can diverge.
        share_query_key: ``phi`` is ``theta``, as in OCNet; the layer has no ``phi`` then.
        norm_qk: normalisation and activation after ``theta`` and ``phi``.
        norm_layer, act_layer: those of ``norm_qk``.
        zero_init: start as the identity (for "sum"): ``w_y`` is zero.

    Example:
        >>> layer = NonLocal(64, 16, groups=2, fusion="concat")
        >>> layer(torch.randn(2, 64, 17, 23)).shape, layer.out_channels
        (torch.Size([2, 128, 17, 23]), 128)
        >>> layer.affinity(torch.randn(2, 64, 17, 23), rows=[0, 200]).shape
        torch.Size([2, 2, 2, 391])
    """

    INSERTED: ClassVar[dict[str, Any]] = {"fusion": "sum", "zero_init": True}  # for a place in a trained network

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        attention: str = "sdpa",
        groups: int = 1,
        fusion: str = "sum",
        scale: float | None = None,
        share_query_key: bool = False,
        norm_qk: bool = False,
        norm_layer: Norm = nn.BatchNorm2d,
        act_layer: Activation = nn.ReLU,
        zero_init: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = options.whole("channels", channels)
        self.mid_channels = options.mid(channels, mid_channels, groups)
        self.attention = positions.chosen(attention)
        self.groups = groups
        self.fusion = options.fusion(fusion)
        self.scale = options.scale(scale, (self.mid_channels / groups) ** -0.5)
        placed: dict[str, Any] = dict(device=device, dtype=dtype)
        self.theta = Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.phi = None if share_query_key else Pointwise(channels, self.mid_channels, bias=False, **placed)
        self.g = Pointwise(channels, self.mid_channels, bias=False, **placed)
        norm = norm_qk, norm_layer, act_layer, self.mid_channels
        self.theta_norm = options.norm_act(*norm, **placed)
        self.phi_norm = None if share_query_key else options.norm_act(*norm, **placed)
        self.w_y = Pointwise(self.mid_channels, channels, **placed)
        if zero_init:
            self.zero_()

    @property
    def out_channels(self) -> int:
        return self.channels if self.fusion == "sum" else 2 * self.channels

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query_and_key(x)
        response = positions.attend(query, key, self.g(x), self.groups, self.scale, self.attention)
        return fuse(x, response, self.w_y, nn.Identity(), self.fusion)

    def affinity(self, x: Tensor, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """The weights with which positions attend to all N = H W positions; what RepGraph's ``return_nodes`` is there.

        Args:
            x: the layer's input (B, C, H, W).
            rows: which positions, as y W + x; all N by default, which takes B heads N N numbers.

        Returns:
            (B, heads, rows, N), at least float32; each row sums to 1. With ``norm_qk`` it is what the layer attends
            with in its present mode: for pictures, that of evaluation.
        """
        query, key = (positions.rows(t, self.groups) for t in self.query_and_key(x))
        if rows is not None:
            index, count = torch.as_tensor(rows, device=x.device), query.shape[2]
            whole = index.dim() == 1 and index.dtype in (torch.int32, torch.int64)
            if not whole or bool(((index < 0) | (index >= count)).any()):
                raise ValueError(f"rows is {rows}; a list of positions from 0 to {count - 1} is needed")
            query = query[:, :, index]
        return positions.weigh(query, key, self.scale)

    def query_and_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two maps (B, C', H, W); one and the same if they are shared."""
        query = self.theta_norm(self.theta(options.check(x, self.channels)))
        if self.phi is None or self.phi_norm is None:
            return query, query
        return query, self.phi_norm(self.phi(x))

    def zero_(self) -> "NonLocal":
        """Make what is added to the input zero."""
        options.zero_(self.w_y)
        return self

    def fuse(self) -> "NonLocal":
        """Fold batch normalisation into ``theta`` and ``phi``, for inference; in place, and for good."""
        check_eval(self)
        self.theta, self.theta_norm = fold_first(self.theta, self.theta_norm)
        if self.phi is not None and self.phi_norm is not None:
            self.phi, self.phi_norm = fold_first(self.phi, self.phi_norm)
        return self

    def extra_repr(self) -> str:
        shown: dict[str, Any] = dict(attention=self.attention, groups=self.groups, fusion=self.fusion, scale=self.scale)
        if self.phi is None:
            shown["share_query_key"] = True
        return f"{self.channels}, {self.mid_channels}, {options.given(**shown)}"
