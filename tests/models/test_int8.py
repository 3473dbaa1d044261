"""Weights in 8 bits: what changes, and files that do not fit."""

import pytest
import torch
from safetensors.torch import save_file

from repgraph import cli
from repgraph.errors import UsageError
from repgraph.models import RGNet, load
from repgraph.models.int8 import SCALE, compress, expand


def network(**more):
    return RGNet(5, "resnet18", decoder="pyramid", channels=32, **more).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_error_is_half_a_step_of_each_channel(dtype):
    weight = (torch.randn(128, 64, 3, 3) * torch.logspace(-6, 3, 128)[:, None, None, None]).to(dtype)
    weight[7] = 0
    found, weight = expand(compress({"weight": weight}))["weight"], weight.float()
    assert found.dtype == torch.float32
    step = weight.abs().amax((1, 2, 3)) / 127
    assert ((found - weight).abs().amax((1, 2, 3)) <= 0.501 * step).all()
    assert torch.equal(found[7], weight[7])


def test_only_matrices_and_kernels_are_rounded():
    state = network().state_dict()
    small = compress(state)
    assert set(expand(small)) == set(state)
    for name, value in state.items():
        assert (small[name].dtype == torch.int8) == (value.dim() > 1 and value.numel() >= 2**16)
        if name + SCALE not in small:
            assert small[name] is value


NAME = "backbone.body.layer4.1.conv2.weight"
DAMAGES = {
    "no scale": lambda tensors: tensors.pop(NAME + SCALE),
    "short scale": lambda tensors: tensors.update({NAME + SCALE: tensors[NAME + SCALE][:-1].clone()}),
    "scale alone": lambda tensors: tensors.pop(NAME),
    "negative": lambda tensors: tensors[NAME + SCALE].neg_(),
    "not finite": lambda tensors: tensors[NAME + SCALE].div_(0),
    "integers": lambda tensors: tensors.update({NAME + SCALE: tensors[NAME + SCALE].int()}),
    "one dimension": lambda tensors: tensors.update({NAME: tensors[NAME].flatten()}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file(tmp_path, damage):
    model = network()
    tensors = compress({name: value.contiguous() for name, value in model.state_dict().items()})
    DAMAGES[damage](tensors)
    model.save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"layer4\.1\.conv2\.weight"):
        load(tmp_path)


def test_exported_file(tmp_path):
    network().save_pretrained(tmp_path / "network")
    full, small = tmp_path / "full.safetensors", tmp_path / "small.safetensors"
    for path, options in ((full, []), (small, ["--int8"])):
        assert cli.main(["export", str(tmp_path / "network"), "--to", "safetensors", "--out", str(path), *options]) == 0
    assert small.stat().st_size < 0.3 * full.stat().st_size
    found, expected = load(small), load(full)
    assert found.auxiliary is None and found.config == expected.config | {"auxiliary": False}
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        y, exact = found(x), expected(x)
    assert 0 < (y - exact).norm() < 0.1 * exact.norm()


def test_only_for_safetensors(capsys):
    assert cli.main(["export", "network", "--to", "onnx", "--int8"]) == 2
    assert "--int8 is for --to safetensors" in capsys.readouterr().err
