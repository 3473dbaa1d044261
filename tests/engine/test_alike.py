"""Images of one size go together."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from repgraph.data.labels import Labels
from repgraph.engine.alike import alike
from repgraph.engine.evaluate import evaluate
from repgraph.engine.inference import Settings, predict
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.inference.predictor import predict_alike


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4)), st.integers(1, 5), st.integers(1, 40), st.integers(1, 6))
def test_every_image_once_in_groups_of_one_size(sides: list[int], most: int, pixels: int, waiting: int) -> None:
    taken = 0

    def items():
        nonlocal taken
        for number, side in enumerate(sides):
            taken += 1
            yield torch.zeros(3, side, 2 * side), number

    seen: list[int] = []
    for group in alike(items(), most, pixels, waiting):
        shapes = {image.shape for image, _ in group}
        assert len(shapes) == 1 and len(group) <= most
        assert len(group) == 1 or len(group) * group[0][0][0].numel() <= pixels
        seen += [number for _, number in group]
        assert taken - len(seen) < waiting
    assert sorted(seen) == list(range(len(sides)))


class Pictures:
    labels = Labels(("a", "b", "c"), ((0, 0, 0), (255, 255, 255), (9, 9, 9)), ids=(0, 1, 2))

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        size = ((20, 30), (30, 20), (17, 17))[index % 3]
        image = torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8)
        return image, torch.randint(0, 3, size, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("flip", [False, True])
def test_scores_are_those_of_images_alone(flip: bool) -> None:
    torch.manual_seed(0)
    model, calls = nn.Conv2d(3, 3, 3, padding=1), []
    model.register_forward_pre_hook(lambda module, args: calls.append(len(args[0])))
    alone = evaluate(model, Pictures(), flip=flip)
    assert max(calls) == 1 + flip
    calls.clear()
    order: list[int] = []
    steps: list[float] = []
    many = evaluate(
        model, Pictures(), flip=flip, together=3, each=lambda index, *_: order.append(index),
        progress=lambda done, total: steps.append(done),
    )  # fmt: skip
    assert max(calls) == 3 * (1 + flip)
    assert torch.equal(many.confusion, alone.confusion)
    assert sorted(order) == list(range(11)) and steps == sorted(steps) and steps[-1] == 11
    calls.clear()
    evaluate(model, Pictures(), together=3, scales=(0.5, 1.0))
    assert max(calls) == 1  # of several scales images go alone


def test_labels_of_several_images() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3, padding=1)
    images = torch.randint(0, 256, (4, 3, 12, 9), dtype=torch.uint8)
    labels = predict_alike(model, images, Settings())
    assert labels.dtype == torch.uint8 and labels.shape == (4, 12, 9)
    assert torch.equal(labels, torch.stack([predict(model, image) for image in images]))
    with pytest.raises(ValueError, match="images go alone then"):
        predict_alike(model, images, Settings(mode="slide", crop=8))
    with torch.no_grad():
        model.bias.fill_(float("nan"))
    with pytest.raises(NotFinite):
        predict_alike(model, images, Settings())
