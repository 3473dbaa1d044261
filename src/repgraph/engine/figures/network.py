"""One image through a network, up to what one layer got of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.engine.inference.network import evaluating
from repgraph.engine.sight.collect import Frame, _forward, _transforms
from repgraph.errors import UsageError


@dataclass(frozen=True)
class Seen:
    """A layer's input (1, C, h, w), and how the map lies on the image."""

    features: Tensor
    frame: Frame

    @property
    def shape(self) -> tuple[int, int]:
        return self.features.shape[2], self.features.shape[3]

    def place(self, x: float, y: float) -> tuple[int, int]:
        """Row and column of the position that pixel (x, y) is in."""
        across, down = self.frame.step(self.shape)
        rows, columns = self.frame.kept(self.shape)
        return min(max(int((y + 0.5) / down), 0), rows - 1), min(max(int((x + 0.5) / across), 0), columns - 1)

    def pixel(self, row: int, column: int) -> tuple[float, float]:
        """The centre of a position in pixels of the image, x and y."""
        across, down = self.frame.step(self.shape)
        return (column + 0.5) * across - 0.5, (row + 0.5) * down - 0.5


@contextmanager
def run(model: nn.Module, image: Tensor, layer: nn.Module) -> Iterator[Seen]:
    """What ``layer`` gets when an image, uint8 (3, H, W), goes through the network; inside, it is in evaluation mode.

    The image goes through whole and at its size; a detector resizes and pads it first.
    """
    if not isinstance(image, Tensor) or image.dim() != 3 or len(image) != 3 or image.dtype != torch.uint8:
        given = f"{tuple(image.shape)} {image.dtype}" if isinstance(image, Tensor) else type(image).__name__
        raise UsageError(f"the image is {given}; a uint8 tensor (3, height, width) is needed")
    size = image.shape[1], image.shape[2]
    frames, inputs = [Frame(size, size, size)], list[Tensor]()

    def resized(transform: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        height, width = result[0].image_sizes[0]
        frames.append(Frame(size, (int(height), int(width)), tuple(result[0].tensors.shape[-2:])))

    handles = [one.register_forward_hook(resized) for one in model.modules() if _transforms(one)]
    handles.append(layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0])))
    with evaluating(model):
        try:
            _forward(model, image.as_subclass(Tensor))
        finally:
            for handle in handles:
                handle.remove()
        if not inputs:
            raise UsageError(f"the layer {type(layer).__name__} did not run: the network does not use it in evaluation")
        yield Seen(inputs[0], frames[-1])
