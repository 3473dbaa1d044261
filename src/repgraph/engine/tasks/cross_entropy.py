"""Cross-entropy over the labelled pixels of a whole batch, whoever holds them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = 255


def labelled(masks: Tensor, weights: Tensor | None = None) -> Tensor:
    """How many pixels of masks (B, H, W) are labelled, as a float64 number; with class weights, the sum of theirs.

    >>> labelled(torch.tensor([[[0, 1, 255]]])).item()
    2.0
    """
    known = masks != IGNORE
    if weights is None:
        return known.sum(dtype=torch.float64)
    return weights.double()[masks.masked_fill(~known, 0).long()].masked_fill(~known, 0).sum()


def cross_entropy(logits: Tensor, masks: Tensor, total: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum of the pixels' cross-entropies, over ``total``: what they are of, for instance of the batch's pixels.

    Args:
        logits: (B, K, H, W).
        masks: (B, H, W), classes 0..K-1 and 255 for pixels that do not count.
        total: what to divide by, see :func:`labelled`; where it is 0 there is nothing to learn, and the loss is 0.
        weights: (K), of the classes.

    >>> masks = torch.tensor([[[0, 255]]])
    >>> round(cross_entropy(torch.zeros(1, 4, 1, 2), masks, labelled(masks)).item(), 4)  # log 4
    1.3863
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(wide)
    return _losses(logits.to(wide), masks, weights, "sum") / torch.where(total > 0, total, 1.0).to(wide)


@torch.no_grad()
def hard(logits: Tensor, masks: Tensor, threshold: float, least: int) -> Tensor:
    """Masks in which only hard pixels are labelled: those whose own class has a probability below the threshold.

    At least the ``least`` hardest pixels of the batch stay, if so many are labelled (more, where several are alike).
    """
    losses = _losses(logits.float(), masks, None, "none").flatten().masked_fill(masks.flatten() == IGNORE, -math.inf)
    kept = losses > -math.log(threshold)
    if least > 0:
        kept |= losses >= losses.topk(min(least, losses.numel())).values[-1]
    return masks.masked_fill(~kept.view_as(masks), IGNORE)


def _losses(logits: Tensor, masks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """The pixels' cross-entropies (B, H, W), 0 where not labelled, or their sum."""
    if not torch.are_deterministic_algorithms_enabled():
        return F.cross_entropy(logits, masks.long(), weights, ignore_index=IGNORE, reduction=reduction)
    # In steps whose order does not vary on a GPU, at the cost of more memory.
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    own = torch.where(masks[:, None] == classes, -logits.log_softmax(1), 0.0)
    own = (own if weights is None else own * weights.view(1, -1, 1, 1)).sum(1)
    return own.sum() if reduction == "sum" else own
