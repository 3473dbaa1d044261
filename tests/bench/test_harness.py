"""The harness: rejected and failing candidates, measurements, and output."""

import io
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.bench.squares import SquareTable, read, square

from repgraph.bench import gate, measure, report, run
from repgraph.bench.measure import Times
from repgraph.bench.table import Candidate, Row, Setting
from repgraph.errors import UsageError

TABLE = SquareTable()
SIZES = [Setting(height=n, width=n) for n in (4, 5, 6)]
FAST = 1e-9  # seconds: as few calls as possible
CUDA = Setting(height=128, width=256, device=torch.device("cuda"))


def measured(*candidates: Candidate, limit: float = 30.0) -> dict[tuple[str, str, str], Row]:
    rows = run(TABLE, SIZES, candidates, seconds=FAST, limit=limit)
    return {(row.candidate.name, row.setting.size, row.pass_): row for row in rows}


def failing(error: Exception, size: int = 5, backward: bool = False) -> Candidate:
    """Return a candidate that fails at a size, in the forward or in the backward pass."""

    def fail(*_):
        raise error

    def function(x):
        y = x * x
        if x.shape[0] == size and not backward:
            fail()
        if x.shape[0] == size and y.requires_grad:
            y.register_hook(fail)
        return y

    return Candidate("failing", lambda setting: function)


def test_wrong_candidates_are_not_measured():
    rows = run(TABLE, SIZES[:1], seconds=FAST)
    assert [row.status for row in rows[::2]] == ["ok", "ok", "wrong", "wrong", "wrong", "cannot run"]
    reasons = {row.candidate.name: row.reason for row in rows}
    assert "the result differs from float64 by" in reasons["cube"] and "nan" in reasons["nan"]
    assert "the gradient of x differs from float64 by 5.0e-05" in reasons["wrong-gradient"]
    assert reasons["absent"] == "it is not installed"
    for row in rows:
        assert (row.times is not None) == (row.status == "ok")
        assert row.times is None or row.times.count == 5


def test_tolerances_come_from_the_plain_version():
    exact = {"result": torch.ones(100, dtype=torch.float64), "gradient of x": torch.ones(100, dtype=torch.float64)}
    found = {name: value * (1 + 1e-6) for name, value in exact.items()}
    precision = gate.PRECISIONS["float32"]
    plain = {name: value * (1 + 4e-7) for name, value in exact.items()}
    assert gate.mistake(precision, found, plain, exact) is None
    assert "the result differs from float64 by 1.0e-06" in gate.mistake(precision, found, exact, exact)
    wrong = {name: value * 1.5 for name, value in exact.items()}  # in both: the limit counts
    assert "tolerance 1.0e-05" in gate.mistake(precision, wrong, wrong, exact)
    zero = {"gradient of y": torch.zeros(100, dtype=torch.float64)}  # in theory; in practice rounding errors
    noise = {"gradient of y": torch.full((100,), 1e-8)}
    assert gate.mistake(precision, found | noise, plain | noise, exact | zero) is None


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB. GPU 0 has a total"), "out of memory", "Tried 2 GiB."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 GB"), "out of memory", "9 GB"),
        (RuntimeError("no such kernel\nand a long tail"), "failed", "no such kernel"),
    ],
)
@pytest.mark.parametrize("backward", [False, True])
def test_failures_do_not_stop_other_candidates(error, status, reason, backward):
    rows = measured(failing(error, backward=backward), TABLE.candidates[0])
    assert all(row.status == "ok" for (name, _, _), row in rows.items() if name == "plain")
    assert rows["failing", "4x4", "backward"].status == "ok"
    assert rows["failing", "5x5", "forward"].status == ("ok" if backward else status)
    failed = rows["failing", "5x5", "backward"]
    assert (failed.status, failed.times) == (status, None) and failed.reason.endswith(reason)
    larger = rows["failing", "6x6", "backward"]
    if status == "out of memory":  # larger sizes are not tried
        assert (larger.status, larger.reason) == (status, "at 5x5 already")
    else:
        assert larger.status == "ok"
    in_the_gate = measured(failing(error, size=3, backward=backward)).values()
    assert {row.status for row in in_the_gate} == {status} and all(row.reason.endswith(reason) for row in in_the_gate)


def test_time_limit():
    rows = measured(TABLE.candidates[0], limit=1e-9)
    assert {row.status for row in rows.values()} == {"over the time limit"}
    assert rows["plain", "5x5", "forward"].reason == "at 4x4 already"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_limited():
    """The allocation alone would succeed; the system would kill the process when it writes to the memory."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def large(x):
        scratch = torch.empty(int(0.9 * whole) if x.shape[0] == 5 else 1, dtype=torch.uint8)
        return x * x if len(scratch) else x

    rows = measured(Candidate("large", lambda setting: large))
    assert rows["large", "4x4", "forward"].status == "ok"
    assert rows["large", "5x5", "forward"].status == rows["large", "6x6", "forward"].status == "out of memory"


def test_calls_take_turns():
    order: list[str] = []
    times = measure.cpu_times([partial(order.append, name) for name in "ab"], 3)
    assert order == ["a", "b"] * 3 and [t.count for t in times] == [3, 3]


def test_memory_is_measured_beyond_the_result():
    def call():
        scratch = torch.ones(64 * 2**20, dtype=torch.uint8)
        return scratch[: 32 * 2**20].clone()

    extra, whole = (measure.peak_memory(call, torch.device("cpu"), counts) for counts in (False, True))
    if extra is None:
        pytest.skip("the peak of the resident set is unknown on this system")
    assert 60 * 2**20 < extra < 70 * 2**20 and 92 * 2**20 < whole < 102 * 2**20


def row(name: str, median: float | None, graph: float | None = None, memory: int | None = None, **more) -> Row:
    times, graphs = (Times(value, value, value, value, 5) if value else None for value in (median, graph))
    return Row(Candidate(name, square), CUDA, "forward", times=times, graph=graphs, memory=memory, **more)


def test_graph_times_are_compared_if_both_have_them():
    def compare(*rows):
        return [report.speed_up(row, rows, ["plain", "plain-slow"]) for row in rows]

    graphs = compare(row("fast", 2.0, 0.5), row("plain", 8.0, 5.0), row("plain-slow", 9.0), row("none", 4.0))
    assert graphs[0] == 10.0 and graphs[1] == 1.0 and graphs[3] == 2.0
    events = compare(row("fast", 2.0, 0.5), row("plain", 8.0), row("plain-slow", 9.0, 8.0))
    assert events[0] == 4.0
    assert compare(row("fast", 2.0), row("plain", None)) == [None, None]


def bench(out: Path, *candidates: Candidate) -> int:
    return report.benchmark(TABLE, SIZES, candidates or TABLE.candidates, out, seconds=FAST, limit=30.0)


def test_results_are_written_and_shown(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    assert bench(folder) == 0
    rows = read(folder / "squares.csv")
    assert len(rows) == 6 * 3 * 2
    for found in rows:
        assert found["torch"] == torch.__version__ and found["device_name"] and found["python"] and found["repgraph"]
        if found["status"] == "ok":
            assert 0 < float(found["min_ms"]) <= float(found["median_ms"]) and found["count"] == "5"
            assert found["seconds"] == "1e-09" and found["limit"] == "30.0"
    shown = capsys.readouterr().out
    assert "5 x 5 (N = 25), float32: backward" in shown and "cube: wrong: backward: the result differs" in shown
    assert "absent: cannot run: it is not installed" in shown


def test_an_interruption_keeps_finished_settings(tmp_path, capsys):
    interrupting = failing(KeyboardInterrupt(), size=6)  # type: ignore[arg-type]
    assert bench(tmp_path, TABLE.candidates[0], interrupting) == 130
    assert {found["height"] for found in read(tmp_path / "squares.csv")} == {"4", "5"}
    shown = capsys.readouterr().out
    assert "interrupted: 2 of 3 settings measured" in shown and "5 x 5" in shown and "6 x 6" not in shown
    (tmp_path / "squares.csv").write_text("older results")
    assert bench(tmp_path, failing(KeyboardInterrupt(), size=4)) == 130  # type: ignore[arg-type]
    assert (tmp_path / "squares.csv").read_text() == "older results"


def test_nothing_measured(tmp_path):
    assert bench(tmp_path, TABLE.candidates[2]) == 1
    assert {found["status"] for found in read(tmp_path / "squares.csv")} == {"wrong"}
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        bench(tmp_path / "file", Candidate("never", lambda setting: pytest.fail("measured")))


def test_tables_show_all_numbers(monkeypatch):
    monkeypatch.setattr(report, "device_name", lambda device: "NVIDIA H200")
    rows = [row(f"candidate-{n}", 12345.0 + n, 23456.0 + n, 34567 * 2**20) for n in range(3)]
    rows += [row("plain", 1000.0, 1000.0, 2**20), row("large", None, status="out of memory", reason="2 GiB")]
    file = io.StringIO()
    for table in report.terminal_tables(TABLE, rows):
        Console(width=80, file=file).print(table)
    lines = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert "candidate ms graph x plain MiB" in lines and "large out of memory" in lines
    assert "candidate-2 12347 23458 0.0426 34567.0" in lines
    notes = " ".join(report.notes(rows))
    assert "large at 128x256: out of memory: 2 GiB" in notes and "NVIDIA H200" in notes
