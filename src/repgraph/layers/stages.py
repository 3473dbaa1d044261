"""The stages and blocks of a network, and the inputs and outputs of blocks."""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError, nearest

# Modules that call their children in order, or leave that to their parent: lists of blocks, not blocks.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NAME = "repgraph"  # of an inserted layer, as a child of its block
PROBE_SIZE = 64  # side of the map for probing: large enough for blocks that halve it or use windows


class BlockInput(NamedTuple):
    """The input of a block: maps "BCHW", maps "BHWC" as in Swin, or tokens "BNC" as in ViT."""

    channels: int
    layout: str = "BCHW"


def stages(model: nn.Module) -> dict[str, int]:
    """Return the stages of a network: their paths and numbers of blocks.

    A stage is a module whose children are blocks, or that has them in ``blocks``; a block has several layers with
    weights. Of nested candidates, the innermost are stages: the stages of a backbone, not the backbone as a list of
    stages. :func:`~repgraph.layers.insertion.insert` also accepts other lists of blocks.
    """
    found = _innermost(model, "", 2) or _innermost(model, "", 1) or _outermost(model)
    found = found or _innermost(model, "", 2, nn.Linear)  # transformers
    for path in filter(None, list(found)):
        found |= _short_siblings(model, path)
    return {path: found[path] for path, _ in model.named_modules() if path in found}  # first name of shared ones


def blocks(stage: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks of a stage by their paths in it; empty if the module is not made of blocks."""
    inner: Any = getattr(stage, "blocks", None)
    listed = isinstance(inner, CONTAINERS)
    owner = inner if listed else stage
    children = {name: child for name, child in owner._modules.items() if child is not None}
    if not all(child._modules or not type(child).__module__.startswith("torch.nn.") for child in children.values()):
        return {}  # single layers of PyTorch are not blocks
    if not listed and not isinstance(stage, CONTAINERS):
        # The children of a module with its own forward are blocks only if they look like a list of them.
        kinds = {type(child) for child in children.values()}
        if len(kinds) != 1 or issubclass(kinds.pop(), CONTAINERS):
            return {}
    return {f"blocks.{name}" if listed else name: child for name, child in children.items()}


def find_stage(model: nn.Module, name: str) -> str:
    """Return the path of a stage, given its path or a suffix that is unique among stages."""
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
    ends = {".".join(path.split(".")[-1 - name.count(".") :]) for path in listed}  # with as many parts as the name
    raise UsageError(f"the model has no module {name!r}{nearest(name, ends, '.')} {known}")


def _is_stage(model: nn.Module, path: str, listed: dict[str, int]) -> bool:
    """Return whether a module is one of the stages, or made of blocks without being a list of stages."""
    within = [stage for stage in listed if not path or stage.startswith(f"{path}.")]
    module = model.get_submodule(path)
    return path in listed or (bool(blocks(module)) and all(stage == f"{path}.blocks" for stage in within))


def _is_inserted(path: str) -> bool:
    """Return whether a path leads to or into an inserted layer."""
    return NAME in path.split(".")


def _has_weights(block: nn.Module, minimum: int = 2, kind: type[nn.Module] = nn.Conv2d) -> bool:
    """Return whether a block has at least ``minimum`` layers with weights, one of them a ``kind``."""
    own = [module for path, module in block.named_modules() if not _is_inserted(path)]
    weights = [module for module in own if isinstance(module, (nn.Conv2d, nn.Linear))]
    return len(weights) >= minimum and any(isinstance(module, kind) for module in weights)


def _innermost(module: nn.Module, path: str, minimum: int, kind: type[nn.Module] = nn.Conv2d) -> dict[str, int]:
    """Return the innermost modules with at least ``minimum`` blocks of two or more layers with weights."""
    found: dict[str, int] = {}
    for child_path, child in _children(module, path):
        found |= _innermost(child, child_path, minimum, kind)
    own = blocks(module)
    if path and list(found) == [f"{path}.blocks"]:
        return {path: len(own)}  # the stage is named after the module, without ".blocks"
    if found or (not path and all(map(_has_convolutions, own.values()))):
        return found  # a model that is a list of lists is not one stage
    if not path or not isinstance(module, CONTAINERS):
        minimum = 2  # a single child of the model, or of a module with its own forward, is not a block
    return {path: len(own)} if len(own) >= minimum and all(_has_weights(each, 2, kind) for each in own.values()) else {}


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
    """Join module paths; empty ones are skipped."""
    return ".".join(filter(None, paths))


def device_and_dtype(module: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """Return device and dtype of the first floating-point parameter or buffer of a module, or None and None."""
    tensors = (tensor for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point())
    return next(((tensor.device, tensor.dtype) for tensor in tensors), (None, None))


def output_shape(module: nn.Module, taken: BlockInput) -> torch.Size | None:
    """Return the shape of a module's output for a batch of two; None if it fails."""
    return getattr(_probe(_meta_copy(module), taken), "shape", None)


def block_input(block: nn.Module) -> BlockInput | None:
    """Return the input of a block; None if it cannot be found.

    The block is tried with the input channels of its layers, in each layout. If it runs with one more channel as well,
    the layer follows others that take any number, and the next one is tried.
    """
    twin = _meta_copy(block)
    widths = [module.in_channels for module in block.modules() if isinstance(module, nn.Conv2d)]
    widths += [module.in_features for module in block.modules() if isinstance(module, nn.Linear)]
    for layout in ("BCHW", "BHWC", "BNC"):
        for width in dict.fromkeys(widths):
            taken, wider = BlockInput(width, layout), BlockInput(width + 1, layout)
            if _probe(twin, taken) is not None and _probe(twin, wider) is None:
                return taken
    return None


def not_a_map(stage: nn.Module, path: str, taken: BlockInput | None) -> str | None:
    """Describe the input of the block at ``path`` of a stage; None if it is a map or unknown."""
    if taken is not None and taken.layout == "BNC":
        return "tokens (B, N, C)"
    twin, first = _meta_copy(stage), block_input(next(iter(blocks(stage).values())))
    given = _record(twin.get_submodule(path))
    if first is not None:
        _probe(twin, first)
    return f"a {type(given[0]).__name__}" if given and not isinstance(given[0], Tensor) else None


def calls_children(block: nn.Module, path: str, taken: BlockInput) -> bool:
    """Return whether the module at ``path`` in a block would call a new child, as some modules call all children."""
    twin, child = _meta_copy(block), nn.Identity()
    twin.get_submodule(path).add_module(NAME, child)
    calls = _record(child)
    _probe(twin, taken)
    return bool(calls)


def _record(module: nn.Module) -> list[Any]:
    """Return a list to which every call of the module appends its first argument."""
    calls: list[Any] = []
    module.register_forward_pre_hook(lambda _, args: calls.append(args[0] if args else None))
    return calls


def _probe(twin: nn.Module, taken: BlockInput) -> Any:
    """Return the output of a copy on the meta device; None if it does not accept this input."""
    try:
        fixed = getattr(twin, "input_resolution", None) or getattr(twin, "feat_size", None)  # in timm's Swin networks
        height, width = fixed or (PROBE_SIZE, PROBE_SIZE)
        sizes = {"B": 2, "C": taken.channels, "H": height, "W": width, "N": height * width}
        x = torch.empty([sizes[axis] for axis in taken.layout], device="meta", dtype=device_and_dtype(twin)[1])
        with torch.no_grad():
            return twin(x)
    except Exception:  # a network's own code may raise anything
        return None


def _meta_copy(module: nn.Module) -> nn.Module:
    """Return a copy on the meta device, in evaluation mode and without hooks, which may have side effects."""
    memo: dict[int, Any] = {}  # what deepcopy uses in place of a copy
    for part in module.modules():
        tensors = (*part._parameters.values(), *part._buffers.values(), *part.__dict__.values())
        memo |= {id(tensor): tensor.detach().to("meta") for tensor in tensors if isinstance(tensor, Tensor)}
        hooks = (value for key, value in part.__dict__.items() if key.endswith("_hooks") and isinstance(value, dict))
        memo |= {id(each): OrderedDict() for each in hooks}
    return copy.deepcopy(module, memo).eval()
