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
from repgraph.visualize.collect import LayerAttention, paint_objects

MAX_SIDE = 2048  # of photographs and overlays in the page; coordinates stay those of the image
OUTSIDE = 1  # nodes farther outside of the image than this many times its sides are moved there
MAX_STRONGEST = 400_000  # nodes in all layers of an image that attend to all positions
WHOLE = 65535


def pack_classes(title: str, classes: Any, labels: Labels) -> dict[str, Any]:
    """Pack classes (H, W) to show over the photograph."""
    return _pack_overlay(title, np.asarray(classes, np.uint8), labels.names, labels.palette)


def pack_objects(
    title: str, size: Sequence[int], boxes: Any, classes: Any, masks: Iterable[Any], labels: Labels, scores: Any = ()
) -> dict[str, Any]:
    """Pack objects in an image of ``size`` (H, W) to show over the photograph; the first ones are on top.

    ``boxes`` (N, 4) are in pixels that begin at integers, ``classes`` (N,) from 1, ``masks`` (H, W) are of 0 and 1.
    """
    names = [labels.names[k - 1] for k in classes]
    if len(scores):
        names = [f"{name} {score:.2f}" for name, score in zip(names, scores, strict=True)]
    corners = np.reshape(boxes, (-1, 4))[:IGNORE] - 0.5  # pixel centers are at integers
    packed = _pack_overlay(title, paint_objects(size, masks), names, [labels.palette[k - 1] for k in classes])
    return packed | {"boxes": corners.round(2).tolist()}


def _pack_overlay(
    title: str, values: np.ndarray, names: Sequence[str], palette: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Pack the index of each pixel's name and color, uint8 (H, W)."""
    shares = np.bincount(values.reshape(-1), minlength=IGNORE)[:IGNORE] / values.size
    picture = Image.fromarray(values)
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
    entries = [
        {"name": name, "colour": colour, "share": round(share, 5)}
        for name, colour, share in zip(names, palette, shares.tolist(), strict=False)
    ]
    size = {"width": picture.width, "height": picture.height}
    return {"title": title, **size, "runs": pack_runs(np.asarray(picture)), "entries": entries, "boxes": []}


def pack_runs(values: np.ndarray) -> dict[str, str]:
    """Pack bytes (H, W) as run lengths of 32 bits and their values."""
    flat = values.reshape(-1)
    starts = np.flatnonzero(np.diff(flat, prepend=flat[0] ^ 1))
    lengths = np.diff(starts, append=flat.size)
    return {"values": _encode(flat[starts]), "lengths": _encode(lengths.astype("<u4"))}


def pack_layers(layers: Sequence[LayerAttention], size: tuple[int, int]) -> list[dict[str, Any]]:
    """Pack the layers of one image of ``size`` (H, W)."""
    positions = sum(layer.shape[0] * layer.shape[1] for layer in layers if layer.kind == "affinity")
    strongest = max(9, MAX_STRONGEST // max(positions, 1))
    return [_pack_layer(layer, size, strongest if layer.kind == "affinity" else None) for layer in layers]


def _pack_layer(layer: LayerAttention, size: tuple[int, int], strongest: int | None) -> dict[str, Any]:
    nodes, weights = layer.nodes[:strongest], layer.weights.mean(0)[:strongest]
    sides = np.array([size[1], size[0]])[:, None, None]
    places = (nodes / sides + OUTSIDE) / (1 + 2 * OUTSIDE)
    about = {key: getattr(layer, key) for key in ("name", "kind", "step", "grid", "node_view", "round")}
    sizes = {"rows": layer.shape[0], "columns": layer.shape[1], "count": len(nodes), "cells": nodes.shape[3]}
    return (
        about
        | sizes
        | {
            "nodes": _fractions(places.transpose(2, 3, 0, 1)),  # [cell rows, cells, S, 2]
            "weights": _fractions(np.sqrt(weights).transpose(1, 2, 0)),  # [h, w, S]
        }
    )


def _fractions(values: np.ndarray) -> str:
    return _encode(np.rint(WHOLE * np.clip(values, 0, 1)).astype("<u2"))


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()
