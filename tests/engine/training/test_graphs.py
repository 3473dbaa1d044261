"""Kernels that are recorded and replayed: where that is possible, and that the same is learned."""

import pytest
import torch
from tests.engine.training.tiny import recipe, rows, weights

from repgraph.engine.train import train
from repgraph.engine.training import graphs
from repgraph.engine.training.places import Place
from repgraph.errors import UsageError
from repgraph.recipes import Train

GPU = Place("cuda", 0, 1, 1, False)


@pytest.mark.parametrize(
    ("settings", "place", "fixed", "reason"),
    [
        ({}, Place("cpu", 0, 1, 1, False), True, "it is for CUDA devices, and this is the CPU"),
        ({}, Place("cuda", 0, 2, 2, False), True, "it is for one GPU, and there are 2 processes"),
        ({}, GPU, False, "images of a detector have sizes of their own"),
        ({"compile": True}, GPU, True, "the network is compiled"),
    ],
)
def test_what_cannot_be_recorded(settings, place, fixed, reason):
    with pytest.raises(UsageError, match=f"train.graph is true, and kernels cannot be recorded: {reason}"):
        graphs.check(Train(graph=True, **settings), place, fixed)
    graphs.check(Train(**settings), place, fixed)
    graphs.check(Train(graph=True), GPU, True)


def test_a_cpu_is_refused_before_anything_is_written(pictures, tmp_path):
    with pytest.raises(UsageError, match=r"train\.graph is true.*this is the CPU"):
        train(recipe(pictures, "train.graph=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_is_learned(pictures, tmp_path, precision):
    more = ("train.accelerator=cuda", f"train.precision={precision}", "train.accumulate=2", "model.dropout=0.3")
    for graph in ("false", "true"):
        train(recipe(pictures, *more, f"train.graph={graph}"), tmp_path / graph)
    ours, theirs = (weights(tmp_path / graph) for graph in ("true", "false"))
    for name in theirs:
        tolerance = dict(rtol=1e-3, atol=1e-4) if precision == "fp32" else dict(rtol=5e-2, atol=5e-3)
        torch.testing.assert_close(ours[name], theirs[name], **tolerance, msg=name)
    reaches = [float(rows(tmp_path / graph)[-1]["reach_mean/head.context"]) for graph in ("true", "false")]
    assert reaches[0] == pytest.approx(reaches[1], rel=1e-2)
