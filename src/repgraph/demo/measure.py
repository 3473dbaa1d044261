"""What the demo measures of a network: scores, whether it follows the cues, and what an answer depends on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from repgraph.data.scenes import FAR, Scenes
from repgraph.data.transforms import normalise
from repgraph.engine.evaluate import Evaluation, evaluate
from repgraph.engine.inference import predict
from repgraph.engine.progress import Meter
from repgraph.engine.report.labels import PerImage
from repgraph.models import RGNet

SWAPS = 40  # scenes whose cues are swapped


@dataclass(frozen=True)
class Measured:
    """Scores on the test pictures, and two shares of the pixels whose classes are decided far away.

    ``right``: those that are right before their cue is swapped and after; ``changed``: those whose prediction changes.
    ``each`` has the mIoU of each picture.
    """

    evaluation: Evaluation
    right: float
    changed: float
    each: Sequence[float] = ()


def measure(model: RGNet, data: Scenes, meter: Meter) -> Measured:
    each = PerImage(len(data.labels))
    evaluation = evaluate(model, data, progress=lambda done, _: meter.at(done), each=each)
    return Measured(evaluation, *swap(model, data, min(SWAPS, len(data))), each=each.scores)


def swap(model: RGNet, data: Scenes, count: int) -> tuple[float, float]:
    """Swap sun and moon in some scenes, then the colours of all lights; see :class:`Measured`."""
    pixels = right = changed = 0
    for index in range(count):
        scene = data.scene(index)
        lights = tuple(range(len(scene.lighthouses)))
        image, mask = data.draw(scene)
        before = predict(model, image)
        for other, names in ((scene.swapped(sky=True), FAR[:2]), (scene.swapped(lights=lights), FAR[2:])):
            swapped, turned = data.draw(other)
            after = predict(model, swapped)
            decided = torch.isin(mask, torch.tensor([data.labels.names.index(name) for name in names]))
            pixels += int(decided.sum())
            right += int(((before == mask) & (after == turned) & decided).sum())
            changed += int(((before != after) & decided).sum())
    return right / pixels, changed / pixels


def depends_on(model: RGNet, image: torch.Tensor, at: tuple[int, int]) -> np.ndarray:
    """How much each pixel (H, W) of an image counts for what the network says at pixel ``at`` = (x, y): gradients."""
    x = normalise(image[None], model.mean, model.std).requires_grad_()
    logits = model(x)[0, :, at[1], at[0]]
    (gradient,) = torch.autograd.grad(logits.max(), x)
    return gradient[0].abs().sum(0).numpy()


def seen(model: RGNet, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of the part of an image that the answer in its middle depends on, measured on noise."""
    noise = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows, columns = np.nonzero(depends_on(model, noise, (size[1] // 2, size[0] // 2)))
    return int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
