"""Data of the page in few bytes, as ``data.js`` reads it: little-endian arrays in base64.

Coordinates of nodes are 16-bit integers over their range; the error is at most 1/50 pixel for an image of 512 pixels.
Weights are bytes, the square root of the quotient to the position's largest weight; the error is at most 0.4 % of the
largest weight.
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from repgraph.constants import IGNORE
from repgraph.data.labels import Labels
from repgraph.visualize.attention import LayerAttention
from repgraph.visualize.collect import NO_OBJECT, paint_objects

MAX_SIDE = 2048  # of photographs and underlays in the page; coordinates stay those of the image
MAX_OUTSIDE = 2.0  # nodes farther outside of the image than this many times its sides are moved there
AFFINITY_BYTES = 2_000_000  # for the strongest positions of all layers of an image that attend to all positions
MIN_STRONGEST = 9  # positions that are kept in any case


def class_underlay(title: str, classes: Any, labels: Labels) -> dict[str, Any]:
    """Pack classes (H, W) to show under the nodes; entries are the classes that occur, by descending number."""
    array = np.asarray(classes)
    counts = np.bincount(array.reshape(-1), minlength=IGNORE + 1)
    present = sorted((k for k in range(len(labels)) if counts[k]), key=lambda k: -counts[k])
    table = np.full(IGNORE + 1, NO_OBJECT, np.uint8)
    table[present] = np.arange(len(present))
    return _pack_underlay(title, table[array], [labels.names[k] for k in present], present, labels)


def object_underlay(
    title: str,
    size: Sequence[int],
    boxes: Any,
    classes: Sequence[int],
    masks: Iterable[Any],
    labels: Labels,
    scores: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Pack objects in an image of ``size`` (H, W) to show under the nodes; the first ones are on top.

    ``boxes`` (N, 4) are in pixels that begin at integers, ``classes`` count from 0, ``masks`` (H, W) are of 0 and 1.
    """
    names = [labels.names[k] for k in classes[:NO_OBJECT]]
    if scores is not None:
        names = [f"{name} {score:.2f}" for name, score in zip(names, scores, strict=False)]
    corners = np.asarray(boxes, dtype=float).reshape(-1, 4)[:NO_OBJECT] - 0.5  # pixel centres are at integers
    packed = _pack_underlay(title, paint_objects(size, masks), names, classes, labels)
    return packed | {"boxes": corners.round(2).tolist()}


def _pack_underlay(
    title: str, values: np.ndarray, names: Sequence[str], classes: Sequence[int], labels: Labels
) -> dict[str, Any]:
    """Pack the index of each pixel's entry, uint8 (H, W)."""
    shares = np.bincount(values.reshape(-1), minlength=256) / max(values.size, 1)
    picture = shrink(Image.fromarray(values), Image.Resampling.NEAREST)
    entries = [
        {"name": name, "colour": list(labels.palette[k]), "share": round(float(share), 5)}
        for name, k, share in zip(names, classes, shares, strict=False)
    ]
    size = {"width": picture.width, "height": picture.height}
    return {"title": title, **size, "runs": pack_runs(np.asarray(picture)), "entries": entries, "boxes": []}


def shrink(picture: Image.Image, method: Image.Resampling) -> Image.Image:
    """Shrink a picture to at most ``MAX_SIDE`` pixels on its longer side."""
    ratio = MAX_SIDE / max(picture.size)
    size = max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio))
    return picture.resize(size, method) if ratio < 1 else picture


def pack_runs(values: np.ndarray) -> dict[str, str]:
    """Pack bytes (H, W) as run lengths of 16 bits and their values."""
    flat = values.reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] ^ 1))
    lengths = np.diff(starts, append=flat.size)
    pieces = -(-lengths // 65535)  # longer runs are split
    split = np.full(pieces.sum(), 65535)
    split[np.cumsum(pieces) - 1] = lengths - 65535 * (pieces - 1)
    return {"values": encode(flat[starts].repeat(pieces)), "lengths": encode(split.astype("<u2"))}


def pack_layers(layers: Sequence[LayerAttention], size: tuple[int, int]) -> list[dict[str, Any]]:
    """Pack the layers of one image of ``size`` (H, W)."""
    dense = sum(5 * layer.shape[0] * layer.shape[1] for layer in layers if layer.kind == "affinity")
    strongest = max(MIN_STRONGEST, AFFINITY_BYTES // max(dense, 1))
    return [pack_layer(layer, size, strongest) for layer in layers]


def pack_layer(layer: LayerAttention, size: tuple[int, int], strongest: int) -> dict[str, Any]:
    """Pack nodes, weights and maps of a layer; of one that attends to all positions, the ``strongest`` positions."""
    if layer.kind == "affinity":
        nodes, weights = layer.nodes[:strongest], layer.weights[:, :strongest]
        layer = replace(layer, nodes=nodes, weights=weights, share=weights[0].sum(0))
    groups = [None] if layer.groups == 1 else [None, *range(layer.groups)]  # None is the mean
    packed: dict[str, Any] = {
        "path": layer.path,
        "title": layer.title,
        "kind": layer.kind,
        "rows": layer.shape[0],
        "columns": layer.shape[1],
        "step": list(layer.step),
        "grid": layer.grid,
        "node_view": layer.node_view,
        "round": layer.round,
        "count": len(layer.nodes),
        "sets": len(groups),
        **_pack_nodes(layer.nodes, size),
        **_pack_weights(np.stack([layer.group_weights(group) for group in groups])),
        "reach": _pack_maps(np.stack([layer.reach(group) for group in groups]), root=False),
        "received": _pack_maps(np.stack([layer.received(group) for group in groups]), root=True),
    }
    if layer.share is not None:
        packed["share"] = encode(_root_bytes(layer.share))
    return packed


def encode(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _pack_nodes(nodes: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Pack nodes (S, 2, rows, columns) as steps: x is ``origin[0] + unit[0] * step``, and y likewise."""
    sides = np.array([size[1], size[0]], dtype=np.float64)[:, None, None]
    clipped = np.clip(nodes.astype(np.float64), -MAX_OUTSIDE * sides, (1 + MAX_OUTSIDE) * sides)
    low, high = clipped.min((0, 2, 3)), clipped.max((0, 2, 3))
    unit = np.maximum((high - low) / 65535, 1e-9)
    steps = np.rint((clipped - low[:, None, None]) / unit[:, None, None]).astype("<u2")
    return {
        "nodes": encode(steps.transpose(2, 3, 0, 1)),  # [rows, columns, S, 2]
        "origin": low.tolist(),
        "unit": unit.tolist(),
        "cells": nodes.shape[3],
    }


def _pack_weights(weights: np.ndarray) -> dict[str, Any]:
    """Pack weights (sets, S, h, w): the largest of each position in 16 bits, and quotients to it in 8 bits."""
    tops = weights.max(1)
    roots = np.rint(65535 * np.sqrt(np.clip(tops, 0, 1))).astype("<u2")
    quotients = weights / np.maximum(tops, 1e-30)[:, None]
    return {
        "tops": encode(roots.transpose(1, 2, 0)),  # [h, w, sets]
        "weights": encode(_root_bytes(quotients.transpose(2, 3, 0, 1))),  # [h, w, sets, S]
    }


def _pack_maps(maps: np.ndarray, root: bool) -> dict[str, Any]:
    """Pack maps (sets, h, w) as bytes from 0 to the largest value, or of the square root of that quotient."""
    top = float(maps.max()) or 1.0
    values = _root_bytes(maps / top) if root else np.rint(255 * maps / top).astype(np.uint8)
    return {"top": top, "root": root, "values": encode(values)}


def _root_bytes(values: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.sqrt(np.clip(values, 0, 1))).astype(np.uint8)
