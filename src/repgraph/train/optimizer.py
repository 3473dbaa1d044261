"""The optimizer of a run. Its settings are ``optim`` in :mod:`repgraph.recipes.schema`."""

from typing import Any

import torch

from repgraph.errors import UsageError
from repgraph.models import param_groups
from repgraph.models.weights import fits
from repgraph.recipes import AnyRecipe


def make_optimizer(recipe: AnyRecipe, model: Any, device: torch.device) -> torch.optim.Optimizer:
    """Return SGD or AdamW with the recipe's learning rates for the backbone, new layers and offsets."""
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
    # PyTorch's fused step may corrupt the momentum when gradients overflow, as in the first iterations in fp16.
    fused = True if device.type == "cuda" and recipe.train.precision != "fp16" else None
    if optim.optimizer == "adamw":
        first, second = optim.betas
        return torch.optim.AdamW(groups, optim.lr, (first, second), weight_decay=optim.weight_decay, fused=fused)
    return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=fused)


def load_state(optimizer: torch.optim.Optimizer, states: dict[int, dict[str, Any]]) -> None:
    """Restore the moments in a checkpoint; learning rates and other options come from the recipe."""
    adam = isinstance(optimizer, torch.optim.AdamW)
    names: tuple[str, ...] = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
    if not adam and not optimizer.defaults["momentum"]:
        names = ()
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    for index, state in states.items():
        counted = not adam or fits(state.get("step"), torch.tensor(0.0))
        if not (counted and index in parameters and all(fits(state.get(name), parameters[index]) for name in names)):
            raise UsageError(f"the checkpoint has no momentum that fits parameter {index}; resume from another one")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
