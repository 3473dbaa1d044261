"""The optimizer of a run. Its settings are ``optim`` in :mod:`repgraph.recipes.schema`."""

from typing import Any

import torch

from repgraph.models import param_groups
from repgraph.recipes import AnyRecipe


def make_optimizer(recipe: AnyRecipe, model: Any, device: torch.device) -> torch.optim.Optimizer:
    """Return SGD or AdamW with rates for the backbone, new layers and offsets, as the recipe has them."""
    optim = recipe.optim
    groups = param_groups(
        model,
        optim.lr,
        new_lr=optim.lr * optim.head,
        offset_lr=optim.lr * optim.offset,
        no_decay=optim.no_decay,
        layer_decay=optim.layer_decay,
    )
    for group in groups:
        group["initial_lr"] = group["lr"]
    # PyTorch's fused step may spoil the momentum when gradients overflow, as they do at first in fp16.
    fused = True if device.type == "cuda" and recipe.train.precision != "fp16" else None
    if optim.optimizer == "adamw":
        first, second = optim.betas
        return torch.optim.AdamW(groups, optim.lr, (first, second), weight_decay=optim.weight_decay, fused=fused)
    return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=fused)


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore the optimizer from a checkpoint, for the devices and precision of this session."""
    fused = optimizer.param_groups[0]["fused"]  # decides where AdamW has its step counts
    optimizer.load_state_dict({**state, "param_groups": [{**group, "fused": fused} for group in state["param_groups"]]})
