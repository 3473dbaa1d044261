"""Tables as pictures: the scores of each seed, drawn where matplotlib is installed. One that fails costs no table."""

from collections.abc import Sequence
from pathlib import Path

from repgraph.engine.ablation.plan import Plan
from repgraph.engine.ablation.summary import Row
from repgraph.engine.ablation.tables import Table
from repgraph.errors import UsageError
from repgraph.recipes import Recipe

DPI = 140  # 966 pixels wide
MISSING = "no picture of a table without matplotlib: pip install 'repgraph[train]'"
Made = tuple[Table, Sequence[Row]]


def save(plan: Plan, start: Recipe, made: Sequence[Made]) -> tuple[list[Path], list[str]]:
    """Write a picture of each table beside it: the files, and why one is not there."""
    try:
        from repgraph.pictures.figure import scores  # noqa: F401 - whether it can be imported
    except ModuleNotFoundError as error:
        return [], [MISSING if error.name == "matplotlib" else _broken(made, error)]
    except Exception as error:  # whatever an import may run into: the tables are worth more
        return [], [_broken(made, error)]
    files, notes = [], []
    for one in made:
        try:
            files.append(_draw(plan, start, one))
        except Exception as error:
            notes.append(
                f"no picture of {one[0].name}: {_reason(error)}; the same command draws it when that is mended"
            )
    return files, notes


def _draw(plan: Plan, start: Recipe, made: Made) -> Path:
    from repgraph.pictures.figure import paper, scores

    table, rows = made
    with paper.style():
        chart = scores.draw(
            table.title,
            [row.entry.label for row in rows],
            [[100 * score for score in row.each] for row in rows],
            [row.entry.name for row in rows].index(table.reference),
            axis=f"mIoU on {_images(start)}, %",
            note=_conditions(plan, start, rows),
        )
        return paper.save(chart, plan.out / f"{table.name}-{plan.dataset}.png", DPI)


def _broken(made: Sequence[Made], error: Exception) -> str:
    remedy = "pip install --force-reinstall matplotlib"
    if not isinstance(error, ImportError):
        remedy = "look at MPLBACKEND and matplotlibrc"
    names = ", ".join(table.name for table, _ in made)
    return f"no picture of {names}: matplotlib cannot be imported ({_reason(error)}): {remedy}"


def _reason(error: Exception) -> str:
    """In one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UsageError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def _images(start: Recipe) -> str:
    return f"held-out images of {start.data.split}" if start.data.hold_out else start.data.val_split


def _conditions(plan: Plan, start: Recipe, rows: Sequence[Row]) -> str:
    count, named = len(plan.seeds), " ".join(map(str, plan.seeds))
    seeds = f"seeds {named}" if count > 1 else f"seed {named}"
    if any(0 < len(row.each) < count for row in rows):  # a row without any shows that
        seeds = f"up to {count} seeds: {named}"
    return f"{plan.dataset}, {start.model.backbone}, {start.train.iterations} iterations, {seeds}."
