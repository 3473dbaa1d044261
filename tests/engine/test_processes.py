"""Who a process is among others."""

import pytest
import torch

from repgraph.engine.processes import Place, joined
from repgraph.errors import UsageError


def test_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined("cpu") as place:
        assert place == Place(0, 1, torch.device("cpu")) and place.first
        assert place.total(3, 4) == [3, 4]
        assert not torch.distributed.is_initialized()


def test_half_of_what_torchrun_says(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "x")
    message = "WORLD_SIZE is set, and RANK is 'x'; start several processes with torchrun"
    with pytest.raises(UsageError, match=message), joined("cpu"):
        pass


def test_in_a_group(monkeypatch, tmp_path):
    """The group ends with the block, also after an error."""
    import torch.distributed as dist

    original = dist.init_process_group

    def alone(backend, **options):
        return original(backend, init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)

    monkeypatch.setattr(dist, "init_process_group", alone)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KeyError), joined("cpu") as place:
        assert (place.rank, place.world, place.first) == (1, 2, False)
        assert dist.is_initialized() and place.total(5) == [5]
        raise KeyError
    assert not dist.is_initialized()
