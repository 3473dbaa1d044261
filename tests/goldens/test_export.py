"""Goldens of export: files from ``repgraph export`` compute the same logits as the network.

The expected values are computed by the trained network in this process: there is nothing to regenerate here.
"""

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from tests.goldens.harness import NETWORK, assert_close, repgraph

from repgraph.models import load


@pytest.fixture(scope="module")
def network():
    return load(NETWORK)


def images(height, width):
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_onnx(network, tmp_path):
    path, batch = tmp_path / "network.onnx", images(48, 64)
    repgraph("export", NETWORK, "--to", "onnx", "--size", "48x64", "--out", path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["images"]
    assert [each.name for each in session.get_outputs()] == ["logits"]
    (logits,) = session.run(None, {"images": batch.numpy()})
    assert_close(torch.from_numpy(np.asarray(logits)), network(batch).tolist())


@torch.no_grad()
def test_torch_export_with_any_size(network, tmp_path):
    path, batch = tmp_path / "network.pt2", images(60, 44)
    repgraph("export", NETWORK, "--to", "torch", "--size", "48x64", "--dynamic", "--out", path)
    program = torch.export.load(path).module()
    assert_close(program(batch), network(batch).tolist())


def test_safetensors(tmp_path):
    path = tmp_path / "network.safetensors"
    repgraph("export", NETWORK, "--to", "safetensors", "--out", path)
    ours, theirs = load_file(path), load_file(NETWORK)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert load(path).labels == load(NETWORK).labels
