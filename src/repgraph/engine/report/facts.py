"""A run's log in words: the lines of the summary, what happened in each session, and its settings."""

import dataclasses
import datetime
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from repgraph import recipes
from repgraph.engine import tasks
from repgraph.engine.progress import duration
from repgraph.engine.report.log import FINISHED, RUNNING, Log
from repgraph.pictures.report import Session
from repgraph.pictures.report.charts import TESTS, words

ASTRAY = 1e4  # a loss that nothing is learned at


def facts(log: Log, parameters: int | None = None) -> dict[str, str]:
    """The lines of the summary; what is not known is left out."""
    recipe = log.recipe
    found: dict[str, str | None] = {"recipe": log.name, "state": state(log)}
    if recipe is not None:
        data, train = recipe.data, recipe.train
        root = f" in {data.root}" if data.root else ""
        found["data"] = f"{data.name}, {data.split}{root}"
        found["network"] = _network(log)
        found["batch"] = f"{train.batch} images, {train.precision}, seed {train.seed}"
    column = main_score(log)
    if column is not None:
        points = [(i, v) for i, v in log.series[column] if math.isfinite(v)]
        last, best = points[-1], max(points, key=lambda point: point[1])
        found["last test"] = f"{words(column)} {100 * last[1]:.2f} % after {last[0]:.0f} iterations"
        found["best test"] = f"{100 * best[1]:.2f} % after {best[0]:.0f} iterations"
    elif any(name.startswith(TESTS) for name in log.series):
        found["last test"] = "none yet" if log.state != FINISHED else "none"
    found["parameters"] = None if parameters is None else f"{parameters:,}"
    speeds = [value for _, value in log.series.get("images_per_second", []) if math.isfinite(value) and value > 0]
    found["speed"] = f"{statistics.median(speeds):.3g} images/s (median)" if speeds else None
    memory = [value for _, value in log.series.get("peak_memory_mib", []) if math.isfinite(value)]
    found["peak memory"] = _memory(max(memory)) if memory else None
    spent = seconds(log)
    found["time"] = None if spent is None else f"{duration(spent)} of training, without tests{_in_all(log)}"
    return {name: value for name, value in {**found, **_machine(log)}.items() if value is not None}


def state(log: Log) -> str:
    of = "" if log.iterations is None else f" of {log.iterations}"
    if log.state == FINISHED:
        return f"finished: {log.iterations or log.reached} iterations"
    if log.state == RUNNING:
        return f"still training: {log.reached}{of} iterations were noted"
    return f"not finished: {log.reached}{of} iterations were noted"


def main_score(log: Log) -> str | None:
    """The column whose best value makes the best checkpoint; None if there was no test."""
    tested = [name for name, line in log.series.items() if name.startswith(TESTS) and _some(line)]
    best = None if log.recipe is None else TESTS + tasks.of(log.recipe).best
    return best if best in tested else tested[0] if tested else None


def _some(line: Iterable[tuple[float, float]]) -> bool:
    return any(math.isfinite(value) for _, value in line)


def _network(log: Log) -> str:
    assert log.recipe is not None
    model = dataclasses.asdict(log.recipe.model)
    parts = [str(model.get("backbone", "")), f"context {model['context']}" if model.get("context") else ""]
    inserted = model.get("inserted")
    return ", ".join(part for part in (*parts, f"inserted {json.dumps(inserted)}" if inserted else "") if part)


def _memory(mib: float) -> str:
    return f"{mib / 1024:.2f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"


def seconds(log: Log) -> float | None:
    """The time that iterations took, from the speeds that were noted; tests and starts are not in it."""
    line, recipe = log.series.get("images_per_second", []), log.recipe
    if recipe is None or not line:
        return None
    total, before = 0.0, 0.0
    for iteration, speed in line:
        if math.isfinite(speed) and speed > 0:
            total += (iteration - before) * recipe.train.batch / speed
        before = iteration
    return total


def _in_all(log: Log) -> str:
    """The time that sessions took by the clock, if the ends of all of them are known."""
    try:
        spans = [(_moment(each["started"]), _moment(each["ended"]["at"])) for each in log.sessions]
        total = sum((end - start).total_seconds() for start, end in spans)
    except (KeyError, TypeError, ValueError):
        return ""
    return f"; {duration(total)} in all" if spans else ""


def _moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _machine(log: Log) -> dict[str, str | None]:
    if not log.sessions:
        return {}
    last = log.sessions[-1]
    versions = last.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    known = {name: value for name, value in versions.items() if value is not None}
    gpu, threads = known.pop("gpu", None), known.pop("threads", None)
    devices = log.recipe.train.devices if log.recipe is not None else 0
    many = f"{devices} x " if devices > 1 else ""
    where = f"{many}{gpu}" if gpu else f"{many}CPU, {threads} thread{'s' * (str(threads) != '1')}" if threads else None
    return {
        "started": str(log.sessions[0].get("started", "")).replace("T", " ").removesuffix("+00:00") + " UTC",
        "hardware": where,
        "versions": ", ".join(f"{name} {value}" for name, value in known.items()) or None,
    }


def sessions(log: Log) -> list[Session]:
    """What happened in each attempt at the run."""
    found = []
    for number, session in enumerate(log.sessions):
        after = log.sessions[number + 1] if number + 1 < len(log.sessions) else None
        started = str(session.get("started", "")).replace("T", " ").removesuffix("+00:00")
        outcome = "; ".join([*_ended(log, session, after), *_changed(log, number)])
        found.append(Session(started, _whole(session.get("from_iteration")), str(session.get("command", "")), outcome))
    return found


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _ended(log: Log, session: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[str]:
    """How a session ended: as was noted, or as far as the rest tells."""
    noted = session.get("ended")
    if isinstance(noted, dict) and noted.get("reason"):
        return [str(noted["reason"])]
    if after is not None:
        return [f"ended early; the next session went on after iteration {_whole(after.get('from_iteration'))}"]
    if log.state == FINISHED:
        return ["finished"]
    if log.state == RUNNING:
        return ["still training"]
    of = "" if log.iterations is None else f" of {log.iterations}"
    strange = _strange(log)
    why = f"{strange} before it ended" if strange else "why is not noted: it was killed, or its numbers were not finite"
    return [f"ended early: the last iteration noted is {log.reached}{of}; {why}"]


def _strange(log: Log) -> str:
    """Numbers that tell of a run that went astray."""
    loss = log.series.get("loss", [])
    bad = [iteration for iteration, value in loss if math.isnan(value)]
    if bad:
        return f"the loss was not finite at iteration {bad[0]:.0f}"
    if loss and loss[-1][1] > ASTRAY:
        return f"the loss had grown to {loss[-1][1]:.3g}"
    return ""


def _changed(log: Log, number: int) -> list[str]:
    """Versions that are not those of the session before."""
    if not number:
        return []
    then, now = (log.sessions[i].get("versions") for i in (number - 1, number))
    if not isinstance(then, dict) or not isinstance(now, dict):
        return []
    names = [name for name in now if then.get(name) != now[name]]
    return [f"{name} {then.get(name)} before, {now[name]} then" for name in names]


def settings(given: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A recipe's settings by their full names, as text; without name and description.

    >>> settings({"name": "a", "optim": {"lr": 0.01}, "model": {"inserted": {}, "backbone": "resnet50"}})
    {'optim.lr': '0.01', 'model.backbone': 'resnet50'}
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, dict):
            found |= settings(value, f"{prefix}{name}.")
        elif prefix or name not in ("name", "description"):
            found[f"{prefix}{name}"] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def usual(log: Log) -> dict[str, str]:
    """The settings of the recipe that has the run's name, as this version of the program has them; or none."""
    if log.name not in recipes.NAMES:
        return {}
    return settings(recipes.to_dict(recipes.get(log.name)))
