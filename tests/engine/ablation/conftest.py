import sys
from dataclasses import replace
from pathlib import Path

import pytest

from repgraph.engine.ablation import Plan, board, job


class Fake:
    """Runs that train nothing: how each behaves, and which were started."""

    def __init__(self, folder):
        self.folder = folder

    def behave(self, run, how):
        (self.folder / run).write_text(how)

    def normal(self, run):
        (self.folder / run).unlink()

    def started(self):
        """The runs that were started since the last call."""
        log = self.folder / "log"
        found = [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(found)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    home = tmp_path / "fake"
    home.mkdir()
    monkeypatch.setenv("FAKE", str(home))
    monkeypatch.setattr(job, "COMMAND", (sys.executable, "-S", "-E", str(Path(__file__).with_name("fake.py"))))
    monkeypatch.setattr(job, "POLL", 0.01)
    monkeypatch.setattr(board, "TICK", 0.02)
    return Fake(home)


@pytest.fixture
def plan(tmp_path):
    """Two entries, two seeds, on the scenes."""
    return Plan("grid", "scenes", seeds=(0, 1), out=tmp_path / "results", entries=("g1", "g5"), jobs=2)


@pytest.fixture
def again(plan):
    """The plan with other values."""
    return lambda **values: replace(plan, **values)
