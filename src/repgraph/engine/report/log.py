"""A run as its folder has it: recipe, what was noted, and what happened. Nothing here needs data or a network."""

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repgraph import recipes
from repgraph.engine.training.checkpoint import LAST
from repgraph.engine.training.folder import CHECKPOINTS, LOCK, MODEL, RECIPE, VERSIONS
from repgraph.engine.training.records import FIRST, METRICS
from repgraph.errors import UsageError

Points = list[tuple[float, float]]
DIGITS, LARGEST = 15, 1e100  # of an iteration; of a value
FINISHED, RUNNING, ENDED = "finished", "running", "ended early"


@dataclass(frozen=True)
class Log:
    """What a run's folder says. ``settings`` is the recipe as JSON has it; ``recipe`` is None if it cannot be used.

    ``series`` has the columns of the log as (iteration, value); values may be NaN. ``problems`` are what was amiss.
    """

    folder: Path
    settings: Mapping[str, Any]
    recipe: Any  # of a network for segmentation or detection, or None
    series: Mapping[str, Points]
    sessions: Sequence[Mapping[str, Any]]
    state: str
    problems: Sequence[str]

    @property
    def name(self) -> str:
        """That of the recipe."""
        return str(self.settings.get("name", self.folder.name))

    @property
    def iterations(self) -> int | None:
        """As the recipe says."""
        train = self.settings.get("train")
        found = train.get("iterations") if isinstance(train, dict) else None
        return found if isinstance(found, int) else None

    @property
    def reached(self) -> int:
        """The last iteration that something was noted of; 0 for none."""
        return int(max((line[-1][0] for line in self.series.values() if line), default=0))


def read(folder: Path) -> Log:
    """The log of a run; a folder that is none is an error, all else that is amiss is in its ``problems``."""
    path = folder / RECIPE
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; give the folder of a run")
    if not path.is_file():
        raise UsageError(f"{folder} is not the folder of a run: there is no {path}")
    problems: list[str] = []
    recipe: Any = None
    settings: Any = {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        recipe = recipes.load(path)
    except (OSError, ValueError, UsageError) as error:  # of another version, perhaps
        problems.append(f"The recipe cannot be used: {_reason(error)}")
    series = _series(folder / METRICS, problems)
    sessions = _sessions(folder / VERSIONS, problems)
    given = settings if isinstance(settings, dict) else {}
    return Log(folder, given, recipe, series, sessions, _state(folder), problems)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _series(path: Path, problems: list[str]) -> dict[str, Points]:
    """The columns of the log; lines that are damaged are left out, and said."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problems.append(f"{METRICS} cannot be read ({_reason(error)}): there are no curves.")
        return {}
    header, *lines = text.splitlines() or [""]
    columns = _cells(header)
    if not columns or columns[0] != FIRST:
        problems.append(f"{METRICS} does not begin with the names of its columns: there are no curves.")
        return {}
    found: dict[int, list[float]] = {}
    damaged = []
    for number, line in enumerate(lines, 2):
        row = _row(line, len(columns))
        if row is None:
            damaged.append(number)
        else:
            found[int(row[0])] = row[1:]  # the last word counts where an iteration comes twice
    if damaged:
        shown = ", ".join(map(str, damaged[:5])) + (" ..." if len(damaged) > 5 else "")
        many = "Lines are" if len(damaged) > 1 else "A line is"
        problems.append(f"{many} damaged in {METRICS} and left out: {shown}.")
    if not found:
        problems.append("Nothing was noted: the run ended before its first look at the loss, or has just begun.")
    series: dict[str, Points] = {name: [] for name in columns[1:]}
    for iteration, values in sorted(found.items()):
        for name, value in zip(columns[1:], values, strict=True):
            if value != math.inf:
                series[name].append((float(iteration), value))
    return series


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _row(line: str, count: int) -> list[float] | None:
    """The numbers of a line, inf for an empty cell (a value that is infinite is NaN here); None if it is damaged."""
    cells = _cells(line)
    if len(cells) != count or not cells[0].isdecimal() or len(cells[0]) > DIGITS:
        return None
    try:
        values = [float(cell) if cell else None for cell in cells]
    except ValueError:
        return None
    return [math.inf if value is None else _drawn(value) for value in values]


def _drawn(value: float) -> float:
    """A value that can be added up and scaled: NaN for what is too large for it, 0 for what is too small."""
    return math.nan if not abs(value) < LARGEST else value if abs(value) > 1 / LARGEST else 0.0


def _sessions(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["sessions"]
        return [each for each in found if isinstance(each, dict)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"{VERSIONS} cannot be read ({_reason(error)}): command and versions are not known.")
        return []


def _state(folder: Path) -> str:
    if _held(folder / CHECKPOINTS / LOCK):
        return RUNNING
    return FINISHED if (folder / MODEL / "config.json").is_file() else ENDED


def _held(lock: Path) -> bool:
    """Whether a process is training in the run's folder."""
    try:
        import fcntl

        with lock.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return os.access(lock, os.R_OK)
    except (ImportError, OSError):  # Windows, no lock, or a disk that has none
        return False
    return False


def network_of(log: Log) -> Path | None:
    """Where the run's network is: at its end, or at its last checkpoint; None before the first."""
    if (log.folder / MODEL / "config.json").is_file():
        return log.folder / MODEL
    path = log.folder / CHECKPOINTS / LAST
    return path if path.is_file() else None
