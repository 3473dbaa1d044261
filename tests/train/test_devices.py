"""Devices and ranks, the settings of the backends, and CUDA graphs."""

import logging
import warnings

import pytest
import torch
from tests.train.tiny import recipe, rows, weights

from repgraph.errors import UsageError
from repgraph.recipes import Train
from repgraph.train import cuda_graphs, devices, measure, train
from repgraph.train.devices import Devices

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
ONE_GPU = Devices("cuda", 0, 1, 1, external=False)


@pytest.fixture
def machine(monkeypatch):
    """Pretend a number of GPUs, and values of the environment variables ``NAMES``."""

    def pretend(gpus, *variables):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in zip(NAMES, variables, strict=False):
            monkeypatch.setenv(name, str(value))

    return pretend


@pytest.mark.parametrize(
    ("gpus", "variables", "settings", "expected"),
    [
        (0, (), {}, Devices("cpu", 0, 1, 1, external=False)),
        (4, (), {}, Devices("cuda", 0, 4, 4, external=False)),
        (4, (), {"accelerator": "cpu"}, Devices("cpu", 0, 1, 1, external=False)),
        (4, (0, 0, 2), {"devices": 3}, Devices("cuda", 2, 3, 3, external=False)),  # launched by the first process
        (4, (5, 8, 1, 4, "x"), {}, Devices("cuda", 5, 8, 4, external=True)),
        (4, (5, 8, 1, 4, "x"), {"devices": 2}, "train.devices is 2, but torchrun started 4 processes"),
        (2, (), {"devices": 3}, "train.devices is 3, but there are 2 CUDA devices"),
        (0, (), {"precision": "fp16"}, "not supported on the CPU; use bf16 or fp32"),
    ],
)
def test_devices(machine, gpus, variables, settings, expected):
    machine(gpus, *variables)
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            devices.find(Train(**settings))
    else:
        assert devices.find(Train(**settings)) == expected


def test_backend_settings_are_restored(machine):
    def state():
        flags = torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
        level = logging.getLogger("lightning_fabric").level
        return torch.get_float32_matmul_precision(), *flags, level, list(warnings.filters)

    machine(2)
    before, given = state(), Train(deterministic=True)
    with pytest.raises(KeyError), devices.backend_settings(given, devices.find(given), fixed_size=True):
        assert state()[:3] == ("high", False, True)
        raise KeyError
    assert state() == before


@pytest.mark.parametrize(
    ("settings", "where", "fixed_size"),
    [
        ({}, Devices("cpu", 0, 1, 1, external=False), True),
        ({}, Devices("cuda", 0, 2, 2, external=False), True),
        ({}, ONE_GPU, False),
        ({"compile": True}, ONE_GPU, True),
        ({"accumulate": 2}, ONE_GPU, True),
    ],
)
def test_what_cuda_graphs_cannot_record(settings, where, fixed_size):
    with pytest.raises(UsageError, match=r"train\.graph is for segmentation on one GPU"):
        cuda_graphs.use(Train(graph=True, **settings), where, fixed_size)
    assert not cuda_graphs.use(Train(**settings), where, fixed_size)
    assert cuda_graphs.use(Train(), ONE_GPU, True) and cuda_graphs.use(Train(graph=True), ONE_GPU, True)
    assert not cuda_graphs.use(Train(graph=False), ONE_GPU, True)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_cuda_graphs_learn_the_same(data, tmp_path, precision):
    """Three iterations (one records, two replay), because small networks soon diverge by rounding."""
    more = ("train.accelerator=cuda", f"train.precision={precision}", "model.dropout=0.3", "train.log_every=1")
    runs = {
        "start": ("train.iterations=1", "optim.lr=1e-12"),
        "plain": ("train.iterations=3",),
        "graph": ("train.iterations=3", "train.graph=true"),
    }
    flat = {}
    for name, settings in runs.items():
        train(recipe(data, *more, "train.deterministic=true", *settings), tmp_path / name)
        tensors = weights(tmp_path / name).values()
        flat[name] = torch.cat([tensor.double().flatten() for tensor in tensors if tensor.ndim > 1])
    assert (flat["graph"] - flat["plain"]).norm() < 0.05 * (flat["plain"] - flat["start"]).norm()
    for column, tolerance in (("loss", 5e-3), ("reach_mean/head.context", 1e-2)):
        ours, theirs = ([float(row[column]) for row in rows(tmp_path / name)] for name in ("graph", "plain"))
        assert ours == pytest.approx(theirs, rel=tolerance)


@pytest.mark.gpu
def test_throughput_and_compilation_on_a_gpu(data, tmp_path):
    found = measure(recipe(data, "train.accelerator=cuda", "train.graph=true", "train.precision=bf16"), iterations=5)
    assert found.real > 0 and found.fixed > 0
    train(recipe(data, "train.accelerator=cuda", "train.compile=true", "train.iterations=2"), tmp_path / "run")
    assert float(rows(tmp_path / "run")[-1]["reach_mean/head.context"]) > 0
