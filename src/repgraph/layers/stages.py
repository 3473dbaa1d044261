"""The stages of a network, their blocks, and how both are found by name."""

import difflib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

# They call their children one after another (or let their parent do so): they are lists, not blocks.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
NAME = "repgraph"  # of an inserted layer, as a child of its block


def stages(model: nn.Module) -> dict[str, int]:
    """The stages of a network: the path of each and its number of blocks.

    A stage is a module whose children are blocks, or that has them in ``blocks``; a block has several layers. Of
    modules inside one another the innermost that fit are taken: the stages of a backbone, not the backbone as a list of
    its stages. This is what error messages name; :func:`~repgraph.layers.insertion.insert` also takes other modules.

    >>> block = lambda: nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> stage = lambda depth: nn.Sequential(*(block() for _ in range(depth)))
    >>> stages(nn.Sequential(stage(2), stage(3), nn.ReLU()))
    {'0': 2, '1': 3}
    """
    # First what is likely, then what is still possible: stages of one block only, blocks of one convolution.
    found = _innermost(model, "", 2) or _innermost(model, "", 1) or _outermost(model, "")
    for path in filter(None, list(found)):
        found |= _short_siblings(model, path)
    kept: dict[int, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if path in found:
            kept.setdefault(id(module), path)  # a stage with two names is one stage
    return {path: found[path] for path in kept.values()}


def blocks(stage: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a stage in their order, by their path in it; empty if the module is not made of blocks."""
    if isinstance(stage, torch.jit.ScriptModule):
        return {}
    inner = stage._modules.get("blocks")
    listed = isinstance(inner, CONTAINERS)
    owner = inner if inner is not None and listed else stage
    children = {name: child for name, child in owner._modules.items() if child is not None}
    if not all(_composite(child) for child in children.values()):
        return {}
    if not listed and not isinstance(stage, CONTAINERS):
        # A module with a forward of its own: its children are blocks only if they look like a list of them.
        kinds = {type(child) for child in children.values()}
        if len(kinds) != 1 or issubclass(kinds.pop(), CONTAINERS):
            return {}
    return {f"blocks.{name}" if listed else name: child for name, child in children.items()}


def find(model: nn.Module, name: str) -> str:
    """The path of the stage called ``name``: a path, or the end of one that fits no other stage."""
    listed = stages(model)
    named = dict(model.named_modules(remove_duplicate=False))
    ends = {path: module for path, module in named.items() if f".{path}".endswith(f".{name}") and not _inside(path)}
    paths: dict[int, str] = {}
    for path, module in {name: named[name]}.items() if name in named else ends.items():
        if isinstance(module, torch.jit.ScriptModule):
            raise ValueError(f"{path!r} is a ScriptModule, which takes no layers: insert them first, then trace it")
        paths.setdefault(id(module), path)
    fit = [path for path in paths.values() if _is_stage(model, path, listed)]
    if len(fit) == 1:
        return fit[0]
    if fit:
        raise ValueError(f"{name!r} fits several stages: {_join(map(repr, fit))}; give more of the path")
    if paths:
        raise ValueError(f"{_join(map(repr, paths.values()))} is not a stage: not a list of blocks. {_known(listed)}")
    raise ValueError(f"the model has no module {name!r}{_nearest(name, listed) or '.'} {_known(listed)}")


def _is_stage(model: nn.Module, path: str, listed: dict[str, int]) -> bool:
    """Whether it is one of the stages, or made of blocks and not a list of stages."""
    within = [stage for stage in listed if not path or stage.startswith(f"{path}.")]
    module = model.get_submodule(path)
    return path in listed or (bool(blocks(module)) and all(stage == f"{path}.blocks" for stage in within))


def _composite(module: nn.Module) -> bool:
    """Whether it can be a block: PyTorch's own convolutions, activations and so on are not."""
    return bool(module._modules) or not type(module).__module__.startswith("torch.nn.")


def _inside(path: str) -> bool:
    """Whether a path leads to an inserted layer, or into one."""
    return NAME in path.split(".")


def _fits(block: nn.Module, least_weights: int = 2) -> bool:
    own = [module for path, module in block.named_modules() if not _inside(path)]
    weights = [module for module in own if isinstance(module, (nn.Conv2d, nn.Linear))]
    return len(weights) >= least_weights and any(isinstance(module, nn.Conv2d) for module in weights)


def _innermost(module: nn.Module, path: str, least: int) -> dict[str, int]:
    """The innermost modules that are made of at least so many blocks of two layers with weights or more."""
    found: dict[str, int] = {}
    for child_path, child in _children(module, path):
        found |= _innermost(child, child_path, least)
    own = blocks(module)
    if path and list(found) == [f"{path}.blocks"]:
        return {path: len(own)}  # the module that has nothing but these blocks goes by its own name
    if found or (not path and all(map(_parts, own.values()))):
        return found  # a model that is a list of lists is hardly one stage
    if not path or not isinstance(module, CONTAINERS):
        least = 2  # one child of the model, or of a module with a forward of its own, is rather a part than a block
    return {path: len(own)} if len(own) >= least and all(map(_fits, own.values())) else {}


def _outermost(module: nn.Module, path: str) -> dict[str, int]:
    """The outermost lists of blocks with a convolution: further in are the blocks' own lists of layers."""
    if _lists(module) and not all(map(_lists, blocks(module).values())):
        return {path: len(blocks(module))}
    return {p: n for child_path, child in _children(module, path) for p, n in _outermost(child, child_path).items()}


def _lists(module: nn.Module) -> bool:
    return isinstance(module, CONTAINERS) and len(blocks(module)) > 1 and _parts(module)


def _parts(module: nn.Module) -> bool:
    """Whether it consists of parts with a convolution in each."""
    own = blocks(module)
    return bool(own) and all(_fits(block, 1) for block in own.values())


def _children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The children with their paths, but for inserted layers."""
    for name, child in module._modules.items():
        if child is not None and name != NAME:
            yield f"{path}.{name}" if path else name, child


def _short_siblings(model: nn.Module, path: str) -> dict[str, int]:
    """The stages of one block beside a stage: by itself a single block is no sign of a stage."""
    parent, _, _ = path.rpartition(".")
    kind = type(model.get_submodule(path))
    beside = {p: blocks(child) for p, child in _children(model.get_submodule(parent), parent) if type(child) is kind}
    return {p: 1 for p, own in beside.items() if len(own) == 1 and all(map(_fits, own.values()))}


def _known(listed: dict[str, int]) -> str:
    if not listed:
        return "No stages were found in it: a stage is a module whose children are blocks"
    return f"Its stages, with their blocks: {_join(f'{path!r} ({count})' for path, count in listed.items())}"


def _nearest(name: str, listed: dict[str, int]) -> str:
    """A question with the stage whose path, or an end of it as long as the name, is spelt most like the name."""
    ends = {".".join(path.split(".")[-1 - name.count(".") :]) for path in listed}
    close = difflib.get_close_matches(name, sorted(ends), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _join(words: Iterable[str]) -> str:
    return ", ".join(words)
