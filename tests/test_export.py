"""``repgraph export``: each format computes the same as the network, and errors leave no file."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from tests import objects
from tests.models.networks import images, network

from repgraph import cli, export
from repgraph.models import load

LABELS = {"names": list("abcde")}
BACKBONES = {
    "small": dict(backbone="repgraph_small", output_stride=4),
    "resnet18": dict(backbone="resnet18", inserted={"layer3": 1}),
    "pyramid": dict(backbone="test_resnet", decoder="pyramid", context_options=dict(rounds=1, groups=2)),
}


@pytest.fixture(
    scope="module", params=["small", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "pyramid"))]
)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    network(labels=LABELS, **BACKBONES[request.param]).save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    folder = tmp_path_factory.mktemp("detector")
    objects.network().save_pretrained(folder)
    return folder


def command(*arguments: object) -> int:
    return cli.main(["export", *map(str, arguments)])


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def config(path: Path) -> dict:
    return json.loads({entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}["config"])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.slow
def test_onnx(run, tmp_path, dynamic, capsys):
    out = tmp_path / "new" / "net.onnx"
    assert command(run, "--to", "onnx", "--out", out, "--size", "33x47", *["--dynamic"] * dynamic) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out} (")
    assert "logits of the file and the network differ by" in captured.err
    model, program = load(run), session(out)
    (given,), (result,) = program.get_inputs(), program.get_outputs()
    assert (given.name, result.name) == ("images", "logits")
    assert given.shape == (["batch", 3, "height", "width"] if dynamic else [1, 3, 33, 47])
    for batch, size in [(1, (33, 47)), (2, (64, 97)), (3, (7, 13)), (1, (1, 1))] if dynamic else [(1, (33, 47))]:
        x = images(*size, batch=batch)
        (found,) = program.run(None, {"images": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-4)
    assert {node.domain for node in onnx.load(str(out)).graph.node} <= {"", "ai.onnx"}
    assert config(out)["labels"] == LABELS


@pytest.mark.parametrize("options", [[], pytest.param(["--dynamic"], marks=pytest.mark.slow)], ids=str)
def test_torch(run, tmp_path, options, capsys):
    out = tmp_path / "net.pt2"
    code = command(run / "model", "--to", "torch", "--out", out, "--size", "40x56", *options)
    error = capsys.readouterr().err
    if code == 2 and options and "PyTorch cannot export 'resnet18': Guard failed" in error and not out.exists():
        pytest.skip("this PyTorch cannot export max pooling for all sizes")
    assert code == 0 and "logits of the file and the network differ by" in error
    extra = {"config.json": ""}
    program, model = torch.export.load(out, extra_files=extra), load(run)
    assert json.loads(extra["config.json"]) == model.config
    assert not any(name.startswith("auxiliary") for name in program.state_dict)
    for batch, size in [(1, (40, 56)), (3, (33, 97))] if options else [(1, (40, 56))]:
        x = images(*size, batch=batch)
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-4)
    assert any(str(node.target).startswith("repgraph.") for node in program.graph.nodes)


def test_the_network_does_not_change(run):
    model = load(run)
    before = model.to_bytes()
    export.to_torch(model, (24, 24))
    assert model.to_bytes() == before and model.auxiliary is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{run} --to onnx --out net.pt2", "--out is net.pt2; expected a file name that ends in .onnx"),
        ("{run} --to onnx --out {run}/model/config.json/net.onnx", "cannot write"),
        ("{run} --to safetensors --out {run}/model/model.safetensors", "would be overwritten"),
        ("{run} --to safetensors --dynamic", "--dynamic is for --to torch and --to onnx"),
        ("{detector} --to torch", "a Mask R-CNN cannot be exported with --to torch; use --to safetensors"),
    ],
)
def test_mistakes_are_one_line(run, detector, tmp_path, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(*arguments.format(run=run, detector=detector).split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_differ_are_not_written(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export, "to_onnx", lambda *arguments: (b"", 0.05))
    out = tmp_path / "net.onnx"
    assert command(run, "--to", "onnx", "--out", out) == 1 and not out.exists()
    captured = capsys.readouterr()
    assert captured.out == "" and "differ by 5.0e-02 of the largest logit" in captured.err
    assert f"this exceeds 0.0001: {out} is not written" in captured.err


def test_differences_of_logits(run):
    model = load(run)
    largest = float(model(images(33, 33)).detach().abs().max())

    def difference(run, dynamic=False):
        return export.compare(run, model, (33, 33), dynamic)

    assert difference(model, dynamic=True) == 0
    assert 0.1 / largest < difference(lambda x: model(x) + 0.25) < 2.5 / largest
    assert difference(lambda x: model(x)[:, :4]) == difference(lambda x: model(x) * torch.nan) == torch.inf
    assert difference(lambda x: model(x) + (x.shape[0] == 3), dynamic=True) > 0  # another size
