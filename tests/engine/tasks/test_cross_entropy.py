"""The loss against brute force, pixel by pixel."""

import math

import pytest
import torch

from repgraph.engine.tasks.cross_entropy import cross_entropy, hard, labelled

WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)


def problem(seed=0, shape=(3, 4, 5, 7)):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    masks = torch.randint(0, shape[1] + 1, (shape[0], *shape[2:]), generator=generator)
    return logits, masks.masked_fill(masks == shape[1], 255).to(torch.uint8)


def brute(logits, masks, weights=None):
    """Sum of losses and sum of weights, one pixel after the other."""
    losses, total = 0.0, 0.0
    for b in range(len(masks)):
        for y in range(masks.shape[1]):
            for x in range(masks.shape[2]):
                k = int(masks[b, y, x])
                if k != 255:
                    row = logits[b, :, y, x].tolist()
                    w = 1.0 if weights is None else float(weights[k])
                    losses += w * (math.log(sum(math.exp(v) for v in row)) - row[k])
                    total += w
    return losses, total


@pytest.fixture(params=[False, True], ids=["fast", "deterministic"])
def deterministic(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_the_mean_over_labelled_pixels(weights, deterministic):
    logits, masks = problem()
    losses, total = brute(logits, masks, weights)
    assert labelled(masks, weights).item() == total
    found = cross_entropy(logits, masks, labelled(masks, weights), weights)
    assert found.item() == pytest.approx(losses / total, rel=1e-12)


def test_parts_add_up_to_the_whole(deterministic):
    """Images with few labelled pixels count with those pixels: not as a mean of means."""
    logits, masks = problem()
    masks[0, 1:] = 255
    total = labelled(masks)
    whole = cross_entropy(logits, masks, total)
    parts = [cross_entropy(logits[i : i + 1], masks[i : i + 1], total) for i in range(3)]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)
    means = [cross_entropy(logits[i : i + 1], masks[i : i + 1], labelled(masks[i : i + 1])) for i in range(3)]
    assert sum(means).item() / 3 != pytest.approx(whole.item(), rel=1e-3)


def test_nothing_labelled_is_no_loss_and_no_gradient(deterministic):
    logits, masks = problem()
    logits.requires_grad_()
    masks.fill_(255)
    loss = cross_entropy(logits, masks, labelled(masks))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_gradients_of_the_deterministic_way_are_the_same():
    logits, masks = problem()
    grads = []
    for flag in (False, True):
        torch.use_deterministic_algorithms(flag)
        try:
            leaf = logits.clone().requires_grad_()
            cross_entropy(leaf, masks, labelled(masks, WEIGHTS), WEIGHTS).backward()
        finally:
            torch.use_deterministic_algorithms(False)
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-15)


def test_half_precision_logits_are_widened():
    logits, masks = problem()
    half = cross_entropy(logits.bfloat16(), masks, labelled(masks))
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(
        cross_entropy(logits.bfloat16().double(), masks, labelled(masks)).item(), rel=1e-6
    )


@pytest.mark.parametrize(("threshold", "least"), [(0.7, 0), (0.7, 5), (1e-4, 20), (0.01, 0), (0.7, 10_000)])
def test_hard_pixels(threshold, least, deterministic):
    logits, masks = problem()
    kept = hard(logits, masks, threshold, least)
    probabilities = logits.float().softmax(1)
    labelled_pixels = sorted(
        (probabilities[b, int(masks[b, y, x]), y, x].item(), (b, y, x))
        for b, y, x in torch.nonzero(masks != 255).tolist()
    )
    expected = {place for p, place in labelled_pixels if p < threshold}
    expected |= {place for _, place in labelled_pixels[:least]}
    assert {tuple(place) for place in torch.nonzero(kept != 255).tolist()} == expected
    assert torch.equal(kept[kept != 255], masks[kept != 255])
    if least == 20:
        assert len(expected) == 20  # there the threshold alone would keep fewer


def test_hard_pixels_of_nothing():
    logits, masks = problem()
    masks.fill_(255)
    assert (hard(logits, masks, 0.7, 5) == 255).all()
