"""What a block takes and gives, found by running a copy of it that has shapes but no data."""

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

SIDE = 64  # of the probing map: blocks may halve it, or look at windows of it


def like(module: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """The device and dtype of a module's parameters (or buffers): the first of floating point."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return None, None


def shape(module: nn.Module, channels: int) -> torch.Size | None:
    """The shape of what a module makes of a map (2, channels, SIDE, SIDE); None if it does not take one."""
    return _run(module, channels)[1]


def channels_in(block: nn.Module) -> int | None:
    """The channels a block takes; None where that cannot be found.

    The convolutions say what to try. One may sit behind layers that take any number: then one more runs as well.

    >>> channels_in(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)))
    8
    """
    own = {module.in_channels: None for module in block.modules() if isinstance(module, nn.Conv2d)}
    fit = (channels for channels in own if _run(block, channels)[0] and not _run(block, channels + 1)[0])
    return next(fit, None)


def calls_children(block: nn.Module, holder: str, name: str, channels: int) -> bool:
    """Whether a new child of a module in the block would be called: some modules go through all their children."""
    bell = _Bell()
    _run(block, channels, (holder, name, bell))
    return bell.rung


class _Bell(nn.Module):
    rung = False

    def forward(self, x: Any) -> Any:
        self.rung = True
        return x


def _run(
    module: nn.Module, channels: int, child: tuple[str, str, nn.Module] | None = None
) -> tuple[bool, torch.Size | None]:
    """Whether a module takes so many channels, and the shape of its result if that is a tensor."""
    try:
        twin = _twin(module)
        if child is not None:
            twin.get_submodule(child[0]).add_module(*child[1:])
        with torch.no_grad():
            result = twin(torch.empty(2, channels, SIDE, SIDE, device="meta", dtype=like(module)[1]))
    except Exception:  # whatever a network's own code raises: it does not take this
        return False, None
    return True, result.shape if isinstance(result, Tensor) else None


def _twin(module: nn.Module) -> nn.Module:
    """A copy on the meta device, in evaluation mode and without hooks, which may do anything."""
    memo: dict[int, Any] = {}  # what deepcopy takes for copied already
    for part in module.modules():
        tensors = (*part._parameters.values(), *part._buffers.values(), *part.__dict__.values())
        memo |= {id(tensor): tensor.detach().to("meta") for tensor in tensors if isinstance(tensor, Tensor)}
        hooks = (value for key, value in part.__dict__.items() if key.endswith("_hooks") and isinstance(value, dict))
        memo |= {id(each): OrderedDict() for each in hooks}
    return copy.deepcopy(module, memo).eval()
