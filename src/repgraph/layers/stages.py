"""The stages and blocks of a network, and what a block takes and returns."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError, nearest

# Modules that call their children in order, or leave that to their parent: lists of blocks, not blocks.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NAME = "repgraph"  # of an inserted layer, as a child of its block
PROBE_SIZE = 64  # side of the map for probing: large enough for blocks that halve it or use windows


def stages(model: nn.Module) -> dict[str, int]:
    """Return the stages of a network: their paths and numbers of blocks.

    A stage is a module whose children are blocks, or that has them in ``blocks``; a block has several layers with
    weights. Of nested candidates the innermost ones are stages: those of a backbone, not the backbone as a list of its
    stages. :func:`~repgraph.layers.insertion.insert` also accepts other lists of blocks.
    """
    found = _innermost(model, "", 2) or _innermost(model, "", 1) or _outermost(model)
    for path in filter(None, list(found)):
        found |= _short_siblings(model, path)
    first_paths: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path in found:
            first_paths.setdefault(id(module), path)  # a stage with two names is listed once
    return {path: found[path] for path in first_paths.values()}


def blocks(stage: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a stage by their paths in it; empty if the module is not made of blocks."""
    inner: Any = getattr(stage, "blocks", None)
    listed = isinstance(inner, CONTAINERS)
    owner = inner if listed else stage
    children = {name: child for name, child in owner._modules.items() if child is not None}
    if not all(_composite(child) for child in children.values()):
        return {}
    if not listed and not isinstance(stage, CONTAINERS):
        # The children of a module with its own forward are blocks only if they look like a list of them.
        kinds = {type(child) for child in children.values()}
        if len(kinds) != 1 or issubclass(kinds.pop(), CONTAINERS):
            return {}
    return {f"blocks.{name}" if listed else name: child for name, child in children.items()}


def find_stage(model: nn.Module, name: str) -> str:
    """Return the path of a stage, given by its path or by the end of it that is unique among stages."""
    listed = stages(model)
    named = dict(model.named_modules(remove_duplicate=False))
    if name in named:
        candidates = {name: named[name]}
    else:
        candidates = {p: m for p, m in named.items() if f".{p}".endswith(f".{name}") and not _is_inserted(p)}
    paths: dict[int, str] = {}
    for path, module in candidates.items():
        paths.setdefault(id(module), path)  # a module with two names is one candidate
    found = [path for path in paths.values() if _is_stage(model, path, listed)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} matches several stages: {', '.join(map(repr, found))}; give more of the path")
    known = ", ".join(f"{path!r} ({count})" for path, count in listed.items())
    known = f"Stages and their blocks: {known}" if listed else "No stages were found: a stage is a list of blocks"
    if paths:
        raise UsageError(f"{', '.join(map(repr, paths.values()))} is not a stage (a list of blocks). {known}")
    ends = {".".join(path.split(".")[-1 - name.count(".") :]) for path in listed}  # with as many names
    raise UsageError(f"the model has no module {name!r}{nearest(name, ends, '.')} {known}")


def _is_stage(model: nn.Module, path: str, listed: dict[str, int]) -> bool:
    """Return whether a module is one of the stages, or made of blocks without being a list of stages."""
    within = [stage for stage in listed if not path or stage.startswith(f"{path}.")]
    module = model.get_submodule(path)
    return path in listed or (bool(blocks(module)) and all(stage == f"{path}.blocks" for stage in within))


def _composite(module: nn.Module) -> bool:
    """Return whether a module can be a block: single layers of PyTorch are none."""
    return bool(module._modules) or not type(module).__module__.startswith("torch.nn.")


def _is_inserted(path: str) -> bool:
    """Return whether a path leads to or into an inserted layer."""
    return NAME in path.split(".")


def _has_weights(block: nn.Module, minimum: int = 2) -> bool:
    """Return whether a block has at least ``minimum`` layers with weights, one of them a convolution."""
    own = [module for path, module in block.named_modules() if not _is_inserted(path)]
    weights = [module for module in own if isinstance(module, (nn.Conv2d, nn.Linear))]
    return len(weights) >= minimum and any(isinstance(module, nn.Conv2d) for module in weights)


def _innermost(module: nn.Module, path: str, minimum: int) -> dict[str, int]:
    """Return the innermost modules with at least ``minimum`` blocks of two or more layers with weights."""
    found: dict[str, int] = {}
    for child_path, child in _children(module, path):
        found |= _innermost(child, child_path, minimum)
    own = blocks(module)
    if path and list(found) == [f"{path}.blocks"]:
        return {path: len(own)}  # a module that holds these blocks alone goes by its own name
    if found or (not path and all(map(_has_convolutions, own.values()))):
        return found  # a model that is a list of lists is hardly one stage
    if not path or not isinstance(module, CONTAINERS):
        minimum = 2  # a single child of the model, or of a module with its own forward, is not a block
    return {path: len(own)} if len(own) >= minimum and all(map(_has_weights, own.values())) else {}


def _outermost(model: nn.Module) -> dict[str, int]:
    """Return the outermost lists of blocks with at least one convolution each, as in MobileNets."""
    found: dict[str, int] = {}
    for path, module in model.named_modules():
        nested = not path or any(path.startswith(f"{outer}.") for outer in found)
        if not nested and isinstance(module, CONTAINERS) and len(blocks(module)) > 1 and _has_convolutions(module):
            found[path] = len(blocks(module))
    return found


def _has_convolutions(module: nn.Module) -> bool:
    """Return whether a module is made of blocks with a convolution in each."""
    own = blocks(module)
    return bool(own) and all(_has_weights(block, 1) for block in own.values())


def _children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the children and their paths, without inserted layers."""
    for name, child in module._modules.items():
        if child is not None and name != NAME:
            yield join(path, name), child


def _short_siblings(model: nn.Module, path: str) -> dict[str, int]:
    """Return the siblings of a stage that have one block: alone, a single block does not make a stage."""
    parent, _, _ = path.rpartition(".")
    kind = type(model.get_submodule(path))
    beside = {p: blocks(child) for p, child in _children(model.get_submodule(parent), parent) if type(child) is kind}
    return {p: 1 for p, own in beside.items() if len(own) == 1 and all(map(_has_weights, own.values()))}


def join(*paths: str) -> str:
    """Join paths of modules, of which some may be empty."""
    return ".".join(filter(None, paths))


def device_and_dtype(module: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """Return those of the first floating-point parameter or buffer of a module."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return None, None


def output_shape(module: nn.Module, channels: int) -> torch.Size | None:
    """Return the shape of a module's output for a map (2, channels, PROBE_SIZE, PROBE_SIZE); None if it fails."""
    return getattr(_probe(_meta_copy(module), channels), "shape", None)


def input_channels(block: nn.Module) -> int | None:
    """Return the number of channels that a block takes; None where it cannot be found.

    The block is tried with the input channels of its convolutions. If it runs with one more channel as well, the
    convolution follows layers that take any number, and the next one is tried.
    """
    twin = _meta_copy(block)
    for channels in dict.fromkeys(module.in_channels for module in block.modules() if isinstance(module, nn.Conv2d)):
        if _probe(twin, channels) is not None and _probe(twin, channels + 1) is None:
            return channels
    return None


def calls_children(block: nn.Module, path: str, channels: int) -> bool:
    """Return whether a new child of the module at ``path`` in a block would be called: some call all their children."""
    twin, child = _meta_copy(block), _CallProbe()
    twin.get_submodule(path).add_module(NAME, child)
    _probe(twin, channels)
    return child.called


class _CallProbe(nn.Module):
    called = False

    def forward(self, x: Any) -> Any:
        self.called = True
        return x


def _probe(twin: nn.Module, channels: int) -> Any:
    """Return the output of a copy on the meta device; None if it does not take this number of channels."""
    try:
        with torch.no_grad():
            return twin(
                torch.empty(2, channels, PROBE_SIZE, PROBE_SIZE, device="meta", dtype=device_and_dtype(twin)[1])
            )
    except Exception:  # a network's own code may raise anything
        return None


def _meta_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the meta device, in evaluation mode and without hooks, which may have side effects."""
    memo: dict[int, Any] = {}  # tells deepcopy what to use instead of a copy
    for part in module.modules():
        tensors = (*part._parameters.values(), *part._buffers.values(), *part.__dict__.values())
        memo |= {id(tensor): tensor.detach().to("meta") for tensor in tensors if isinstance(tensor, Tensor)}
        hooks = (value for key, value in part.__dict__.items() if key.endswith("_hooks") and isinstance(value, dict))
        memo |= {id(each): OrderedDict() for each in hooks}
    return copy.deepcopy(module, memo).eval()
