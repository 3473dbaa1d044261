"""Multi-scale deformable attention with its projections: the layer of Deformable DETR and its successors."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks
from repgraph.ops import multi_scale_deformable_attention
from repgraph.ops.backends import NAMES
from repgraph.ops.geometry import position_dtype
from repgraph.ops.library import without_autocast


class DeformableAttention(nn.Module):
    """Multi-scale deformable attention: each query samples a few points on several maps, in each head.

    Points and their weights are computed from the query. The parameters (``sampling_offsets``, ``attention_weights``,
    ``value_proj``, ``output_proj``) have the names, shapes and initial values of Deformable DETR, whose weights can be
    loaded. Offsets are computed in float32, also in half precision and under autocast.

    Args:
        channels: channels C of queries, values and the output.
        heads: number of heads M, a divisor of C.
        levels: number of maps L.
        points: number of points P on each map, for each head.
        backend: see :func:`repgraph.representative_attention`.

    Shape:
        - query: (B, Q, C), with its position embedding if there is one
        - reference_points: (B, Q, L, 2), [x, y] from 0 to 1 over the image; offsets are in pixels of each map. Or
          (B, Q, L, 4), [x, y, width, height]; offsets are then in units of width / (2 P) and height / (2 P)
        - value: (B, sum of H_l W_l, C), the maps one after the other
        - spatial_shapes: the L pairs (H_l, W_l), as a list or an integer tensor (L, 2). On a GPU a list is faster
        - padding_mask: (B, sum of H_l W_l), True where there is padding, whose values are then zero. This is the
          convention of Deformable DETR; the attention masks of transformers are the opposite
        - Output: (B, Q, C)
    """

    def __init__(
        self,
        channels: int,
        heads: int = 8,
        levels: int = 4,
        points: int = 4,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = checks.check_int("channels", channels)
        self.heads = checks.check_int("heads", heads)
        self.levels = checks.check_int("levels", levels)
        self.points = checks.check_int("points", points)
        self.backend = checks.check_choice("backend", backend, NAMES)
        if channels % heads:
            raise UsageError(f"heads is {heads}; expected a divisor of the {channels} channels")
        total = heads * levels * points
        self.sampling_offsets = nn.Linear(channels, 2 * total, device=device, dtype=dtype)
        self.attention_weights = nn.Linear(channels, total, device=device, dtype=dtype)
        self.value_proj = nn.Linear(channels, channels, device=device, dtype=dtype)
        self.output_proj = nn.Linear(channels, channels, device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set initial values as published: point p of a head lies p + 1 pixels along the head's direction."""
        angles = torch.arange(self.heads, dtype=torch.float32) * (2 * math.pi / self.heads)
        rays = torch.stack((angles.cos(), angles.sin()), 1)
        rays = rays / rays.abs().amax(1, keepdim=True)  # [M, 2], on a square
        steps = torch.arange(1.0, self.points + 1)
        bias = (rays[:, None, :] * steps[:, None])[:, None].expand(-1, self.levels, -1, -1)  # [M, L, P, 2]
        self.sampling_offsets.weight.zero_()
        self.sampling_offsets.bias.copy_(bias.flatten())
        self.attention_weights.weight.zero_()
        self.attention_weights.bias.zero_()
        for projection in (self.value_proj, self.output_proj):
            nn.init.xavier_uniform_(projection.weight)
            projection.bias.zero_()

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.heads}, levels={self.levels}, points={self.points}"

    def forward(
        self,
        query: Tensor,
        reference_points: Tensor,
        value: Tensor,
        spatial_shapes: Tensor | Sequence[Sequence[int]],
        padding_mask: Tensor | None = None,
    ) -> Tensor:
        if reference_points.shape[-1] not in (2, 4):
            raise UsageError(f"reference_points has shape {tuple(reference_points.shape)}; expected (B, Q, L, 2 or 4)")
        sizes = spatial_shapes.tolist() if isinstance(spatial_shapes, Tensor) else spatial_shapes
        values = self.value_proj(value)
        if padding_mask is not None:
            values = values.masked_fill(padding_mask[..., None], 0)
        wide, layer = position_dtype(query.dtype), self.sampling_offsets
        with without_autocast(query.device.type):
            offsets = F.linear(query.to(wide), layer.weight.to(wide), layer.bias.to(wide))
        offsets = offsets.unflatten(2, (self.heads, self.levels, self.points, 2))  # [B, Q, M, L, P, 2]
        logits = self.attention_weights(query).unflatten(2, (self.heads, self.levels * self.points))
        weights = logits.softmax(3, dtype=wide).unflatten(3, (self.levels, self.points))
        reference = reference_points.to(wide)[:, :, None, :, None]  # [B, Q, 1, L, 1, 2 or 4]
        if reference.shape[-1] == 2:
            # Does not synchronize, unlike torch.tensor(..., device=...).
            unit = torch.tensor([[max(width, 1), max(height, 1)] for height, width in sizes], dtype=wide)
            locations = reference + offsets / unit.to(query.device, non_blocking=True)[:, None]
        else:
            locations = reference[..., :2] + offsets / self.points * reference[..., 2:] * 0.5
        values = values.unflatten(2, (self.heads, self.channels // self.heads))
        y = multi_scale_deformable_attention(values, sizes, locations, weights, backend=self.backend)
        return self.output_proj(y)
