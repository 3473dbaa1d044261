import sys
from dataclasses import replace
from pathlib import Path

import pytest

from repgraph.ablation import Plan


class Fake:
    """Replaces training by fake.py: sets how each run behaves, and lists the runs that were started."""

    def __init__(self, folder):
        self.folder = folder

    def set(self, run, behaviour):
        (self.folder / run).write_text(behaviour)

    def started(self):
        """Return the runs that were started since the last call, such as "g5-1", with "resumed" after resumed ones."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(line.partition(" on ")[0] for line in lines)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    folder = tmp_path / "fake"
    folder.mkdir()
    monkeypatch.setenv("FAKE", str(folder))
    script = Path(__file__).with_name("fake.py")
    monkeypatch.setenv("REPGRAPH_COMMAND", f"{sys.executable} -S -E {script}")
    return Fake(folder)


@pytest.fixture
def plan(tmp_path):
    """Two entries, two seeds, on the scenes."""
    return Plan("grid", "scenes", seeds=(0, 1), out=tmp_path / "results", entries=("g1", "g5"), jobs=2)


@pytest.fixture
def again(plan):
    return lambda **values: replace(plan, **values)
