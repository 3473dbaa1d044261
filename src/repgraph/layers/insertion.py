"""Layers put into a network that exists already, and taken out again.

A layer is a child ``repgraph`` of the block it stands before, and a hook of the block applies it: the network keeps the
names of its own parameters, and lists of blocks keep their length.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from repgraph.layers import hook, options, probe
from repgraph.layers.bottleneck import BottleneckRepGraph
from repgraph.layers.spot import Spot, check_reached, spots
from repgraph.layers.stages import NAME

Model = TypeVar("Model", bound=nn.Module)
Layer = Callable[..., nn.Module]  # called with the number of channels (and options)


def insert(
    model: Model,
    where: Mapping[str, int],
    layer: Layer = BottleneckRepGraph,
    *,
    channels: Mapping[str, int] | None = None,
    **layer_options: Any,
) -> Model:
    """Put layers into stages of a network, in place.

    The k layers of a stage stand before its last k blocks, one before each; a stage of n blocks takes up to n - 1. In
    a stage of one block the layer stands after it. RepGraph layers and their peers start as the identity: the network
    computes exactly what it did before, until it is trained further. Its own parameters keep their names. Make the
    optimiser, and compile, trace or wrap the network, after this.

    Args:
        model: the network; it is changed, and returned. After an error it is as it was.
        where: the number of layers for each stage. A stage is named by its path, as in ``named_modules()``, or by the
            end of it: ``"layer3"`` also finds ``"backbone.body.layer3"``. :func:`~repgraph.layers.stages.stages` lists
            them.
        layer: a layer class, or any callable that makes, of a number of channels, a module that keeps them.
        channels: the channels of a stage's layers, for networks where they cannot be found.
        layer_options: for the layer, such as ``nodes`` or ``mid_channels``.

    Example:
        >>> block = lambda: nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        >>> network = nn.Sequential(nn.Sequential(block(), block(), block()), nn.AdaptiveAvgPool2d(1))
        >>> x = torch.randn(2, 16, 13, 9)
        >>> before = network(x)
        >>> network = insert(network, {"0": 2}, nodes=5)
        >>> list(inserted(network))
        ['0.1.0.repgraph', '0.2.0.repgraph']
        >>> torch.equal(network(x), before)
        True
        >>> inserted(remove(network))
        {}
    """
    _check_model(model)
    channels = {} if channels is None else channels
    _check_stages("where", where)
    _check_stages("channels", channels)
    if not channels.keys() <= where.keys():
        spare = ", ".join(repr(name) for name in channels if name not in where)
        raise ValueError(f"channels has {spare}, which where has not")

    found: list[Spot] = []  # nothing is changed until all spots are found and all layers made
    for name, count in where.items():
        found += spots(model, name, count, channels.get(name), found)
    made = [_make(layer, spot, layer_options) for spot in found]
    for spot, module in zip(found, made, strict=True):
        spot.holder.add_module(NAME, module)
        spot.hook.attach(spot.block)
    return model


def inserted(model: nn.Module) -> dict[str, nn.Module]:
    """The inserted layers of a network by their paths, in the order of ``named_modules()``."""
    _check_model(model)
    return {".".join((*path, *own.path)): own.layer(block) for path, block, own in _hooked(model)}


def remove(model: Model) -> Model:
    """Take all inserted layers out of a network, in place: it is then as if there had been none."""
    _check_model(model)
    hooked = list(_hooked(model))
    for path, _, _ in hooked:
        check_reached(model, ".".join(path), "remove the layers from the network inside it")
    for _, block, own in hooked:
        own.detach()
        del own.holder(block)._modules[NAME]
    return model


def _hooked(model: nn.Module) -> Iterator[tuple[list[str], nn.Module, hook.Hook]]:
    for path, block in model.named_modules():
        own = hook.of(block)
        if own is not None:
            yield path.split(".") if path else [], block, own


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}; a torch.nn.Module is needed")


def _check_stages(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f'{name} is {value!r}; a dict of stages and numbers, such as {{"layer3": 1}}, is needed')
    for key, number in value.items():
        options.whole(f"{name}[{key!r}]", number)


def _make(layer: Layer, spot: Spot, layer_options: dict[str, Any]) -> nn.Module:
    """A layer for a spot, checked to keep the channels, on the device and in the mode of the block."""
    device, dtype = probe.like(spot.block)
    maker, bound = (layer.func, layer.keywords) if isinstance(layer, partial) else (layer, {})
    own = getattr(getattr(maker, "__self__", maker), "INSERTED", None)  # of the class, if it is a class's method
    if own is None:
        module = layer(spot.channels, **layer_options)
    else:
        wanted = {**own, "device": device, "dtype": dtype, **bound, **layer_options}
        if wanted.get("fusion") == "concat":
            raise ValueError("fusion='concat' doubles the channels; an inserted layer needs fusion='sum'")
        module = layer(spot.channels, **wanted)
    if not isinstance(module, nn.Module):
        raise TypeError(f"layer made a {type(module).__name__} for {spot.name!r}; a torch.nn.Module is needed")
    if own is None:
        module = module.to(device=device, dtype=dtype)
    _check_kept(module, spot)
    return module.train(spot.block.training)


def _check_kept(module: nn.Module, spot: Spot) -> None:
    """Refuse a layer that changes the shape of its input, as far as that can be told without data."""
    out = getattr(module, "out_channels", spot.channels)
    if out != spot.channels:
        raise ValueError(f"layer makes {out} of the {spot.channels} channels at {spot.name!r}; it has to keep them")
    kept = torch.Size((2, spot.channels, probe.SIDE, probe.SIDE))
    shape = probe.shape(module, spot.channels)
    if shape is not None and shape != kept:
        raise ValueError(f"layer makes {tuple(shape)} of {tuple(kept)} at {spot.name!r}; it has to keep the shape")
