"""Cross-entropy over the labelled pixels of a batch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.constants import IGNORE


def count_labelled(masks: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the number of labelled pixels in masks (B, H, W) as float64, or the sum of their class weights."""
    labelled = masks != IGNORE
    if weights is None:
        return labelled.sum(dtype=torch.float64)
    return weights.double()[masks.masked_fill(~labelled, 0).long()].masked_fill(~labelled, 0).sum()


def cross_entropy(logits: Tensor, masks: Tensor, total: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum of the pixels' cross-entropies divided by ``total``.

    Args:
        logits: (B, K, H, W).
        masks: (B, H, W), classes 0 to K - 1 and 255 for pixels to ignore.
        total: The divisor, such as :func:`count_labelled` of the whole batch; if it is 0, the loss is 0.
        weights: (K,), one per class.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(dtype)
    return _pixel_losses(logits.to(dtype), masks, weights, "sum") / torch.where(total > 0, total, 1.0).to(dtype)


@torch.no_grad()
def hard_pixels(logits: Tensor, masks: Tensor, threshold: float, minimum: int) -> Tensor:
    """Return masks in which only hard pixels are labelled: those whose class has a probability below ``threshold``.

    At least the ``minimum`` hardest pixels of the batch are kept, including ties.
    """
    losses = _pixel_losses(logits.float(), masks, None, "none").flatten()
    losses = losses.masked_fill(masks.flatten() == IGNORE, -math.inf)
    kept = losses > -math.log(threshold)
    if minimum > 0:
        kept |= losses >= losses.topk(min(minimum, losses.numel())).values[-1]
    return masks.masked_fill(~kept.view_as(masks), IGNORE)


def _pixel_losses(logits: Tensor, masks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """Return the pixels' cross-entropies (B, H, W), 0 where unlabelled, or their sum."""
    if not torch.are_deterministic_algorithms_enabled():
        return F.cross_entropy(logits, masks.long(), weights, ignore_index=IGNORE, reduction=reduction)
    # These operations are deterministic on a GPU, but need more memory.
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    losses = torch.where(masks[:, None] == classes, -logits.log_softmax(1), 0.0)
    losses = (losses if weights is None else losses * weights.view(1, -1, 1, 1)).sum(1)
    return losses.sum() if reduction == "sum" else losses
