"""What is shown while runs go on."""

import io
from pathlib import Path

import pytest
from tests.engine.ablation.test_results import record

from repgraph.engine.ablation import lay_out
from repgraph.engine.ablation.ablate import _task
from repgraph.engine.ablation.board import Board
from repgraph.engine.ablation.job import LEFT, Ended


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def parts(plan):
    runs = lay_out(plan, {}).runs
    tasks = [_task(run, plan, Path(".x.stop"), None) for run in runs[1:]]
    return runs, tasks, {runs[0].key: record(runs[0].key, miou=0.625)}


def begin(task, iteration):
    task.folder.mkdir(parents=True)
    task.file.write_text("{}")
    (task.folder / "metrics.csv").write_text(f"iteration,loss\n{iteration},1\n")


def test_states(parts):
    runs, tasks, records = parts
    out = io.StringIO()
    board = Board(runs, tasks, records, None, 2, out)
    assert list(board.states.values()) == ["62.50", "waiting", "waiting", "waiting"]
    begin(tasks[0], 300)
    board.look()
    assert board.states[tasks[0].key] == "running, 50 %" and board.note() == "0 of 3 runs done"
    board.end(Ended(tasks[0].key, "ok", "", record(tasks[0].key, miou=0.5, seconds=60.0)))
    board.end(Ended(tasks[1].key, "failed", "memory", record(tasks[1].key, status="failed")))
    assert board.note() == "2 of 3 runs done, about 60 s left"
    board.end(Ended(tasks[2].key, LEFT))
    assert list(board.states.values()) == ["62.50", "50.00", "failed", "left"] and board.note() == "3 of 3 runs done"
    lines = out.getvalue().splitlines()
    assert lines[0] == "g_s = 5, seed 0: begins, from iteration 300 or a little before"
    assert lines[1].startswith("g_s = 5, seed 0: mIoU 50.00 in 0 s; 1 of 3 runs done, about")
    assert lines[2:] == ["g_s = 1, seed 1: failed: memory", "g_s = 5, seed 1: left for later"]


def test_usual_time(parts):
    runs, tasks, records = parts
    assert Board(runs, tasks, records, 600.0, 2, None).note() == "0 of 3 runs done, about 15 min left"


def test_in_a_terminal(parts):
    runs, tasks, records = parts
    out = Terminal()
    with Board(runs, tasks, records, None, 2, out) as board:
        begin(tasks[0], 300)
        board.look()
        board.end(Ended(tasks[1].key, "failed", "memory", record(tasks[1].key, status="failed")))
        board.say("a line that stays")
    shown = out.getvalue()
    for part in ("seed 0", "seed 1", "62.50", "running, 50 %", "failed: memory", "a line that stays", "1 of 3 runs"):
        assert part in shown


def test_quiet(parts, capsys):
    runs, tasks, records = parts
    with Board(runs, tasks, records, None, 2, None) as board:
        board.end(Ended(tasks[1].key, "failed", "memory"))
        board.say("nothing")
    assert capsys.readouterr() == ("", "")
