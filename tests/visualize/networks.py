"""Small networks whose nodes depend on the image, and the inputs of their layers."""

import torch
from torch import nn

from repgraph.layers.repgraph import RepGraph
from repgraph.models import MaskRCNN, RGNet


def with_random_offsets(model: nn.Module) -> nn.Module:
    """Let the nodes depend on the image; offsets start as a fixed pattern."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, RepGraph):
            for offset in module.offsets():
                offset.weight.data = 0.5 * torch.randn(offset.weight.shape, generator=generator)
    return model.eval()


def rgnet(**options) -> RGNet:
    torch.manual_seed(0)
    options = dict(channels=8, output_stride=8, auxiliary=False) | options
    if "context" not in options and "decoder" not in options:  # one round, unless the options have more
        options["context_options"] = {"rounds": 1, **options.get("context_options", {})}
    return with_random_offsets(RGNet(3, "resnet18" if "inserted" in options else "resnet10t", **options))


def detector(**options) -> MaskRCNN:
    torch.manual_seed(0)
    defaults: dict = dict(context="repgraph", min_size=64, max_size=96, context_options={"mid_channels": 4})
    model = MaskRCNN(3, "resnet18", **defaults | dict(detections=2, score_threshold=0.5) | options)
    rpn = model.detector.rpn
    rpn._pre_nms_top_n = rpn._post_nms_top_n = {"training": 50, "testing": 20}
    return with_random_offsets(model)


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)


def layer_input(layer: nn.Module, run) -> torch.Tensor:
    """Return the input of a layer in a call of ``run``."""
    inputs = []
    handle = layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0].clone()))
    with torch.no_grad():
        run()
    handle.remove()
    return inputs[0]
