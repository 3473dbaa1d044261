"""Scores of segmentations, and evaluation over a data set."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests import trained
from tests.networks import Pointwise

from repgraph import data as datasets
from repgraph.data.labels import Labels
from repgraph.errors import UsageError
from repgraph.evaluation import Confusion, evaluate
from repgraph.inference import Settings, predict


@st.composite
def labelled(draw):
    """Predictions and targets of the pixels of all images; 255 is unlabelled."""
    classes, pixels = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    prediction = draw(hnp.arrays(np.uint8, pixels, elements=st.integers(0, classes - 1)))
    return classes, prediction, draw(hnp.arrays(np.uint8, pixels, elements=st.sampled_from([*range(classes), 255])))


@settings(deadline=None, max_examples=60)
@given(labelled(), st.integers(1, 4))
def test_scores_match_sets_of_pixels(drawn, parts):
    classes, prediction, target = drawn
    confusion = Confusion(classes)
    for part in np.array_split(np.stack([prediction, target]), parts, axis=1):
        confusion.update(*map(torch.from_numpy, part))
    scores = confusion.scores()
    kept = target != 255
    predicted, true = ([kept & (labels == c) for c in range(classes)] for labels in (prediction, target))
    with np.errstate(invalid="ignore"):
        both = np.array([(p & t).sum() for p, t in zip(predicted, true, strict=True)])
        iou = both / np.array([(p | t).sum() for p, t in zip(predicted, true, strict=True)])
        accuracy = both / np.sum(true, axis=1)
        expected = [*iou, *accuracy, both.sum() / kept.sum()]
    means = [float(np.mean(each[~np.isnan(each)])) if kept.any() else math.nan for each in (iou, accuracy)]
    found = [*scores.iou, *scores.accuracy, scores.pixel_accuracy, scores.miou, scores.mean_accuracy]
    assert found == pytest.approx([*expected, *means], rel=1e-12, nan_ok=True) and scores.pixels == kept.sum()


def test_absent_classes_are_not_in_the_means_and_predicted_ones_count_as_zero():
    confusion = Confusion(3)
    confusion.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    scores = confusion.scores()
    assert scores.iou[:2] == (0.5, 0.0) and scores.miou == 0.25 and scores.mean_accuracy == 0.5
    assert scores.to_dict()["iou"] == [0.5, 0.0, None]
    assert scores.to_dict(["a", "b", "c"])["accuracy"] == {"a": 0.5, "b": None, "c": None}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_dtypes_and_layouts(dtype):
    generator = torch.Generator().manual_seed(0)
    prediction, target = (torch.randint(0, 7, (31, 17), generator=generator) for _ in range(2))
    first, second = Confusion(7), Confusion(7)
    first.update(prediction, target)
    second.update(prediction.to(dtype).t(), target.to(torch.uint8).t())
    assert torch.equal(first.matrix, second.matrix) and int(first.matrix.sum()) == 31 * 17


@pytest.mark.parametrize(
    ("prediction", "target", "error", "message"),
    [
        ([3], [0], ValueError, "prediction has values from 3 to 3; expected 0 to 2"),
        ([0], [3], ValueError, "target has values from 3 to 3; expected 0 to 2"),
        ([0, 1], [0], ValueError, r"prediction has shape \(2,\), but target has \(1,\)"),
        ([0.5], [0], TypeError, "prediction has dtype torch.float32; expected classes"),
    ],
)
def test_values_that_cannot_be_counted(prediction, target, error, message):
    confusion = Confusion(3)
    with pytest.raises(error, match=message):
        confusion.update(torch.tensor(prediction), torch.tensor(target))
    assert int(confusion.matrix.sum()) == 0
    confusion.update(torch.tensor([255, -7, 1]), torch.tensor([255, 255, 1]))  # ignored pixels may have any prediction
    assert confusion.matrix.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.fixture
def val(data):
    return datasets.load("folder", data, "val")


def test_scores_are_those_of_all_images_in_one_matrix(val):
    model = Pointwise(classes=3, dtype=torch.float32)
    expected = Confusion(3)
    for image, mask in val:
        expected.update(predict(model, image, mode="slide", crop=16, scales=(0.5, 1.0)), mask)
    seen = []
    settings = Settings(mode="slide", crop=16, scales=(0.5, 1.0))
    found = evaluate(model, val, settings, progress=lambda *now: seen.append(now))
    assert found.scores == expected.scores() and torch.equal(found.confusion, expected.matrix)
    assert found.images == 5 and evaluate(model, val, limit=2).images == 2
    assert seen == [(done, 5) for done in range(1, 6)]


def test_data_that_cannot_be_scored(val, tmp_path):
    with pytest.raises(UsageError, match="the network has 4 classes, but the data set has 3"):
        model = Pointwise(classes=4)
        model.classes = 4
        evaluate(model, val)
    root = trained.save_data(tmp_path / "data", split="test", count=1)
    (root / "masks" / "test" / "0.png").unlink()
    (root / "masks" / "test").rmdir()
    with pytest.raises(UsageError, match="have no labels to compare with"):
        evaluate(Pointwise(classes=3), datasets.load("folder", root, "test"))


class Pictures:
    labels = Labels(("a", "b", "c"), ((0, 0, 0), (255, 255, 255), (9, 9, 9)), ids=(0, 1, 2))

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int):
        generator = torch.Generator().manual_seed(index)
        size = ((20, 30), (30, 20), (17, 17))[index % 3]
        image = torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8)
        return image, torch.randint(0, 3, size, generator=generator, dtype=torch.uint8)


@pytest.mark.gpu
def test_cuda_counts_the_same_under_deterministic_algorithms():
    generator = torch.Generator().manual_seed(0)
    prediction, target = (torch.randint(0, 19, (64, 65), generator=generator) for _ in range(2))
    cpu, cuda = Confusion(19), Confusion(19, "cuda")
    cpu.update(prediction, target)
    torch.use_deterministic_algorithms(True)
    try:
        cuda.update(prediction, target)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(cpu.matrix, cuda.matrix.cpu())
