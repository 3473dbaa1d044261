"""RGNet: a backbone, a segmentation head with RepGraph layers, and an auxiliary head for training."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repgraph.constants import DECODERS, MEAN, STD
from repgraph.errors import UsageError
from repgraph.layers.checks import FUSIONS, check_choice, check_map, check_size
from repgraph.layers.modes import evaluation_mode
from repgraph.layers.pyramid import PyramidRound, to_pixels
from repgraph.layers.repgraph import RepGraph
from repgraph.layers.spread import shrink_factor
from repgraph.models import weights as weight_files
from repgraph.models.backbone import Backbone
from repgraph.models.context import INSERTABLE, context_name, full_options, head_options, insert_context
from repgraph.models.heads import MAPS, AuxiliaryHead, PyramidHead, SegmentationHead, upsample
from repgraph.models.hub import Hub


class RGNet(Hub, pipeline_tag="image-segmentation", tags=["semantic-segmentation"]):
    """The paper's network for semantic segmentation. :func:`rgnet` builds it with pretrained weights.

    All arguments are stored in ``config``.

    Args:
        backbone, caffe_style: see :class:`~repgraph.models.Backbone`.
        decoder: "dilated" (the paper's: a dilated backbone and :class:`~repgraph.models.SegmentationHead`) or "pyramid"
            (a backbone without dilation, and :class:`~repgraph.models.PyramidHead` on its last four stages).
        output_stride: of the backbone: 8, 16 or 32. Default: 8; a pyramid needs 32.
        context: the layer in the head: "repgraph" (in a pyramid, RepGraph over its maps), "paper" (the same in the
            paper's plain form), "simple", "non_local", "dual", "psp" (pyramid pooling), "control", "none", or your own
            layer, by class or by its name in :func:`~repgraph.models.register_context`.
        context_options: options of that layer, such as ``{"nodes": 27, "radius": 8}``.
        channels: channels of the heads; in a pyramid, of its maps. Default: 512, and 256 for a pyramid.
        fusion: of the context layer: "concat" or "sum". Default: "concat", and "sum" for dual attention.
        inserted: number of layers in stages of the backbone, such as ``{"layer3": 1}``; see :func:`repgraph.insert`.
        inserted_options: their options; "layer" is "repgraph" (default), "paper", "simple", "non_local" or "dual".
        auxiliary: whether there is an auxiliary head.
        dropout: probability of dropping a channel before a classifier.
        map_sizes: ``map_size`` of layers by path, such as ``{"head.context": (8, 8)}``; see :meth:`keep_reach`.
        labels: description of the classes by :meth:`repgraph.data.labels.Labels.to_dict`; saved with the network.
        mean, std: normalization of the images, RGB from 0 to 1.

    Shape:
        - Input: (B, 3, H, W), normalized
        - Output: logits (B, classes, H, W), at least float32. In training with an auxiliary head: logits of both heads.
    """

    PRETRAINED = "backbone"
    initial: str = ""  # set by rgnet(): which weights were loaded, and which layers are new

    def __init__(
        self,
        classes: int,
        backbone: str = "resnet50",
        *,
        decoder: str = "dilated",
        output_stride: int | None = None,
        context: Any = "repgraph",
        context_options: dict[str, Any] | None = None,
        channels: int | None = None,
        fusion: str | None = None,
        inserted: dict[str, int] | None = None,
        inserted_options: dict[str, Any] | None = None,
        auxiliary: bool = True,
        dropout: float = 0.1,
        caffe_style: bool = False,
        map_sizes: dict[str, Sequence[int]] | None = None,
        labels: dict[str, Any] | None = None,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        stride, width = DECODERS[check_choice("decoder", decoder, DECODERS)]
        output_stride = stride if output_stride is None else output_stride
        channels = width if channels is None else channels
        context, names = context_name(context, decoder), inspect.signature(RGNet).parameters
        super().__init__({name: value for name, value in locals().items() if name in names})
        self.decoder, pyramid = decoder, decoder == "pyramid"
        if pyramid and output_stride != stride:
            raise UsageError(f"output_stride is {output_stride}; a pyramid needs {stride}, the stride without dilation")
        maps = MAPS if pyramid else 2
        self.backbone = Backbone(backbone, output_stride=output_stride, maps=maps, caffe_style=caffe_style)
        if inserted:
            options = dict(self.config["inserted_options"] or {})
            layer = check_choice("layer in inserted_options", options.pop("layer", "repgraph"), INSERTABLE)
            recorded = insert_context(self.backbone.body, inserted, layer, options, "inserted_options")
            self.config["inserted_options"] = {"layer": layer, **recorded}
        elif inserted_options:
            raise UsageError("inserted_options needs inserted, the number of layers for each stage")
        *_, stage4, stage5 = stages = self.backbone.channels
        settings: dict[str, Any] = dict(context=context, context_options=context_options, fusion=fusion)
        settings |= dict(channels=channels, dropout=dropout)
        check_choice("fusion", fusion or "sum", FUSIONS)
        kind, given = (PyramidHead, stages) if pyramid else (SegmentationHead, stage5)
        self.head: Any = kind(given, classes, **settings)  # type: ignore[arg-type]
        options = head_options(context, self.config["context_options"])
        self.config["context_options"] = full_options(context, options, self.head.context)
        self.auxiliary = None
        if auxiliary:
            self.auxiliary = AuxiliaryHead(stage4, classes, channels=channels, dropout=dropout)
        if not pyramid:
            del self.config["decoder"]
        del self.config["map_sizes"]
        if not isinstance(map_sizes, dict | None):
            raise UsageError(f"map_sizes is {map_sizes!r}; expected a dict from layers to sizes")
        self._set_map_sizes(map_sizes or {})
        self.built = frozenset(self.state_dict())

    def _set_map_sizes(self, sizes: Mapping[str, Sequence[int]]) -> None:
        layers = dict(self.named_modules())
        for path, size in sizes.items():
            layer = layers.get(path)
            if not isinstance(layer, RepGraph | PyramidRound):
                raise UsageError(f"map_sizes has {path!r}, which is not a RepGraph layer of this network")
            for offset in layer.offsets():
                offset.map_size = check_size("map_sizes", size)
        if sizes:
            self.config["map_sizes"] = {path: list(size) for path, size in sizes.items()}

    def keep_reach(self, height: int, width: int) -> dict[str, tuple[int, int]]:
        """Fix the initial distance of nodes from their queries to that on images of this size, the size in training.

        A ring shrinks on a map that is too small for it. Without this call it would grow again on larger images, away
        from where the nodes were trained. Returns the map sizes of the layers it applies to; ``config`` stores them.
        """
        layers = {path: layer for path, layer in self.named_modules() if isinstance(layer, RepGraph | PyramidRound)}
        smallest = -(-height // self.backbone.output_stride), -(-width // self.backbone.output_stride)
        if not any(_shrinks(layer, smallest) for layer in layers.values()):
            return {}
        with evaluation_mode(self):
            self(torch.zeros(1, 3, height, width, device=next(self.parameters()).device))
        sizes = {path: layer.offset.seen[1:] for path, layer in layers.items() if layer.offset.seen is not None}
        small = {path: size for path, size in sizes.items() if _shrinks(layers[path], size)}
        self._set_map_sizes(small)
        return small

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        size = check_map(x, 3).shape[2:]
        maps = self.backbone(x)
        logits = upsample(self.head(self._head_input(maps)), size)
        if self.auxiliary is None or not self.training:
            return logits
        return logits, upsample(self.auxiliary(maps[-2]), size)

    def _head_input(self, maps: tuple[Tensor, ...]) -> Any:
        return maps if self.decoder == "pyramid" else maps[-1]

    def nodes(self, x: Tensor) -> tuple[Any, Any]:
        """Return the representative nodes of the head's RepGraph layer and their weights.

        Args:
            x: normalized images (B, 3, H, W). Use evaluation mode.

        Returns:
            Nodes (B, S, 2, h, w): [x, y] in pixels of the image for each position of the h x w map (for a grid, for
            each cell); they may be outside. Weights (B, groups, S, h, w), which sum to 1 over S. With several rounds,
            tuples of one tensor for each. For a pyramid, nodes (B, groups, 2 S, 2, h, w) and weights (B, groups, 2 S,
            h, w) of each round for the positions at stride 16: S on each map of strides 16 and 32.
        """
        maps = self.backbone(check_map(x, 3))
        _, nodes, weights = self.head(self._head_input(maps), return_nodes=True)
        used = maps[-getattr(self.head.context, "maps", 1) :]
        steps = [(x.shape[3] / each.shape[3], x.shape[2] / each.shape[2]) for each in used]
        if isinstance(nodes, tuple):
            return tuple(to_pixels(each, steps) for each in nodes), weights
        return to_pixels(nodes, steps), weights


def _shrinks(layer: RepGraph | PyramidRound, size: tuple[int, int]) -> bool:
    """Return whether initial nodes of a layer do not fit a map of this size."""
    return any(shrink_factor(offset.extent, *size) < 1 for offset in layer.offsets())


def rgnet(
    classes: int, backbone: str = "resnet50", *, weights: str | os.PathLike[str] | None = None, **options: Any
) -> RGNet:
    """Build an RGNet with pretrained weights in its backbone, or with the weights of a trained RGNet.

    Args:
        classes, backbone, options: as in :class:`RGNet`; ``caffe_style``, ``mean`` and ``std`` default to the weights'.
        weights: weights of the backbone: None for random weights; a file (``.safetensors``, or ``.pth`` and the like
            with tensors only) with the names of timm or torchvision; "pretrained" for timm's default, or "timm:NAME",
            such as "timm:resnet50.tv_in1k". Only the last two may download. Or a trained RGNet: the folder of a run or
            of a network, or its file; its heads are loaded too, but its classifiers only for the same classes.
    """
    found = None if weights is None else weight_files.find_weights(weights, backbone)
    model = RGNet(classes, backbone, **weight_files.complete(options, found, "caffe_style", "mean", "std"))
    if found is not None:
        weight_files.load_backbone(model.backbone, found)
        model.initial = weight_files.load_heads(model, found)
    return model
