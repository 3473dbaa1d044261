"""The spots in a network where layers go: which blocks, with how many channels, and whether a layer works there."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch.fx
from torch import nn

from repgraph.layers import hook, probe
from repgraph.layers.stages import CONTAINERS, NAME, blocks, find

# What changes a network on the way to something faster or wider, by class name: not all of them can be imported
# everywhere. They have seen the parameters, or the code, and would miss new ones.
WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "OptimizedModule"}


@dataclass(frozen=True)
class Spot:
    """Where one layer goes: at a block, as a child of ``holder``, applied by ``hook``."""

    name: str  # the block's path
    block: nn.Module
    holder: nn.Module
    channels: int
    hook: hook.Hook


def spots(model: nn.Module, name: str, count: int, channels: int | None, taken: Sequence[Spot] = ()) -> list[Spot]:
    """The spots for ``count`` layers in the stage called ``name``."""
    stage = find(model, name)
    own = blocks(model.get_submodule(stage))
    most = max(1, len(own) - 1)
    if count > most:
        place = "they stand before its blocks but the first" if len(own) > 1 else "it stands after the block"
        raise ValueError(f"{count} layers for {name!r}, which has {len(own)} blocks: it takes up to {most} ({place})")
    kind = hook.Before if len(own) > 1 else hook.After
    uses = Counter(map(id, own.values()))
    found: list[Spot] = []
    for path, block in list(own.items())[-count:]:
        full = f"{stage}.{path}" if stage else path
        check_reached(model, full, "insert the layers first")
        if hook.of(block) is not None or any(spot.block is block for spot in taken):
            raise ValueError(f"a layer stands at {full!r} already; repgraph.remove takes a model's layers out")
        if uses[id(block)] > 1:
            raise ValueError(f"{full!r} is also another block of {stage!r}: a layer would stand before both")
        fed = probe.channels_in(block)
        made = None if fed is None or kind is hook.Before else probe.shape(block, fed)
        known = fed if kind is hook.Before else made[1] if made is not None and len(made) == 4 else None
        width = _agreed(known, channels, name, full)
        inner = _holder(model, block, fed, full, [*taken, *found])
        names = (*inner.split("."), NAME) if inner else (NAME,)
        found.append(Spot(full, block, block.get_submodule(inner), width, kind(names)))
    return found


def check_reached(model: nn.Module, path: str, remedy: str) -> None:
    """Refuse a block that is not called, or whose call was compiled or its parameters counted already."""
    names = path.split(".") if path else []
    for depth in range(len(names) + 1):
        outer = model.get_submodule(".".join(names[:depth]))
        kinds = [kind.__name__ for kind in type(outer).__mro__ if kind.__name__ in WRAPPERS]
        if kinds or outer._compiled_call_impl is not None:
            which = f"{'.'.join(names[:depth])!r}" if depth else "the model"
            what = f"wrapped by {kinds[0]}" if kinds else "compiled"
            raise ValueError(f"{which} is {what} already: {remedy}, then wrap or compile it")
        inner = [".".join(names[depth:end]) for end in range(depth + 1, len(names) + 1)]
        if isinstance(outer, torch.fx.GraphModule) and inner:
            called = {node.target for node in outer.graph.nodes if node.op == "call_module"}
            if called.isdisjoint(inner):
                raise ValueError(
                    f"{path!r} is in a torch.fx.GraphModule, which calls the parts of the block and not the block: "
                    f"{remedy}, then trace it"
                )


def _agreed(found: int | None, given: int | None, name: str, full: str) -> int:
    """The channels at a block, which were found, given, or both."""
    if found is not None and given is not None and found != given:
        raise ValueError(f"channels[{name!r}] is {given}, but at {full!r} there are {found}")
    width = given if found is None else found
    if width is None:
        raise ValueError(f"cannot find the channels at {full!r}: give them, such as channels={{{name!r}: 1024}}")
    return width


def _holder(model: nn.Module, block: nn.Module, channels: int | None, full: str, taken: Sequence[Spot]) -> str:
    """The path in a block of the module to hold its layer: the first that does not call its children by itself.

    It has no other place in the network: it would hold two layers there.
    """
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    for path, module in block.named_modules():
        shared = uses[id(module)] > uses[id(block)]
        if isinstance(module, CONTAINERS) or shared or hasattr(module, NAME):
            continue
        if any(spot.holder is module for spot in taken):
            continue
        if channels is None or not probe.calls_children(block, path, NAME, channels):
            return path
    raise ValueError(f"no module in {full!r} can hold a layer: it has nothing but lists of modules, or shared ones")
