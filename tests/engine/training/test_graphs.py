"""Kernels that are recorded and replayed: where that is possible, and that the same is learned."""

import pytest
import torch
from tests.engine.training.tiny import recipe, rows, weights

from repgraph.engine.throughput import throughput
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
        ({"accumulate": 2}, GPU, True, "gradients of train.accumulate=2 parts are summed"),
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


def test_a_network_is_as_ever_once_its_record_is_forgotten():
    model = torch.nn.Linear(2, 2)
    model.forward = lambda x: x  # as recording leaves it
    x = torch.randn(3, 2)
    assert model(x) is x
    graphs.forget(model)
    graphs.forget(model)
    assert torch.equal(model(x), torch.nn.functional.linear(x, model.weight, model.bias))


def test_training_forgets_the_record_at_its_end(pictures, tmp_path, monkeypatch):
    forgotten = []
    monkeypatch.setattr(graphs, "forget", forgotten.append)
    train(recipe(pictures, "train.iterations=1"), tmp_path / "run")
    assert len(forgotten) == 1


@pytest.mark.gpu
def test_two_trainings_of_one_network(pictures):
    """Between them it leaves the device and comes back to another place in its memory."""
    settings = ("train.accelerator=cuda", "train.graph=true", "train.precision=bf16")
    found = throughput(recipe(pictures, *settings), iterations=5, warm=3)
    assert found.real > 0 and found.fixed > 0


# Networks this small part soon, by rounding alone: three iterations are enough for a record that is replayed twice.
RUNS = {
    "start": ("train.iterations=1", "optim.lr=1e-12"),
    "plain": ("train.iterations=3",),
    "graph": ("train.iterations=3", "train.graph=true"),
}


def flat(run):
    return torch.cat([value.double().flatten() for value in weights(run).values() if value.ndim > 1])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_same_is_learned(pictures, tmp_path, precision):
    more = (
        "train.accelerator=cuda",
        f"train.precision={precision}",
        "model.dropout=0.3",
        "train.log_every=1",
        "train.deterministic=true",
    )
    for name, settings in RUNS.items():
        train(recipe(pictures, *more, *settings), tmp_path / name)
    start, plain, graph = (flat(tmp_path / name) for name in RUNS)
    moved, apart = float((plain - start).norm()), float((graph - plain).norm())
    assert apart < 0.05 * moved, f"{apart:g} apart after {moved:g}"
    losses = [[float(row["loss"]) for row in rows(tmp_path / name)] for name in ("plain", "graph")]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    reaches = [float(rows(tmp_path / name)[-1]["reach_mean/head.context"]) for name in ("plain", "graph")]
    assert reaches[0] == pytest.approx(reaches[1], rel=1e-2)
