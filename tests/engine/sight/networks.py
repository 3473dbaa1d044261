"""Small networks whose layers spread their nodes by the image, and what the layers were given."""

import torch
from torch import nn

from repgraph.layers.repgraph import RepGraph
from repgraph.models import MaskRCNN, RGNet


def stir(model: nn.Module, seed: int = 0) -> nn.Module:
    """Let the nodes depend on the image: by default the offsets start as a ring for every position."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, RepGraph):
            weight = module.offset.weight
            weight.data = 0.5 * torch.randn(weight.shape, generator=generator)
    return model.eval()


def rgnet(**more) -> RGNet:
    torch.manual_seed(0)
    given = dict(channels=8, output_stride=8, auxiliary=False) | more
    return stir(RGNet(3, "resnet10t" if "inserted" not in more else "resnet18", **given))


def detector(**more) -> MaskRCNN:
    torch.manual_seed(0)
    given: dict = (
        dict(
            context="repgraph",
            min_size=64,
            max_size=96,
            context_options={"mid_channels": 4},
            detections=2,
            score_threshold=0.5,
        )
        | more
    )
    return stir(MaskRCNN(3, "resnet18", **given))


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def inputs(model: nn.Module, layer: nn.Module, run) -> torch.Tensor:
    """What a layer of a network is given while ``run`` runs."""
    kept = []
    handle = layer.register_forward_pre_hook(lambda module, args: kept.append(args[0].clone()))
    with torch.no_grad():
        run()
    handle.remove()
    return kept[0]
