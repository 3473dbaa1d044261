"""Losses over the labelled pixels of a batch, on one or more devices."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.constants import IGNORE
from repgraph.distributed import all_reduce, world_size


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


def dice(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the soft Dice loss over the labelled pixels of all devices, divided by the number of devices.

    For each class that is present, 1 - 2 * sum(p * y) / (sum(p) + sum(y)), where p are the probabilities of the class
    and y is 1 on its pixels; the loss is the mean over these classes, 0 if there are none. Every process has to call
    it. Shapes are as in :func:`cross_entropy`.
    """
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    probabilities, own = _probabilities(logits), masks[:, None] == classes
    hits = torch.where(own, probabilities, 0.0).sum((0, 2, 3))
    guesses = torch.where(masks[:, None] != IGNORE, probabilities, 0.0).sum((0, 2, 3))
    sums = torch.stack((hits.double(), guesses.double(), own.sum((0, 2, 3)).double()))
    # The sums over all devices, with the gradient of this device's sums times the number of devices, because the loss
    # is divided by it.
    hits, guesses, counts = all_reduce(sums.detach().clone()) + world_size() * (sums - sums.detach())
    present = counts > 0
    losses = torch.where(present, 1 - 2 * hits / torch.where(present, guesses + counts, 1.0), 0.0)
    return (losses.sum() / present.sum().clamp(min=1) / world_size()).to(probabilities.dtype)


def lovasz_softmax(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the Lovász-softmax loss (Berman et al., 2018) over labelled pixels, the mean over the classes present.

    It is computed per device, because it sorts pixels. Shapes are as in :func:`cross_entropy`.
    """
    labelled = (masks != IGNORE).flatten()
    probabilities = _probabilities(logits).transpose(0, 1).flatten(1)[:, labelled]  # [K, N]
    found = masks.flatten()[labelled]
    losses = [probabilities.sum() * 0]
    for k in found.unique().tolist():
        own = found == k
        errors = torch.where(own, 1 - probabilities[k], probabilities[k])
        with torch.no_grad():  # how much each error adds to 1 - IoU, from the largest to the smallest
            order = errors.argsort(descending=True)
            hits = own[order].cumsum(0)
            misses = torch.arange(1, len(hits) + 1, device=hits.device) - hits
            jaccard = 1 - (hits[-1] - hits).double() / (hits[-1] + misses)
            weights = torch.empty_like(errors)
            weights[order] = jaccard.diff(prepend=jaccard.new_zeros(1)).to(weights.dtype)
        losses.append((errors * weights).sum())
    return torch.stack(losses).sum() / max(len(losses) - 1, 1)


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


def _probabilities(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(1)


def _pixel_losses(logits: Tensor, masks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """Return the pixels' cross-entropies (B, H, W), 0 where unlabelled, or their sum."""
    if not torch.are_deterministic_algorithms_enabled():
        return F.cross_entropy(logits, masks.long(), weights, ignore_index=IGNORE, reduction=reduction)
    # These operations are deterministic on a GPU, but need more memory.
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    losses = torch.where(masks[:, None] == classes, -logits.log_softmax(1), 0.0)
    losses = (losses if weights is None else losses * weights.view(1, -1, 1, 1)).sum(1)
    return losses.sum() if reduction == "sum" else losses
