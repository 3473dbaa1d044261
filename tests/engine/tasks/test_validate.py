"""Tests in the course of training."""

import subprocess
import sys

import pytest
import torch
from tests.engine.training.tiny import recipe

from repgraph.data import load
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.tasks.validate import validate
from repgraph.models import RGNet

# The second of two processes has the image of which the network makes numbers that are not finite.
SCRIPT = """
import sys
import torch
import torch.distributed as dist
from pathlib import Path
from tests.engine.tasks.test_validate import spoilt
from tests.engine.training.tiny import recipe
from repgraph.data import load
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.tasks.validate import validate

rank, root, store = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
data = load("folder", root, "val")
try:
    validate(spoilt(*data[1][0].shape[-2:]), data, recipe(root), rank, 2)
except NotFinite:
    print("not finite")
dist.destroy_process_group()
"""


def spoilt(height, width):
    """A network that fails on images of one size."""
    model = RGNet(3, "test_resnet", channels=16)

    def spoil(module, inputs, logits):
        return logits * torch.nan if inputs[0].shape[-2:] == (height, width) else logits

    model.register_forward_hook(spoil)
    return model


def test_a_test_goes_well_or_not(pictures):
    data = load("folder", pictures, "val")
    assert 0 <= validate(spoilt(1, 1), data, recipe(pictures)).miou <= 1
    with pytest.raises(NotFinite):
        validate(spoilt(*data[1][0].shape[-2:]), data, recipe(pictures))


def test_one_of_two_processes_stops_both(pictures, tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(pictures), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            out, _ = process.communicate(timeout=100)
            assert (process.returncode, out) == (0, "not finite\n")
    finally:
        for process in started:
            process.kill()
            process.wait()
