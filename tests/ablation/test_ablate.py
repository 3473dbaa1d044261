"""Scheduling, failures, interruptions and figures, with fake training processes."""

import io
import os
import signal
import threading
import time

import pytest
from filelock import FileLock
from PIL import Image
from tests.ablation.fake import score

from repgraph.ablation import Results, ablate, lay_out, listing, show_tables
from repgraph.errors import UsageError

ALL = ["g1-0", "g1-1", "g5-0", "g5-1"]


def left(report):
    return sorted(f"{run.recipe.name.partition('-')[2]}-{run.seed}" for run in report.left)


def after(condition, act):
    """Call a function from another thread once a condition holds."""

    def wait():
        while not condition():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def begun(plan, count):
    return lambda: len(list((plan.out / "runs").glob("*/metrics.csv"))) >= count


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_run_is_done_once(plan, again, fake, jobs):
    plan, shown = again(jobs=jobs), io.StringIO()
    report = ablate(plan, shown)
    assert (report.code, report.left, report.failed) == (0, [], [])
    assert fake.started() == ALL
    records = Results(plan.out).read().values()
    assert {record.miou for record in records} == {score(name, seed) for name in ("g1", "g5") for seed in (0, 1)}
    assert {(record.seconds, record.torch, record.iterations) for record in records} == {(2.0, "0", 600)}
    assert (plan.out / "grid-scenes.md").read_text() == report.tables[0]
    assert "g_s = 5, seed 1: started" in shown.getvalue()
    assert "4 of 4 runs done" in shown.getvalue()
    assert not [*(plan.out / "runs").glob("*/model"), *(plan.out / "runs").glob("*.log")]
    assert ablate(plan).code == 0
    assert fake.started() == []
    ablate(again(table="group", entries=("g1", "g4")))  # another table shares runs
    assert fake.started() == ["g4-0", "g4-1"]


def test_failures_do_not_stop_other_runs(plan, fake):
    for run, behaviour in (("g1-0", "crash"), ("g1-1", "unscored"), ("g5-0", "killed")):
        fake.set(run, behaviour)
    shown = io.StringIO()
    report = ablate(plan, shown)
    assert report.code == 1
    assert fake.started() == ALL
    log = plan.out / "runs" / f"{report.failed[0].key}.log"
    reasons = {record.reason.split(" (/")[0] for record in report.failed}
    assert reasons == {
        "exit code 7: about to crash",
        "it finished without scores: no output",
        "killed by SIGKILL (out of memory?): no output",
    }
    assert "g_s = 1, seed 0, failed: exit code 7: about to crash" in report.tables[0]
    assert "g_s = 1, seed 0: failed: exit code 7" in shown.getvalue()
    assert "about to crash" in log.read_text()
    for run in ALL:
        fake.set(run, "")
    assert ablate(plan).code == 0
    assert fake.started() == ["g1-0", "g1-1", "g5-0"]
    assert not log.exists()


def test_diverged_runs_are_not_repeated(plan, fake):
    fake.set("g5-0", "nan")
    report = ablate(plan)
    assert (report.code, report.left, report.failed[0].reason) == (1, [], "the loss is not finite")
    assert "1, 1 diverged" in report.tables[0]
    fake.started()
    assert ablate(plan).code == 1
    assert fake.started() == []


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_stopped_and_resumed(again, fake, number, jobs):
    plan, shown = again(jobs=jobs), io.StringIO()
    for run in ALL:
        fake.set(run, "hang")
    thread = after(begun(plan, jobs), lambda: os.kill(os.getpid(), number))
    report = ablate(plan, shown)
    thread.join()
    assert (report.code, left(report)) == (128 + number, ALL)
    assert "waiting for runs to write a checkpoint" in shown.getvalue()
    assert not list(plan.out.glob(".stop*"))
    for run in ALL:
        fake.set(run, "")
    assert len(fake.started()) == jobs
    assert listing(plan).count("iteration 2") == jobs
    assert ablate(plan).code == 0
    assert sum("resumed" in run for run in fake.started()) == jobs


def test_after_a_kill(plan, fake):
    """One run had not written a checkpoint; others had finished, but are not in results.csv."""
    run = lay_out(plan, {}).runs[0]
    (plan.out / "runs" / run.key).mkdir(parents=True)
    (plan.out / "runs" / run.key / "recipe.json").write_text("{half")
    report = ablate(plan)
    assert fake.started() == ALL
    text = (plan.out / "results.csv").read_text()
    (plan.out / "results.csv").write_text("".join(text.splitlines(keepends=True)[:3]))
    assert ablate(plan).tables == report.tables
    assert fake.started() == []


def test_two_commands_do_not_repeat_a_run(plan, fake):
    shown = io.StringIO()
    run = lay_out(plan, {}).runs[0]
    (plan.out / "runs").mkdir(parents=True)
    with FileLock(plan.out / "runs" / f".{run.key}.lock"):
        report = ablate(plan, shown)
    assert left(report) == ["g1-0"]
    assert "g_s = 1, seed 0: skipped, another process is training it" in shown.getvalue()
    assert fake.started() == ALL[1:]


def test_gpus_are_shared_evenly(again, fake, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    for run in ALL:
        fake.set(run, "slow")
    ablate(again(jobs=4))
    assert sorted(line.split()[-1] for line in (fake.folder / "log").read_text().splitlines()) == ["4", "4", "6", "6"]


def test_processes_of_joblib(again, fake):
    fake.set("g5-1", "crash")
    report = ablate(again(backend="loky"))
    assert [record.status for record in report.failed] == ["failed"]
    assert fake.started() == ALL


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(backend="dusk"), "--backend dusk failed (ValueError: Invalid backend"),
        (dict(cluster="tcp://host:1"), "--backend dask and --cluster ADDRESS belong together"),
        (dict(dataset="voc", weights="none", data="/nowhere"), "/nowhere"),
        (dict(settings=("model.weights=",)), "the backbone repgraph_small needs initial weights"),
        (dict(weights="/nowhere/r50.pth"), "cannot read /nowhere/r50.pth: No such file"),
    ],
)
def test_mistakes(again, fake, values, message):
    with pytest.raises(UsageError) as error:
        ablate(again(**values))
    assert message in str(error.value)
    assert fake.started() == []


def test_show(plan, again, fake):
    with pytest.raises(UsageError, match="has no run of grid on scenes"):
        show_tables(plan)
    ablate(again(seeds=(0,)))
    before = {path: path.read_bytes() for path in plan.out.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match="no run of grid on scenes with these settings"):
        show_tables(again(settings=("train.iterations=5",)))
    report = show_tables(plan)
    assert left(report) == ["g1-1", "g5-1"]
    assert "1, 1 to do" in report.tables[0]
    assert {path: path.read_bytes() for path in plan.out.iterdir() if path.is_file()} == before
    lines = listing(again(entries=())).splitlines()
    assert sum(" ok " in line for line in lines) == 2
    assert lines[-1] == "8 of 10 runs to do"
    assert 'model.context_options={"grid": 5}' in lines[2]


def test_picture(plan, fake):
    report = ablate(plan)
    path = plan.out / "grid-scenes.png"
    assert [file.name for file in report.files] == ["grid-scenes.md", "grid-scenes.csv", "grid-scenes.png"]
    with Image.open(path) as image:
        assert image.width == 966
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match=f"cannot write {path}: Is a directory"):
        ablate(plan)
