"""Insertion of layers into an existing network, and their removal.

A layer is a child ``repgraph`` of the block it precedes, and a hook of the block calls it. So the parameters of the
network keep their names, and lists of blocks keep their length.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.fx
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from repgraph.errors import UsageError
from repgraph.layers.checks import check_int
from repgraph.layers.repgraph import BottleneckRepGraph
from repgraph.layers.stages import (
    CONTAINERS,
    NAME,
    PROBE_SIZE,
    BlockInput,
    block_input,
    blocks,
    calls_children,
    device_and_dtype,
    find_stage,
    join,
    not_a_map,
    output_shape,
)

Model = TypeVar("Model", bound=nn.Module)
Layer = Callable[..., nn.Module]  # called with the number of channels and options

# Wrappers that would miss new layers, by class name: some cannot be imported everywhere.
WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "OptimizedModule"}


def insert(
    model: Model,
    where: Mapping[str, int],
    layer: Layer = BottleneckRepGraph,
    *,
    channels: Mapping[str, int] | None = None,
    **layer_options: Any,
) -> Model:
    """Insert layers into stages of a network, in place.

    The k layers of a stage precede its last k blocks, one each; a stage of n blocks takes up to n - 1. In a stage of
    one block the layer follows it. The layers of this package start as the identity: the network computes exactly what
    it did before. Its own parameters keep their names. Create the optimizer, and compile, trace or wrap the
    network, after insertion.

    Args:
        model: the network, which is modified and returned; after an error it is unchanged.
        where: number of layers for each stage. A stage is named by its path, as in ``named_modules()``, or by the end
            of it: ``"layer3"`` also finds ``"backbone.body.layer3"``. :func:`repgraph.stages` lists them.
        layer: a layer class, or a callable that maps a number of channels to a module that keeps the shape.
        channels: channels of a stage's layers, for networks where they cannot be found.
        layer_options: options of the layer, such as ``nodes`` or ``mid_channels``.

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
    channels = {} if channels is None else channels
    _check_counts("where", where)
    _check_counts("channels", channels)
    points: list[_InsertionPoint] = []  # nothing is modified before all layers are built
    for name, count in where.items():
        _add_insertion_points(model, name, count, channels.get(name), points)
    modules = [_build(layer, point, layer_options) for point in points]
    for point, module in zip(points, modules, strict=True):
        point.holder.add_module(NAME, module)
        point.hook.attach(point.block)
    return model


def inserted(model: nn.Module) -> dict[str, nn.Module]:
    """Return the inserted layers of a network by their paths, in the order of ``named_modules()``."""
    return {join(path, hook.path): block.get_submodule(hook.path) for path, block, hook in _hooked_blocks(model)}


def remove(model: Model) -> Model:
    """Remove all inserted layers from a network, in place."""
    hooked = list(_hooked_blocks(model))
    for path, _, _ in hooked:
        _check_reachable(model, path, "remove the layers from the network inside it")
    for _, block, hook in hooked:
        hook.handle.remove()
        delattr(block.get_submodule(hook.path.rpartition(".")[0]), NAME)
    return model


class _Hook:
    """Calls a layer before its block, on the block's first argument, or after it, on the output.

    It stores the path of the layer in the block, not the layer: if the block is copied, pickled or replicated, the hook
    of the copy calls the copy's layer.
    """

    handle: RemovableHandle  # also kept because unpickling it reserves its id: new hooks get other ids

    def __init__(self, path: str, before: bool, channels_at_end: bool) -> None:
        self.path = path
        self.before = before
        self.channels_at_end = channels_at_end  # the block's maps are (B, H, W, C)

    def attach(self, block: nn.Module) -> None:
        if self.before:
            self.handle = block.register_forward_pre_hook(self, prepend=True)
        else:
            self.handle = block.register_forward_hook(self)

    def __call__(self, block: nn.Module, args: tuple[Any, ...], output: Any = None) -> Any:
        if self.before:
            return (self.apply(block, args[0] if args else None), *args[1:])
        return self.apply(block, output)

    def apply(self, block: nn.Module, x: Any) -> Any:
        layer = block.get_submodule(self.path)
        if not isinstance(x, (Tensor, torch.fx.Proxy)):
            got = f"the layer inserted into a {type(block).__name__} got a {type(x).__name__}"
            raise TypeError(f"{got}; expected a tensor (B, C, H, W). Layers cannot be inserted here")
        x = x.permute(0, 3, 1, 2) if self.channels_at_end else x
        if isinstance(x, torch.fx.Proxy):
            # The layer depends on the shape and device of its input, which a symbolic trace lacks: it is one node.
            y: Any = x.tracer.create_proxy("call_module", x.tracer.path_of_module(layer), (x,), {})  # type: ignore[attr-defined]
        else:
            y = layer(x)
        return y.permute(0, 2, 3, 1) if self.channels_at_end else y


def _find_hook(block: nn.Module) -> _Hook | None:
    hooks = (*block._forward_pre_hooks.values(), *block._forward_hooks.values())
    return next((hook for hook in hooks if isinstance(hook, _Hook)), None)


def _hooked_blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module, _Hook]]:
    for path, block in model.named_modules():
        if (hook := _find_hook(block)) is not None:
            yield path, block, hook


class _InsertionPoint(NamedTuple):
    """Where one layer goes: at a block, as a child of ``holder``, called by ``hook``."""

    path: str  # of the block
    block: nn.Module
    holder: nn.Module
    channels: int
    hook: _Hook


def _add_insertion_points(
    model: nn.Module, name: str, count: int, channels: int | None, points: list[_InsertionPoint]
) -> None:
    """Append the insertion points of ``count`` layers in the stage called ``name``."""
    stage = find_stage(model, name)
    own = blocks(model.get_submodule(stage))
    before, most = len(own) > 1, max(1, len(own) - 1)
    if count > most:
        place = "before each block but the first" if before else "after the block"
        raise UsageError(f"where[{name!r}] is {count}; the stage has {len(own)} blocks and takes up to {most}, {place}")
    for path, block in list(own.items())[-count:]:
        full = join(stage, path)
        _check_reachable(model, full, "insert the layers first")
        if _find_hook(block) is not None or any(point.block is block for point in points):
            raise UsageError(f"{full!r} already has an inserted layer; repgraph.remove(model) removes all")
        taken = block_input(block)
        if (other := not_a_map(model.get_submodule(stage), path, taken)) is not None:
            raise UsageError(f"cannot insert at {full!r}: the block gets {other}; layers need maps (B, C, H, W)")
        channels_at_end = taken is not None and taken.layout == "BHWC"
        width = channels or (taken.channels if taken is not None else None)
        if channels is None and taken is not None and not before:
            shape = output_shape(block, taken)
            width = shape[taken.layout.index("C")] if shape is not None and len(shape) == 4 else None
        if width is None:
            raise UsageError(f"cannot find the channels at {full!r}; for maps, pass them: channels={{{name!r}: 1024}}")
        holder = _find_holder(model, block, taken, full, points)
        hook = _Hook(join(holder, NAME), before, channels_at_end)
        points.append(_InsertionPoint(full, block, block.get_submodule(holder), width, hook))


def _find_holder(
    model: nn.Module, block: nn.Module, taken: BlockInput | None, path: str, points: list[_InsertionPoint]
) -> str:
    """Return the path in a block of the module whose child its layer becomes: the first that does not call children.

    Modules that are used elsewhere in the network do not qualify: the layer would be there twice.
    """
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for inner, module in block.named_modules():
        shared = uses[id(module)] > uses[id(block)]
        full = hasattr(module, NAME) or any(point.holder is module for point in points)
        if isinstance(module, CONTAINERS) or shared or full:
            continue
        if taken is None or not calls_children(block, inner, taken):
            return inner
    raise UsageError(f"no module in {path!r} can hold a layer: it has only lists of modules or shared modules")


def _check_reachable(model: nn.Module, path: str, remedy: str) -> None:
    """Raise if a block is not called by the network, or the network was compiled or wrapped."""
    names = path.split(".") if path else []
    for depth in range(len(names) + 1):
        outer = model.get_submodule(".".join(names[:depth]))
        which = repr(".".join(names[:depth])) if depth else "the model"
        wrapper = next((kind.__name__ for kind in type(outer).__mro__ if kind.__name__ in WRAPPERS), None)
        if wrapper or outer._compiled_call_impl is not None:
            state = f"wrapped in {wrapper}" if wrapper else "compiled"
            raise UsageError(f"{which} is already {state}; {remedy}, then wrap or compile it")
        if isinstance(outer, torch.fx.GraphModule) and depth < len(names):
            called = {node.target for node in outer.graph.nodes if node.op == "call_module"}
            if called.isdisjoint(".".join(names[depth:end]) for end in range(depth + 1, len(names) + 1)):
                raise UsageError(
                    f"{path!r} is in a torch.fx.GraphModule, which does not call it; {remedy}, then trace it"
                )


def _build(layer: Layer, point: _InsertionPoint, layer_options: dict[str, Any]) -> nn.Module:
    """Build the layer of an insertion point, on the device and in the mode of the block."""
    device, dtype = device_and_dtype(point.block)
    maker, bound = (layer.func, layer.keywords) if isinstance(layer, partial) else (layer, {})
    defaults = getattr(getattr(maker, "__self__", maker), "INSERTED", {})  # of the class, for a class method too
    module = layer(point.channels, **{**defaults, **bound, **layer_options})
    if not isinstance(module, nn.Module):
        raise TypeError(f"layer returned a {type(module).__name__} for {point.path!r}; expected a torch.nn.Module")
    module = module.to(device=device, dtype=dtype)
    kept = (2, point.channels, PROBE_SIZE, PROBE_SIZE)
    shape = output_shape(module, BlockInput(point.channels))  # None if it cannot be found without data
    if shape is not None and shape != kept:
        raise UsageError(f"layer turns {kept} into {tuple(shape)} at {point.path!r}; it has to keep the shape")
    return module.train(point.block.training)


def _check_counts(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f'{name} is {value!r}; expected a dict from stages to integers, such as {{"layer3": 1}}')
    for key, number in value.items():
        check_int(f"{name}[{key!r}]", number)
