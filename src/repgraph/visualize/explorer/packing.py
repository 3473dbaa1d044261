"""Data of the page, as ``data.js`` reads it: arrays of bytes and of little-endian integers, in base64.

16-bit integers are fractions of a range: for nodes an error of at most 1/80 pixel in an image of 512 pixels. Weights
are stored as square roots, so that small ones are as exact as large ones.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from repgraph.constants import IGNORE
from repgraph.data.labels import Labels
from repgraph.visualize.collect import NO_OBJECT, LayerAttention, paint_objects

MAX_SIDE = 2048  # of photographs and underlays in the page; coordinates stay those of the image
OUTSIDE = 1  # nodes farther outside of the image than this many times its sides are moved there
MAX_STRONGEST = 400_000  # nodes in all layers of an image that attend to all positions
MIN_STRONGEST = 9  # nodes of a position that are kept in any case
WHOLE = 65535


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
    shares = np.bincount(values.reshape(-1), minlength=256) / values.size
    picture = Image.fromarray(values)
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
    entries = [
        {"name": name, "colour": list(labels.palette[k]), "share": round(float(share), 5)}
        for name, k, share in zip(names, classes, shares, strict=False)
    ]
    size = {"width": picture.width, "height": picture.height}
    return {"title": title, **size, "runs": pack_runs(np.asarray(picture)), "entries": entries, "boxes": []}


def pack_runs(values: np.ndarray) -> dict[str, str]:
    """Pack bytes (H, W) as run lengths of 32 bits and their values."""
    flat = values.reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] ^ 1))
    lengths = np.diff(starts, append=flat.size)
    return {"values": encode(flat[starts]), "lengths": encode(lengths.astype("<u4"))}


def pack_layers(layers: Sequence[LayerAttention], size: tuple[int, int]) -> list[dict[str, Any]]:
    """Pack the layers of one image of ``size`` (H, W)."""
    positions = sum(layer.shape[0] * layer.shape[1] for layer in layers if layer.kind == "affinity")
    strongest = max(MIN_STRONGEST, MAX_STRONGEST // max(positions, 1))
    return [pack_layer(layer, size, strongest) for layer in layers]


def pack_layer(layer: LayerAttention, size: tuple[int, int], strongest: int) -> dict[str, Any]:
    """Pack nodes and weights of a layer; of one that attends to all positions, the ``strongest`` positions."""
    nodes, weights = layer.nodes, layer.weights.mean(0)
    if layer.kind == "affinity":
        nodes, weights = nodes[:strongest], weights[:strongest]
    sides = np.array([size[1], size[0]])[:, None, None]
    return {
        "path": layer.path,
        "title": layer.title,
        "kind": layer.kind,
        "rows": layer.shape[0],
        "columns": layer.shape[1],
        "step": list(layer.step),
        "grid": layer.grid,
        "node_view": layer.node_view,
        "round": layer.round,
        "count": len(nodes),
        "cells": nodes.shape[3],
        "nodes": _fractions((nodes / sides + OUTSIDE) / (1 + 2 * OUTSIDE), (2, 3, 0, 1)),  # [cell rows, cells, S, 2]
        "weights": _fractions(np.sqrt(weights), (1, 2, 0)),  # [h, w, S]
    }


def encode(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _fractions(values: np.ndarray, axes: tuple[int, ...]) -> str:
    return encode(np.rint(WHOLE * np.clip(values, 0, 1)).astype("<u2").transpose(axes))
