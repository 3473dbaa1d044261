"""Multi-scale deformable attention: the operator of Deformable DETR and its successors, with given weights."""

from collections.abc import Sequence

import torch
from torch import Tensor

from repgraph.ops import library, reference
from repgraph.ops.backends import choose
from repgraph.ops.checks import check_not_forward_mode, check_tensor
from repgraph.ops.geometry import position_dtype


def multi_scale_deformable_attention(
    value: Tensor,
    spatial_shapes: Tensor | Sequence[Sequence[int]],
    sampling_locations: Tensor,
    attention_weights: Tensor,
    *,
    points: Sequence[int] | None = None,
    backend: str = "auto",
) -> Tensor:
    """Sum values at sampling locations on several maps, with given weights.

    ::

        y(q) = sum_l sum_p weight_lp(q) v_l(location_lp(q))

    Values are sampled bilinearly with zeros outside the map, as ``grid_sample`` does with ``align_corners=False``.

    Args:
        value: (B, sum of H_l W_l, M, D): L maps one after the other, with M heads.
        spatial_shapes: the L pairs (H_l, W_l), or an integer tensor (L, 2), which on a GPU has to be copied to the CPU.
        sampling_locations: (B, Q, M, L, P, 2): [x, y] from 0 to 1 over each map.
        attention_weights: (B, Q, M, L, P): any numbers; there is no softmax.
        points: number of points on each map, if it differs: then locations are (B, Q, M, sum(points), 2) and weights
            (B, Q, M, sum(points)).
        backend: see :func:`repgraph.representative_attention`.

    Returns:
        (B, Q, M D), in the dtype of ``value``. The three tensors may differ in dtype.

    Example:
        >>> import torch
        >>> value = torch.randn(2, 8 * 8 + 4 * 4, 4, 16)
        >>> locations, weights = torch.rand(2, 10, 4, 2, 3, 2), torch.rand(2, 10, 4, 2, 3)
        >>> multi_scale_deformable_attention(value, [(8, 8), (4, 4)], locations, weights).shape
        torch.Size([2, 10, 64])
    """
    value = library.autocast(value)
    shapes = spatial_shapes.tolist() if isinstance(spatial_shapes, Tensor) else spatial_shapes
    sizes = [tuple(size) for size in shapes]
    counts = _check(value, sizes, sampling_locations, attention_weights, points)
    backend = choose(backend, value.device, value.dtype)
    if backend != "reference":
        check_not_forward_mode(value, sampling_locations, attention_weights)
        return library.deform(value, sampling_locations, attention_weights, sizes, counts, backend)
    batch, queries, heads = sampling_locations.shape[:3]
    dtype = position_dtype(value.dtype)
    locations = sampling_locations.to(dtype).reshape(batch, queries, heads, sum(counts), 2)
    weights = attention_weights.reshape(batch, queries, heads, sum(counts))
    nodes = []
    for (height, width), part in zip(sizes, locations.split(counts, 3), strict=True):
        places = part * torch.tensor([width, height], dtype=dtype, device=value.device) - 0.5
        nodes.append(places.permute(0, 2, 3, 4, 1).unsqueeze(4))  # [B, M, P, 2, 1, Q]
    y = reference.deform(value.flatten(2), sizes, nodes, weights.permute(0, 2, 3, 1).unsqueeze(3))
    return y.squeeze(2).mT.contiguous()


def _check(value: Tensor, sizes: list, locations: Tensor, weights: Tensor, points: Sequence[int] | None) -> list[int]:
    """Raise for arguments that do not match; return the number of points on each map."""
    check_tensor("value", value, 4, "(B, positions, heads, channels)")
    listed = points is not None
    shape = "(B, Q, heads, points, 2)" if listed else "(B, Q, heads, maps, points, 2)"
    check_tensor("sampling_locations", locations, 5 if listed else 6, shape, value.device)
    check_tensor("attention_weights", weights, 4 if listed else 5, shape.replace(", 2)", ")"), value.device)
    batch, positions, heads, channels = value.shape
    if not sizes or any(len(size) != 2 or min(size) < 0 for size in sizes):
        raise ValueError(f"spatial_shapes is {sizes}; expected a pair (height, width) for each map")
    total = sum(height * width for height, width in sizes)
    if not torch.jit.is_tracing() and total != positions:
        raise ValueError(f"value has {positions} positions; expected {total} for maps of {sizes}")
    if channels < 1 or heads < 1:
        raise ValueError(f"value has shape {tuple(value.shape)}; expected at least one head and channel")
    if listed:
        counts = [int(count) for count in points or ()]
        if len(counts) != len(sizes) or min(counts) < 0 or sum(counts) < 1:
            raise ValueError(f"points is {counts}; expected {len(sizes)} numbers of at least 0, not all 0")
        expected: tuple[int, ...] = (batch, locations.shape[1], heads, sum(counts), 2)
    else:
        counts = [locations.shape[4]] * len(sizes)
        expected = (batch, locations.shape[1], heads, len(sizes), max(1, counts[0]), 2)
    pairs = ("sampling_locations", locations, expected), ("attention_weights", weights, expected[:-1])
    for name, t, wanted in pairs:
        if t.shape != wanted:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; expected {wanted}")
    return counts
