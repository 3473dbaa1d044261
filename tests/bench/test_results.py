"""What a benchmark leaves behind: results that outlive an interruption, tables that fit, ratios and their basis."""

import csv
import io
import platform
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from repgraph import cli
from repgraph.bench import measure, output, passes
from repgraph.bench.measure import CPU, Times
from repgraph.bench.operator import Options, benchmark, plot, report, run
from repgraph.bench.operator.competitors import CANDIDATES
from repgraph.bench.operator.row import PASSES, Row
from repgraph.bench.operator.setting import Setting, make_inputs
from repgraph.bench.row import NO_MEMORY, TOO_SLOW

NAMED = {candidate.name: candidate for candidate in CANDIDATES}
OPTIONS = "--device cpu --size 5x6 8x9 --channels 8 --repeat 2 --only reference composition"
COMMAND = ["bench", "operator", *OPTIONS.split(), "--out"]
CUDA = Setting(1024, 2048, device=torch.device("cuda"))


def times(median: float) -> Times:
    return Times(median, median, median, median, 5)


def row(candidate="triton", pass_="forward", setting=CUDA, family="representative", median=1.0, graph=None, **more):
    graphs = times(graph) if graph else None
    return Row(candidate, family, pass_, setting, 2, times=times(median) if median else None, graph=graphs, **more)


def stop_in_second_setting(monkeypatch, error: BaseException) -> None:
    calls = []
    original = passes.measure_together

    def measure_together(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise error
        original(*arguments)

    monkeypatch.setattr(passes, "measure_together", measure_together)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_csv(rows: list[Row], path: Path) -> Path:
    return output.write_csv([report.as_record(row) for row in rows], path)


def assert_first_setting_only(path: Path) -> None:
    rows = read(path)
    assert len(rows) == 2 * 2  # candidates, passes
    assert {(r["height"], r["width"], r["shared_kv"], r["status"]) for r in rows} == {("5", "6", "True", "ok")}
    assert all(float(r["median_ms"]) > 0 for r in rows)


def test_an_interruption_keeps_what_was_measured(tmp_path, monkeypatch, capsys):
    stop_in_second_setting(monkeypatch, KeyboardInterrupt())
    assert cli.main([*COMMAND, str(tmp_path)]) == 130
    assert_first_setting_only(tmp_path / "operator.csv")
    shown = capsys.readouterr().out
    assert "interrupted: 1 of 4 settings measured" in shown
    assert "5 x 6 (N = 30), value is key: backward" in shown and "8 x 9" not in shown
    written = {"operator.csv", "operator-shared-kv.png", "operator-shared-kv.svg"}
    assert {path.name for path in tmp_path.iterdir()} == written


def test_an_interruption_before_the_first_result_leaves_the_files_alone(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    (tmp_path / "operator.csv").write_text("of last week")
    monkeypatch.setattr(passes, "measure_together", interrupt)
    assert cli.main([*COMMAND, str(tmp_path)]) == 130
    assert "interrupted: 0 of 4 settings measured, nothing written" in capsys.readouterr().out
    assert (tmp_path / "operator.csv").read_text() == "of last week"


def test_a_crash_keeps_what_was_measured(tmp_path, monkeypatch):
    stop_in_second_setting(monkeypatch, RuntimeError("the driver is gone"))
    with pytest.raises(RuntimeError, match="the driver is gone"):
        cli.main([*COMMAND, str(tmp_path)])
    assert_first_setting_only(tmp_path / "operator.csv")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to be killed by")
def test_a_kill_keeps_what_was_measured(tmp_path):
    script = f"""
import os, signal
from repgraph import cli
from repgraph.bench import passes

calls, original = [], passes.measure_together

def measure_together(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    original(*arguments)

passes.measure_together = measure_together
cli.main({[*COMMAND, str(tmp_path)]!r})
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert found.returncode == -signal.SIGTERM, found.stderr
    assert_first_setting_only(tmp_path / "operator.csv")


def test_a_csv_is_replaced_as_a_whole(tmp_path, monkeypatch):
    path = tmp_path / "operator.csv"
    setting = Setting(5, 6)
    write_csv([row(setting=setting)], path)
    before = path.read_bytes()

    def half(writer, records):
        writer.writerow(next(iter(records)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(csv.DictWriter, "writerows", half)
        with pytest.raises(KeyboardInterrupt):
            write_csv([row(setting=setting)] * 2, path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    write_csv([row(setting=setting)] * 2, path)
    assert len(read(path)) == 2 and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which even root cannot write")
def test_a_folder_without_write_permission_is_refused_before_measuring(monkeypatch, capsys):
    stop_in_second_setting(monkeypatch, AssertionError())
    assert cli.main([*COMMAND, "/proc/self"]) == 2
    assert "cannot write to --out /proc/self" in capsys.readouterr().err


def shown(rows: list[Row], width: int, monkeypatch) -> str:
    monkeypatch.setattr(output, "device_name", lambda device: "NVIDIA H200")
    file = io.StringIO()
    output.show(report.tables(rows), Console(width=width, file=file))
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("graphs", [True, False])
def test_tables_show_every_number_in_full(width, graphs, monkeypatch):
    numbers = iter(range(12345, 99999, 321))
    rows, wanted = [], []
    for name in NAMED:
        for pass_ in PASSES:
            median, graph, composition, sdpa, mib = (next(numbers) for _ in range(5))
            rows.append(row(name, pass_, median=median, graph=graph if graphs else None, memory=mib * 2**20))
            rows[-1].versus_composition, rows[-1].versus_sdpa = float(composition), sdpa / 1e6
            found = [name, f"{median}", f"{graph}", f"{composition}", f"{sdpa / 1e6:.4f}", f"{mib}.0"]
            wanted.append(" ".join(found if graphs else found[:2] + found[3:]))
    text = shown(rows, width, monkeypatch)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert [line for line in lines if line.split(" ")[0] in NAMED] == wanted[::2] + wanted[1::2]
    assert lines.count(f"candidate ms {'graph ms ' if graphs else ''}x comp. x SDPA extra MiB") == 2
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    for pass_ in PASSES:
        assert f"1024 x 2048 (N = 2097152), value is not key: {pass_}" in lines
    assert " ".join(lines).count(report.conditions(rows[0])) == 1


@pytest.mark.parametrize(("status", "cell"), [(NO_MEMORY, "no memory"), (TOO_SLOW, "too slow"), ("failed", "failed")])
def test_a_failed_backward_is_in_its_table(status, cell, monkeypatch):
    rows = [
        row("composition-compiled", graph=12345.0),
        row("composition-compiled", "backward", median=None, status=status, reason="because"),
        row("cpu", median=None, status="cannot run", reason="no"),
        row("cpu", "backward", median=None, status="cannot run", reason="no"),
    ]
    text = shown(rows, 80, monkeypatch)
    assert [line.split() for line in text.splitlines() if "composition-compiled" in line][1] == [
        "composition-compiled",
        *cell.split(),
    ]
    assert "cpu" not in text and max(map(len, text.splitlines())) <= 80


def test_ratios_are_of_graphs_where_both_have_one():
    rows = [
        row("triton", median=2.0, graph=0.5),
        row("composition", median=8.0, graph=5.0),
        row("composition-compiled", median=4.0),
        row("sdpa-math", family="non-local", median=100.0),  # the slow one could not be captured
        row("sdpa-flash", family="non-local", median=20.0, graph=18.0),
        row("sdpa-cudnn", family="non-local", median=21.0, graph=15.0),
    ]
    benchmark.compare(rows)
    found = {
        r.candidate: (r.versus_composition, r.versus_composition_basis, r.versus_sdpa, r.versus_sdpa_basis)
        for r in rows
    }
    assert found == {
        "triton": (10.0, "graph", 30.0, "graph"),
        "composition": (1.0, "graph", 3.0, "graph"),
        "composition-compiled": (2.0, "events", 5.0, "events"),
        "sdpa-math": (8 / 100, "events", 20 / 100, "events"),
        "sdpa-flash": (5 / 18, "graph", 15 / 18, "graph"),
        "sdpa-cudnn": (5 / 15, "graph", 1.0, "graph"),
    }


def test_ratios_are_of_events_where_the_yardstick_has_no_graph():
    rows = [
        row("triton", median=2.0, graph=0.5),
        row("composition", median=8.0),
        row("sdpa-flash", family="non-local", median=20.0),
        row("sdpa-math", family="non-local", median=100.0, graph=99.0),
    ]
    benchmark.compare(rows)
    assert (rows[0].versus_composition, rows[0].versus_composition_basis) == (4.0, "events")
    assert (rows[0].versus_sdpa, rows[0].versus_sdpa_basis) == (10.0, "events")
    alone = row("triton", graph=0.5)
    benchmark.compare([alone])
    assert (alone.versus_composition, alone.versus_composition_basis) == (None, "")


def test_the_basis_of_ratios_is_in_csv_and_notes(tmp_path):
    rows = [row("triton", setting=Setting(5, 6)), row("composition", setting=Setting(5, 6))]
    benchmark.compare(rows)
    found = read(write_csv(rows, tmp_path / "operator.csv"))
    assert {r["versus_composition_basis"] for r in found} == {"wall"}
    assert {r["versus_best_sdpa_basis"] for r in found} == {""}
    assert any("ratio of wall-clock medians" in note for note in report.notes(rows))
    notes = report.notes([replace(r, setting=CUDA) for r in rows])
    assert any("CUDA graph medians (GPU time alone) where both have one, else of event" in note for note in notes)


def test_progress_says_what_is_compiled_and_fits(monkeypatch):
    slow = replace(NAMED["composition-compiled"], build=NAMED["composition"].build)
    said = []
    options = Options(sizes=((6, 7), (7, 8)), channels=8, nodes=3, repeat=2, shared_kv=(False,))
    run(options, [NAMED["reference"], slow], progress=lambda text, done, total: said.append((text, done, total)))
    texts = [text.removesuffix(", separate kv") for text, _, _ in said]
    assert texts[:2] == ["checking reference for 13x18", "compiling and checking composition for 13x18"]
    assert texts.count("compiling composition for 6x7") == texts.count("compiling composition for 7x8") == 2
    assert "backward in turns for 7x8" in texts and {total for _, _, total in said} == {2}

    # By graphs too; here without a GPU to capture on.
    monkeypatch.setattr(measure, "graph_times", lambda make, estimate, budget: make() and times(1.0))
    said.clear()
    setting = Setting(256, 512, channels=1, nodes=1)
    entry = benchmark.Contestant(slow, setting, lambda: make_inputs(setting))
    entry.rows = {"backward": row(pass_="backward", setting=setting)}
    passes.measure_graphs(entry, CPU, measure.Budget(repeat=1), 1.0, said.append)
    assert said == [
        "compiling composition for 256x512, separate kv",
        "graph of composition-compiled for 256x512, separate kv",
    ]
    assert entry.rows["backward"].graph

    longest = max((f"{p} composition-compiled for 256x512, separate kv" for p in PASSES), key=len)
    file = io.StringIO()
    monkeypatch.setattr(output, "Console", lambda stderr: Console(file=file, width=80, force_terminal=True))
    with output.progress() as move:
        move(longest, 10, 10)
    assert longest in file.getvalue() and "10/10" in file.getvalue()


@pytest.mark.parametrize("memory", [0, None])
def test_a_panel_without_points_says_so(memory, tmp_path):
    small, large = Setting(1, 1), Setting(6, 7)
    rows = [row("cpu", p, s, memory=memory) for p in PASSES for s in (small, large)]
    assert len(plot.write(rows, tmp_path)) == 2
    axes = plot.figure(rows).axes
    assert [[text.get_text() for text in axis.texts] for axis in axes] == [[], [], *[["nothing measurable"]] * 2]
    assert [axis.get_yscale() for axis in axes[:2]] == ["log", "log"]


def test_a_backward_without_points_leaves_the_ticks_of_the_others(tmp_path):
    rows = [row("cpu", "forward", Setting(n, n), memory=2**20) for n in (5, 9)]
    rows += [row("cpu", "backward", Setting(5, 5), memory=2**20)]
    for found in (rows, rows[:2]):
        chart = plot.figure(found)
        chart.savefig(tmp_path / "chart.png")
        assert all(list(axis.get_xticks()) == [25, 81] for axis in chart.axes)
    assert [len(axis.texts) for axis in chart.axes] == [0, 1, 0, 1]


def test_tiny_maps_are_plotted(tmp_path):
    arguments = "--device cpu --repeat 1 --size 1x1 --channels 1 --only reference"
    assert cli.main(["bench", "operator", *arguments.split(), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "operator-shared-kv.svg").exists()
    system = f"{platform.system()} {platform.machine()}"
    assert {r["platform"] for r in read(tmp_path / "operator.csv")} == {system}
