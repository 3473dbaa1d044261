"""One image through a detector, in bounded memory, and never with a result that comes from numbers that are not finite.

torchvision's network makes a map of the image's size in float32 for every mask, and several copies of the image. Here
masks are made one at a time, each no larger than its box, and a large image is resized channel by channel: that changes
nothing in the result.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection import roi_heads
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import resize_boxes

from repgraph.engine.detection.found import THRESHOLD, Found, encoded_part
from repgraph.engine.inference.network import NotFinite, evaluating, home
from repgraph.engine.inference.settings import Settings
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN

PADDING = 1  # of masks, in pixels of theirs, before they are resized: torchvision's
LARGE = 2**24  # pixels of an image


def detect(model: nn.Module, image: Tensor, *, precision: str = "fp32") -> Found:
    """What a detector finds in an image.

    The network runs where its parameters are, in evaluation mode, and is afterwards in the mode it was in.

    Args:
        model: a :class:`~repgraph.models.MaskRCNN`, or a network that takes and gives what torchvision's do.
        image: (3, H, W) in RGB, uint8, or floating point from 0 to 1.
        precision: "fp32", or "bf16" and "fp16" under autocast.

    Example:
        >>> model = MaskRCNN(3, "resnet18", min_size=64)
        >>> detect(model, torch.zeros(3, 48, 64, dtype=torch.uint8)).size
        (48, 64)
    """
    if not isinstance(image, Tensor) or image.dim() != 3 or len(image) != 3 or 0 in image.shape:
        what = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise UsageError(f"an image is {what}; a tensor (3, height, width) is needed")
    dtype = Settings(precision=precision).autocast
    size = int(image.shape[1]), int(image.shape[2])
    device, _ = home(model, image)
    try:
        with evaluating(model), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            if isinstance(model, MaskRCNN):
                return _of_mask_rcnn(model.detector, image.as_subclass(Tensor), size, device)
            return Found.of(model([image.to(device)])[0], size)
    except _NotFinite as error:
        helps = "" if dtype is None else f", or {precision} is too narrow for them: try precision fp32"
        raise NotFinite(f"{error.part} gives numbers that are not finite: its weights are not{helps}") from None


def _of_mask_rcnn(detector: Any, image: Tensor, size: tuple[int, int], device: torch.device) -> Found:
    """The steps of torchvision's network, but for the last, which makes the masks."""
    transform = detector.transform
    resized = _resized(stretched(image, transform.max_size), transform, device)
    shape = int(resized.shape[1]), int(resized.shape[2])
    images = ImageList(transform.batch_images([resized], transform.size_divisible), [shape])
    del resized
    with _watched(detector):
        features = detector.backbone(images.tensors)
        proposals, _ = detector.rpn(images, features)
        found, _ = detector.roi_heads(features, proposals, images.image_sizes)
    del features, images
    boxes = resize_boxes(found[0]["boxes"].float(), list(shape), list(size))
    masks = _masks(found[0]["masks"].float(), boxes, size)
    labels, scores = found[0]["labels"].cpu().numpy(), found[0]["scores"].float().cpu().numpy()
    return Found(size, boxes.cpu().numpy().astype(np.float64), labels, scores, masks)


def stretched(image: Tensor, longest: int) -> Tensor:
    """An image or masks (N, H, W); where it is so narrow that nothing would be left at the network's size, repeated.

    >>> stretched(torch.zeros(3, 1, 2000), 1333).shape
    torch.Size([3, 2, 2000])
    """
    short, long = sorted(image.shape[1:])
    needed = long // longest + 1
    if short >= needed:
        return image
    dim = 1 if image.shape[1] == short else 2
    return image.index_select(dim, torch.arange(needed, device=image.device) * short // needed)


def _resized(image: Tensor, transform: Any, device: torch.device) -> Tensor:
    """The image (3, h, w) normalised and of the network's size.

    A large one goes channel by channel, which takes a third of the memory or less; that rounds otherwise in places, so
    that others go as torchvision has it.
    """
    if image.shape[1] * image.shape[2] <= LARGE:
        return transform.resize(transform.normalize(_scaled(image, device)))[0]
    parts = []
    for channel, mean, std in zip(image.split(1), transform.image_mean, transform.image_std, strict=True):
        parts.append(transform.resize(_scaled(channel, device).sub_(mean).div_(std))[0])
    return torch.cat(parts)


def _scaled(image: Tensor, device: torch.device) -> Tensor:
    """A copy from 0 to 1 on the device."""
    moved = image.to(device)
    return moved.float().div_(255) if moved.dtype == torch.uint8 else moved.clone()


def _masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> list[np.ndarray]:
    """Run lengths of masks, from probabilities (N, 1, m, m) in their boxes (N, 4)."""
    height, width = size
    padded, scale = roi_heads.expand_masks(masks, PADDING)
    wide = roi_heads.expand_boxes(boxes, scale).to(torch.int64).tolist()
    found = []
    for mask, (left, top, right, bottom) in zip(padded, wide, strict=True):
        x, y = min(max(left, 0), width), min(max(top, 0), height)
        w, h = max(min(right + 1, width) - x, 0), max(min(bottom + 1, height) - y, 0)
        moved = [left - x, top - y, right - x, bottom - y]
        part = roi_heads.paste_mask_in_image(mask[0], moved, h, w) > THRESHOLD
        found.append(encoded_part(part.cpu().numpy(), (y, x), size))
    return found


class _NotFinite(Exception):
    def __init__(self, part: str) -> None:
        super().__init__(part)
        self.part = part


@contextmanager
def _watched(detector: Any) -> Iterator[None]:
    """Raises where a part of the network gives numbers that are not finite: torchvision would drop such boxes."""
    heads = detector.roi_heads
    parts = {
        "the backbone": detector.backbone,
        "the region proposal network": detector.rpn.head,
        "the box head": heads.box_predictor,
        "the mask head": heads.mask_predictor,
    }
    finite: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                finite[name] = tensor.isfinite().all() & finite.get(name, torch.tensor(True, device=tensor.device))

        return hook

    hooks = [part.register_forward_hook(watch(name)) for name, part in parts.items()]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()
    if finite and not torch.stack(list(finite.values())).all():
        raise _NotFinite(next(name for name, value in finite.items() if not value))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    else:
        for each in output.values() if isinstance(output, dict) else output:
            yield from _tensors(each)
