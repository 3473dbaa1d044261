"""Numbers in few bytes, as the page's ``data.js`` reads them: little-endian arrays in base64.

Places are 16-bit steps over the range that they have: off by half a step, 1/50 pixel at most for an image of 512.
Weights are bytes: the root of their share of the position's largest, so that small ones keep their size; that is off by
0.4 % of the largest at most.
"""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repgraph.pictures.sight import LayerSight

BEYOND = 2.0  # nodes further away from the image than so many times its sides are moved there
SHARED = 2_000_000  # bytes for the strongest positions of all layers of an image that attend to all positions
LEAST = 9  # of the strongest positions are kept, however large the map


def pack_layers(layers: Sequence[LayerSight], size: tuple[int, int]) -> list[dict[str, Any]]:
    """The layers of one image of ``size`` (H, W), for the page."""
    wide = sum(5 * layer.shape[0] * layer.shape[1] for layer in layers if layer.kind == "affinity")
    keep = max(LEAST, SHARED // max(wide, 1))
    return [pack_layer(layer, size, keep) for layer in layers]


def pack_layer(layer: LayerSight, size: tuple[int, int], keep: int) -> dict[str, Any]:
    """A layer: for each position its nodes and their weights, its reach, and how much it is chosen.

    Of a layer that attends to all positions, the ``keep`` strongest are taken.
    """
    if layer.kind == "affinity":
        nodes, weights = layer.nodes[:keep], layer.weights[:, :keep]
        layer = replace(layer, nodes=nodes, weights=weights, share=weights[0].sum(0))
    nodes, weights = layer.nodes, _sets(layer)
    packed: dict[str, Any] = {
        "path": layer.path,
        "title": layer.title,
        "kind": layer.kind,
        "rows": layer.shape[0],
        "columns": layer.shape[1],
        "step": list(layer.step),
        "grid": layer.grid,
        "node_view": layer.node_view,
        "count": len(nodes),
        "sets": len(weights),  # one, or the mean and each group
        **pack_places(nodes, size),
        **_weights(weights),
        "reach": _maps([layer.reach(group) for group in _groups(layer)], root=False),
        "chosen": _maps([layer.chosen(group) for group in _groups(layer)], root=True),
    }
    if layer.share is not None:
        packed["share"] = encode(_root(layer.share))
    return packed


def pack_places(nodes: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Nodes (S, 2, hc, wc) as 16-bit steps: x is ``origin[0] + unit[0] * step``, and y likewise."""
    sides = np.array([size[1], size[0]], dtype=np.float64)[None, :, None, None]
    held = np.clip(nodes.astype(np.float64), -BEYOND * sides, (1 + BEYOND) * sides)
    low, high = held.min((0, 2, 3)), held.max((0, 2, 3))
    unit = np.maximum((high - low) / 65535, 1e-9)
    steps = np.rint((held - low[None, :, None, None]) / unit[None, :, None, None]).astype("<u2")
    return {
        "places": encode(steps.transpose(2, 3, 0, 1)),  # [hc, wc, S, 2]
        "origin": low.tolist(),
        "unit": unit.tolist(),
        "cells": nodes.shape[3],
    }


def pack_runs(values: np.ndarray) -> dict[str, str]:
    """Bytes (H, W) as runs: their values, and their lengths of 16 bits.

    >>> packed = pack_runs(np.array([[7, 7, 7, 1]], np.uint8))
    >>> np.frombuffer(base64.b64decode(packed["lengths"]), "<u2").tolist()
    [3, 1]
    """
    flat = values.reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] ^ 1))  # the first begins a run whatever it is
    lengths = np.diff(starts, append=flat.size)
    pieces = -(-lengths // 65535)  # a longer run is several
    split = np.full(pieces.sum(), 65535)
    split[np.cumsum(pieces) - 1] = lengths - 65535 * (pieces - 1)
    return {"values": encode(flat[starts].repeat(pieces)), "lengths": encode(split.astype("<u2"))}


def encode(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _groups(layer: LayerSight) -> list[int | None]:
    return [None] if layer.groups == 1 else [None, *range(layer.groups)]


def _sets(layer: LayerSight) -> np.ndarray:
    return np.stack([layer.of(group) for group in _groups(layer)])


def _weights(weights: np.ndarray) -> dict[str, Any]:
    """Weights (sets, S, h, w): the root of the largest of each position in 16 bits, and of all as shares of it in 8."""
    tops = weights.max(1)
    shares = weights / np.maximum(tops, 1e-30)[:, None]
    roots = np.rint(65535 * np.sqrt(np.clip(tops, 0, 1))).astype("<u2")
    return {
        "tops": encode(roots.transpose(1, 2, 0)),  # [h, w, sets]
        "weights": encode(_root(shares.transpose(2, 3, 0, 1))),  # [h, w, sets, S]
    }


def _root(values: np.ndarray) -> np.ndarray:
    return np.rint(255 * np.sqrt(np.clip(values, 0, 1))).astype(np.uint8)


def _maps(maps: Sequence[np.ndarray], root: bool) -> dict[str, Any]:
    """Maps (h, w) as bytes from 0 to the largest value of all, or of its root."""
    stacked = np.stack(maps)
    top = float(stacked.max()) or 1.0
    share = stacked / top
    return {"top": top, "root": root, "values": encode(_root(share) if root else np.rint(255 * share).astype(np.uint8))}
