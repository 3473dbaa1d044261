"""Learning rates for a network of which a part is pre-trained."""

from typing import Any

from repgraph.layers import param_groups as by_kind
from repgraph.models.mask_rcnn import MaskRCNN
from repgraph.models.rgnet import RGNet


def param_groups(
    model: RGNet | MaskRCNN,
    lr: float,
    *,
    new_lr: float | None = None,
    offset_lr: float | None = None,
    no_decay: bool = True,
) -> list[dict[str, Any]]:
    """Groups of parameters for any optimiser of PyTorch: as :func:`repgraph.param_groups`, the backbone on its own.

    Args:
        model: the network.
        lr: learning rate of the pre-trained part, the backbone (of Mask R-CNN the ResNet without its pyramid).
        new_lr: that of the heads and of layers inserted into the backbone; ``lr`` by default.
        offset_lr: that of the convolutions that regress offsets; ``new_lr`` by default.
        no_decay: no weight decay for biases and normalisations.

    Returns:
        Groups "offset weights", "offset biases", "backbone norms and biases", "new norms and biases", "backbone
        weights" and "new weights", each a dict with "params", "lr", "name" and, where weights are not to decay,
        "weight_decay" 0. Groups without parameters are left out.

    Example:
        >>> model = RGNet(21, "resnet18", channels=64)
        >>> for group in param_groups(model, 0.01, new_lr=0.1):
        ...     print(group["name"], group["lr"], len(group["params"]))
        offset weights 0.1 1
        offset biases 0.1 1
        backbone norms and biases 0.01 40
        new norms and biases 0.1 8
        backbone weights 0.01 20
        new weights 0.1 6
    """
    new_lr = lr if new_lr is None else new_lr
    old = {id(parameter) for parameter in model.pretrained_parameters()}
    groups = []
    # The rate of the offsets is checked there, that of the new layers by asking for groups with it.
    kinds = by_kind(model, lr, offset_lr=new_lr if offset_lr is None else offset_lr, no_decay=no_decay)
    by_kind(model, new_lr)
    for group in kinds:
        if group["name"].startswith("offset"):
            groups.append(group)
            continue
        for part, rate in (("backbone", lr), ("new", new_lr)):
            inside = [p for p in group["params"] if (id(p) in old) == (part == "backbone")]
            if inside:
                groups.append({**group, "params": inside, "lr": float(rate), "name": f"{part} {group['name']}"})
    return groups
