"""One image on its way through a network: what its layers get, and how their maps lie on the image."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.engine.inference.network import home
from repgraph.errors import UsageError

Take = Callable[[Any, tuple[Any, ...]], None]  # called with a layer and its arguments, before it runs


@dataclass
class Frame:
    """How the network's input lies on the image: sizes (H, W) of the image, of what it became, and with padding."""

    image: tuple[int, int]
    resized: tuple[int, int]
    padded: tuple[int, int]

    def step(self, shape: Sequence[int]) -> tuple[float, float]:
        """Pixels of the image from one position of an h x w map to the next: across, down."""
        down, across = (
            (padded / cells) * (image / resized)
            for image, resized, padded, cells in zip(self.image, self.resized, self.padded, shape, strict=True)
        )
        return across, down

    def kept(self, shape: Sequence[int]) -> tuple[int, int]:
        """How many rows and columns of an h x w map begin on the image, and not in the padding."""
        rows, columns = (
            min(cells, math.ceil(resized * cells / padded))
            for resized, padded, cells in zip(self.resized, self.padded, shape, strict=True)
        )
        return rows, columns


def image_size(image: Tensor) -> tuple[int, int]:
    """Height and width of an image, uint8 (3, H, W); an error for anything else."""
    if not isinstance(image, Tensor) or image.dim() != 3 or len(image) != 3 or image.dtype != torch.uint8:
        given = f"{tuple(image.shape)} {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
        raise UsageError(f"the image is {given}; a uint8 tensor (3, height, width) is needed")
    return image.shape[1], image.shape[2]


def through(model: nn.Module, image: Tensor, frame: Frame, takes: Mapping[nn.Module, Take]) -> Any:
    """The network's result for a batch of one image, which goes through whole and at its size.

    A detector resizes and pads it first: ``frame`` then says how. ``takes`` are called as their layers are.
    """

    def resized(transform: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        batch = result[0]
        height, width = batch.image_sizes[0]
        frame.resized, frame.padded = (int(height), int(width)), tuple(batch.tensors.shape[-2:])

    handles = [layer.register_forward_pre_hook(take) for layer, take in takes.items()]
    handles += [one.register_forward_hook(resized) for one in model.modules() if _transforms(one)]
    try:
        return _forward(model, image.as_subclass(Tensor))
    finally:
        for handle in handles:
            handle.remove()


def _transforms(module: nn.Module) -> bool:
    """Whether a module is torchvision's that resizes and pads a detector's images."""
    return type(module).__name__ == "GeneralizedRCNNTransform"


def _forward(model: nn.Module, image: Tensor) -> Any:
    device, dtype = home(model, image)
    if any(_transforms(module) for module in model.modules()):
        return model([(image.to(device) / 255).to(dtype)])
    from repgraph.data.transforms import normalise  # brings in torchvision
    from repgraph.models.settings import MEAN, STD

    statistics = getattr(model, "mean", MEAN), getattr(model, "std", STD)
    return model(normalise(image[None].to(device), *statistics).to(dtype))
