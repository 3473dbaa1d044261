"""Run an image through a network and collect the nodes and attention weights of its layers, in pixels of the image."""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repgraph.constants import IGNORE, MEAN, STD
from repgraph.data.transforms import normalise
from repgraph.errors import UsageError
from repgraph.inference import Detections, NotFinite
from repgraph.inference.network import device_and_dtype
from repgraph.layers import NonLocal
from repgraph.layers.danet import PositionAttention
from repgraph.layers.modes import evaluation_mode
from repgraph.layers.non_local import attention_weights, to_rows
from repgraph.layers.pyramid import PyramidRepGraph, to_pixels
from repgraph.layers.repgraph import RepGraph

STRONGEST = 64  # positions to keep for a layer that attends to all
CHUNK = 2**22  # attention weights in memory at a time

DenseLayer = NonLocal | PositionAttention  # every position attends to all others
Layer = RepGraph | PyramidRepGraph | DenseLayer


@dataclass(frozen=True)
class PositionNodes:
    """The nodes of one position, in pixels of the image; they may be outside of it."""

    x: float
    y: float
    nodes: tuple[tuple[float, float, float], ...]  # x, y, attention weight
    window: tuple[float, float] = (0.0, 0.0)  # width and height of what a node averages

    def describe(self) -> str:
        """Describe the nodes: number, mean distance and largest weight."""
        x, y, weights = np.array(self.nodes).T
        text, total = f"{len(weights)} nodes", weights.sum()
        if total < 0.999:  # a layer that attends to all positions
            text = f"the {len(weights)} strongest positions with {100 * total:.1f} % of the weight"
        distance = np.hypot(x - self.x, y - self.y) @ weights / max(total, 1e-12)
        return f"{text}, weighted mean distance {distance:.1f} pixels, largest weight {weights.max():.2g}"


@dataclass(frozen=True)
class LayerAttention:
    """The nodes and weights of every position of a layer's (h, w) map.

    A RepGraph layer (``kind`` "nodes") has S nodes for each cell of ``grid`` x ``grid`` positions. A layer that attends
    to all positions (``kind`` "affinity": non-local, and the position attention of DANet) is represented by the S
    positions with the largest weights, in descending order; weights are means over its heads. Padding is left out.
    """

    path: str  # of the layer in the network
    name: str  # the path, and the round of a layer with several
    kind: str  # "nodes" or "affinity"
    nodes: np.ndarray  # x and y in pixels, float32 (S, 2, ceil(h / grid), ceil(w / grid))
    weights: np.ndarray  # float32 (groups, S, h, w); their sum over S is 1, or less for "affinity"
    shape: tuple[int, int]  # (h, w)
    step: tuple[float, float]  # distance between neighboring positions in pixels: horizontal, vertical
    grid: int = 1
    node_view: int = 1  # a node is the mean of node_view x node_view positions
    round: int = 1  # nodes sample the output of the round before

    def nodes_at(self, x: float, y: float) -> PositionNodes:
        """Return the nodes of the position at a pixel, with the mean weights of all groups."""
        row, column, center = position_at(x, y, self.shape, self.step)
        places = self.nodes[:, :, row // self.grid, column // self.grid].tolist()
        weights = self.weights[:, :, row, column].mean(0).tolist()
        nodes = tuple((a, b, weight) for (a, b), weight in zip(places, weights, strict=True))
        return PositionNodes(*center, nodes, (self.node_view * self.step[0], self.node_view * self.step[1]))


@dataclass(frozen=True)
class Frame:
    """Sizes (H, W) of an image, of the network's input, and of the input with its padding."""

    image: tuple[int, int]
    resized: tuple[int, int]
    padded: tuple[int, int]

    def step(self, shape: Sequence[int]) -> tuple[float, float]:
        """Return the distance between neighboring positions of an (h, w) map in pixels: horizontal, vertical."""
        sizes = zip(self.image, self.resized, self.padded, shape, strict=True)
        down, across = ((padded / count) * (image / resized) for image, resized, padded, count in sizes)
        return across, down

    def valid(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the number of rows and columns of an (h, w) map that are not padding."""
        sizes = zip(self.resized, self.padded, shape, strict=True)
        rows, columns = (math.ceil(resized * count / padded) for resized, padded, count in sizes)
        return rows, columns


def collect_attention(
    model: nn.Module, image: Tensor, *, layers: Sequence[str] | None = None, strongest: int = STRONGEST
) -> dict[str, LayerAttention]:
    """Return the nodes and attention weights of a network's layers for an image, by path, in the order they run.

    A layer with several rounds has an entry for each, named as in "head.context, round 1".

    The image runs through the network as a whole, in evaluation mode and on the device of the parameters. The resizing
    and padding of a detector is undone. Layers can be anywhere in the network, also inserted into its backbone.

    Args:
        model: An :class:`~repgraph.models.RGNet`, a :class:`~repgraph.models.MaskRCNN` or another detector of
            torchvision, or any network that takes normalized images (1, 3, H, W).
        image: uint8 RGB (3, H, W).
        layers: Paths of layers, or the ends of paths; None for all.
        strongest: Number of positions to keep for a layer that attends to all positions.
    """
    return attention_and_output(model, image, layers=layers, strongest=strongest)[0]


def attention_and_output(
    model: nn.Module, image: Tensor, *, layers: Sequence[str] | None = None, strongest: int = STRONGEST
) -> tuple[dict[str, LayerAttention], Any]:
    """Return the result of :func:`collect_attention`, and the network's output for the batch of one image."""
    chosen = find_layers(model, layers)
    inputs, frame, output = run_with_inputs(model, image, list(chosen))
    with evaluation_mode(model):
        found = [_layer_attention(path, chosen[path], maps, frame, strongest) for path, maps in inputs.items()]
    return {entry.name: entry for entries in found for entry in entries}, output


def to_prediction(output: Any, size: tuple[int, int], name: str) -> np.ndarray | Detections:
    """Convert a network's output for an image of ``size`` (H, W) to classes (H, W), or to a detector's objects."""
    if not isinstance(output, Tensor):
        return Detections.from_output(output[0], size)
    if not bool(output.isfinite().all()):
        raise NotFinite(f"{name}: the network's outputs are not finite; check its weights and the image")
    return output[0].argmax(0).cpu().numpy()


def paint_objects(size: Sequence[int], masks: Iterable[Any]) -> np.ndarray:
    """Return for each pixel the index of the first mask that contains it, or ``IGNORE``, uint8 (H, W)."""
    painted = np.full(tuple(size), IGNORE, np.uint8)
    for index, mask in reversed(list(enumerate(itertools.islice(masks, IGNORE)))):
        painted[np.asarray(mask) > 0] = index
    return painted


def find_layers(model: nn.Module, names: Sequence[str] | None = None, kind: Any = Layer) -> dict[str, Any]:
    """Return the layers of a network by path; ``names`` are paths, or suffixes such as "layer3.1.repgraph"."""
    found = {path: module for path, module in model.named_modules() if isinstance(module, kind)}
    if not found:
        others = "" if kind is Layer else "; repgraph nodes shows RepGraph layers"
        raise UsageError(f"the network has no {'RepGraph or ' * (kind is Layer)}non-local layer{others}")
    chosen: dict[str, Any] = {}
    for name in names or ():
        ends = (f".{name}", f".{name}.position")  # the latter of a DualAttention
        matches = {path: layer for path, layer in found.items() if f".{path}".endswith(ends)}
        if not matches:
            raise UsageError(f"layer {name!r} does not exist; choose from {', '.join(found)}")
        chosen |= matches
    return chosen or found


def find_layer(model: nn.Module, name: str | None = None, kind: Any = Layer) -> str:
    """Return the path of the layer with that name (see :func:`find_layers`), or of the network's last layer."""
    found = list(find_layers(model, None if name is None else [name], kind))
    if name is not None and len(found) > 1:
        raise UsageError(f"layer {name!r} is ambiguous; choose from {', '.join(found)}")
    return found[-1]


def run_with_inputs(
    model: nn.Module, image: Tensor, paths: Sequence[str]
) -> tuple[dict[str, list[Tensor]], Frame, Any]:
    """Run an image, uint8 RGB (3, H, W), through a network in evaluation mode.

    Returns the inputs of the layers at ``paths`` in the order they run, lists of maps; the sizes; and the output.
    """
    if image.dim() != 3 or len(image) != 3 or image.dtype != torch.uint8:
        raise UsageError(f"the image is {tuple(image.shape)} {image.dtype}; expected a uint8 tensor (3, height, width)")
    inputs: dict[str, list[Tensor]] = {}
    size = (image.shape[1], image.shape[2])
    frame = Frame(size, size, size)

    def keep_input(path: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        maps = [args[0]] if isinstance(args[0], Tensor) else args[0]
        inputs.setdefault(path, [each.clone() for each in maps])  # the network can change them in place

    def note_resizing(_: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        nonlocal frame
        frame = Frame(size, tuple(result[0].image_sizes[0]), tuple(result[0].tensors.shape[-2:]))

    # torchvision's module that resizes and pads the images of a detector
    transforms = [module for module in model.modules() if type(module).__name__ == "GeneralizedRCNNTransform"]
    device, dtype = device_and_dtype(model, image)
    pixels = image.as_subclass(Tensor).to(device)
    mean, std = getattr(model, "mean", MEAN), getattr(model, "std", STD)
    given = [(pixels / 255).to(dtype)] if transforms else normalise(pixels[None], mean, std).to(dtype)
    with evaluation_mode(model), contextlib.ExitStack() as stack:
        for path in paths:
            stack.callback(model.get_submodule(path).register_forward_pre_hook(partial(keep_input, path)).remove)
        for transform in transforms:
            stack.callback(transform.register_forward_hook(note_resizing).remove)
        output = model(given)
    if unused := [path for path in paths if path not in inputs]:
        raise UsageError(f"layer {unused[0]} did not run; the network does not use it in evaluation mode")
    return inputs, frame, output


def iterate_weights(layer: DenseLayer, x: Tensor, chunk: int = CHUNK, index: int | None = None) -> Iterator[Tensor]:
    """Yield the layer's attention weights for its input (B, C, h, w), for some queries at a time, or for one.

    Each part is (B, heads, queries, N) in at least float32, with N = h w, and has at most ``chunk`` elements, but at
    least one query. The whole N x N matrix is never in memory.

    >>> layer, x = NonLocal(8, groups=2), torch.randn(1, 8, 5, 7)
    >>> parts = list(iterate_weights(layer, x, chunk=1000))
    >>> [part.shape[2] for part in parts], torch.allclose(torch.cat(parts, 2), layer.affinity(x))
    ([14, 14, 7], True)
    """
    if isinstance(layer, NonLocal):
        groups, scale, (query, key) = layer.groups, layer.scale, layer.query_and_key(x)
    else:
        groups, scale, (query, key) = 1, 1.0, (layer.query(x), layer.key(x))
    query, key = to_rows(query, groups), to_rows(key, groups)
    if index is not None:
        query = query[:, :, index : index + 1]
    for part in query.split(max(1, chunk // (key.shape[0] * groups * key.shape[2])), 2):
        yield attention_weights(part, key, scale)


def check_inside(at: tuple[float, float], size: Sequence[int], name: str = "the image") -> None:
    """Raise an error if a pixel x, y is outside of an image of ``size`` (H, W)."""
    (x, y), (height, width) = at, size
    if not (0 <= x <= width - 1 and 0 <= y <= height - 1):
        raise UsageError(f"position {x:g},{y:g} is outside of {name}, which has {width} x {height} pixels")


def position_at(
    x: float, y: float, shape: tuple[int, int], step: tuple[float, float]
) -> tuple[int, int, tuple[float, float]]:
    """Return row and column of the position of an (h, w) map nearest to a pixel, and the pixel x, y at its center."""
    row = min(max(int((y + 0.5) // step[1]), 0), shape[0] - 1)
    column = min(max(int((x + 0.5) // step[0]), 0), shape[1] - 1)
    return row, column, ((column + 0.5) * step[0] - 0.5, (row + 0.5) * step[1] - 0.5)


def _layer_attention(path: str, layer: Any, maps: list[Tensor], frame: Frame, strongest: int) -> list[LayerAttention]:
    """Return an entry for each round of a layer; layers that attend to all positions have one round."""
    shape, steps = maps[0].shape[2:], [frame.step(each.shape[2:]) for each in maps]
    rows, columns = frame.valid(shape)
    kind = "affinity" if isinstance(layer, DenseLayer) else "nodes"
    grid = max(shape) if getattr(layer, "grid", 1) == "map" else getattr(layer, "grid", 1)
    rounds = _strongest(layer, maps[0], strongest) if kind == "affinity" else _nodes(layer, maps)
    entries = []
    for number, (nodes, weights) in enumerate(rounds, 1):
        places = to_pixels(nodes, steps)[..., : math.ceil(rows / grid), : math.ceil(columns / grid)].flatten(0, -4)
        weights = weights[..., :rows, :columns].float()
        if not (places.isfinite().all() and weights.isfinite().all()):
            raise NotFinite(f"nodes or weights of {path} are not finite; check the network's weights and the image")
        name = f"{path}, round {number}" if len(rounds) > 1 else path
        arrays, size = (places.cpu().numpy(), weights.cpu().numpy()), (rows, columns)
        more = grid, getattr(layer, "node_view", 1), number
        entries.append(LayerAttention(path, name, kind, *arrays, size, steps[0], *more))
    return entries


def _strongest(layer: DenseLayer, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return the ``count`` positions with the largest weights (S, 2, h, w), and their weights (1, S, h, w)."""
    height, width = x.shape[2:]
    tops = [part[0].mean(0).topk(min(count, height * width)) for part in iterate_weights(layer, x)]
    weights, indices = (torch.cat(parts).T.unflatten(1, (height, width)) for parts in zip(*tops, strict=True))
    return [(torch.stack([indices % width, indices // width], 1), weights[None])]


def _nodes(layer: RepGraph | PyramidRepGraph, maps: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return nodes (..., S, 2, cell rows, cells), in pixels of their maps, and weights of each round."""
    if isinstance(layer, PyramidRepGraph):  # groups have their own nodes: merge them into one group
        _, *found = layer.forward(maps, return_nodes=True)
        return [(nodes[0], weights.flatten(1, 2) / layer.groups) for nodes, weights in zip(*found, strict=True)]
    _, *found = layer.forward(maps[0], return_nodes=True)
    return [(nodes[0], weights[0]) for nodes, weights in (zip(*found, strict=True) if layer.rounds > 1 else [found])]
