"""Read the folder of a run: recipe, metrics and sessions. Damaged files are reported as problems, not raised."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repgraph import files, recipes
from repgraph.constants import CHECKPOINTS, LAST, MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.progress import format_duration
from repgraph.recipes import AnyRecipe
from repgraph.train import run_folder
from repgraph.train.metrics import METRICS
from repgraph.train.run_folder import VERSIONS, SessionRecord

Points = Sequence[tuple[float, float]]  # iteration, value

FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"
MAX_VALUE = 1e100
SCORES = "val_"  # prefix of the columns with scores
MAIN_SCORES = {"val_miou": "mIoU", "val_mask_ap": "mask AP", "val_box_ap": "box AP"}  # the first one is in the summary


@dataclass
class RunLog:
    folder: Path
    recipe: AnyRecipe | None  # None if it is not valid
    series: Mapping[str, Points]  # columns of metrics.csv by name; values can be NaN
    sessions: Sequence[SessionRecord]
    state: str  # FINISHED, RUNNING or STOPPED
    problems: list[str]  # sentences about missing or damaged files
    name: str
    index: int = 0  # on the page; decides the color
    parameters: int | None = None  # of the network, if it was loaded

    @property
    def network(self) -> Path | None:
        """Path of the trained network, or of the last checkpoint; None if there is neither."""
        if self.state == FINISHED:
            return self.folder / MODEL
        path = self.folder / CHECKPOINTS / LAST
        return path if path.is_file() else None


def read_runs(folders: Sequence[Path]) -> list[RunLog]:
    """Read the folders of runs; their names on the page are those of the folders, or paths if names are not unique."""
    logs = [read_run(folder) for folder in folders]
    unique = len({log.name for log in logs}) == len(logs)
    for index, log in enumerate(logs):
        log.index, log.name = index, log.name if unique else str(log.folder)
    return logs


def read_run(folder: Path) -> RunLog:
    """Read the folder of a run; only a folder without a recipe is an error."""
    path = folder / RECIPE
    if not path.is_file():
        raise UsageError(f"{folder} is not the folder of a run: there is no {path}")
    problems: list[str] = []
    recipe = None
    try:
        recipe = recipes.load(path)
    except UsageError as error:  # it can be from another version
        problems.append(f"The recipe is not valid: {error}.")
    series = _read_metrics(folder / METRICS, problems)
    sessions = run_folder.sessions(folder)
    if not sessions:
        problems.append(f"{VERSIONS} is missing or damaged; commands and versions are unknown.")
    state = FINISHED if (folder / MODEL / "config.json").is_file() else STOPPED
    state = RUNNING if run_folder.is_locked(folder) else state
    return RunLog(folder, recipe, series, sessions, state, problems, folder.absolute().name)


def _read_metrics(path: Path, problems: list[str]) -> dict[str, Points]:
    try:
        files.check_regular(path)
        header, *lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    except OSError as error:
        problems.append(f"{METRICS} cannot be read ({error.strerror or error}); there are no curves.")
        return {}
    first, *columns = header.split(",")
    if first != "iteration":
        problems.append(f"{METRICS} has no header; there are no curves.")
        return {}
    series: dict[str, dict[float, float]] = {name: {} for name in columns}
    damaged = []
    for number, line in enumerate(lines, 2):
        iteration, *cells = line.split(",")
        try:
            values = {name: float(cell) for name, cell in zip(columns, cells, strict=True) if cell}
            if not re.fullmatch(r"[0-9]{1,15}", iteration):
                raise ValueError
        except ValueError:
            damaged.append(str(number))
            continue
        for name, value in values.items():
            series[name][float(iteration)] = value  # of rows with the same iteration, the last counts
    if damaged:
        shown = ", ".join(damaged[:5] + ["..."] * (len(damaged) > 5))
        problems.append(f"{METRICS} has damaged lines, which are skipped: {shown}.")
    if not any(series.values()):
        problems.append(f"{METRICS} is empty: the run has just started, or stopped before it first logged the loss.")
    return {name: sorted(points.items()) for name, points in series.items()}


def finite(points: Points) -> Points:
    """Return the points whose value is finite, and not too large to draw."""
    return [point for point in points if abs(point[1]) < MAX_VALUE]


def facts(log: RunLog) -> dict[str, str]:
    """Return the rows of the summary table, without unknown ones."""
    iterations = "unknown" if log.recipe is None else log.recipe.train.iterations
    last = int(max((points[-1][0] for points in log.series.values() if points), default=0))
    finished = f"finished after {iterations} iterations"
    found = {"state": finished if log.state == FINISHED else f"{log.state} at iteration {last} of {iterations}"}
    if log.recipe is not None:
        found["recipe"] = log.recipe.name
        data, train, model = log.recipe.data, log.recipe.train, log.recipe.model
        found["data"] = f"{data.name}, {data.split}" + (f" in {data.root}" if data.root else "")
        decoder = "pyramid, " if getattr(model, "decoder", "") == "pyramid" else ""
        found["network"] = f"{model.backbone}, {decoder}context {model.context or 'none'}"
        found["batch"] = f"{train.batch} images, {train.precision}, seed {train.seed}"
    column = next((name for name in MAIN_SCORES if finite(log.series.get(name, ()))), None)
    if column is not None:
        points = finite(log.series[column])
        best = max(points, key=lambda point: point[1])
        found["last validation"] = f"{MAIN_SCORES[column]} {100 * points[-1][1]:.2f} % at iteration {points[-1][0]:.0f}"
        found["best validation"] = f"{100 * best[1]:.2f} % at iteration {best[0]:.0f}"
    if log.parameters is not None:
        found["parameters"] = f"{log.parameters:,}"
    if speeds := [value for _, value in finite(log.series.get("images_per_second", ())) if value > 0]:
        found["speed"] = f"{statistics.median(speeds):.3g} images/s (median)"
    if memory := [value for _, value in finite(log.series.get("peak_memory_mib", ()))]:
        found["peak memory"] = f"{max(memory) / 1024:.2f} GiB"
    if (seconds := total_seconds(log)) is not None:
        found["training time"] = format_duration(seconds)
    if log.sessions:
        versions = {name: value for name, value in log.sessions[-1].versions.items() if value is not None}
        gpu, threads = versions.pop("gpu", None), versions.pop("threads", None)
        found["hardware"] = gpu or f"CPU, {threads} thread{'s' * (threads != '1')}"
        found["versions"] = ", ".join(f"{name} {value}" for name, value in versions.items())
    return found


def total_seconds(log: RunLog) -> float | None:
    """Return the duration of all sessions; None unless all of them recorded their end."""
    spans = [session.ended.at - session.started for session in log.sessions if session.ended]
    return sum(span.total_seconds() for span in spans) if spans and len(spans) == len(log.sessions) else None


def describe_outcomes(log: RunLog) -> list[str]:
    """Return the outcome of each session."""
    unknown = "it stopped without recording a reason; it may have been killed"
    found = [session.ended.reason if session.ended else unknown for session in log.sessions]
    if log.state != STOPPED and found and found[-1] == unknown:
        found[-1] = log.state
    return found


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the settings of a recipe by full names such as ``optim.lr``, as text, without name and description."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            found |= flatten(value, f"{prefix}{name}.")
        elif prefix or name not in ("name", "description"):
            found[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value)
    return found
