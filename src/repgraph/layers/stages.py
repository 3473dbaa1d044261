"""The stages and blocks of a network."""

from typing import Any

from torch import nn

from repgraph.errors import UsageError, nearest

# Modules that call their children in order, or leave that to their parent: lists of blocks, not blocks.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NAME = "repgraph"  # of an inserted layer, as a child of its block


def stages(model: nn.Module) -> dict[str, int]:
    """Return the stages of a network: their paths and numbers of blocks.

    A stage is a module whose children are blocks, or that has them in ``blocks``; a block has several layers with
    weights. If candidates are nested, only the innermost are returned (the stages of a backbone, not the backbone).
    :func:`~repgraph.layers.insertion.insert` also accepts other lists of blocks.
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
    children = {name: child for name, child in (inner if listed else stage)._modules.items() if child is not None}
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
    ending = [path for path in named if f".{path}".endswith(f".{name}") and NAME not in path.split(".")]
    paths: dict[nn.Module, str] = {}
    for path in [name] if name in named else ending:
        paths.setdefault(named[path], path)  # a module with two names is one candidate
    found = [path for path in paths.values() if _is_stage(model, path, listed)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} matches several stages: {', '.join(map(repr, found))}; use a longer path")
    problem = "is not a stage (a list of blocks)." if paths else f"is not a module{nearest(name, listed, '.')}"
    known = ", ".join(f"{path!r} ({count})" for path, count in listed.items()) or "none"
    raise UsageError(f"{name!r} {problem} Stages and their blocks: {known}")


def _is_stage(model: nn.Module, path: str, listed: dict[str, int]) -> bool:
    """Return whether a module is one of the stages, or made of blocks without being a list of stages."""
    within = [stage for stage in listed if not path or stage.startswith(f"{path}.")]
    module = model.get_submodule(path)
    return path in listed or (bool(blocks(module)) and all(stage == f"{path}.blocks" for stage in within))


def _has_weights(block: nn.Module, minimum: int = 2, kind: type[nn.Module] = nn.Conv2d) -> bool:
    """Return whether a block has at least ``minimum`` layers with weights, one of them a ``kind``."""
    own = [module for path, module in block.named_modules() if NAME not in path.split(".")]
    weights = [module for module in own if isinstance(module, (nn.Conv2d, nn.Linear))]
    return len(weights) >= minimum and any(isinstance(module, kind) for module in weights)


def _has_convolutions(module: nn.Module) -> bool:
    """Return whether a module is made of blocks with a convolution in each."""
    own = blocks(module)
    return bool(own) and all(_has_weights(block, 1) for block in own.values())


def _innermost(module: nn.Module, path: str, minimum: int, kind: type[nn.Module] = nn.Conv2d) -> dict[str, int]:
    """Return the innermost modules with at least ``minimum`` blocks of two or more layers with weights."""
    found: dict[str, int] = {}
    for child_path, child in _children(module, path).items():
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


def _short_siblings(model: nn.Module, path: str) -> dict[str, int]:
    """Return the siblings of a stage that have one block: alone, a single block does not make a stage."""
    parent, kind = path.rpartition(".")[0], type(model.get_submodule(path))
    beside = {p: blocks(m) for p, m in _children(model.get_submodule(parent), parent).items() if type(m) is kind}
    return {p: 1 for p, own in beside.items() if len(own) == 1 and all(map(_has_weights, own.values()))}


def _children(module: nn.Module, path: str) -> dict[str, nn.Module]:
    return {join(path, name): child for name, child in module.named_children() if name != NAME}


def join(*paths: str) -> str:
    """Join the paths of modules; empty ones are skipped."""
    return ".".join(filter(None, paths))
