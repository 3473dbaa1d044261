"""The layer benchmark at tiny sizes: what it writes, what its gate stops, what becomes of failures."""

import csv
import io
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from repgraph import cli
from repgraph.bench import measure, output, passes, sdpa
from repgraph.bench.layers import Options, benchmark, blocks, forms, gate, plot, report, run
from repgraph.bench.layers.blocks import BLOCKS, Block, select
from repgraph.bench.layers.command import PAPER
from repgraph.bench.layers.formulas import Count
from repgraph.bench.layers.row import BOTH, FORWARD, PASSES, SDPA, Row
from repgraph.bench.layers.setting import Setting, make_input
from repgraph.bench.measure import Times
from repgraph.errors import UsageError

NAMED = {block.name: block for block in BLOCKS}
HERE = [block for block in BLOCKS if block.name not in ("nl-sdpa-efficient", "nl-sdpa-cudnn")]
TINY = Options(sizes=((6, 7),), channels=16, mid_channels=8, nodes=3, repeat=2)
SMALL = Setting(6, 7, channels=16, mid_channels=16, nodes=3)
CUDA = Setting(128, 256, device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny maps gain nothing from more, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Altered(nn.Module):
    """A layer with a mistake in its result."""

    def __init__(self, layer: nn.Module, mistake) -> None:
        super().__init__()
        self.layer, self.mistake = layer, mistake

    def forward(self, x: Tensor) -> Tensor:
        return self.mistake(self.layer(x))


def altered(mistake, name: str = "bottleneck") -> Block:
    def make(setting: Setting, plain: bool) -> nn.Module:
        return Altered(NAMED[name].make(setting, plain), (lambda y: y) if plain else mistake)

    return replace(NAMED[name], name="wrong", make=make)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_csv_and_plots_are_written(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    arguments = "--device cpu --size 8x9 5x6 --channels 16 --mid-channels 8 --repeat 2 --dtype float32 "
    names = ["nl-plain", "nl-sdpa-math", "nl-sdpa-flash", "simple", "bottleneck-grid-2"]
    assert cli.main(["bench", "layers", *arguments.split(), "--only", *names, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "5 x 6 (N = 30), float32: forward" in shown and "8 x 9 (N = 72), float32: forward+backward" in shown
    assert "8 x 9 (N = 72): multiply-adds of the forward pass" in shown
    rows = read(out / "layers.csv")
    keys = [(row["block"], row["pass"], row["height"]) for row in rows]
    assert sorted(keys) == sorted(itertools.product(names, PASSES, ("5", "8")))
    for row in rows:
        assert row["status"] == "ok" and row["count"] == row["repeat"] == "2" and row["counted_in_execution"] == "True"
        assert 0 < float(row["min_ms"]) <= float(row["median_ms"])
        assert row["torch"] == torch.__version__ and row["device_name"] and row["python"] and row["repgraph"]
        parts = ("macs_convolutions", "macs_attention", "macs_sampling")
        assert int(row["macs_products"]) == sum(int(row[part]) for part in parts) < int(row["macs_all"])
        assert int(row["parameters"]) > 0
        if row["block"] == "nl-plain":
            assert float(row["versus_plain"]) == 1.0
        if measure.reset_resident_peak():
            assert int(row["extra_bytes"]) >= int(row["result_bytes"]) > 0
    assert {row["backend"] for row in rows if row["block"] == "simple"} <= {"cpu", "reference"}
    assert (out / "layers-float32.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "layers-float32.svg").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", HERE, ids=lambda block: block.name)
def test_right_blocks_pass_the_gate(block, dtype):
    assert gate.check(block, replace(SMALL, dtype=dtype)) is None


@pytest.mark.parametrize("sigma", [0.0, 4.0])
def test_the_gate_is_as_strict_as_it_says(sigma):
    setting = replace(SMALL, height=gate.SIZE[0], width=gate.SIZE[1], sigma=sigma)
    limits = gate.precision(setting)
    for block in (NAMED["bottleneck"], NAMED["bottleneck-grid-8"], NAMED["simple"]):
        for pass_ in PASSES:
            found = gate.errors(block, setting, pass_)
            for name, (error, allowed) in found.items():
                assert error < allowed <= (limits.result if name == "result" else limits.gradient), name
    assert {"gradient of input", "gradient of reduce_norm.bias", "gradient of offset.weight"} <= set(
        gate.errors(NAMED["bottleneck"], setting, BOTH)
    )


class Leak(torch.autograd.Function):
    """The identity, with a gradient that is wrong by a factor."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.001


@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        (lambda y: y * 1.001, "forward: the result differs from float64 by"),
        (lambda y: y * float("nan"), "forward: the result differs from float64 by nan"),
        (Leak.apply, "forward+backward: the gradient of input differs from float64 by"),
    ],
)
def test_the_gate_stops_wrong_blocks(mistake, what):
    rows = run(TINY, [altered(mistake), NAMED["bottleneck"]])
    status = {row.candidate: row.status for row in rows}
    assert status == {"wrong": "wrong", "bottleneck": "ok"}
    wrong = [row for row in rows if row.candidate == "wrong"]
    assert all(row.times is None and row.memory is None and what in row.reason for row in wrong)


def test_the_gate_sees_a_wrong_kernel(monkeypatch):
    from repgraph.layers import repgraph

    original = repgraph.representative_attention

    def shifted(query, key, value, offsets, **more):
        moved = offsets if more["backend"] == "reference" else offsets + 0.1
        return original(query, key, value, moved, **more)

    monkeypatch.setattr(repgraph, "representative_attention", shifted)
    for name in ("simple", "bottleneck", "bottleneck-grid-4", "bottleneck-groups-8"):
        assert "differs from float64" in (gate.check(NAMED[name], SMALL) or "")


def test_a_disagreement_of_counts_is_an_error_row():
    block = replace(NAMED["bottleneck"], formula=lambda s: Count(1, 2, 3, 4))
    rows = run(TINY, [block])
    assert {(row.status, row.counted, row.times) for row in rows} == {("miscounted", False, None)}
    assert rows[0].reason.startswith("6 multiply-adds by formula, ") and "in execution" in rows[0].reason


def test_an_unknown_operation_is_an_error_row():
    unknown = altered(lambda y: y * torch.mv(y[0, 0], torch.ones(7)).sum())
    rows = run(TINY, [unknown])
    assert {row.status for row in rows} == {"miscounted"} and "aten::mv may do products" in rows[0].reason


def test_what_cannot_run_without_data_is_counted_by_formula(monkeypatch):
    def refuse(block, setting):
        raise RuntimeError("no kernel for fakes\nand a long tail")

    monkeypatch.setattr(forms, "counted", refuse)
    first, second = run(TINY, [NAMED["bottleneck"]])
    assert first.status == second.status == "ok" and first.times and not first.counted and first.count
    assert first.reason == "counted by formula alone: RuntimeError: no kernel for fakes"


def test_what_needs_too_much_memory_is_not_tried(monkeypatch):
    tried = []
    original = forms.ready

    def ready(block, setting, pass_):
        tried.append((block.name, setting.size, pass_))
        return original(block, setting, pass_)

    monkeypatch.setattr(forms, "ready", ready)
    monkeypatch.setattr(measure, "available_memory", lambda device: 1e6)
    options = replace(TINY, sizes=((6, 7), (20, 20), (30, 30)))
    rows = run(options, [NAMED["nl-plain"], NAMED["bottleneck"]])
    found = {(row.candidate, row.setting.size, row.pass_): row for row in rows}
    assert all(row.status == "ok" for row in rows if row.candidate == "bottleneck")
    assert found["nl-plain", "6x7", BOTH].status == "ok"
    first, later = found["nl-plain", "20x20", FORWARD], found["nl-plain", "30x30", FORWARD]
    assert first.status == later.status == "out of memory"
    assert "needs about 0.0 GiB" in first.reason and later.reason == "at 20x20 already"
    assert not [t for t in tried if t[0] == "nl-plain" and t[1] != "6x7"]


def test_the_weights_of_all_pairs_are_foreseen():
    large = Setting(512, 512, dtype=torch.bfloat16)
    plain, fused = NAMED["nl-plain"], NAMED["nl-sdpa-flash"]
    assert plain.bytes_needed(large, False) > 256 * 2**30 > fused.bytes_needed(large, True)
    assert plain.bytes_needed(large, True) > plain.bytes_needed(large, False)
    assert plain.bytes_needed(Setting(128, 256, dtype=torch.bfloat16), True) < 20 * 2**30


def test_what_would_take_too_long_is_not_tried(monkeypatch):
    slow = {"6x7": 10.0, "7x7": 10.0}  # milliseconds
    monkeypatch.setattr(
        measure, "cpu_times", lambda calls, estimates, budget: {n: Times(10.0, 10.0, 10.0, 10.0, 2) for n in calls}
    )
    options = replace(TINY, sizes=((6, 7), (7, 7), (60, 70)), limit=0.5)
    rows = run(options, [NAMED["bottleneck"]])
    found = {(row.setting.size, row.pass_): row for row in rows}
    assert all(found[size, pass_].status == "ok" for size in slow for pass_ in PASSES)
    for pass_ in PASSES:
        assert found["60x70", pass_].status == "over the time limit"
    said = found["60x70", FORWARD].reason
    assert said.startswith("one call would take about 0.") and "by its time at 7x7, the limit is 0.5 s" in said


def test_time_limit_is_recorded():
    rows = run(replace(TINY, limit=1e-9, sizes=((6, 7), (8, 8))), [NAMED["bottleneck"]])
    assert {row.status for row in rows} == {"over the time limit"}
    assert "the limit is 1e-09 s" in rows[0].reason and rows[2].reason == "at 6x7 already"


def test_a_pass_alone_can_be_given_up(monkeypatch):
    original = forms.call

    def call(layer, pass_, x):
        if pass_ == BOTH and x.shape[2] == 7:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has a total")
        return original(layer, pass_, x)

    monkeypatch.setattr(forms, "call", call)
    rows = run(replace(TINY, sizes=((6, 6), (7, 7), (9, 9))), [NAMED["simple"]])
    found = {(row.setting.height, row.pass_): (row.status, row.reason) for row in rows}
    assert {found[n, FORWARD][0] for n in (6, 7, 9)} == {"ok"} and found[6, BOTH][0] == "ok"
    assert found[7, BOTH] == ("out of memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    assert found[9, BOTH] == ("out of memory", "at 7x7 already")


def test_an_interruption_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    calls = []
    original = passes.measure_together

    def measure_together(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        original(*arguments)

    monkeypatch.setattr(passes, "measure_together", measure_together)
    arguments = "--device cpu --size 5x6 8x9 --channels 16 --mid-channels 8 --repeat 2 --only bottleneck"
    assert cli.main(["bench", "layers", *arguments.split(), "--out", str(tmp_path)]) == 130
    assert "interrupted: 1 of 2 settings measured" in capsys.readouterr().out
    assert {(row["height"], row["status"]) for row in read(tmp_path / "layers.csv")} == {("5", "ok")}


@pytest.mark.parametrize("name", ["simple", "bottleneck", "bottleneck-grid-4", "bottleneck-grid-8"])
@pytest.mark.parametrize("pass_", PASSES)
def test_offsets_are_spread(name, pass_):
    setting = Setting(64, 64, channels=64, mid_channels=64, nodes=9, sigma=4.0)
    layer = forms.form(blocks.new(NAMED[name], setting), pass_)
    with torch.no_grad():
        layer(make_input(setting))
    offsets, _, _ = layer.offset.seen
    assert float(offsets.std()) == pytest.approx(4.0, rel=0.1)
    assert float(offsets.mean()) == pytest.approx((layer.grid - 1) / 2, abs=0.5)
    over_positions = offsets.flatten(2).std(2)  # each position has offsets of its own
    assert float(over_positions.mean()) == pytest.approx(4.0, rel=0.15)


def test_gradients_reach_everything():
    """Else a backward pass might be measured that is less than one of training."""
    for block in HERE:
        layer = forms.ready(block, SMALL, BOTH)
        for name, gradient in gate.results(layer, BOTH, make_input(SMALL)).items():
            assert gradient.abs().max() > 0, (block.name, name)


def test_forward_is_fused_inference_and_backward_is_training():
    layer = forms.ready(NAMED["bottleneck"], SMALL, FORWARD)
    assert not layer.training and isinstance(layer.reduce_norm, nn.Identity) and layer.reduce.bias is not None
    y = forms.call(layer, FORWARD, make_input(SMALL))()
    assert not y.requires_grad
    layer = forms.ready(NAMED["bottleneck"], SMALL, BOTH)
    assert layer.training and isinstance(layer.reduce_norm, nn.BatchNorm2d)
    call = forms.call(layer, BOTH, make_input(SMALL))
    assert len(call()) == 1 + len(list(layer.parameters())) == len(call())


def test_each_kernel_of_sdpa_is_the_one_that_runs(monkeypatch):
    used = []
    monkeypatch.setattr(blocks, "sdpa_kernel", lambda kernel: used.append(kernel) or torch.no_grad())
    for name, kernel in sdpa.KERNELS.items():
        forms.ready(NAMED[f"nl-sdpa-{name}"], SMALL, FORWARD)(make_input(SMALL))
        assert used.pop() == kernel and not used


def test_groups_that_do_not_fit_say_so():
    rows = run(replace(TINY, mid_channels=12), [NAMED["bottleneck-groups-8"]])
    assert {(row.status, row.reason) for row in rows} == {("cannot run", "8 groups do not divide C' 12")}


def test_compiled_blocks_are_added_when_asked_for(monkeypatch):
    assert [block.name for block in select(["simple"], True)] == ["simple", "simple-compiled"]
    made = []
    monkeypatch.setattr(torch, "compile", lambda layer, **more: made.append(more) or layer)
    said = []
    rows = run(replace(TINY, only=["simple"], compiled=True), progress=lambda text, done, total: said.append(text))
    assert {(row.candidate, row.status) for row in rows} == {("simple", "ok"), ("simple-compiled", "ok")}
    assert made == [{"dynamic": False}] * 4 and "compiling simple for 6x7, float32" in said


def times(median: float) -> Times:
    return Times(median, median, median, median, 5)


def row(name="bottleneck", pass_=FORWARD, setting=CUDA, median=1.0, graph=None, extra=None, **more) -> Row:
    block = NAMED[name]
    return Row(
        name, block.family, pass_, setting, 2, label=block.label, count=block.formula(setting),
        times=times(median) if median else None, graph=times(graph) if graph else None,
        memory=extra, result=None if extra is None else 0, **more,
    )  # fmt: skip


def test_graphs_are_made_of_fast_calls_only(monkeypatch):
    monkeypatch.setattr(measure, "graph_times", lambda make, estimate, budget: make()() is not None and times(0.5))
    for slow in PASSES:
        entry = benchmark.Contestant(NAMED["simple"], SMALL, lambda: make_input(SMALL), 1.0, {})
        for pass_, found in entry.rows.items():
            found.times = times(60.0 if pass_ == slow else 40.0)
        passes.measure_graphs(entry, SMALL.device, TINY.budget, TINY.slowest_graph, lambda text: None)
        assert {pass_: found.graph is None for pass_, found in entry.rows.items()} == {p: p == slow for p in PASSES}


def test_ratios_to_the_fastest_sdpa_block_and_to_the_plain_one():
    rows = [
        row("nl-plain", median=40.0, graph=36.0, extra=400),
        row("nl-sdpa-cudnn", median=10.0, graph=9.0, extra=100),
        row("nl-sdpa-flash", median=20.0, graph=18.0, extra=50),
        row("bottleneck", median=2.0, graph=1.0, extra=25),
        row("simple", median=5.0),
    ]
    benchmark.compare(rows)
    found = {
        r.candidate: (r.versus_sdpa, r.versus_sdpa_basis, r.versus_plain, r.memory_versus_sdpa, r.memory_versus_plain)
        for r in rows
    }
    assert found["bottleneck"] == (9.0, "graph", 36.0, 4.0, 16.0)
    assert found["simple"] == (2.0, "events", 8.0, None, None)
    assert found["nl-sdpa-flash"] == (0.5, "graph", 2.0, 2.0, 8.0)
    assert found["nl-plain"][2:] == (1.0, 0.25, 1.0)


def shown(rows: list[Row], monkeypatch, width: int = 80) -> str:
    monkeypatch.setattr(output, "device_name", lambda device: "NVIDIA H200")
    file = io.StringIO()
    output.show(report.tables(rows), Console(width=width, file=file))
    return file.getvalue()


def test_tables_fit_and_stand_beside_the_paper(monkeypatch):
    rows = []
    for (index, block), pass_ in itertools.product(enumerate(BLOCKS), PASSES):
        rows.append(row(block.name, pass_, median=123.4 + index, graph=101.2 + index, extra=12345 * 2**20))
    benchmark.compare(rows)
    text = shown(rows, monkeypatch)
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "block products G paper G all G params M ms paper ms" in lines
    assert any(line.startswith("Bottleneck 34.964 34.96 35.116 ") and line.endswith(" 25.96") for line in lines)
    assert any(line.startswith("NL (phi = theta) 601.295 601.4 604.651 ") and "146.65" in line for line in lines)
    assert any(line.startswith("DANet head 1420.443 785.01 ") for line in lines)
    assert any(line.startswith("Simple 70.682 45.31 ") for line in lines)
    assert "block ms graph x SDPA x plain MiB m SDPA m plain" in lines
    # Of SDPA's kernels the fastest is shown, and no other.
    assert [line.split(" 1")[0] for line in lines if "SDPA:" in line].count("NL (SDPA: math)") == 2
    assert not any("SDPA: flash" in line for line in lines)
    notes = " ".join(report.notes(rows))
    for said in ("601.404", "785.012", "1420.443", "is not explained", "34.964", "with the result in it"):
        assert said in notes


def test_the_papers_columns_are_for_the_papers_input_only(monkeypatch):
    rows = [row(setting=replace(CUDA, channels=1024))]
    assert "paper" not in shown(rows, monkeypatch) + " ".join(report.notes(rows))
    assert report.as_record(rows[0])["paper_gmacs"] is None
    assert report.as_record(row())["paper_gmacs"] == 34.96


def test_failures_have_their_place_in_tables(monkeypatch):
    rows = [
        row("nl-plain", pass_, median=None, status="out of memory", reason="needs about 256.0 GiB") for pass_ in PASSES
    ]
    rows += [row("nl-sdpa-cudnn", pass_, median=None, status="cannot run", reason="old GPU") for pass_ in PASSES]
    rows += [row("bottleneck", pass_) for pass_ in PASSES]
    lines = [" ".join(line.split()) for line in shown(rows, monkeypatch).splitlines()]
    assert lines.count("NL (plain) no memory") == 2 and not any("cudnn" in line for line in lines)
    assert "nl-plain at 128x256: out of memory: needs about 256.0 GiB" in report.notes(rows)


def test_plots_have_the_fastest_sdpa_block_and_guides(tmp_path):
    rows = [
        row(name, pass_, Setting(n, n), median=n * (index + 1.0), extra=n * 2**20)
        for index, name in enumerate(("nl-sdpa-flash", "nl-sdpa-math", "bottleneck", "simple"))
        for pass_ in PASSES
        for n in (8, 16)
    ]
    rows += [replace(r, setting=replace(r.setting, dtype=torch.bfloat16)) for r in rows]
    written = {path.name for path in plot.write(rows, tmp_path)}
    assert written == {f"layers-{dtype}.{kind}" for dtype in ("float32", "bfloat16") for kind in ("png", "svg")}
    chart = plot.figure([r for r in rows if r.setting.dtype == torch.float32])
    for axis in chart.axes:
        lines = {line.get_label(): line.get_ydata() for line in axis.get_lines()}
        assert set(lines) == {"NL (fastest SDPA)", "Bottleneck", "Simple", "grows as N", "grows as N squared"}
        assert lines["grows as N"][1] == pytest.approx(4 * lines["grows as N"][0])
        assert lines["grows as N squared"][1] == pytest.approx(16 * lines["grows as N squared"][0])


def test_titles_of_plots_fit(tmp_path):
    rows = [row(name, p, Setting(8, 8), extra=2**20) for name in ("nl-plain", "bottleneck") for p in PASSES]
    chart = plot.figure([replace(r, graph=r.times) for r in rows])
    chart.savefig(tmp_path / "chart.png")
    for axis in chart.axes:
        title = axis.title.get_window_extent()
        assert 0 <= title.x0 < title.x1 <= chart.bbox.width
    assert "of CUDA graphs" in chart.axes[0].get_title()


def test_every_block_has_its_own_line_in_plots():
    labels = {block.label for block in BLOCKS if block.family != SDPA} | {plot.FASTEST}
    assert set(plot.STYLES) == labels and len(set(plot.STYLES.values())) == len(labels)


def test_the_papers_input_on_any_device(monkeypatch, tmp_path):
    from repgraph.bench import session

    asked = []
    monkeypatch.setattr(session, "conduct", lambda given, folder: asked.append(given.effort) or 0)
    for arguments in (["--paper"], ["--size", "128x256", "--channels", "2048"]):
        assert cli.main(["bench", "layers", "--device", "cpu", *arguments, "--out", str(tmp_path)]) == 0
    for options in asked:
        assert [setting.is_papers() for setting in options.settings()] == [True]
        assert options.dtypes == [torch.float32] and options.limit == 30.0
    assert set(PAPER) == {"size", "channels", "mid_channels", "nodes", "batch"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--only botleneck", "unknown block 'botleneck'; choose from nl-plain, nl-shared"),
        ("--size 65", "--size '65' is not a size"),
        ("--paper --channels 64", "--paper says what --channels is; leave one of the two out"),
        ("--paper --mid-channels 64", "--paper says what --mid-channels is"),
        ("--dtype float8", "invalid choice: 'float8'"),
        ("--device quantum", "--device 'quantum' is not a device"),
        ("--batch 0", "'0' is not a whole number of at least 1"),
        ("--seconds 0", "'0' is not a number above 0"),
        ("--limit never", "'never' is not a number"),
        ("--chanels 8", "unknown argument '--chanels'; did you mean '--channels'?"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path):
    try:
        code = cli.main(["bench", "layers", *arguments.split(), "--out", str(tmp_path)])
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    assert code == 2 and captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


def test_help_says_the_defaults(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "layers", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0
    for text in ("--paper", "on cpu 512, on cuda 2048", "on cpu 0.5, on cuda 0.05", "nl-sdpa-cudnn", "--compiled"):
        assert text in said


def test_unknown_names_are_refused():
    assert [block.name for block in select(None)] == list(NAMED)
    with pytest.raises(UsageError, match="unknown block 'nl'"):
        select(["nl"])


@pytest.mark.gpu
def test_every_block_on_cuda():
    options = Options(
        sizes=((16, 24),), channels=256, mid_channels=64, repeat=3, dtypes=(torch.float32, torch.bfloat16),
        device=torch.device("cuda"),
    )  # fmt: skip
    for found in run(options):
        if found.family != SDPA and not (found.candidate == "nl-conv2d" and found.setting.dtype == torch.float32):
            assert found.status == "ok" and found.counted and found.graph and found.extra, found
