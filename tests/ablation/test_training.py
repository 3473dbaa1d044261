"""Real training, very short, through the command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from repgraph.ablation import Plan, Results, ablate

SHORT = (
    *("train.iterations=20", "train.period=2", "train.log_every=1", "train.batch=2"),
    *("data.limit=4", "data.val_limit=2", "data.workers=0"),
)


@pytest.mark.slow
def test_kill_and_resume(tmp_path, monkeypatch):
    """After all processes are killed, the run continues from its checkpoint."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    plan = Plan("grid", "scenes", seeds=(0,), out=tmp_path / "results", settings=SHORT, entries=("g1",))
    command = ["ablate", "grid", "--dataset", "scenes", "--seeds", "0", "--entries", "g1", "--set", *SHORT]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "repgraph", *command], cwd=tmp_path, stderr=log)
    while not list((plan.out / "runs").glob("*/checkpoints/last.ckpt")):
        assert process.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.02)
    process.kill()
    process.wait()
    (folder,) = (plan.out / "runs").glob("*/")
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/cmdline", "rb") as file:
            if str(folder).encode() in file.read():
                os.kill(int(pid), signal.SIGKILL)
    assert not (folder / "scores.json").exists()

    report = ablate(plan)
    assert (report.code, report.left) == (0, []), report.tables
    (record,) = Results(plan.out).read().values()
    assert 0 < record.miou < 1
    assert (record.key, record.iterations) == (folder.name, 20)
    sessions = json.loads((folder / "versions.json").read_text())["sessions"]
    assert [session["from_iteration"] > 0 for session in sessions] == [False, True]
    left = {path.name for path in folder.iterdir()}
    assert left == {"recipe.json", "versions.json", "metrics.csv", "scores.json", "tensorboard"}
