"""One image through a network, up to what one layer got of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from repgraph.engine.inference.network import evaluating
from repgraph.engine.sight.passage import Frame, image_size, through
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
    size = image_size(image)
    frame, inputs = Frame(size, size, size), list[Tensor]()
    with evaluating(model):
        through(model, image, frame, {layer: lambda module, args: inputs.append(args[0])})
        if not inputs:
            raise UsageError(f"the layer {type(layer).__name__} did not run: the network does not use it in evaluation")
        yield Seen(inputs[0], frame)
