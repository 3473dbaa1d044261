"""Object detection with Mask R-CNN; unlike in torchvision, masks of the image's size are made one at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchvision.models.detection import roi_heads
from torchvision.models.detection.transform import resize_boxes

from repgraph.data.coco import masks as coco_masks
from repgraph.data.coco.masks import RLE
from repgraph.inference.network import device_and_dtype, not_finite
from repgraph.inference.sliding_window import Settings, check_image
from repgraph.layers.modes import evaluation_mode
from repgraph.models import MaskRCNN

MASK_THRESHOLD = 0.5


@dataclass(frozen=True)
class Detections:
    """Objects in an image of ``size`` (H, W).

    ``boxes`` (N, 4), float64, are left, top, right and bottom in pixels; ``labels`` (N,) start at 1; ``masks`` are
    run-length encoded (:mod:`repgraph.data.coco.masks`), in the size of the image.
    """

    size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    masks: Sequence[RLE] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @classmethod
    def from_output(cls, output: Mapping[str, Tensor], size: tuple[int, int]) -> "Detections":
        """Convert the output of one of torchvision's detectors, with or without masks, for an image of this size."""
        arrays = {name: value.detach().as_subclass(Tensor).cpu().numpy() for name, value in output.items()}
        boxes, scores, masks = arrays["boxes"].reshape(-1, 4).astype(np.float64), arrays["scores"], None
        if not np.isfinite(boxes).all() or not np.isfinite(scores).all():
            raise ValueError("a box or a score is not finite")
        if "masks" in arrays:
            if arrays["masks"].shape[-2:] != size:
                raise ValueError(f"the masks have shape {arrays['masks'].shape}, but the image has size {size}")
            masks = [coco_masks.encode(mask) for mask in arrays["masks"].reshape(-1, *size) > MASK_THRESHOLD]
        return cls(size, boxes, arrays["labels"], scores, masks)

    def coco_results(self, image_id: int, category_ids: Sequence[int], kind: str = "both") -> list[dict[str, Any]]:
        """Return the objects as in COCO's results files: boxes ("bbox"), masks ("segm") or both."""
        corner, far = self.boxes[:, :2], self.boxes[:, 2:]
        boxes = np.concatenate([corner, far - corner], axis=1).round(4).tolist()
        results = []
        for index, (score, label) in enumerate(zip(self.scores.tolist(), self.labels.tolist(), strict=True)):
            result: dict[str, Any] = {"image_id": image_id, "category_id": category_ids[label - 1]}
            if kind != "segm":
                result["bbox"] = boxes[index]
            if kind != "bbox" and self.masks is not None:
                result["segmentation"] = self.masks[index]
            results.append({**result, "score": score})
        return results


def detect(model: nn.Module, image: Tensor, *, precision: str = "fp32") -> Detections:
    """Detect the objects in an image, where the network's parameters are.

    Args:
        model: A :class:`~repgraph.models.MaskRCNN`, or a network with the interface of torchvision's detectors.
        image: (3, H, W) RGB: uint8, or floating point from 0 to 1.
        precision: "fp32", or "bf16" and "fp16" under autocast.
    """
    check_image(image)
    size = int(image.shape[1]), int(image.shape[2])
    image = image.as_subclass(Tensor).to(device_and_dtype(model, image)[0])
    with evaluation_mode(model), Settings(precision=precision).autocast(image.device):
        if not isinstance(model, MaskRCNN):
            return Detections.from_output(model([image])[0], size)
        detector: Any = model.detector  # the same steps as torchvision's, except for the last one, which pastes masks
        image = stretch_narrow(image, detector.transform.max_size)
        images, _ = detector.transform([image.float().div_(255) if image.dtype == torch.uint8 else image])
        with _check_finite(detector, precision):
            features = detector.backbone(images.tensors)
            proposals, _ = detector.rpn(images, features)
            (output,), _ = detector.roi_heads(features, proposals, images.image_sizes)
        del features
        boxes = resize_boxes(output["boxes"].float(), images.image_sizes[0], size)
        masks = _encode_masks(output["masks"].float(), boxes, size)
    scores = output["scores"].float().cpu().numpy()
    return Detections(size, boxes.cpu().numpy().astype(np.float64), output["labels"].cpu().numpy(), scores, masks)


def stretch_narrow(image: Tensor, max_size: int) -> Tensor:
    """Repeat rows or columns of images (N, H, W) that would be less than a pixel wide at the network's size."""
    short, long = sorted(image.shape[1:])
    required = long // max_size + 1
    if short >= required:
        return image
    dim = 1 if image.shape[1] == short else 2
    return image.index_select(dim, torch.arange(required, device=image.device) * short // required)


def _encode_masks(masks: Tensor, boxes: Tensor, size: tuple[int, int]) -> list[RLE]:
    """Paste masks, probabilities (N, 1, m, m), into their boxes (N, 4), and encode them."""
    height, width = size
    padded, scale = roi_heads.expand_masks(masks, 1)  # as in torchvision
    expanded = roi_heads.expand_boxes(boxes, scale).to(torch.int64).tolist()
    encoded = []
    for mask, (left, top, right, bottom) in zip(padded, expanded, strict=True):
        x, y = min(max(left, 0), width), min(max(top, 0), height)
        w, h = max(min(right + 1, width) - x, 0), max(min(bottom + 1, height) - y, 0)
        box = [left - x, top - y, right - x, bottom - y]
        pasted = np.zeros(size, np.uint8, order="F")
        pasted[y : y + h, x : x + w] = (roi_heads.paste_mask_in_image(mask[0], box, h, w) > MASK_THRESHOLD).cpu()
        encoded.append(coco_masks.encode(pasted))
    return encoded


@contextmanager
def _check_finite(detector: Any, precision: str) -> Iterator[None]:
    """Raise an error if a part of the network returns non-finite values: torchvision silently drops such boxes."""
    finite: list[Tensor] = []

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        finite.extend(leaf.isfinite().all() for leaf in tree_leaves(output) if isinstance(leaf, Tensor))

    heads = detector.roi_heads
    parts = (detector.backbone, detector.rpn.head, heads.box_predictor, heads.mask_predictor)
    hooks = [part.register_forward_hook(check) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if not torch.stack(finite).all():
        raise not_finite("outputs", precision)
