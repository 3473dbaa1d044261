"""The loss against a computation in float64, pixel by pixel."""

import math

import pytest
import torch

from repgraph.train.segmentation import count_labelled, cross_entropy, hard_pixels

WEIGHTS = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)


@pytest.fixture(params=[False, True], ids=["fast", "deterministic"], autouse=True)
def deterministic(request):
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def problem():
    """Logits of 4 classes, and masks in which some pixels are not labelled: more in the first image."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((3, 4, 5, 7), generator=generator, dtype=torch.float64) * 3
    masks = torch.randint(0, 5, (3, 5, 7), generator=generator)
    masks[masks == 4] = 255
    masks[0, 2:] = 255
    return logits, masks.to(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_mean_over_labelled_pixels(problem, weights, dtype):
    logits, masks = problem[0].to(dtype).requires_grad_(), problem[1]
    losses, total, gradient = 0.0, 0.0, torch.zeros(logits.shape, dtype=torch.float64)
    for b, y, x in torch.nonzero(masks != 255).tolist():
        k, row = int(masks[b, y, x]), logits[b, :, y, x].tolist()
        weight, exponentials = 1.0 if weights is None else float(weights[k]), [math.exp(value) for value in row]
        losses += weight * (math.log(sum(exponentials)) - row[k])
        total += weight
        for c, exponential in enumerate(exponentials):
            gradient[b, c, y, x] = weight * (exponential / sum(exponentials) - (c == k))
    counted, rel = count_labelled(masks, weights), 1e-12 if dtype == torch.float64 else 1e-6
    found = cross_entropy(logits, masks, counted, weights)
    assert counted.item() == total and found.item() == pytest.approx(losses / total, rel=rel)
    parts = [cross_entropy(logits[i : i + 1], masks[i : i + 1], counted, weights) for i in range(3)]
    assert sum(parts).item() == pytest.approx(losses / total, rel=rel)  # not a mean of means
    found.backward()
    precision = dict(rtol=1e-12, atol=1e-15) if dtype == torch.float64 else dict(rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(logits.grad.double(), gradient / total, **precision)


def test_nothing_labelled_is_no_loss_and_no_gradient(problem):
    logits, masks = problem[0].requires_grad_(), problem[1].fill_(255)
    loss = cross_entropy(logits, masks, count_labelled(masks))
    loss.backward()
    assert loss.item() == 0.0 and not logits.grad.any()
    assert (hard_pixels(logits, masks, 0.7, 5) == 255).all()


@pytest.mark.parametrize(("threshold", "minimum"), [(0.7, 0), (0.7, 5), (1e-4, 20), (0.7, 10_000)])
def test_hard_pixels(problem, threshold, minimum):
    logits, masks = problem
    kept = hard_pixels(logits, masks, threshold, minimum)
    probabilities, places = logits.float().softmax(1), torch.nonzero(masks != 255).tolist()
    ordered = sorted((probabilities[b, int(masks[b, y, x]), y, x].item(), (b, y, x)) for b, y, x in places)
    hard = {place for probability, place in ordered if probability < threshold}
    assert threshold > 1e-4 or len(hard) < minimum  # the threshold alone would keep fewer
    assert {tuple(place) for place in torch.nonzero(kept != 255).tolist()} == hard | {p for _, p in ordered[:minimum]}
    assert torch.equal(kept[kept != 255], masks[kept != 255])
