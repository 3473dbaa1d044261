"""Evaluation in two processes, with uneven shares of the images, gives the same result as in one."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests import objects
from tests.evaluation.test_detection import Oracle, mediocre
from tests.evaluation.test_segmentation import Pictures
from tests.train.processes import CONTEXT, exit_codes
from torch import nn

from repgraph.data.coco import load
from repgraph.evaluation import CocoEvaluation, evaluate, evaluate_detection
from repgraph.inference import NotFinite


class Spoilt(nn.Conv2d):
    """A network whose logits are not finite for images of one size."""

    def forward(self, x):
        return super().forward(x) * (torch.nan if x.shape[-2:] == (30, 20) else 1)


def segmentation() -> list:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 3, 1)
    return [evaluate(model, Pictures(), limit=limit).confusion.tolist() for limit in (None, 1)]


def collect(data, shares) -> CocoEvaluation:
    evaluation = CocoEvaluation(data)
    for index, rank in shares:
        found = mediocre(data, index)
        evaluation.update([index + 1], [{**found, "scores": found["scores"] / (1 + rank)}])
    return evaluation


def work(rank: int, root: str, out: str) -> list:
    refused = 0
    for limit in (None, 2):  # not finite in both processes, and in the second one
        try:
            evaluate(Spoilt(3, 3, 1), Pictures(), limit=limit)
        except NotFinite:
            refused += 1
    data = load(root, "val")
    collected = collect(data, [(index, rank) for index in ([4, 0, 1, 2], [3, 0])[rank]])  # one image is passed twice
    collected.reduce().reduce()
    assert (collected.write(out) is None) == (rank > 0)
    detection = evaluate_detection(Oracle(data, 1.0, range(rank, len(data), 2)), data, workers=1)
    return [refused, segmentation(), collected.scores().to_dict(), detection.scores.to_dict()]


def _child(rank: int, store: str, root: str, out: str, result: str) -> None:
    os.setsid()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    Path(result).write_text(json.dumps(work(rank, root, out)))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    annotations = [objects.annotation(k, image=k % 5 + 1, category=(3, 7, 90)[k % 3]) for k in range(12)]
    root = objects.write(tmp_path / "data", *annotations, images=[f"{k}.png" for k in range(5)])
    given = [str(tmp_path / "store"), str(root), str(tmp_path / "results.json")]
    results = [tmp_path / f"{rank}.json" for rank in range(2)]
    runs = [CONTEXT.Process(target=_child, args=(rank, *given, str(path))) for rank, path in enumerate(results)]
    for run in runs:
        run.start()
    assert exit_codes(*runs) == [0, 0]

    data = load(root, "val")
    alone = collect(data, [(0, 0), (1, 0), (2, 0), (3, 1), (4, 0)])
    detection = evaluate_detection(Oracle(data, 1.0), data)
    expected = [2, segmentation(), alone.scores().to_dict(), detection.scores.to_dict()]
    assert [json.loads(path.read_text()) for path in results] == [json.loads(json.dumps(expected))] * 2
    assert json.loads((tmp_path / "results.json").read_text()) == alone.results()
    assert 0 < alone.scores().box.ap < 1
