"""Scores against counting pixel by pixel, and over several processes against one."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from repgraph.engine import metrics
from repgraph.engine.metrics import Confusion


def brute_force(pairs, classes: int):
    """IoU and accuracy of each class by going over sets of pixels, with no confusion matrix."""
    iou, accuracy, right, total = [], [], 0, 0
    for c in range(classes):
        both = either = hit = true = 0
        for prediction, target in pairs:
            for p, t in zip(prediction.ravel().tolist(), target.ravel().tolist(), strict=True):
                if t == 255:
                    continue
                both += p == c and t == c
                either += p == c or t == c
                hit += p == c and t == c
                true += t == c
        iou.append(both / either if either else math.nan)
        accuracy.append(hit / true if true else math.nan)
        right, total = right + hit, total + true
    return iou, accuracy, right / total if total else math.nan


@st.composite
def images(draw):
    classes = draw(st.integers(1, 5))
    pairs = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=4))
        prediction = draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, classes - 1)))
        target = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([*range(classes), 255])))
        pairs.append((prediction, target))
    return classes, pairs


def close(found, wanted):
    return np.allclose(found, wanted, rtol=1e-12, atol=0, equal_nan=True)


@settings(deadline=None, max_examples=100)
@given(images())
def test_scores_are_those_of_counting_pixels(drawn):
    classes, pairs = drawn
    confusion = Confusion(classes)
    for prediction, target in pairs:
        confusion.update(torch.from_numpy(prediction), torch.from_numpy(target))
    scores = confusion.scores()
    iou, accuracy, pixel_accuracy = brute_force(pairs, classes)
    assert close(scores.iou, iou) and close(scores.accuracy, accuracy)
    assert close(scores.pixel_accuracy, pixel_accuracy)
    seen = [value for value in iou if not math.isnan(value)]
    assert close(scores.miou, sum(seen) / len(seen) if seen else math.nan)
    true = [value for value in accuracy if not math.isnan(value)]
    assert close(scores.mean_accuracy, sum(true) / len(true) if true else math.nan)
    assert scores.pixels == sum(int((target != 255).sum()) for _, target in pairs)


def test_one_matrix_over_the_set_is_not_the_mean_over_images():
    confusion = Confusion(2)
    confusion.update(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    confusion.update(torch.tensor([1]), torch.tensor([1]))
    assert confusion.scores().iou == (3 / 4, 1 / 2)


def test_a_class_that_is_nowhere_is_left_out_and_one_that_is_only_predicted_counts_as_zero():
    confusion = Confusion(3)
    confusion.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    scores = confusion.scores()
    assert scores.iou[:2] == (0.5, 0.0) and math.isnan(scores.iou[2])
    assert scores.miou == 0.25
    assert scores.accuracy[0] == 0.5 and math.isnan(scores.accuracy[1])
    assert scores.mean_accuracy == 0.5
    assert scores.to_dict()["iou"] == [0.5, 0.0, None]
    assert scores.to_dict(["a", "b", "c"])["accuracy"] == {"a": 0.5, "b": None, "c": None}
    with pytest.raises(ValueError, match="two of the names are equal"):
        scores.to_dict(["a", "b", "a"])


def test_nothing_labelled_is_nan():
    confusion = Confusion(2)
    confusion.update(torch.zeros(3, dtype=torch.uint8), torch.full((3,), 255, dtype=torch.uint8))
    scores = confusion.scores()
    assert scores.pixels == 0
    assert all(math.isnan(value) for value in (scores.miou, scores.pixel_accuracy, scores.mean_accuracy, *scores.iou))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_dtypes_and_layouts(dtype):
    prediction = torch.tensor([[0, 1, 2], [2, 1, 0]])
    target = torch.tensor([[0, 1, 1], [2, 2, 255]])
    plain, turned = Confusion(3), Confusion(3)
    plain.update(prediction, target)
    turned.update(prediction.to(dtype).t(), target.to(torch.uint8).t())
    assert torch.equal(plain.matrix, turned.matrix)


def test_chunks_change_nothing(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, 7, (31, 17), generator=generator)
    target = torch.randint(0, 7, (31, 17), generator=generator)
    whole, parts = Confusion(7), Confusion(7)
    whole.update(prediction, target)
    monkeypatch.setattr(metrics, "CHUNK", 10)
    parts.update(prediction, target)
    assert torch.equal(whole.matrix, parts.matrix) and int(whole.matrix.sum()) == 31 * 17


def test_counts_stay_exact_beyond_what_floats_hold():
    confusion = Confusion(2)
    confusion.matrix[0, 0] = 2**53
    confusion.update(torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8))
    assert int(confusion.matrix[0, 0]) == 2**53 + 1 == confusion.scores().pixels


@pytest.mark.parametrize(
    ("prediction", "target", "error", "message"),
    [
        ([3], [0], ValueError, "prediction has the value 3; classes go from 0 to 2"),
        ([-1], [0], ValueError, "prediction has the value -1; classes go from 0 to 2"),
        ([0], [3], ValueError, "target has the value 3; classes go from 0 to 2, and 255 is ignored"),
        ([0], [-2], ValueError, "target has the value -2"),
        ([0, 1], [0], ValueError, r"prediction has shape \(2,\), target \(1,\)"),
        ([0.5], [0], TypeError, "prediction has dtype torch.float32; class numbers"),
        ([0], [True], TypeError, "target has dtype torch.bool"),
    ],
)
def test_values_that_cannot_be_counted(prediction, target, error, message):
    confusion = Confusion(3)
    with pytest.raises(error, match=message):
        confusion.update(torch.tensor(prediction), torch.tensor(target))
    assert int(confusion.matrix.sum()) == 0


def test_what_is_predicted_where_nothing_is_labelled_does_not_matter():
    confusion = Confusion(3)
    confusion.update(torch.tensor([255, -7, 1]), torch.tensor([255, 255, 1]))
    assert confusion.matrix.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(("classes", "ignore", "message"), [(0, 255, "at least one"), (3, 2, "one of the 3 classes")])
def test_classes_that_cannot_be(classes, ignore, message):
    with pytest.raises(ValueError, match=message):
        Confusion(classes, ignore=ignore)


def test_without_processes_reduce_changes_nothing_and_reset_starts_over():
    confusion = Confusion(2)
    confusion.update(torch.tensor([1]), torch.tensor([1]))
    assert confusion.reduce() is confusion and confusion.matrix.tolist() == [[0, 0], [0, 1]]
    confusion.update(torch.tensor([1]), torch.tensor([1]))
    assert confusion.matrix.tolist() == [[0, 0], [0, 2]]
    confusion.reset()
    assert int(confusion.matrix.sum()) == 0


WORKER = """
import sys, torch, torch.distributed as dist
from repgraph.engine.metrics import Confusion
rank, world, path, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
generator = torch.Generator().manual_seed(3)
images = [(torch.randint(0, 5, (n + 3, 7), generator=generator), torch.randint(0, 5, (n + 3, 7), generator=generator))
          for n in range(5)]
confusion = Confusion(5)
for index in range(rank, len(images) if rank else 1, world):  # the first process has one image, the second two
    confusion.update(*images[index])
confusion.reduce()
confusion.reduce()  # counts once
try:
    confusion.update(*images[0])
except RuntimeError as error:
    assert "reset() starts new ones" in str(error)
else:
    raise AssertionError("counts of all processes were mixed with those of one")
if rank == 0:
    torch.save(confusion.matrix, out)
alone = Confusion(5)
for index in (0, 1, 3):
    alone.update(*images[index])
assert torch.equal(alone.matrix, confusion.matrix)
assert alone.scores() == confusion.scores()
dist.destroy_process_group()
"""


def test_two_processes_with_uneven_shards_equal_one(tmp_path):
    out = tmp_path / "matrix.pt"
    command = [sys.executable, "-c", WORKER]
    runs = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store"), str(out)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], errors
    assert int(torch.load(out).sum()) == 7 * (3 + 4 + 6)


@pytest.mark.gpu
def test_cuda_counts_the_same_under_deterministic_algorithms():
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, 19, (64, 65), generator=generator)
    target = torch.randint(0, 19, (64, 65), generator=generator)
    cpu, cuda = Confusion(19), Confusion(19, "cuda")
    cpu.update(prediction, target)
    torch.use_deterministic_algorithms(True)
    try:
        cuda.update(prediction, target)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(cpu.matrix, cuda.matrix.cpu())
