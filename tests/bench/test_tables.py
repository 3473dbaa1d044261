"""The tables of the operator and of the layers at tiny sizes, and their commands."""

import io
from dataclasses import replace
from functools import partial

import pytest
import torch
from rich.console import Console
from tests.bench.squares import read
from torch import nn

from repgraph import cli, representative_attention
from repgraph.bench import report, run
from repgraph.bench.layers import BLOCKS, LayerSetting, LayerTable, make_input, make_layer, prepare
from repgraph.bench.measure import Times
from repgraph.bench.operator import OperatorSetting, OperatorTable
from repgraph.bench.table import BOTH, FORWARD, Candidate, Row
from repgraph.layers import repgraph as layers

OPERATOR, LAYERS = OperatorTable(), LayerTable()
NAMED = {block.name: block for block in BLOCKS}
HERE = [block for block in BLOCKS if block.name not in ("nl-sdpa-efficient", "nl-sdpa-cudnn")]
MAPS = OperatorSetting(height=6, width=7, channels=8, nodes=3)
INPUT = LayerSetting(height=6, width=7, channels=16, mid_channels=16, nodes=3)


HALF = [pytest.param(dtype, marks=pytest.mark.slow) for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("shared_kv", [False, True])
def test_correct_operators_pass_the_gate(dtype, shared_kv):
    setting = replace(MAPS, batch=2, channels=16, dtype=dtype, shared_kv=shared_kv)
    for candidate in OPERATOR.candidates:
        if candidate.name != "composition-compiled" and not candidate.why_not(setting):
            assert OPERATOR.check(candidate, OPERATOR.small(setting)) is None, candidate.name


@pytest.mark.parametrize("wrong", ["query", "key", "value", "offsets"])
def test_the_gate_finds_wrong_gradients_of_the_operator(wrong):
    def leaking(error, query, key, value, offsets):
        given = {"query": query, "key": key, "value": value, "offsets": offsets}
        given[wrong] = given[wrong].clone()
        given[wrong].register_hook(lambda gradient: gradient + error)
        return representative_attention(*given.values(), backend="reference")

    small = OPERATOR.small(MAPS)
    right, mistaken = (Candidate("leak", lambda setting, e=e: partial(leaking, e)) for e in (0.0, 1e-4))
    assert OPERATOR.check(right, small) is None
    assert f"the gradient of {wrong} differs" in (OPERATOR.check(mistaken, small) or "")


@pytest.mark.parametrize("dtype", [torch.float32, HALF[0]])
@pytest.mark.parametrize("block", HERE, ids=lambda block: block.name)
def test_correct_layers_pass_the_gate(block, dtype):
    small = LAYERS.small(replace(INPUT, dtype=dtype))
    assert LAYERS.check(block, small) is None
    parameters = {f"gradient of {name}" for name, _ in make_layer(block, small).named_parameters()}
    for layer, dtype in zip(LAYERS.versions(block, small, BOTH), (None, None, torch.float64), strict=True):
        results = LAYERS.results(layer, small, BOTH, dtype)
        assert set(results) == {"result", "gradient of input"} | parameters


def test_the_gate_finds_a_wrong_kernel_in_layers(monkeypatch):
    original = layers.representative_attention

    def shifted(query, key, value, offsets, **options):
        moved = offsets if options["backend"] == "reference" else offsets + 0.1
        return original(query, key, value, moved, **options)

    monkeypatch.setattr(layers, "representative_attention", shifted)
    for name in ("simple", "bottleneck-grid-4", "bottleneck-groups-8"):
        assert "differs from float64" in (LAYERS.check(NAMED[name], LAYERS.small(INPUT)) or "")


@pytest.mark.parametrize("name", ["simple", "bottleneck", "bottleneck-grid-4"])
@pytest.mark.parametrize("pass_", [FORWARD, BOTH])
def test_nodes_are_spread(name, pass_):
    setting = LayerSetting(height=64, width=64, channels=64, mid_channels=64)
    layer = prepare(make_layer(NAMED[name], setting), pass_)
    assert layer.training == any(isinstance(module, nn.BatchNorm2d) for module in layer.modules()) or name == "simple"
    with torch.no_grad():
        nodes = layer(make_input(setting), return_nodes=True)[1]  # [1, S, 2, Hc, Wc]
    grid = int(layer.grid)
    anchors = torch.stack(torch.meshgrid(*[torch.arange(0, 64, grid)] * 2, indexing="xy"))
    offsets = nodes - anchors
    assert float(offsets.std()) == pytest.approx(4.0, rel=0.1)
    assert float(offsets.flatten(3).std(3).mean()) == pytest.approx(4.0, rel=0.15)  # each position has its own
    assert float(offsets.mean()) == pytest.approx((grid - 1) / 2, abs=0.5)


def test_multiply_adds_are_shown_next_to_the_papers():
    setting, times = LayerSetting(height=128, width=256), Times(1.0, 1.0, 1.0, 1.0, 5)
    candidates = NAMED["bottleneck"], NAMED["simple"]
    rows = [Row(each, setting, FORWARD, times=times, facts=LAYERS.facts(each, setting)) for each in candidates]
    file = io.StringIO()
    for shown in report.terminal_tables(LAYERS, rows):
        Console(width=80, file=file).print(shown)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert lines[0][:6] == ["128", "x", "256", "(N", "=", "32768),"]
    assert ["block", "ms", "GMACs", "paper", "Mparam"] in lines
    assert ["bottleneck", "1", "35", "35", "1.06"] in lines and ["simple", "1", "70.7", "45.3", "2.14"] in lines


def bench(words: str, out) -> int:
    return cli.main(["bench", *words.split(), "--out", str(out)])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("operator --channels 8 --only reference composition sdpa-math", "candidate"),
        ("layers --channels 16 --mid-channels 8 --only nl-plain nl-sdpa-math simple", "block"),
    ],
)
def test_commands(words, name, tmp_path, capsys):
    assert bench(f"{words} --device cpu --size 8x9 5x6 --seconds 0.001", tmp_path) == 0
    table = words.split()[0]
    shown = capsys.readouterr().out
    assert "5 x 6 (N = 30)" in shown and "8 x 9 (N = 72)" in shown and max(map(len, shown.splitlines()[:20])) <= 80
    rows = read(tmp_path / f"{table}.csv")
    cases = 2 if table == "operator" else 1  # key is value, or not
    assert len(rows) == 3 * 2 * 2 * cases and {row["status"] for row in rows} == {"ok"}
    assert {row[name] for row in rows} == set(words.split("--only ")[1].split())


def test_settings_of_commands(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        "repgraph.bench.report.benchmark", lambda *arguments, **effort: found.append((arguments[1], effort)) or 0
    )
    words = ("operator --quick", "layers --quick", "layers --paper", "layers --dtype float16 float32")
    assert [bench(f"{text} --device cpu", tmp_path) for text in words] == [0] * 4
    settings = [each for each, _ in found]
    assert [s.size for s in settings[0] + settings[1]] == ["33x33"] * 3 and found[0][1]["seconds"] == 0.2
    assert [(s.size, s.channels) for s in settings[2]] == [("128x256", 2048)]
    assert [(s.dtype_name, s.size) for s in settings[3]][3:5] == [("float16", "97x97"), ("float32", "17x17")]
    assert [s.shared_kv for s in settings[0]] == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("operator --only composishun", "unknown candidate 'composishun'; choose from reference, cpu"),
        ("operator --size 65y", "--size is '65y'; expected a side or HEIGHTxWIDTH"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path):
    assert bench(words, tmp_path) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err and captured.err.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda(dtype):
    where = dict(height=16, width=24, dtype=dtype, device=torch.device("cuda"))
    rows = run(OPERATOR, [OperatorSetting(channels=64, **where)], seconds=1e-9)
    rows += run(LAYERS, [LayerSetting(channels=256, mid_channels=64, **where)], seconds=1e-9)
    for row in rows:
        if row.status != "cannot run" and row.candidate.name != "composition-compiled":
            assert row.status == "ok" and row.times and row.graph and row.memory is not None, row


def test_networks(tmp_path, capsys):
    words = "networks --backbone test_resnet --device cpu --size 33x47 --seconds 0.001 --only rgnet pyramid"
    assert bench(words, tmp_path) == 0
    assert "images/s" in capsys.readouterr().out
    rows = read(tmp_path / "networks.csv")
    assert [(row["network"], row["pass"], row["status"]) for row in rows] == [
        (name, pass_, "ok") for name in ("rgnet", "pyramid") for pass_ in ("forward", "training step")
    ]
    assert all(int(row["parameters"]) > 0 for row in rows)


def test_settings_of_networks(tmp_path, monkeypatch, capsys):
    found = []
    monkeypatch.setattr("repgraph.bench.report.benchmark", lambda *arguments, **_: found.append(arguments[1]) or 0)
    monkeypatch.setattr("repgraph.distributed.parse_device", torch.device)
    words = ("--device cuda --dtype bfloat16", "--device cpu", "--device cuda:1 --batch 3 --size 64x96")
    assert [bench(f"networks {text}", tmp_path) for text in (*words, "--batch 3")] == [0, 0, 0, 2]
    assert [[(s.batch, s.size) for s in settings] for settings in found] == [
        [(16, "320x320"), (8, "512x512"), (1, "1024x2048")], [(1, "512x512")], [(3, "64x96"), (3, "64x96")],
    ]  # fmt: skip
    assert "--batch needs --size" in capsys.readouterr().err
