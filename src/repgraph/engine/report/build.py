"""From folders of runs to a page about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from repgraph import recipes
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.progress import Meter
from repgraph.engine.report import facts, labels, network, objects
from repgraph.engine.report.log import ENDED, FINISHED, Log, network_of, read
from repgraph.engine.report.testing import PICTURES, Tested, described
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN
from repgraph.pictures.report import Contents, Run, Test, write

__all__ = ["Options", "page", "report"]


@dataclass(frozen=True)
class Options:
    """What a report does besides reading logs.

    ``data`` is where the data are now, ``limit`` takes the first images only, ``pictures`` is how many best and worst
    images there are (0: none); without ``evaluate`` the page is made from the logs alone.
    """

    data: str | None = None
    limit: int | None = None
    pictures: int = PICTURES
    evaluate: bool = True
    device: str | torch.device = "cpu"
    workers: int = 2


def report(
    runs: Sequence[str | Path], options: Options | None = None, *, show: TextIO | None = None, command: str = ""
) -> str:
    """The page about some runs as HTML; what is amiss with a run or its data is said there.

    ``show`` is where progress goes; None for nowhere.
    """
    options = options or Options()
    logs = [read(Path(run)) for run in runs]
    names = unlike([log.folder for log in logs])
    models, notes = _networks(logs, options)
    tests: list[Test] = []
    if options.evaluate:
        tested = _tested(logs, names, models, notes, options, show)
        tests = described(tested, names, options.pictures)
    return page(logs, models, tests, notes, command=command)


def page(
    logs: Sequence[Log],
    models: Sequence[Any],
    tests: Sequence[Test],
    notes: Sequence[Sequence[str]] = (),
    *,
    command: str = "",
    title: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> str:
    """The page from what is known already: logs, the networks (or None), and tests of them."""
    names = unlike([log.folder for log in logs])
    notes = notes or [()] * len(logs)
    runs = [_run(*each) for each in zip(logs, names, models, notes, strict=True)]
    told = title or (f"Run {names[0]}" if len(runs) == 1 else f"{len(runs)} runs: {', '.join(names)}")
    return write(Contents(told, runs, tests, command=command, links=links))


def _run(log: Log, name: str, model: Any, notes: Sequence[str]) -> Run:
    size = None if model is None else network.parameters(model)
    sessions = facts.sessions(log)
    early = [f"It is not finished: {sessions[-1].outcome}."] if log.state == ENDED and sessions else []
    return Run(
        name=name,
        facts=facts.facts(log, size),
        series=network.in_pixels(log.series, network.steps(log, model)),
        settings=facts.settings(log.settings if log.recipe is None else recipes.to_dict(log.recipe)),
        usual=facts.usual(log),
        sessions=sessions,
        notes=[*log.problems, *early, *notes],
    )


def unlike(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its last part, and as much before it as tells it from the others.

    >>> unlike([Path("x/a"), Path("x/b")]), unlike([Path("x/a"), Path("y/a")])
    (['a', 'b'], ['x/a', 'y/a'])
    """
    paths = [folder.expanduser().absolute() for folder in folders]
    for parts in range(1, max((len(path.parts) for path in paths), default=1) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def _networks(logs: Sequence[Log], options: Options) -> tuple[list[Any], list[list[str]]]:
    """The runs' networks, and why some of them are not there."""
    models: list[Any] = []
    notes: list[list[str]] = []
    for log in logs:
        model, said = None, []
        try:
            model = network.load(log, options.device)
        except UsageError as error:
            said = [f"There are no scores of its network: {error}."]
        models.append(model)
        notes.append(said)
    return models, notes


def _tested(
    logs: Sequence[Log],
    names: Sequence[str],
    models: Sequence[Any],
    notes: list[list[str]],
    options: Options,
    show: TextIO | None,
) -> list[Tested]:
    found = []
    for number, (log, model) in enumerate(zip(logs, models, strict=True)):
        if model is None:
            continue
        try:
            found.append(_test(number, log, names[number], model, options, show))
        except (UsageError, NotFinite) as error:
            notes[number].append(f"It was not evaluated: {error}.")
    return found


def _test(number: int, log: Log, name: str, model: Any, options: Options, show: TextIO | None) -> Tested:
    data = network.validation(log, options.data)
    limit = options.limit or log.recipe.data.val_limit or None
    device = next(model.parameters()).device
    precision = log.recipe.train.precision if device.type == "cuda" else "fp32"
    of = "" if log.state == FINISHED else f"its last checkpoint, {network_of(log)}"
    with Meter(f"evaluating {name}", min(limit or len(data), len(data)), show) as meter:
        if isinstance(model, MaskRCNN):
            return objects.test(number, model, data, precision, limit, options.workers, meter, of)
        return labels.test(number, model, data, log.recipe, precision, limit, options.workers, meter, of)
