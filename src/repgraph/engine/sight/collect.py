"""One image through a network, and what its layers looked at on the way."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repgraph.engine.inference.network import evaluating
from repgraph.engine.sight import find
from repgraph.engine.sight.affinity import strongest
from repgraph.engine.sight.passage import Frame, image_size, through
from repgraph.errors import UsageError
from repgraph.layers.repgraph import RepGraph
from repgraph.pictures.sight import LayerSight, Sight

STRONGEST = 64  # positions kept of a layer that attends to all


def look(model: nn.Module, image: Tensor, *, layers: Sequence[str] | None = None, strongest: int = STRONGEST) -> Sight:
    """Where the layers of a network look in an image: the representative nodes of every position, in pixels.

    RepGraph layers and layers that attend to all positions are found anywhere in the network, inserted ones too. Of the
    latter the strongest positions are kept. The image goes through the network as a whole, where its parameters are
    and in evaluation mode; a detector resizes and pads it first, and that is taken back here.

    Args:
        model: an :class:`~repgraph.models.RGNet`, a :class:`~repgraph.models.MaskRCNN` or another detector of
            torchvision, or any network that takes normalised images (1, 3, H, W).
        image: (3, H, W) uint8 RGB.
        layers: paths of layers, or ends of them; None for all.
        strongest: K, for layers that attend to all positions.

    Example:
        >>> from repgraph.models import RGNet
        >>> model = RGNet(5, "resnet18", channels=16)
        >>> sight = look(model, torch.zeros(3, 48, 64, dtype=torch.uint8))
        >>> sight["head.context"].nodes.shape, sight["head.context"].weights.shape
        ((9, 2, 6, 8), (1, 9, 6, 8))
        >>> len(sight["head.context"].look(x=10, y=20).nodes)
        9
    """
    return look_and_run(model, image, layers=layers, strongest=strongest)[0]


def look_and_run(
    model: nn.Module, image: Tensor, *, layers: Sequence[str] | None = None, strongest: int = STRONGEST
) -> tuple[Sight, Any]:
    """:func:`look`, and what the network says about the image in the same pass: its result for a batch of one."""
    size = image_size(image)
    if strongest < 1:
        raise UsageError(f"strongest is {strongest}; at least 1 is needed")
    chosen = find.layers(model, layers)
    collector = _Collector(Frame(size, size, size), strongest)
    with evaluating(model):
        result = through(model, image, collector.frame, {one: collector.hook(path) for path, one in chosen.items()})
    missed = [path for path in chosen if path not in collector.found]
    if missed:
        raise UsageError(f"the layer {missed[0]} did not run: the network does not use it in evaluation")
    return Sight(size, tuple(collector.found.values())), result


class _Collector:
    """Takes from each layer what it looks at when it runs; of one that runs more often, the first time counts."""

    def __init__(self, frame: Frame, count: int) -> None:
        self.frame, self.count = frame, count
        self.found: dict[str, LayerSight] = {}

    def hook(self, path: str) -> Callable[[Any, tuple[Any, ...]], None]:
        def take(layer: Any, args: tuple[Any, ...]) -> None:
            if path not in self.found:
                sight = self.nodes if isinstance(layer, RepGraph) else self.affinity
                self.found[path] = sight(path, layer, args[0])

        return take

    def nodes(self, path: str, layer: RepGraph, x: Tensor) -> LayerSight:
        _, nodes, weights = layer.forward(x, return_nodes=True)  # not a call: the hooks do not run again
        shape = (x.shape[2], x.shape[3])
        grid = max(shape) if layer.grid == "map" else int(layer.grid)
        rows, columns = self.frame.kept(shape)
        cells = nodes[0, :, :, : math.ceil(rows / grid), : math.ceil(columns / grid)]
        return self.made(path, layer, cells.float(), weights[0, :, :, :rows, :columns], shape, grid)

    def affinity(self, path: str, layer: Any, x: Tensor) -> LayerSight:
        index, weights, share = strongest(layer, x, self.count)
        rows, columns = self.frame.kept(x.shape[2:])
        index, share = index[:, :rows, :columns], share[:rows, :columns]
        nodes = torch.stack([index % x.shape[3], index // x.shape[3]], 1).float()
        shape = (x.shape[2], x.shape[3])
        return self.made(
            path, layer, nodes, weights[None, :, :rows, :columns], shape, 1, share[:rows, :columns].cpu().numpy()
        )

    def made(
        self,
        path: str,
        layer: Any,
        nodes: Tensor,
        weights: Tensor,
        shape: tuple[int, int],
        grid: int,
        share: np.ndarray | None = None,
    ) -> LayerSight:
        """A layer's sight from nodes (S, 2, hc, wc) in positions of its whole map of ``shape``."""
        if not bool(nodes.isfinite().all() and weights.isfinite().all()):
            raise UsageError(
                f"what the layer {path} looks at is not finite: the network's weights or the image are not"
            )
        step = self.frame.step(shape)
        scale = nodes.new_tensor(step).view(2, 1, 1)
        return LayerSight(
            path=path,
            title=find.title(path, layer),
            kind="affinity" if share is not None else "nodes",
            nodes=((nodes + 0.5) * scale - 0.5).cpu().numpy(),
            weights=weights.float().cpu().numpy(),
            shape=(weights.shape[2], weights.shape[3]),
            step=step,
            grid=grid,
            share=share,
            node_view=getattr(layer, "node_view", 1),
        )
