"""``repgraph export`` of a Mask R-CNN: ONNX finds what the network finds, weights come back, the rest is refused."""

import json
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from tests.engine import objects, trained
from tests.models.networks import assert_same_state

from repgraph import cli
from repgraph.engine.export import detector
from repgraph.models import MaskRCNN, load


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "small"
    objects.network().save_pretrained(folder / "model")
    return folder


def export(*arguments: object) -> int:
    return cli.main(["export", *map(str, arguments)])


def test_onnx_finds_what_the_network_finds(run, tmp_path, capsys):
    out, photo = tmp_path / "net.onnx", trained.save_picture(tmp_path / "photo.png", 60, 90)
    code = export(run, "--to", "onnx", "--out", out, "--size", "40x48", "--image", photo)
    said = capsys.readouterr().err
    if code == 2 and "ONNX cannot do 'resnet18'" in said:
        pytest.skip(f"this PyTorch cannot export the network: {said}")
    assert code == 0 and "onnxruntime against the network: 8 objects, which differ by at most" in said
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    assert [(given.name, given.shape) for given in session.get_inputs()] == [("image", [3, 40, 48])]
    assert [result.name for result in session.get_outputs()] == ["boxes", "labels", "scores", "masks"]
    model = load(run, MaskRCNN)
    image = torch.rand(3, 40, 48, generator=torch.Generator().manual_seed(9))  # another than those it was made with
    got = [torch.from_numpy(part) for part in session.run(None, {"image": image.numpy()})]
    with torch.no_grad():
        want = model([image])[0]
    assert len(got[0]) == len(want["boxes"]) == 4
    for part, name in zip(got, ("boxes", "labels", "scores", "masks"), strict=True):
        torch.testing.assert_close(part, want[name], rtol=1e-3, atol=1e-3)
    proto = onnx.load(str(out))
    assert json.loads({p.key: p.value for p in proto.metadata_props}["config"])["labels"] == model.labels


def test_what_differs_is_seen():
    boxes = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 30]])
    masks = torch.zeros(2, 1, 40, 50)
    masks[0, 0, :10, :10] = masks[1, 0, 20:30, 20:40] = 1
    want = [boxes, torch.tensor([1, 2]), torch.tensor([0.9, 0.8]), masks]
    cases = {
        "the same": (want, 0.0),
        "in another order": ([part.flip(0) for part in want], 0.0),
        "a box": ([boxes + 0.5, *want[1:]], 0.01),
        "a score": ([*want[:2], want[2] - 0.25, masks], 0.25),
        "a label": ([boxes, torch.tensor([1, 1]), *want[2:]], float("inf")),
        "one is missing": ([part[:1] for part in want], float("inf")),
        "another mask": ([*want[:3], masks.roll(3, -1)], float("inf")),
        "not finite": ([*want[:2], want[2] * torch.nan, masks], float("inf")),
    }
    image = torch.zeros(3, 40, 50)
    for name, (got, difference) in cases.items():
        found, count = detector.compare(lambda _, got=got: got, lambda _: want, [image])
        assert (found.relative, count) == (pytest.approx(difference), 2), name
    nothing = [part[:0] for part in want]
    assert detector.compare(lambda _: nothing, lambda _: nothing, [image])[0].relative == 0


def test_nothing_is_written_if_it_differs(run, tmp_path, monkeypatch, capsys):
    from repgraph.engine.export.formats import Difference, Exported

    def different(model, size, image):
        return Exported(b"", Difference(0.1, 1.0)), 0

    monkeypatch.setattr(detector, "to_onnx", different)
    out = tmp_path / "net.onnx"
    assert export(run, "--to", "onnx", "--out", out) == 1 and not out.exists()
    said = capsys.readouterr().err
    assert "note: no object was found in the example" in said and "more than --tolerance 0.0001 allows" in said


def test_safetensors_come_back_as_a_network(run, tmp_path):
    out = tmp_path / "net.safetensors"
    assert export(run, "--to", "safetensors", "--out", out) == 0
    assert_same_state(load(out, MaskRCNN), load(run, MaskRCNN))
    assert load(out).labels == objects.LABELS.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--to", "torch"],
            "torch.export cannot do a Mask R-CNN: how many boxes there are depends on the image; --to",
        ),
        (
            ["--to", "onnx", "--dynamic"],
            "--dynamic is not for a Mask R-CNN: its file of ONNX is for images of one",
        ),
        (["--to", "safetensors", "--image", "a.png"], "--image is for --to onnx of a Mask R-CNN"),
        (["--to", "onnx", "--image", "nowhere.png"], "nowhere.png: there is no such image"),
    ],
)
def test_what_is_refused(options, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert export(run, *options) == 2
    assert message in capsys.readouterr().err and list(tmp_path.iterdir()) == []
