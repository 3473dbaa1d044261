"""Which devices, and which of several processes this is."""

import logging
import warnings

import pytest
import torch

from repgraph.engine.training import places
from repgraph.errors import UsageError
from repgraph.recipes import Train


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GPUs, and the variables of torchrun."""

    def make(gpus, bf16=True, **variables):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return make


def torchrun(rank, world, local):
    return dict(RANK=rank, WORLD_SIZE=world, LOCAL_WORLD_SIZE=local, LOCAL_RANK=rank % local, TORCHELASTIC_RUN_ID="x")


@pytest.mark.parametrize(
    ("gpus", "train", "kind", "world"),
    [
        (0, {}, "cpu", 1),
        (0, {"devices": 3}, "cpu", 3),
        (1, {}, "cuda", 1),
        (4, {}, "cuda", 4),
        (4, {"devices": 2}, "cuda", 2),
        (4, {"accelerator": "cpu"}, "cpu", 1),
    ],
)
def test_alone(machine, gpus, train, kind, world):
    machine(gpus)
    place = places.find(Train(**train))
    assert (place.kind, place.rank, place.world, place.local, place.first) == (kind, 0, world, world, True)
    assert not place.external and not place.shared


def test_a_process_that_was_started_by_the_first(machine):
    machine(4, LOCAL_RANK=2)
    assert places.find(Train(devices=4)).rank == 2
    assert places.find(Train(devices=1)).rank == 0  # the variable is of another run in the same process


def test_torchrun(machine):
    machine(4, **torchrun(5, 8, 4))
    place = places.find(Train())
    assert (place.rank, place.world, place.local, place.external, place.first) == (5, 8, 4, True, False)
    options = places.trainer_options(Train(), place)
    assert (options["devices"], options["num_nodes"], options["precision"]) == (4, 2, "bf16-mixed")
    with pytest.raises(UsageError, match=r"train\.devices is 2, and torchrun started 4 processes"):
        places.find(Train(devices=2))


def test_processes_that_share_a_gpu_talk_through_gloo(machine):
    machine(1, **torchrun(1, 2, 2))
    place = places.find(Train())
    assert place.shared
    strategy = places.trainer_options(Train(), place)["strategy"]
    assert strategy.parallel_devices == [torch.device("cuda", 0)] * 2
    assert strategy.process_group_backend == "gloo"


@pytest.mark.parametrize(
    ("gpus", "bf16", "train", "words"),
    [
        (0, True, {"accelerator": "cuda"}, "there is no CUDA device"),
        (2, True, {"devices": 3}, "train.devices is 3, and there are 2 CUDA devices"),
        (0, True, {"precision": "fp16"}, "which the CPU cannot train in; give bf16 or fp32"),
        (1, False, {"precision": "bf16"}, "which this GPU does not have; give fp16 or fp32"),
    ],
)
def test_what_is_not_there(machine, gpus, bf16, train, words):
    machine(gpus, bf16)
    with pytest.raises(UsageError, match=words):
        places.find(Train(**train))


def test_settings_are_as_before_afterwards(machine):
    machine(1)
    place = places.find(Train())
    logger, filters = logging.getLogger("lightning.pytorch"), list(warnings.filters)
    before = (logger.level, torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark)
    with pytest.raises(RuntimeError, match="inside"), places.settled(Train(), place):
        torch.backends.cudnn.benchmark = not before[2]
        torch.use_deterministic_algorithms(True)
        assert torch.get_float32_matmul_precision() == "high" and logger.level == logging.ERROR
        raise RuntimeError("inside")
    assert (logger.level, torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark) == before
    assert not torch.are_deterministic_algorithms_enabled() and warnings.filters == filters
