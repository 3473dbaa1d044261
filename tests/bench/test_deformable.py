"""The table of deformable attention at tiny sizes, and its command."""

from dataclasses import replace

import pytest
import torch
from tests.bench.squares import read

from repgraph import cli
from repgraph.bench.deformable import NETWORKS, OPERATORS, DeformableSetting, DeformableTable, composition, deform_conv
from repgraph.bench.table import Candidate
from repgraph.ops import multi_scale_deformable_attention

TABLE = DeformableTable()
TINY = DeformableSetting(problem="detr-decoder", height=70, width=90, channels=16, nodes=2)


def test_sizes_are_those_of_papers():
    encoder = DeformableSetting(problem="detr-encoder", height=800, width=1066)
    assert encoder.maps == [(100, 134), (50, 67), (25, 34), (13, 17)]
    assert sum(height * width for height, width in encoder.maps) == 17_821
    assert DeformableSetting(problem="pixel-decoder", height=512, width=512).maps == [(16, 16), (32, 32), (64, 64)]


@pytest.mark.parametrize("problem", OPERATORS)
def test_composition_is_the_operator(problem):
    setting = replace(TINY, problem=problem, batch=2)
    value, locations, weights = (t.double() for t in TABLE.inputs(setting).values())
    y = composition(value, setting.maps, locations, weights)
    expected = multi_scale_deformable_attention(value, setting.maps, locations, weights, backend="reference")
    torch.testing.assert_close(y, expected)


def test_points_are_near_their_query():
    setting = replace(TINY, problem="detr-encoder", height=512, width=512, sigma=2.0)
    locations = TABLE.inputs(setting)["locations"].detach()  # [1, Q, M, L, P, 2]
    (height, width), *_ = setting.maps
    pixels = locations[0, : height * width, :, 0] * width - 0.5
    index = torch.arange(height * width)
    own = torch.stack((index % width, index // width), 1)[:, None, None]
    assert float((pixels - own).std()) == pytest.approx(2.0, rel=0.05)
    assert float((pixels - own).mean()) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("points", [1, 2, 4])
def test_deform_conv_is_the_operator(points):
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    setting = replace(TINY, problem="single-map", nodes=points, batch=2)
    tensors = [t.detach().double().requires_grad_() for t in TABLE.inputs(setting).values()]
    y, expected = (function(tensors[0], setting.maps, *tensors[1:]) for function in (deform_conv, composition))
    torch.testing.assert_close(y, expected)
    for one, other in zip(*(torch.autograd.grad(t.square().sum(), tensors) for t in (y, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate(dtype):
    setting = TABLE.small(replace(TINY, dtype=dtype))
    composed = next(candidate for candidate in TABLE.candidates if candidate.name == "composition")
    assert TABLE.check(composed, setting) is None

    def shifted(setting):
        function = composed.build(setting)
        return lambda value, locations, weights: function(value, locations + 0.01, weights)

    assert "differs from float64" in (TABLE.check(Candidate("shifted", shifted), setting) or "")


def bench(words: str, out) -> int:
    return cli.main(["bench", "deformable", *words.split(), "--device", "cpu", "--out", str(out)])


def test_command(tmp_path, capsys):
    words = "--problem detr-decoder single-map --size 40x48 --seconds 0.001 --only cpu composition deform-conv2d mmcv"
    assert bench(words, tmp_path) == 0
    shown = capsys.readouterr().out
    assert "single-map, image 40 x 48, float32: forward+backward" in shown
    rows = read(tmp_path / "deformable.csv")
    found = {(row["problem"], row["candidate"]): row["status"] for row in rows}
    assert len(rows) == 2 * 2 * 4 and found.pop(("detr-decoder", "deform-conv2d")) == "cannot run"
    for (_, candidate), status in found.items():
        assert status == ("cannot run" if candidate == "mmcv" else "ok")
    for problem in ("detr-decoder", "single-map"):
        path = tmp_path / f"deformable-problem-{problem}.png"
        assert path.read_bytes().startswith(b"\x89PNG") and str(path) in shown


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_networks(network, tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    assert bench(f"--problem {network} --size 96x128 --seconds 0.001 --only cpu composition", tmp_path) == 0
    rows = read(tmp_path / "deformable.csv")
    assert {row["status"] for row in rows} == {"ok"} and len(rows) == 4


def test_settings_of_the_command(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr("repgraph.bench.report.benchmark", lambda *arguments, **_: found.append(arguments[1]) or 0)
    assert [bench(words, tmp_path) for words in ("", "--quick", "--problem mask2former --quick")] == [0] * 3
    assert [(s.problem, s.size) for s in found[0]] == [
        ("detr-encoder", "800x1066"), ("detr-decoder", "800x1066"), ("pixel-decoder", "512x512"),
        ("pixel-decoder", "1024x1024"), ("single-map", "800x1066"), ("deformable-detr", "480x640"),
        ("deformable-detr", "800x1066"),
        ("mask2former", "512x512"), ("mask2former", "1024x1024"),
    ]  # fmt: skip
    assert {s.size for s in found[1]} == {"128x160"} and len(found[1]) == 4
    assert [(s.problem, s.size) for s in found[2]] == [("mask2former", "128x160")]
