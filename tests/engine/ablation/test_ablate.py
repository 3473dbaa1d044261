"""Scheduling, failures, going on: with processes that train nothing."""

import csv
import io
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.ablation.fake import score

from repgraph.engine.ablation import Results, ablate, job, lay_out, listing, pool, show_tables
from repgraph.engine.ablation.ablate import _task, left_over
from repgraph.errors import UsageError

ALL = ["g1-0", "g1-1", "g5-0", "g5-1"]


def left(report):
    return sorted(f"{run.recipe.name.partition('-')[2]}-{run.seed}" for run in report.left)


def later(condition, act):
    """Do something when a condition holds, from another thread."""

    thread = threading.Thread(target=lambda: wait_for(condition) and act())
    thread.start()
    return thread


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def begun(plan, count):
    return lambda: len(list((plan.out / "runs").glob("*/metrics.csv"))) >= count


@pytest.mark.parametrize("jobs", [1, 3])
def test_all_runs_once(plan, again, fake, jobs):
    plan, told = again(jobs=jobs), io.StringIO()
    report = ablate(plan, told)
    assert (report.code, report.left, report.failed) == (0, [], []) and fake.started() == ALL
    found = Results(plan.out).read()
    assert {record.miou for record in found.values()} == {score(name, seed) for name in ("g1", "g5") for seed in (0, 1)}
    with (plan.out / "grid-scenes.csv").open() as file:
        rows = {row["entry"]: row for row in csv.DictReader(file)}
    assert float(rows["g5"]["miou_mean"]) == pytest.approx((score("g5", 0) + score("g5", 1)) / 2)
    assert (plan.out / "grid-scenes.md").read_text() == report.tables[0]
    assert "4 of 4 runs done" in told.getvalue() and "about" in told.getvalue()
    assert ablate(plan).code == 0 and fake.started() == []  # nothing is done twice
    assert show_tables(plan).tables == report.tables


def test_cores_are_divided_among_the_runs_there_are(plan, again, fake, monkeypatch):
    seen = []
    monkeypatch.setattr(pool, "ended", lambda tasks, jobs, *_: seen.extend([(task.jobs, jobs) for task in tasks]) or [])
    ablate(again(jobs=50))
    assert seen == [(4, 4)] * 4


def test_another_table_takes_what_it_shares(plan, again, fake):
    ablate(plan)
    fake.started()
    report = ablate(again(table="group", entries=("g1", "g4")))
    assert fake.started() == ["g4-0", "g4-1"] and report.code == 0


def test_results_alone_are_enough(plan, again, fake, tmp_path):
    report = ablate(plan)
    fake.started()
    other = again(out=tmp_path / "elsewhere")
    other.out.mkdir()
    (other.out / "results.csv").write_text((plan.out / "results.csv").read_text())
    assert show_tables(other).tables == report.tables
    assert ablate(other).tables == report.tables and fake.started() == []


def test_data_and_weights_are_for_training(plan, again, fake, tmp_path):
    """Where all is done, the file of results is enough for all files of a table."""
    whole = again(settings=("model.weights=",), weights=str(tmp_path / "r50.pth"))
    (tmp_path / "r50.pth").write_text("")
    fake.behave("g5-1", "nan")
    report = ablate(whole)
    (tmp_path / "r50.pth").unlink()
    fake.started()
    for path in report.files:
        path.unlink()
    weightless = replace(whole, weights="")
    for other in (whole, weightless):
        found = ablate(other)
        assert found.tables == report.tables and found.files == report.files and all(map(Path.exists, found.files))
    for other, message in (
        (replace(whole, seeds=(0, 1, 2)), "r50.pth: there is no such file"),
        (replace(weightless, seeds=(0, 1, 2)), "say where the backbone repgraph_small starts"),
        (replace(whole, again=True), "r50.pth: there is no such file"),
    ):
        with pytest.raises(UsageError, match=message):
            ablate(other)
    assert len(Results(plan.out).read()) == 4 and fake.started() == [], "a mistake forgets no run"


def test_no_data_set_is_asked_for(again, fake, monkeypatch):
    plan = again(dataset="voc", weights="none")
    with pytest.raises(UsageError, match="where is voc"):
        ablate(plan)
    with monkeypatch.context() as patch:
        patch.setitem(ablate.__globals__, "check_ready", lambda plan: None)  # the module has the function's name
        report = ablate(plan)
    assert ablate(plan).tables == report.tables and report.files[-1].name == "grid-voc.png"
    assert ablate(replace(plan, data="/nowhere", weights="")).tables == report.tables


def test_a_crash_is_one_runs_own(plan, fake):
    fake.behave("g5-0", "crash")
    told = io.StringIO()
    report = ablate(plan, told)
    assert report.code == 1 and fake.started() == ALL
    (failed,) = report.failed
    assert failed.reason.startswith("its process ended with exit code 7; it last said: about to crash (")
    assert "g_s = 5, seed 0, failed: its process ended with exit code 7" in report.tables[0]
    assert "g_s = 5, seed 0: failed: its process ended" in told.getvalue()
    fake.normal("g5-0")
    assert ablate(plan).code == 0 and fake.started() == ["g5-0"]  # failed runs are tried again
    assert not Results(plan.out).read()[failed.key].reason and not list((plan.out / "runs").glob("*.log"))


def test_numbers_that_are_not_finite_are_a_result(plan, again, fake):
    fake.behave("g5-0", "nan")
    report = ablate(plan)
    assert report.code == 1 and "1, 1 diverged" in report.tables[0] and report.left == []
    fake.started()
    assert ablate(plan).code == 1 and fake.started() == []
    fake.normal("g5-0")
    assert ablate(again(again=True)).code == 0 and fake.started() == ["g5-0"]


def test_killed_process(plan, fake):
    fake.behave("g5-1", "hang")

    def kill():
        (task,) = (plan.out / "runs").glob(".*.json")
        for pid in os.listdir("/proc"):
            if pid.isdecimal() and task.name.encode() in _command(pid):
                os.kill(int(pid), signal.SIGKILL)

    thread = later(lambda: begun(plan, 4)() and len(Results(plan.out).read()) == 3, kill)
    report = ablate(plan)
    thread.join()
    assert report.code == 1
    assert report.failed[0].reason == "its process was ended by SIGKILL, perhaps for lack of memory"


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("in_pool", "gone", "status"), [(False, 0, "ok"), (True, 1, "stopped"), (True, 0, "left"), (True, 2, "ok")]
)
def test_the_end_of_the_shell_is_not_ours(plan, fake, monkeypatch, in_pool, gone, status):
    """A command in the background outlives its shell; a pool that it leaves behind stops, and begins nothing more."""
    fake.behave("g1-0", "slow")
    monkeypatch.setattr(os, "getppid", lambda: -1 if begun(plan, gone)() else job.STARTER)
    task = _task(lay_out(plan, {}).runs[0], plan, plan.out / ".x.stop", None)
    assert job.job(replace(task, pid=task.pid + in_pool)).status == status
    assert not list((plan.out / "runs").glob("*.log"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_gone_on_with(plan, fake, number):
    fake.behave("g1-0", "hang")
    fake.behave("g5-0", "hang")
    told = io.StringIO()
    thread = later(begun(plan, 2), lambda: os.kill(os.getpid(), number))
    start = time.monotonic()
    report = ablate(plan, told)
    thread.join()
    assert time.monotonic() - start < 20 and report.code == 128 + number and left(report) == ALL
    assert "runs write a checkpoint and stop" in told.getvalue()
    assert left_over(report).startswith("4 runs are left (g_s = 1, seed 0, ") and "and 1 more" in left_over(report)
    assert not list(plan.out.glob(".*.stop")) and not list((plan.out / "runs").glob(".*.json"))
    for run in ("g1-0", "g5-0"):
        fake.normal(run)
    fake.started()
    assert "iteration 2" in listing(plan)
    assert ablate(plan).code == 0 and fake.started() == ALL


def test_a_second_interrupt_does_not_wait(plan, fake, monkeypatch):
    fake.behave("g1-0", "hang")
    monkeypatch.setattr(job, "_is_over", lambda task: False)  # runs that hear nothing

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    thread = later(begun(plan, 1), twice)
    with pytest.raises(KeyboardInterrupt):
        ablate(plan)
    thread.join()
    for pid in os.listdir("/proc"):  # nothing of the test stays behind
        if pid.isdecimal() and str(plan.out).encode() in _command(pid):
            os.kill(int(pid), signal.SIGKILL)


def test_found_though_nobody_heard(plan, fake):
    """A run that ended while the process that waited for it was killed: its folder has the scores."""
    fake.behave("g1-1", "unheard")
    report = ablate(plan)
    assert len(Results(plan.out).read()) == 4 and "4 of 4" not in report.tables[0]
    assert ablate(plan).code == 0 and fake.started() == ALL


def test_done_meanwhile_is_not_begun(plan, fake):
    """By another call: no process is started to find that out."""
    task = _task(lay_out(plan, {}).runs[0], plan, plan.out / ".x.stop", None)
    first = job.job(task)
    assert fake.started() == ["g1-0"] and job.job(task) == first and first.record.miou and fake.started() == []


def test_time_limit(plan, again, fake):
    """No run is begun that would not fit; one that is too slow is stopped."""
    ablate(again(seeds=(0,)))
    fake.started()
    report = ablate(again(time_limit=1.0))  # runs took 2 s
    assert (report.code, left(report)) == (0, ["g1-1", "g5-1"]) and fake.started() == []
    fake.behave("g1-1", "hang")
    start = time.monotonic()
    report = ablate(again(time_limit=3.0))
    assert report.code == 0 and left(report) == ["g1-1"] and time.monotonic() - start < 10
    assert "g5-1" in fake.started()


def test_two_at_the_same_time(plan, again, fake):
    """Each run is done once, whoever does it."""
    for run in ALL:
        fake.behave(run, "slow")
    reports = []
    other = threading.Thread(target=lambda: reports.append(ablate(plan)))
    other.start()
    wait_for(begun(plan, 2))
    report = ablate(again(seeds=(1, 0, 2)))
    other.join()
    found = Results(plan.out).read()
    assert len(found) == 6 and all(record.status == "ok" for record in found.values())
    assert fake.started() == sorted([*ALL, "g1-2", "g5-2"])
    assert reports[0].code == report.code == 0 and set(left(report)) | set(left(reports[0])) <= set(ALL)


def test_pool_of_processes(plan, fake):
    """The same through joblib's own processes, and a crash there."""
    fake.behave("g5-1", "crash")
    layout = lay_out(plan, {})
    tasks = [replace(_task(run, plan, plan.out / ".x.stop", None), command=job.COMMAND) for run in layout.runs]
    found = {one.key: one.status for one in pool.ended(tasks, 2, "loky")}
    assert [found[run.key] for run in layout.runs] == ["ok", "ok", "ok", "failed"] and fake.started() == ALL


def test_gpus_are_shared_evenly(plan, again, fake, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    for run in ALL:
        fake.behave(run, "slow")
    ablate(again(jobs=4))
    devices = [line.split()[1] for line in (fake.folder / "log").read_text().splitlines()]
    assert sorted(devices) == ["4", "4", "6", "6"]


def test_a_pool_that_breaks(plan, fake, monkeypatch):
    monkeypatch.setattr(pool, "ended", lambda *_: (_ for _ in ()).throw(RuntimeError("workers are gone")))
    with pytest.raises(UsageError, match=r"the pool of --backend threading broke \(RuntimeError: workers are gone\)"):
        ablate(plan)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(backend="dusk"), "--backend 'dusk' is not one that joblib knows; give threading, loky, dask or ray"),
        (dict(backend="ray"), "--backend ray needs it installed: pip install 'ray[default]'"),
        (dict(backend="dask"), "--backend dask needs it installed: pip install 'dask[distributed]'"),
        (dict(cluster="tcp://host:1"), "--cluster is for --backend dask and ray, not 'threading'"),
        (dict(dataset="voc"), "say where the backbone resnet50 starts: --weights FILE"),
        (dict(dataset="voc", weights="none"), "where is voc? Give its folder: --data ROOT"),
        (dict(dataset="voc", weights="none", data="/nowhere"), "/nowhere"),
        (dict(weights="/nowhere/r50.pth"), "--weights /nowhere/r50.pth: there is no such file"),
    ],
)
def test_mistakes(plan, again, fake, monkeypatch, values, message):
    for module in ("ray", "distributed"):
        monkeypatch.setitem(sys.modules, module, None)  # not installed
    with pytest.raises(UsageError) as error:
        ablate(again(**values))
    assert message in str(error.value) and fake.started() == []


def test_folder_that_cannot_be_written(again, fake, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to --out"):
        ablate(again(out=tmp_path / "file" / "results"))


def test_show_says_what_is_not_there(plan, again, fake):
    with pytest.raises(UsageError, match="there are no results in"):
        show_tables(plan)
    ablate(again(seeds=(0,)))
    with pytest.raises(UsageError, match=r"no run of grid on scenes with these settings \(2 with others\)"):
        show_tables(again(settings=("train.iterations=5",)))
    report = show_tables(plan)
    assert left(report) == ["g1-1", "g5-1"] and "1, 1 to do" in report.tables[0]


def test_show_writes_nothing(plan, again, fake):
    report = ablate(plan)
    before = {path: path.read_bytes() for path in plan.out.iterdir() if path.is_file()}
    shown = show_tables(plan)
    assert shown.tables == report.tables and shown.files == []
    show_tables(again(seeds=plan.seeds[:1]))
    with pytest.raises(UsageError, match="has no run"):
        show_tables(again(settings=("train.iterations=5",)))
    assert {path: path.read_bytes() for path in plan.out.iterdir() if path.is_file()} == before


def test_weights_of_the_results(plan, again, fake, tmp_path):
    """To show a table one need not say again what weights it is for, unless there are several."""
    for name in ("a.pth", "b.pth"):
        (tmp_path / name).write_text("")
        ablate(again(settings=("model.weights=",), weights=str(tmp_path / name)))
        if name == "a.pth":
            shown = show_tables(again(settings=("model.weights=",)))
            assert shown.left == [] and "from a.pth" in shown.tables[0]
    with pytest.raises(UsageError, match=r"different weights: --weights a.pth or b.pth\?"):
        show_tables(again(settings=("model.weights=",)))


def test_settings_of_all_entries_are_noted(plan, again, fake):
    """A line of the results says how a run differs from the recipe, whoever wanted it so."""
    ablate(again(settings=("train.iterations=5", "data.workers=1"), seeds=(7,)))
    grid = 'model.context_options={"grid": 5}; '
    assert {r.settings for r in Results(plan.out).read().values()} == {
        "train.iterations=5",
        f"{grid}train.iterations=5",
    }


def test_listing(plan, again, fake):
    ablate(again(seeds=(0,)))
    lines = listing(again(entries=())).splitlines()
    assert sum(" ok " in line for line in lines) == 2 and sum(" to do " in line for line in lines) == 8
    assert lines[-1] == "8 of 10 runs to do, about 8 s" and 'model.context_options={"grid": 5}' in lines[2]
