"""The non-local layer (NL), and attention from every position of a map to every other."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks
from repgraph.layers.pointwise import Fusible, Pointwise, fuse_input, make_norm_act, zero_
from repgraph.ops.formats import channels_together, memory_format

ATTENTIONS = ("sdpa", "plain")


class ContextLayer(Fusible):
    """Base class of layers with an inner width C' that add a result to their input or concatenate it."""

    # Options of layers that are inserted into a trained network.
    INSERTED: ClassVar[dict[str, Any]] = {"fusion": "sum", "zero_init": True}
    # The default scale of the logits is this power of a group's width.
    SCALE_POWER: ClassVar[float] = -0.5

    theta: nn.Module
    phi: nn.Module | None

    def __init__(self, channels: int, mid_channels: int | None, groups: int, fusion: str, scale: float | None) -> None:
        super().__init__()
        self.channels = checks.check_int("channels", channels)
        width = max(1, channels // 2) if mid_channels is None else mid_channels
        self.mid_channels = checks.check_int("mid_channels", width)
        self.groups = checks.check_int("groups", groups)
        if width % groups:
            raise UsageError(f"groups is {groups}; expected a divisor of the {width} inner channels (mid_channels)")
        self.fusion = checks.check_choice("fusion", fusion, checks.FUSIONS)
        self.out_channels = channels if fusion == "sum" else 2 * channels
        default_scale = (self.mid_channels / groups) ** self.SCALE_POWER
        self.scale = default_scale if scale is None else checks.check_number("scale", scale)

    def add_projections(self, norm_qk: bool, share_query_key: bool = False, **factory: Any) -> None:
        """Add ``theta``, ``phi`` and ``g``, with batch normalization and ReLU after the first two if ``norm_qk``."""
        sizes = self.channels, self.mid_channels
        self.theta = Pointwise(*sizes, bias=False, **factory)
        self.phi = None if share_query_key else Pointwise(*sizes, bias=False, **factory)
        self.g = Pointwise(*sizes, bias=False, **factory)
        self.theta_norm = make_norm_act(norm_qk, self.mid_channels, **factory)
        self.phi_norm = None if share_query_key else make_norm_act(norm_qk, self.mid_channels, **factory)

    def query_and_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        query = self.theta_norm(self.theta(checks.check_map(x, self.channels)))
        if self.phi is None or self.phi_norm is None:
            return query, query
        return query, self.phi_norm(self.phi(x))

    def extra_repr(self) -> str:
        names = ("attention", "nodes", "grid", "groups", "fusion", "scale", "node_view", "rounds", "backend")
        options = [f"{name}={getattr(self, name)!r}" for name in names if hasattr(self, name)]
        return ", ".join((f"{self.channels}, {self.mid_channels}", *options))


class NonLocal(ContextLayer):
    """Non-local layer: each position attends to all positions of the map.

    Query, key and value are ``theta``, ``phi`` and ``g`` (1 x 1, C -> C'), the output projection is ``w_y`` (C' -> C).

    Args:
        mid_channels: inner channels C'. Default: C / 2.
        attention: "sdpa" (:func:`torch.nn.functional.scaled_dot_product_attention`) or "plain" (all weights in memory).
        groups: number of heads; a divisor of C'.
        fusion: "sum" (C output channels) or "concat" of input and result (2C output channels).
        scale: factor on the logits. Default: 1 / sqrt(C' / groups). With 1.0, as in the paper, training can diverge.
        share_query_key: use ``theta`` for the key too, as in OCNet; the layer then has no ``phi``.
        norm_qk: whether ``theta`` and ``phi`` are followed by batch normalization and ReLU.
        zero_init: start as the identity (for "sum"): ``w_y`` is zero.

    Shape:
        - Input: (B, C, H, W)
        - Output: (B, C, H, W) or (B, 2C, H, W)
    """

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
        zero_init: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(channels, mid_channels, groups, fusion, scale)
        self.attention = checks.check_choice("attention", attention, ATTENTIONS)
        factory: dict[str, Any] = dict(device=device, dtype=dtype)
        self.add_projections(norm_qk, share_query_key, **factory)
        self.w_y = Pointwise(self.mid_channels, channels, **factory)
        if zero_init:
            zero_(self.w_y, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.query_and_key(x)
        response = attend(query, key, self.g(x), self.groups, self.scale, self.attention)
        return fuse_input(x, response, self.w_y, nn.Identity(), self.fusion)

    def affinity(self, x: Tensor, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """Return the attention weights of positions over all N = H W positions, (B, heads, rows, N) in float32 or more.

        ``rows`` are the indices y W + x of the positions. Default: all N, which takes B * heads * N * N numbers.
        """
        query, key = (to_rows(t, self.groups) for t in self.query_and_key(x))
        return attention_weights(query if rows is None else query[:, :, rows], key, self.scale)


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int = 1, scale: float = 1.0, attention: str = "sdpa"
) -> Tensor:
    """Compute ``softmax(scale * q k^T) v`` over all positions, in each head separately.

    Query and key are (B, C, H, W), value and result (B, Cv, H, W); channels-last maps are not copied. Fused kernels of
    "sdpa" mostly need equal widths; where none fits, PyTorch computes the same as "plain".
    """
    q, k, v = to_rows(query, heads), to_rows(key, heads), to_rows(value, heads)
    if attention == "sdpa":
        response = F.scaled_dot_product_attention(q, k, v, scale=scale)
    else:
        response = attention_weights(q, k, scale).to(v.dtype) @ v
    y = response.transpose(1, 2).flatten(2).unflatten(1, query.shape[2:]).permute(0, 3, 1, 2)  # channels-last
    return y.contiguous(memory_format=memory_format(value))


def attention_weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return softmax weights [B, heads, Nq, Nk], in float32 for half precision."""
    logits = (q * scale) @ k.mT
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def to_rows(x: Tensor, heads: int) -> Tensor:
    """Reshape a map to [B, heads, N, C / heads]: a view where the channels of a position are adjacent."""
    flat = channels_together(x).permute(0, 2, 3, 1).flatten(1, 2)
    return flat.unflatten(2, (heads, x.shape[1] // heads)).transpose(1, 2)
