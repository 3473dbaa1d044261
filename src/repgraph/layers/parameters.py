"""Parameter groups for optimizers."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from repgraph.layers.checks import check_number
from repgraph.layers.offset import Offset


def param_groups(
    model: nn.Module, lr: float, *, offset_lr: float | None = None, no_decay: bool = True
) -> list[dict[str, Any]]:
    """Split the trainable parameters of a model into groups for an optimizer.

    Args:
        lr: learning rate.
        offset_lr: learning rate of the offset convolutions. Default: ``lr``; 0 keeps them fixed.
        no_decay: no weight decay for norms and biases; on offset biases, it would pull the nodes together.

    Returns groups "offset weights", "offset biases", "norms and biases" and "weights" without the empty ones, each a
    dict with "params", "lr", "name" and, without decay, "weight_decay" 0.
    """
    lr = check_number("lr", lr, 0)
    offset_lr = lr if offset_lr is None else check_number("offset_lr", offset_lr, 0)
    kinds: dict[nn.Parameter, str] = {}
    for module in model.modules():
        if isinstance(module, Offset):  # takes precedence for shared parameters
            kinds |= {p: "offset biases" if p.dim() <= 1 else "offset weights" for p in module.parameters()}
        elif isinstance(module, (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)):
            for parameter in module.parameters():
                kinds.setdefault(parameter, "norms and biases")
    groups: dict[str, dict[str, Any]] = {
        name: {"params": [], "lr": offset_lr if name.startswith("offset") else lr, "name": name}
        for name in ("offset weights", "offset biases", "norms and biases", "weights")
    }
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = kinds.get(parameter, "norms and biases" if parameter.dim() <= 1 else "weights")
            groups[kind]["params"].append(parameter)
    if no_decay:
        groups["offset biases"]["weight_decay"] = groups["norms and biases"]["weight_decay"] = 0.0
    return [group for group in groups.values() if group["params"]]
