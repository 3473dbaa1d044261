"""The layers of a network that look at other positions, wherever they are in it."""

import re
from collections.abc import Sequence

from torch import nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, NonLocal, SimpleRepGraph
from repgraph.layers.dual_attention import PositionAttention
from repgraph.layers.repgraph import RepGraph
from repgraph.layers.stages import NAME

Layer = RepGraph | NonLocal | PositionAttention
KINDS = {
    BottleneckRepGraph: "Bottleneck",
    SimpleRepGraph: "Simple",
    NonLocal: "Non-local",
    PositionAttention: "position attention of DANet",
}


def layers(model: nn.Module, wanted: Sequence[str] | None = None) -> dict[str, Layer]:
    """The RepGraph layers of a network and those that attend to all positions, by their paths.

    ``wanted`` are paths, or ends of them such as "layer3.1.repgraph"; None for all. A network that has none of them is
    an error, which says what it has instead.

    >>> from repgraph.models import RGNet
    >>> list(layers(RGNet(5, "resnet18", channels=16, inserted={"layer3": 1})))
    ['backbone.body.layer3.1.repgraph', 'head.context']
    """
    found = {path: module for path, module in model.named_modules() if isinstance(module, Layer)}
    if not found:
        raise UsageError(f"{_instead(model)}; a network with RepGraph or non-local layers is needed")
    if wanted is None:
        return found
    if not wanted:
        raise UsageError(f"no layer is named to look at; the network has {', '.join(found)}")
    chosen: dict[str, Layer] = {}
    for name in wanted:
        fits = {path: one for path, one in found.items() if path == name or path.endswith(f".{name}")}
        if not fits:
            raise UsageError(f"there is no layer {name!r} to look at; the network has {', '.join(found)}")
        chosen |= fits
    return chosen


def title(path: str, layer: Layer) -> str:
    """A layer in few words: where it is, and what.

    >>> title("backbone.body.layer3.5.repgraph", BottleneckRepGraph(64, nodes=27, grid=4))
    'layer3.5 (res4): Bottleneck, 27 nodes, grid 4'
    """
    parts = [next((name for kind, name in KINDS.items() if isinstance(layer, kind)), type(layer).__name__)]
    if isinstance(layer, RepGraph):
        parts += [f"{layer.nodes} nodes", *([f"grid {layer.grid}"] if layer.grid != 1 else [])]
    groups = getattr(layer, "groups", 1)
    parts += [f"{groups} {'groups' if isinstance(layer, RepGraph) else 'heads'}"] if groups > 1 else []
    place = path.removesuffix(f".{NAME}").removesuffix(".position").removesuffix(".context")
    stage = re.search(r"layer(\d)\.\d+.*", place)
    if stage:
        place = f"{stage.group()} (res{int(stage.group(1)) + 1})"
    return f"{place}: {', '.join(parts)}" if place else ", ".join(parts)


def _instead(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    context = config.get("context") if isinstance(config, dict) else None
    if isinstance(config, dict) and "context" in config:
        return f"the network's context is {context or 'none'!r}, and it has no layer that looks at other positions"
    return f"the network (a {type(model).__name__}) has no layer that looks at other positions"
