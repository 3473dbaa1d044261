"""Reading the folders of runs: facts, damaged files, and outcomes of sessions."""

import math

import pytest
from filelock import FileLock
from tests.report.run_folders import COLUMNS, ROWS, session, stopped_run, write_logs

from repgraph.report import Options, report, run_log
from repgraph.report.run_log import read_run


def test_facts(tmp_path):
    log = read_run(stopped_run(tmp_path / "run"))
    assert log.problems == [] and log.state == run_log.STOPPED and log.network is None
    assert log.series["loss"] == [(10, 2.5), (20, 1.25), (30, 1), (40, 0.75)]
    assert log.series["val_miou"] == [(20, 0.25), (40, 0.2)]
    log.parameters = 1234567
    vars(log.recipe.model)["decoder"] = "pyramid"
    facts = run_log.facts(log)
    assert facts["recipe"] == "folder-r50-rgnet" and facts["network"] == "resnet50, pyramid, context repgraph"
    assert facts["last validation"] == "mIoU 20.00 % at iteration 40"
    assert facts["best validation"] == "25.00 % at iteration 20" and facts["state"] == "stopped at iteration 40 of 40"
    assert facts["parameters"] == "1,234,567" and facts["peak memory"] == "1.07 GiB"
    assert facts["speed"] == "40 images/s (median)"
    assert facts["hardware"] == "CPU, 2 threads" and facts["versions"] == "repgraph 0.1.0, torch 2.11.0"


@pytest.mark.parametrize(
    ("text", "loss", "problem"),
    [
        (f"{COLUMNS}\n{ROWS[0]}\n20,1.2", [2.5], "damaged lines, which are skipped: 3."),
        (f"{COLUMNS}\n{ROWS[0]}\nx,,,,,,,\n20,a,,,,,,\n\x00\xff", [2.5], "damaged lines, which are skipped: 3, 4, 5."),
        (f"{COLUMNS}\n{'9' * 400},1,,,,,,\n30,2,,,,,,\n", [2], "damaged lines, which are skipped: 2."),
        (f"{COLUMNS}\n10,2,,,,,,\n10,1,,,,,,\n", [1], None),
        (
            f"{COLUMNS}\n10,nan,,,,,,\n20,inf,,,,,,\n30,1e308,,,,,,\n40,-1e-320,,,,,,",
            [math.nan, math.inf, 1e308, 0],
            None,
        ),
        (f"{COLUMNS}\n", [], "metrics.csv is empty"),
        ("", None, "has no header"),
        (f"{ROWS[0]}\n", None, "has no header"),
    ],
)
def test_damaged_metrics_are_reported(tmp_path, text, loss, problem):
    run = stopped_run(tmp_path / "run")
    (run / "metrics.csv").write_bytes(text.encode("latin-1"))
    log = read_run(run)
    values = [value for _, value in log.series["loss"]] if "loss" in log.series else None
    assert values == (loss if loss is None else pytest.approx(loss, nan_ok=True))
    assert "<svg" in report([run], Options(evaluate=False)) or not run_log.finite(log.series.get("loss", ()))
    assert (problem is None) == (log.problems == []) and (problem is None or problem in log.problems[0])


def test_missing_files_are_reported(tmp_path):
    run = stopped_run(tmp_path / "run")
    (run / "metrics.csv").unlink()
    (run / "versions.json").write_text("{")
    log = read_run(run)
    assert len(log.problems) == 2 and "No such file" in log.problems[0] and "versions.json" in log.problems[1]
    assert "at iteration 0 of" in run_log.facts(log)["state"] and run_log.describe_outcomes(log) == []
    assert "last validation" not in run_log.facts(log)
    write_logs(run, {"versions": 3, "ended": "no"})
    assert "versions.json is missing or damaged" in report([run], Options(evaluate=False))


@pytest.mark.parametrize("content", ['{"name": "a", "data": {"nam": 1}}', "[]", "no"])
def test_invalid_recipes_are_reported(tmp_path, content):
    run = stopped_run(tmp_path / "run")
    (run / "recipe.json").write_text(content)
    log = read_run(run)
    assert log.recipe is None and "The recipe is not valid: " in log.problems[0]
    assert log.series["loss"] and run_log.facts(log)["state"].startswith("stopped")


def outcomes(run):
    return run_log.describe_outcomes(read_run(run))


def test_outcomes_of_sessions(tmp_path):
    run = stopped_run(tmp_path / "run", "train.iterations=100")
    write_logs(run, session(), session(20))
    first, second = outcomes(run)
    assert first.startswith("it stopped without recording a reason") and second == first
    write_logs(run, session(ended={"at": "2026-01-02T03:06:05+00:00", "reason": "stopped by SIGTERM"}))
    assert outcomes(run) == ["stopped by SIGTERM"]
    assert run_log.facts(read_run(run))["training time"] == "2 min"
    write_logs(run)
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}")
    assert outcomes(run) == ["finished"]
    assert run_log.facts(read_run(run))["state"] == "finished after 100 iterations"


def test_running(tmp_path):
    run = stopped_run(tmp_path / "run")
    (run / "checkpoints").mkdir()
    with FileLock(run / "checkpoints" / ".lock"):
        assert read_run(run).state == run_log.RUNNING and outcomes(run) == ["running"]
        assert run_log.facts(read_run(run))["state"] == "running at iteration 40 of 40"
    assert read_run(run).state == run_log.STOPPED
