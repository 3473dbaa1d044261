"""The process of a run, with training that is real and very short."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from tests.engine.training import tiny

from repgraph.engine.ablation import Plan, Results, ablate, job, lay_out, worker
from repgraph.engine.ablation.ablate import _task
from repgraph.engine.ablation.locks import take
from repgraph.engine.metrics import Scores
from repgraph.errors import UsageError

SHORT = (
    "train.iterations=4",
    "train.period=2",
    "train.log_every=1",
    "train.batch=2",
    "data.limit=4",
    "data.val_limit=2",
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def task(out, *settings, entry="g5", keep=False):
    """One run as its process is given it."""
    plan = Plan("grid", "scenes", seeds=(3,), out=out, settings=(*SHORT, *settings), entries=(entry,), keep=keep)
    run = lay_out(plan, {}).runs[-1]
    found = _task(run, plan, out / ".x.stop", None)
    folder = found.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    more = {"claim": str(out / "claim"), "result": str(out / "result"), "folder": str(folder), "started": time.time()}
    return folder, {"about": found.about, "recipe": found.recipe, "keep": keep, **more}


def sessions(folder):
    found = json.loads((folder / "versions.json").read_text())["sessions"]
    return [session["from_iteration"] for session in found]


def test_from_beginning_to_end(tmp_path):
    """Two entries of a table on the scenes, in processes of their own, by the command's function; then from there."""
    plan = Plan("grid", "scenes", seeds=(0,), out=tmp_path, settings=SHORT, entries=("g5",), jobs=2)
    report = ablate(plan)
    assert (report.code, report.left) == (0, []), report.tables
    records = Results(tmp_path).read()
    assert len(records) == 2 and all(0 < record.miou < 1 and record.seconds > 0 for record in records.values())
    for key, record in records.items():
        left = {path.name for path in (tmp_path / "runs" / key).iterdir()}
        assert {"recipe.json", "metrics.csv", "scores.json", "versions.json"} <= left
        assert not left & {"checkpoints", "model"} and record.iterations == 4
        (row,) = [row for row in tiny.rows(tmp_path / "runs" / key) if row["val_miou"]]
        assert float(row["val_miou"]) == pytest.approx(record.miou, rel=1e-4) and row["iteration"] == "4"
    assert not [path for path in (tmp_path / "runs").iterdir() if path.suffix in (".log", ".json", ".result")]


def test_stopped_goes_on(tmp_path, monkeypatch):
    folder, given = task(tmp_path, keep=True)
    with monkeypatch.context() as patch:
        tiny.at_iteration(patch, 2, lambda module: os.kill(os.getpid(), signal.SIGTERM))
        assert worker.work(given) == ("stopped", "stopped by SIGTERM after iteration 3")
    assert job.progress(folder) == 3 and not (folder / "scores.json").exists()
    given["started"] = time.time()
    status, record = worker.work(given)
    assert status == "ok" == record.status and sessions(folder) == [0, 3] and record.iterations == 4
    assert (folder / "model").is_dir() and (folder / "checkpoints").is_dir()  # keep
    whole = worker.work(task(tmp_path / "whole")[1])[1]
    assert record.miou == whole.miou  # as if nothing had happened
    assert worker.work(given)[1] == record and sessions(folder) == [0, 3]  # done is done


def test_killed_after_the_last_iteration(tmp_path, monkeypatch):
    """The scores are in the metrics, if nowhere else."""
    folder, given = task(tmp_path)
    monkeypatch.setattr(worker, "write_text", lambda *_: (_ for _ in ()).throw(SystemExit))
    with pytest.raises(SystemExit):
        worker.work(given)
    monkeypatch.undo()
    status, record = worker.work(given)
    assert status == "ok" and record.miou == pytest.approx(float(tiny.rows(folder)[-1]["val_miou"]))


def test_not_finite(tmp_path, monkeypatch):
    _, given = task(tmp_path, "optim.lr=1e30", "train.log_every=2")
    status, record = worker.work(given)
    assert status == "diverged" == record.status and "not finite" in record.reason and record.miou is None
    monkeypatch.setattr(worker, "train", lambda *_: 1 / 0)
    assert worker.work(given) == (status, record)  # it is a result, also for another process that waited
    assert Results(tmp_path).collect() == {record.key: record}  # though nobody heard of it


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UsageError("out of memory with train.batch=2"), "out of memory with train.batch=2"),
        (RuntimeError("it broke\nlong story"), "RuntimeError: it broke"),
        (KeyError(), "KeyError"),
    ],
)
def test_errors_are_told(tmp_path, monkeypatch, error, reason, capsys):
    def fail(*_):
        raise error

    monkeypatch.setattr(worker, "train", fail)
    status, record = worker.work(task(tmp_path)[1])
    assert (status, record.reason) == ("failed", reason) and "Traceback" in capsys.readouterr().err


def test_no_test(tmp_path):
    """A run without scores is none."""
    _, given = task(tmp_path)
    given["recipe"]["data"]["val_split"] = ""
    status, record = worker.work(given)
    assert status == "failed" and record.reason.startswith("the run ended without a test")


def test_a_test_without_labels(tmp_path, monkeypatch):
    """Scores that are no numbers would spoil the file of results."""
    nothing = Scores(math.nan, math.nan, math.nan, (math.nan,), (math.nan,), 0)
    outcome = SimpleNamespace(first=True, stop=None, scores=nothing, iteration=4)
    monkeypatch.setattr(worker, "train", lambda *_: outcome)
    folder, given = task(tmp_path)
    status, record = worker.work(given)
    assert (status, record.reason) == ("failed", "the test has no scores: no pixel of its images is labelled")
    assert record.miou is None and not (folder / "scores.json").exists()
    assert Results(tmp_path).add([record]) == Results(tmp_path).read() == {record.key: record}


def test_half_a_folder_is_begun_anew(tmp_path, monkeypatch):
    folder, given = task(tmp_path)
    (folder / "checkpoints").mkdir(parents=True)
    seen = []
    monkeypatch.setattr("repgraph.engine.train.train", lambda recipe, out, show: seen.append(out.exists()) or 1 / 0)
    assert worker.work(given)[0] == "failed" and seen == [False]


def test_without_a_checkpoint_begun_anew(tmp_path, monkeypatch):
    """The recipe of the first attempt may name weights that are elsewhere now."""
    folder, given = task(tmp_path)
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps({**given["recipe"], "model": {"weights": "/gone/r50.pth"}}))
    seen = []
    monkeypatch.setattr("repgraph.engine.train.train", lambda recipe, *_, **__: seen.append(recipe) or 1 / 0)
    assert worker.work(given)[0] == "failed" and [recipe.model.weights for recipe in seen] == ["none"]


def test_another_process_is_at_it(tmp_path, monkeypatch):
    _, given = task(tmp_path)
    monkeypatch.setattr(worker, "PATIENCE", 0.0)
    claim = take(tmp_path / "claim")
    assert worker.work(given) == ("busy", "another process is training it")
    claim.close()


def test_another_process_is_about_to_end(tmp_path, monkeypatch):
    """As after a stop: it is waited for."""
    _, given = task(tmp_path)
    claim = take(tmp_path / "claim")
    monkeypatch.setattr("time.sleep", lambda seconds: claim.close())
    monkeypatch.setattr(worker, "train", lambda *_: 1 / 0)
    assert worker.work(given)[0] == "failed"


def test_ends_with_the_process_that_started_it(tmp_path):
    """It has a checkpoint then, and goes on from it."""
    folder, given = task(tmp_path, "train.iterations=100000", "data.workers=1")
    (tmp_path / "task.json").write_text(json.dumps(given))
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [*job.COMMAND, str(tmp_path / "task.json")],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
    )
    for _ in range(600):
        if job.progress(folder) or process.poll() is not None:
            break
        time.sleep(0.1)
    process.stdin.close()
    assert process.wait(60) == 0
    assert json.loads((tmp_path / "result").read_text())["status"] == "stopped"
    assert (folder / "checkpoints" / "last.ckpt").exists()
