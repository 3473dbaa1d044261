"""Tables as pictures: the scores of each seed, drawn where matplotlib is installed."""

from collections.abc import Sequence
from pathlib import Path

from repgraph.engine.ablation.plan import Plan
from repgraph.engine.ablation.summary import Row
from repgraph.engine.ablation.tables import Table
from repgraph.recipes import Recipe

DPI = 140  # 966 pixels wide
MISSING = "no picture of a table without matplotlib: pip install 'repgraph[train]'"


def save(plan: Plan, start: Recipe, made: Sequence[tuple[Table, Sequence[Row]]]) -> tuple[list[Path], str]:
    """Write a picture of each table beside it: the files, and what to say if there are none."""
    try:
        from repgraph.pictures.figure import paper, scores
    except ImportError as error:
        if (error.name or "").split(".")[0] != "matplotlib":
            raise
        return [], MISSING
    files = []
    for table, rows in made:
        with paper.style():
            chart = scores.draw(
                table.title,
                [row.entry.label for row in rows],
                [[100 * score for score in row.each] for row in rows],
                [row.entry.name for row in rows].index(table.reference),
                axis=f"mIoU on {_images(start)}, %",
                note=_conditions(plan, start),
            )
            files.append(paper.save(chart, plan.out / f"{table.name}-{plan.dataset}.png", DPI))
    return files, ""


def _images(start: Recipe) -> str:
    return f"held-out images of {start.data.split}" if start.data.hold_out else start.data.val_split


def _conditions(plan: Plan, start: Recipe) -> str:
    seeds = f"seed{'s' if len(plan.seeds) > 1 else ''} {' '.join(map(str, plan.seeds))}"
    return f"{plan.dataset}, {start.model.backbone}, {start.train.iterations} iterations, {seeds}."
