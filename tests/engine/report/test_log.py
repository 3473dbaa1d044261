"""Runs are read as their folders have them: what is damaged is left out and said, what happened is told."""

import math
import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tests.engine.report.runs import COLUMNS, ROWS, bare, note, session

from repgraph import cli
from repgraph.engine import train
from repgraph.engine.report import Options, build, facts, log, report
from repgraph.engine.training.callbacks import Stop
from repgraph.engine.training.folder import note_end
from repgraph.errors import UsageError


def test_a_run_is_read(tmp_path):
    found = log.read(bare(tmp_path / "run"))
    assert found.problems == [] and found.reached == 40 and found.state == log.ENDED
    assert found.series["loss"] == [(10, 2.5), (20, 1.25), (30, 1), (40, 0.75)]
    assert found.series["val_miou"] == [(20, 0.25), (40, 0.2)]
    said = facts.facts(found, 1234567)
    assert said["state"] == "not finished: 40 of 40 iterations were noted"
    assert said["last test"] == "mIoU 20.00 % after 40 iterations"
    assert said["best test"] == "25.00 % after 20 iterations"
    assert said["parameters"] == "1,234,567" and said["peak memory"] == "1.07 GiB"
    assert said["speed"] == "40 images/s (median)"
    assert said["hardware"] == "CPU, 2 threads" and said["versions"] == "repgraph 0.1.0, torch 2.11.0"
    assert facts.seconds(found) == pytest.approx(10 * 8 * (3 / 40 + 1 / 50))


@pytest.mark.parametrize(
    ("text", "loss", "said"),
    [
        (f"{COLUMNS}\n{ROWS[0]}\n20,1.2", [2.5], "A line is damaged in metrics.csv and left out: 3."),
        (f"{COLUMNS}\n{ROWS[0]}\nx,,,,,,,\n20,a,,,,,,\n\x00\xff", [2.5], "Lines are damaged in metrics.csv and left"),
        (f"{COLUMNS}\n10,2,,,,,,\n10,1,,,,,,\n", [1], None),
        (f"{COLUMNS}\n10,nan,,,,,,\n20,inf,,,,,,\n", [math.nan, math.nan], None),
        (f"{COLUMNS}\n", [], "Nothing was noted"),
        ("", None, "does not begin with the names of its columns"),
        (f"{ROWS[0]}\n", None, "does not begin with the names of its columns"),
    ],
)
def test_damaged_lines_are_left_out_and_said(tmp_path, text, loss, said):
    run = bare(tmp_path / "run")
    (run / "metrics.csv").write_bytes(text.encode("latin-1"))
    found = log.read(run)
    values = [value for _, value in found.series["loss"]] if "loss" in found.series else None
    assert values == (loss if loss is None else pytest.approx(loss, nan_ok=True))
    assert (said is None) == (found.problems == []) and (said is None or said in found.problems[0])


def test_files_that_are_not_there_are_said(tmp_path):
    run = bare(tmp_path / "run")
    (run / "metrics.csv").unlink()
    (run / "versions.json").write_text("{")
    found = log.read(run)
    assert len(found.problems) == 2 and "No such file" in found.problems[0] and "versions.json" in found.problems[1]
    assert found.reached == 0 and facts.sessions(found) == []
    assert "last test" not in facts.facts(found)


@pytest.mark.parametrize("content", ['{"name": "a", "data": {"nam": 1}}', "[]", "no"])
def test_a_recipe_of_another_version_is_said(tmp_path, content):
    run = bare(tmp_path / "run")
    (run / "recipe.json").write_text(content)
    found = log.read(run)
    assert found.recipe is None and "The recipe cannot be used: " in found.problems[0]
    assert found.series["loss"] and facts.facts(found)["state"].startswith("not finished")


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="nowhere: there is no such folder"):
        log.read(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"is not the folder of a run: there is no .*recipe\.json"):
        log.read(tmp_path)


def outcomes(run):
    return [each.outcome for each in facts.sessions(log.read(run))]


def test_sessions_tell_what_happened(tmp_path):
    run = bare(tmp_path / "run", "train.iterations=100")
    newer = session(20)
    newer["versions"] = newer["versions"] | {"torch": "2.12.0"}
    note(run, session(), newer)
    first, second = outcomes(run)
    assert first == "ended early; the next session went on after iteration 20"
    assert second.startswith("ended early: the last iteration noted is 40 of 100; why is not noted")
    assert second.endswith("; torch 2.11.0 before, 2.12.0 then")
    note(run, session(ended={"reason": "the loss of iteration 14 is not finite"}))
    assert outcomes(run) == ["the loss of iteration 14 is not finite"]
    note(run, rows=["10,nan,,,,,,"])
    assert "the loss was not finite at iteration 10" in outcomes(run)[0]
    note(run, rows=["10,5.8e19,,,,,,"])
    assert "the loss had grown to 5.8e+19" in outcomes(run)[0]
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    assert outcomes(run) == ["finished"] and facts.facts(log.read(run))["state"] == "finished: 100 iterations"


def test_a_run_that_goes_on_is_known_by_its_lock(tmp_path):
    run = bare(tmp_path / "run")
    (run / "checkpoints").mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    lock = str(run / "checkpoints" / ".lock")
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert log.read(run).state == log.RUNNING and outcomes(run) == ["still training"]
        assert facts.facts(log.read(run))["state"] == "still training: 40 of 40 iterations were noted"
        process.communicate(b"\n")
    assert log.read(run).state == log.ENDED


def test_settings_of_the_named_recipe_are_known(tmp_path):
    found = log.read(bare(tmp_path / "run"))
    usual = facts.usual(found)
    assert usual["train.batch"] == "16" and facts.settings(found.settings)["train.batch"] == "8"
    (tmp_path / "run" / "recipe.json").write_text('{"name": "mine", "data": {"name": "folder"}}')
    assert facts.usual(log.read(tmp_path / "run")) == {}


@pytest.mark.parametrize(
    ("stop", "error", "reason"),
    [
        (None, None, "finished"),
        (Stop(15, "stopped by SIGTERM after iteration 7"), None, "stopped by SIGTERM after iteration 7"),
        (None, RuntimeError("out of memory\nmore"), "RuntimeError: out of memory"),
        (None, KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_training_notes_how_it_ended(tmp_path, monkeypatch, stop, error, reason):
    def fit(*arguments):
        if error is not None:
            raise error
        return SimpleNamespace(stop=stop)

    run = note(bare(tmp_path / "run"), session(), session(20))
    monkeypatch.setattr(train, "_fit", fit)
    with nullcontext() if error is None else pytest.raises(type(error)):
        train._noted(None, run, SimpleNamespace(first=True), None, None, None)
    sessions = log.read(run).sessions
    assert "ended" not in sessions[0] and sessions[1]["ended"]["reason"] == reason
    assert outcomes(run)[1].startswith(reason)


def test_a_note_of_the_end_never_fails(tmp_path, monkeypatch):
    note_end(tmp_path, "finished")
    for content in ('{"sessions": [3]}', '{"sessions": []}', "[]"):
        (tmp_path / "versions.json").write_text(content)
        note_end(tmp_path, "finished")
        assert (tmp_path / "versions.json").read_text() == content


def test_numbers_that_cannot_be_drawn(tmp_path):
    folder = bare(tmp_path / "run")
    columns, *_ = (folder / "metrics.csv").read_text().splitlines()
    line = ",".join(["{}"] + ["{}"] * columns.count(","))
    values = [("10", "1e308"), ("20", "-1e-320"), ("30", "2"), ("9" * 400, "1")]
    rows = [line.format(at, *[value] * columns.count(",")) for at, value in values]
    (folder / "metrics.csv").write_text("\n".join([columns, *rows, ""]))
    found = log.read(folder)
    assert found.reached == 30 and "5" in found.problems[0]
    assert math.isnan(found.series["loss"][0][1]) and found.series["loss"][1:] == [(20, 0), (30, 2)]
    assert "<svg" in report([folder], Options(evaluate=False))


def test_a_folder_whose_name_is_not_text(tmp_path):
    folder = bare(tmp_path / os.fsdecode(b"run\xff"))
    assert cli.main(["report", str(folder), "--no-evaluate", "--out", str(tmp_path / "page.html")]) == 0
    assert "run?" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_told_first(tmp_path, monkeypatch, capsys):
    folder = bare(tmp_path / "run")
    (folder / "report.html").mkdir()
    monkeypatch.setattr(build, "report", lambda *given, **more: pytest.fail("it was made"))
    assert cli.main(["report", str(folder)]) == 2
    assert "report.html: Is a directory" in capsys.readouterr().err
