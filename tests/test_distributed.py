"""Ranks and devices of processes."""

import pytest
import torch
import torch.distributed as dist

from repgraph import distributed
from repgraph.distributed import process_group
from repgraph.errors import UsageError


def test_single_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group("cpu") as device:
        assert device == torch.device("cpu") and distributed.rank() == 0 and distributed.world_size() == 1
        assert distributed.all_reduce(torch.ones(2)).tolist() == [1, 1]
        assert distributed.gather(3) == [3] and distributed.broadcast(3) == 3
        assert not dist.is_initialized()


def test_group_ends_with_the_block(monkeypatch, tmp_path):
    original = dist.init_process_group

    def alone(backend, **options):
        return original(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)

    monkeypatch.setattr(dist, "init_process_group", alone)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KeyError), process_group("cpu") as device:
        assert device == torch.device("cpu") and dist.is_initialized()
        raise KeyError
    assert not dist.is_initialized()


@pytest.mark.parametrize("text", ["quantum", "meta", "cuda:99"])
def test_unusable_devices(text):
    with pytest.raises(UsageError, match=f"--device '{text}' is not available; choose auto, cpu"):
        distributed.parse_device(text)
    assert distributed.parse_device("cpu") == torch.device("cpu")
