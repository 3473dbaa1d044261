"""The tables: the paper's scores, and recipes for every data set."""

from pathlib import Path

import pytest
from tests.shared_data import shared

from repgraph.ablation import TABLES, Plan, lay_out
from repgraph.errors import UsageError
from repgraph.train.session import make_task

FIT_SCENES = [name for name in TABLES if name not in ("stages", "deeper")]


def test_scores_are_the_papers():
    """Each pair is in a row of the paper's source."""
    text = shared("paper/representative_graph.tex").read_text()
    rows = [line.replace("\\bd{", "").replace("\\textbf{", "").replace("}", "") for line in text.splitlines()]
    cells = [[cell.strip().rstrip("\\").strip() for cell in row.split("&")[1:]] for row in rows]
    pairs = {tuple(row[-2:]) for row in cells if len(row) >= 2}
    numbers = {tuple(map(float, pair)) for pair in pairs if all(n.replace(".", "", 1).isdecimal() for n in pair)}
    for table in TABLES.values():
        for entry in table.entries:
            assert entry.paper is None or entry.paper in numbers, entry


@pytest.mark.parametrize("dataset", ["voc", "camvid", "stanford", "ade20k", "cityscapes", "pascal_context", "folder"])
def test_every_table_fits(dataset):
    layout = lay_out(Plan("all", dataset, weights="none"), {})
    assert len(layout.tables) == len(TABLES)
    assert not layout.notes
    assert not [row.misfit for _, rows in layout.tables for row in rows if row.misfit]
    same = {row.runs[0].key for _, rows in layout.tables for row in rows if row.entry.name in ("s9", "g1")}
    assert len(same) == 1  # S = 9, g_s = 1 and g_c = 1 are one run
    recipe = layout.runs[0].recipe
    assert (recipe.data.name, recipe.data.cache, recipe.train.validate_every) == (dataset, True, 0)
    assert [run.seed for run in layout.runs] == sorted(run.seed for run in layout.runs)


@pytest.mark.slow
def test_networks_of_the_scenes_can_be_built():
    layout = lay_out(Plan("all", "scenes", seeds=(0,)), {})
    assert [table.name for table, _ in layout.tables] == FIT_SCENES
    assert len(layout.notes) == 2
    assert [row.entry.name for _, rows in layout.tables for row in rows if row.misfit] == ["g32", "fpn", "pyramid"]
    labels = make_task(layout.start).open("val", training=False).labels
    for run in layout.runs:
        make_task(run.recipe).build(labels)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (dict(table="nodes", dataset="vok"), "--dataset 'vok' has no recipe to start from; did you mean 'voc'?"),
        (dict(table="nodes", seeds=(0, 1, 0)), "--seeds is (0, 1, 0); expected different seeds"),
        (dict(table="tune"), "'tune' needs --of with one or more of baseline, control, nl, simple, rgnet"),
        (
            dict(table="nodes", settings=("train.seed=3",)),
            "--set train.seed conflicts with --seeds, which sets train.seed; remove it",
        ),
        (
            dict(table="nodes", settings=("optim.lr=3",), tuned=Path("tuning.csv")),
            "--set optim.lr conflicts with --tuned, which sets optim.lr",
        ),
        (dict(table="grid", settings=("model.context_options.groups=5",)), "grid does not fit voc: groups=5"),
        (dict(table="stages", dataset="scenes"), "stages does not fit scenes: its backbone"),
    ],
)
def test_mistakes(plan, message):
    with pytest.raises(UsageError) as error:
        lay_out(Plan(**plan), {})
    assert message in str(error.value)
