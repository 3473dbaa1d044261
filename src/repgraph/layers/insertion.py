"""Insertion of layers into an existing network, and their removal.

A layer is a child ``repgraph`` of the block it precedes, and a hook of the block calls it. So the parameters of the
network keep their names, and lists of blocks keep their length.
"""

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.fx
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from repgraph.errors import UsageError
from repgraph.layers.checks import check_int
from repgraph.layers.repgraph import BottleneckRepGraph
from repgraph.layers.stages import CONTAINERS, NAME, blocks, find_stage, join

Model = TypeVar("Model", bound=nn.Module)
Layer = Callable[..., nn.Module]  # called with the number of channels and options
PROBE_SIZE = 64  # side of the map for probing: large enough for blocks that halve it or use windows
# Wrappers that would miss new layers, by class name: some cannot be imported everywhere.
WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "GraphModule", "OptimizedModule"}


def insert(
    model: Model,
    where: Mapping[str, int],
    layer: Layer = BottleneckRepGraph,
    *,
    channels: Mapping[str, int] | None = None,
    **layer_options: Any,
) -> Model:
    """Insert layers into stages of a network, in place.

    With k layers in a stage, one is inserted before each of its last k blocks; in a stage with a single block, the
    layer comes after it. Layers of this package start as the identity: the network computes exactly what it did before.
    Its own parameters keep their names. Create the optimizer, and compile, trace or wrap the network, after insertion.

    Args:
        model: the network, which is modified and returned; after an error it is unchanged.
        where: number of layers for each stage. A stage is named by its path, as in ``named_modules()``, or by the end
            of it: ``"layer3"`` also finds ``"backbone.body.layer3"``. :func:`repgraph.stages` lists them.
        layer: a layer class, or a callable that maps a number of channels to a module that keeps the shape.
        channels: channels of a stage's layers, for networks where they cannot be found.
        layer_options: options of the layer, such as ``nodes`` or ``mid_channels``.

    Example:
        >>> import torchvision
        >>> network = insert(torchvision.models.resnet18(), {"layer3": 1}, nodes=5)
        >>> list(inserted(network))
        ['layer3.1.repgraph']
    """
    if not isinstance(where, Mapping):
        raise TypeError(f'where is {where!r}; expected a dict from stages to integers, such as {{"layer3": 1}}')
    new: list[tuple[nn.Module, _Hook]] = []
    try:
        for name, count in where.items():
            stage = find_stage(model, name)
            own = blocks(model.get_submodule(stage))
            place = "layers go before the blocks except the first" if len(own) > 1 else "the stage has one block"
            if check_int(f"where[{name!r}]", count) > (most := max(1, len(own) - 1)):
                raise UsageError(f"where[{name!r}] is {count}; expected at most {most} ({place})")
            width = (channels or {}).get(name)
            for path in list(own)[-count:]:
                new.append(_insert_one(model, name, stage, path, width, layer, layer_options))
    except BaseException:
        for block, hook in new:
            hook.detach(block)
        raise
    return model


def inserted(model: nn.Module) -> dict[str, nn.Module]:
    """Return the inserted layers of a network by their paths, in the order of ``named_modules()``."""
    return {join(path, hook.path): block.get_submodule(hook.path) for path, block, hook in _hooked_blocks(model)}


def remove(model: Model) -> Model:
    """Remove all inserted layers from a network, in place."""
    hooked = _hooked_blocks(model)
    for path, _, _ in hooked:
        _check_not_wrapped(model, path, "remove the layers from the network inside it")
    for _, block, hook in hooked:
        hook.detach(block)
    return model


class _Hook:
    """Calls a layer before its block, on the block's first argument, or after it, on the output.

    It stores the path of the layer, not the layer: in a copied, pickled or replicated block it calls the copy's layer.
    """

    handle: RemovableHandle  # also kept because unpickling it reserves its id: new hooks get other ids

    def __init__(self, path: str, before: bool, channels_at_end: bool) -> None:
        self.path, self.before, self.channels_at_end = path, before, channels_at_end  # at the end: (B, H, W, C)

    def attach(self, block: nn.Module, layer: nn.Module) -> None:
        self.holder(block).add_module(NAME, layer)
        if self.before:
            self.handle = block.register_forward_pre_hook(self, prepend=True)
        else:
            self.handle = block.register_forward_hook(self)

    def detach(self, block: nn.Module) -> None:
        self.handle.remove()
        delattr(self.holder(block), NAME)

    def holder(self, block: nn.Module) -> nn.Module:
        return block.get_submodule(self.path.rpartition(".")[0])

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


def _hooked_blocks(model: nn.Module) -> list[tuple[str, nn.Module, _Hook]]:
    return [
        (path, block, hook)
        for path, block in model.named_modules()
        for hook in (*block._forward_pre_hooks.values(), *block._forward_hooks.values())
        if isinstance(hook, _Hook)
    ]


class _BlockInput(NamedTuple):
    """The input of a block: maps "BCHW", maps "BHWC" as in Swin, or tokens "BNC" as in ViT."""

    channels: int
    layout: str = "BCHW"


def _insert_one(
    model: nn.Module, name: str, stage: str, inner: str, channels: int | None, layer: Layer, options: dict[str, Any]
) -> tuple[nn.Module, _Hook]:
    """Insert a layer at the block at ``inner`` of a stage, which the caller calls ``name``."""
    owner, path = model.get_submodule(stage), join(stage, inner)
    block, before = owner.get_submodule(inner), len(blocks(owner)) > 1
    _check_not_wrapped(model, path, "insert the layers first")
    if any(block is other for _, other, _ in _hooked_blocks(model)):
        raise UsageError(f"{path!r} already has an inserted layer; repgraph.remove(model) removes all")
    taken = _block_input(block)
    tokens = taken is not None and taken.layout == "BNC"
    if other := "tokens (B, N, C)" if tokens else _not_a_tensor(owner, inner):
        raise UsageError(f"cannot insert at {path!r}: the block gets {other}; layers need maps (B, C, H, W)")
    if channels is None and taken is not None:
        channels = taken.channels
        if not before:
            shape = _output_shape(block, taken)
            channels = shape[taken.layout.index("C")] if shape is not None and len(shape) == 4 else None
    if channels is None:
        raise UsageError(f"cannot find the channels at {path!r}; for maps, pass them: channels={{{name!r}: 1024}}")
    hook = _Hook(_find_place(model, block, taken, path), before, taken is not None and taken.layout == "BHWC")
    hook.attach(block, _build(layer, channels, block, path, options))
    return block, hook


def _find_place(model: nn.Module, block: nn.Module, taken: _BlockInput | None, path: str) -> str:
    """Return the path of a new layer in a block: a child of its first module that does not call all its children.

    In modules that are used elsewhere in the network, the layer would be there twice.
    """
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for inner, module in block.named_modules():
        shared = uses[id(module)] > uses[id(block)]
        if isinstance(module, CONTAINERS) or shared or hasattr(module, NAME):
            continue
        twin, child = _meta_copy(block), nn.Identity()
        twin.get_submodule(inner).add_module(NAME, child)
        if taken is None or not _first_arguments(child, twin, taken):
            return join(inner, NAME)
    raise UsageError(f"no module in {path!r} can hold a layer: it has only lists of modules or shared modules")


def _build(layer: Layer, channels: int, block: nn.Module, path: str, options: dict[str, Any]) -> nn.Module:
    """Build the layer of a block, on its device and in its mode."""
    maker, bound = (layer.func, layer.keywords) if isinstance(layer, partial) else (layer, {})
    defaults = getattr(getattr(maker, "__self__", maker), "INSERTED", {})  # of the class, for a class method too
    module = layer(channels, **{**defaults, **bound, **options})
    module = module.to(_example(block)).train(block.training)
    kept = (2, channels, PROBE_SIZE, PROBE_SIZE)
    shape = _output_shape(module, _BlockInput(channels))  # None if it cannot be found without data
    if shape is not None and shape != kept:
        raise UsageError(f"layer turns {kept} into {tuple(shape)} at {path!r}; it has to keep the shape")
    return module


def _check_not_wrapped(model: nn.Module, path: str, remedy: str) -> None:
    """Raise if the module at ``path`` or one that contains it was compiled or wrapped, and would miss a change."""
    parts = path.split(".") if path else []
    for depth in range(len(parts) + 1):
        above = ".".join(parts[:depth])
        outer = model.get_submodule(above)
        wrapper = next((kind.__name__ for kind in type(outer).__mro__ if kind.__name__ in WRAPPERS), None)
        if wrapper or outer._compiled_call_impl is not None:
            state = f"wrapped in {wrapper}" if wrapper else "compiled"
            which = repr(above) if above else "the model"
            raise UsageError(f"{which} is already {state}; {remedy}, then wrap or compile it")


def _example(module: nn.Module) -> Tensor:
    """Return a tensor with the device and dtype of a module."""
    tensors = (tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point())
    return next(tensors, torch.empty(0))


def _block_input(block: nn.Module) -> _BlockInput | None:
    """Return the input of a block; None if it cannot be found.

    The block is tried with the input channels of its layers, in each layout. If it runs with one more channel as well,
    the layer follows others that take any number, and the next one is tried.
    """
    twin = _meta_copy(block)
    widths = [module.in_channels for module in block.modules() if isinstance(module, nn.Conv2d)]
    widths += [module.in_features for module in block.modules() if isinstance(module, nn.Linear)]
    for layout in ("BCHW", "BHWC", "BNC"):
        for width in dict.fromkeys(widths):
            taken, wider = _BlockInput(width, layout), _BlockInput(width + 1, layout)
            if _probe(twin, taken) is not None and _probe(twin, wider) is None:
                return taken
    return None


def _output_shape(module: nn.Module, taken: _BlockInput) -> torch.Size | None:
    """Return the shape of a module's output for a batch of two; None if it fails."""
    return getattr(_probe(_meta_copy(module), taken), "shape", None)


def _not_a_tensor(stage: nn.Module, path: str) -> str | None:
    """Describe what the block at ``path`` of a stage gets; None if it is a tensor or unknown."""
    twin, first = _meta_copy(stage), _block_input(next(iter(blocks(stage).values())))
    calls = [] if first is None else _first_arguments(twin.get_submodule(path), twin, first)
    return f"a {type(calls[0]).__name__}" if calls and not isinstance(calls[0], Tensor) else None


def _first_arguments(module: nn.Module, twin: nn.Module, taken: _BlockInput) -> list[Any]:
    """Return the first argument of each call of a module when the copy that it is part of runs."""
    calls: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: calls.extend(args[:1]))
    _probe(twin, taken)
    return calls


def _probe(twin: nn.Module, taken: _BlockInput) -> Any:
    """Return the output of a copy on the meta device; None if it does not accept this input."""
    try:
        fixed = getattr(twin, "input_resolution", None) or getattr(twin, "feat_size", None)  # in timm's Swin networks
        height, width = fixed or (PROBE_SIZE, PROBE_SIZE)
        sizes = {"B": 2, "C": taken.channels, "H": height, "W": width, "N": height * width}
        x = torch.empty([sizes[axis] for axis in taken.layout], device="meta", dtype=_example(twin).dtype)
        with torch.no_grad():
            return twin(x)
    except Exception:  # a network's own code may raise anything
        return None


def _meta_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the meta device, in evaluation mode and without hooks, which may have side effects."""
    memo: dict[int, Any] = {}  # what deepcopy uses in place of a copy
    for part in module.modules():
        for name, value in (*vars(part).items(), *part._parameters.items(), *part._buffers.items()):
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach().to("meta")
            elif name.endswith("_hooks") and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
    return copy.deepcopy(module, memo).eval()
