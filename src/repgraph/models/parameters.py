"""Parameter groups of networks for optimizers: the backbone, new layers and offsets."""

from typing import Any

from torch import nn

from repgraph.errors import UsageError
from repgraph.layers import inserted, stages
from repgraph.layers import param_groups as layer_param_groups
from repgraph.layers.checks import check_number
from repgraph.models.hub import Hub


def param_groups(
    model: Hub,
    lr: float,
    *,
    new_lr: float | None = None,
    offset_lr: float | None = None,
    no_decay: bool = True,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Split the parameters of a network into groups for an optimizer, with the backbone in its own.

    Args:
        lr: learning rate of the pretrained part: the backbone, or in Mask R-CNN the ResNet without its pyramid.
        new_lr: learning rate of the heads and of inserted layers. Default: ``lr``.
        offset_lr: learning rate of the offset convolutions. Default: ``new_lr``.
        layer_decay: a stage of the pretrained part (see :func:`repgraph.stages`; the stem counts as one) has the rate
            ``lr * layer_decay ** (number of stages after it)``.

    The rest is as for :func:`repgraph.param_groups`, with "norms and biases" and "weights" split into backbone and new;
    with ``layer_decay``, the backbone's are also split by stage.
    """
    new_lr = lr if new_lr is None else check_number("new_lr", new_lr, 0)
    offset_lr = new_lr if offset_lr is None else offset_lr
    new = {parameter for layer in inserted(model.pretrained).values() for parameter in layer.parameters()}
    pretrained = set(model.pretrained.parameters()) - new
    parts = [("backbone {}", lr, pretrained)]
    if check_number("layer_decay", layer_decay, 0) != 1:
        by_stage = reversed(_by_stage(getattr(model.pretrained, "body", model.pretrained)).items())
        parts = [(f"backbone {{}} of {s}", lr * layer_decay**i, p - new) for i, (s, p) in enumerate(by_stage)]
    parts.append(("new {}", new_lr, set(model.parameters()) - pretrained))
    groups = []
    for group in layer_param_groups(model, lr, offset_lr=offset_lr, no_decay=no_decay):
        if group["name"].startswith("offset"):
            groups.append(group)
            continue
        for name, rate, members in parts:
            params = [parameter for parameter in group["params"] if parameter in members]
            if params:
                groups.append({**group, "params": params, "lr": float(rate), "name": name.format(group["name"])})
    return groups


def _by_stage(body: nn.Module) -> dict[str, set[nn.Parameter]]:
    """Return the parameters of a backbone by stage; what comes before the first stage is the stem."""
    paths, current = list(stages(body)), "stem"
    found: dict[str, set[nn.Parameter]] = {"stem": set(), **{path: set() for path in paths}}
    for name, parameter in body.named_parameters():
        current = next((path for path in paths if name.startswith(f"{path}.")), current)
        found[current].add(parameter)
    if sum(map(bool, found.values())) < 2:
        raise UsageError(f"layer_decay needs a backbone with stages; repgraph.stages finds {paths or 'none'}")
    return found
