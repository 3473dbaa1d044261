"""A network as inference uses it: in evaluation mode, without gradients, giving probabilities."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from repgraph.engine.inference.settings import Settings
from repgraph.errors import UsageError


class NotFinite(UsageError):
    """Logits that are not finite, of which no label can be made."""


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients; afterwards every module is in the mode it was in before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def home(model: nn.Module, image: Tensor) -> tuple[torch.device, torch.dtype]:
    """Device and dtype that the network takes; without floating parameters, those of the image, and float32."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return image.device, image.dtype if image.is_floating_point() else torch.float32


def probabilities(model: nn.Module, inputs: Tensor, settings: Settings) -> Iterator[Tensor]:
    """The probabilities (K, H, W) of each of the inputs (n, 3, H, W), averaged with those of its mirror image.

    They are float32, of float64 logits float64. At most ``settings.batch`` inputs go through the network at once.
    """
    if not settings.flip:
        for part in inputs.split(settings.batch):
            for logits in forward(model, part, settings):
                yield _softmax(logits)
    elif settings.batch == 1:
        for part in inputs.split(1):
            plain = _softmax(forward(model, part, settings)[0])
            yield plain.add_(_softmax(forward(model, part.flip(-1), settings)[0]).flip(-1)).div_(2)
    else:
        for part in inputs.split(settings.batch // 2):
            both = forward(model, torch.cat([part, part.flip(-1)]), settings)
            for logits, mirrored in zip(both[: len(part)], both[len(part) :], strict=True):
                yield _softmax(logits).add_(_softmax(mirrored).flip(-1)).div_(2)


def forward(model: nn.Module, inputs: Tensor, settings: Settings) -> Tensor:
    """Logits (n, K, H, W) of the inputs; says so where a network gives something else."""
    dtype = settings.autocast
    with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype is not None):
        logits = model(inputs)
    wanted = (len(inputs), *inputs.shape[-2:])
    if not isinstance(logits, Tensor) or logits.dim() != 4 or (len(logits), *logits.shape[-2:]) != wanted:
        given = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UsageError(
            f"the network gives {given} for inputs of shape {tuple(inputs.shape)}; "
            f"logits (batch, classes, height, width) of the inputs' size are needed"
        )
    return logits


def classes_of(model: nn.Module, settings: Settings, window: tuple[int, int], like: Tensor) -> int:
    """The number of classes: the network's ``classes``, or else that of its logits for an empty window."""
    known = getattr(model, "classes", None)
    if isinstance(known, int):
        return known
    return forward(model, like.new_zeros(1, 3, *window), settings).shape[1]


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(0, dtype=torch.promote_types(logits.dtype, torch.float32))
