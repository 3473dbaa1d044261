"""What the tables say: the paper's figures, and recipes for every data set."""

from pathlib import Path

import pytest
from tests.shared_data import shared

from repgraph.engine.ablation.plan import Plan, lay_out
from repgraph.engine.ablation.runs import applied, base, datasets, lines, resolve
from repgraph.engine.ablation.tables import KINDS, TABLES, TITLES, Entry, get
from repgraph.errors import UsageError
from repgraph.models import context
from repgraph.recipes import Recipe
from repgraph.recipes import get as recipe

FIT_SCENES = [name for name in TABLES if name not in ("stages", "deeper")]


def test_names():
    assert list(TABLES) == ["nodes", "instantiations", "stages", "deeper", "grid", "group", "offsets", "forms"]
    assert KINDS.keys() == TITLES.keys()
    for table in TABLES.values():
        names = [entry.name for entry in table.entries]
        assert len(set(names)) == len(names) == len({entry.label for entry in table.entries})
        assert table.reference in names and {entry.kind for entry in table.entries} <= KINDS.keys()


@pytest.mark.parametrize(
    ("table", "labels"),
    [
        ("nodes", ["baseline", "nl", "control", "s1", "s9", "s12", "s15", "s18", "s27"]),
        ("stages", ["baseline", "res2", "res3", "res4", "res5"]),
        ("deeper", ["baseline", "1-layer", "3-layer", "5-layer"]),
        ("grid", ["baseline", "g1", "g5", "g13", "map"]),
        ("group", ["baseline", "g1", "g4", "g8", "g16", "g32"]),
    ],
)
def test_entries(table, labels):
    assert [entry.name for entry in TABLES[table].entries] == labels


def test_the_widest_nodes_say_what_they_are():
    label = "nodes of 79 x 79 positions: on VOC the mean of the map, or zero for nodes off it"
    assert get("forms").entry("nodes-79").label == label


def test_figures_are_the_papers():
    """Each pair stands in a row of the paper's source."""
    text = shared("paper/representative_graph.tex").read_text()
    rows = [line.replace("\\bd{", "").replace("\\textbf{", "").replace("}", "") for line in text.splitlines()]
    numbers = [[cell.strip().rstrip("\\").strip() for cell in row.split("&")[1:]] for row in rows]
    last = [row[-2:] for row in numbers if len(row) >= 2 and all(map(_is_number, row[-2:]))]
    pairs = {(float(miou), float(accuracy)) for miou, accuracy in last}
    for table in TABLES.values():
        for entry in table.entries:
            assert entry.paper is None or entry.paper in pairs, entry


def _is_number(text):
    return text.replace(".", "", 1).isdecimal()


@pytest.mark.parametrize("dataset", ["voc", "camvid", "stanford", "ade20k", "cityscapes", "pascal_context", "folder"])
def test_every_table_fits(dataset):
    layout = lay_out(Plan("all", dataset, weights="none"), {})
    assert len(layout.tables) == len(TABLES) and not layout.notes
    assert not [line.misfit for _, found in layout.tables for line in found if line.misfit]
    assert all(run.recipe.data.name == dataset for run in layout.runs)
    shared_runs = {line.runs[0].key for _, found in layout.tables for line in found if line.entry.name in ("s9", "g1")}
    assert len(shared_runs) == 1  # S = 9, g_s = 1 and g_c = 1 are one run
    run = layout.runs[0].recipe
    assert run.data.cache and run.train.validate_every == 0


@pytest.mark.parametrize("table", FIT_SCENES)
def test_layers_of_the_scenes_can_be_built(table):
    """Every entry's layer, with the options that the small network's recipe has besides."""
    for line in lines(TABLES[table], base("scenes"), [0]):
        if line.misfit:
            assert line.entry.name == "g32"
            continue
        model = line.runs[0].recipe.model
        fusion = None if model.fusion == "auto" else model.fusion
        made = context.make(model.context, model.channels, fusion=fusion, layer_options=model.context_options)
        assert made.out_channels >= model.channels


@pytest.mark.parametrize("table", ["stages", "deeper"])
def test_no_stages_in_the_small_network(table):
    with pytest.raises(UsageError, match=f"table {table} does not fit scenes: its backbone 'repgraph_small' is no Res"):
        lay_out(Plan(table, "scenes"), {})
    layout = lay_out(Plan("all", "scenes"), {})
    assert [t.name for t, _ in layout.tables] == FIT_SCENES and len(layout.notes) == 2


def test_inserted_layers():
    start = base("voc", ["model.weights=none", "model.context_options.radius=8"])
    found, misfit = resolve(get("deeper").entry("5-layer"), start)
    assert not misfit and found.model.context == "none" and found.model.context_options == {}
    assert found.model.inserted == {"layer2": 1, "layer3": 2, "layer4": 2}
    assert found.model.inserted_options == {"radius": 8, "nodes": 9}


def test_tuned_settings_come_before_the_entrys():
    start = base("voc")
    tuned = {"optim.lr": 0.5, "model.context_options.nodes": 3, "model.context_options.radius": 6.0}
    found, _ = resolve(Entry("x", "x", "rgnet", {"model.context_options.nodes": 27}), start, tuned)
    assert found.optim.lr == 0.5 and found.model.context_options == {"nodes": 27, "radius": 6.0}
    found, _ = resolve(Entry("x", "x", "nl"), start, {"model.context_options.scale": 0.25})
    assert found.model.context_options == {"scale": 0.25}
    assert KINDS["nl"]["model.context_options"] == {}  # what all share stays as it is


def test_applied_checks_types():
    with pytest.raises(UsageError, match=r"the settings optim.lr: optim.lr is 'fast'; a number is needed"):
        applied(recipe("voc-r50-rgnet", Recipe), {"optim.lr": "fast"})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan("node"), "there is no table 'node'; did you mean 'nodes'?"),
        (Plan("nodes", "vok"), "--dataset 'vok' has no recipe to start from; did you mean 'voc'?"),
        (Plan("nodes", "cityscapes_trainval"), "--dataset 'cityscapes_trainval' has no recipe to start from"),
        (Plan("nodes", seeds=(0, 1, 0)), "--seeds has 0 twice"),
        (Plan("nodes", seeds=()), "--seeds has none"),
        (Plan("nodes", jobs=0), "--jobs is 0; at least 1 is needed"),
        (Plan("nodes", entries=("s10",)), "table nodes has no entry 's10'; did you mean 's1"),
        (Plan("all", entries=("s9",)), "--entries is for one table, not for all"),
        (Plan("nodes", of=("nl",)), "--of is for tune, not for nodes"),
        (Plan("tune"), "tune needs --of: which to tune, of baseline, control, nl, simple, rgnet"),
        (Plan("tune", of=("nonlocal",)), "--of 'nonlocal' is not one that can be tuned"),
        (
            Plan("nodes", settings=("model.context_options.nodes=3",)),
            "context_options.nodes: nodes says that",
        ),
        (Plan("nodes", settings=("train.seed=3",)), "--set train.seed: --seeds says that"),
        (Plan("forms", settings=("model.context_options.scale=0.1",)), "context_options.scale: forms says that"),
        (Plan("grid", settings=('model.context_options={"grid": 7}',)), "--set model.context_options: grid says that"),
        (Plan("stages", settings=("model.inserted.layer1=2",)), "--set model.inserted.layer1: stages says that"),
        (Plan("deeper", settings=("model.inserted_options.radius=2",)), "inserted_options.radius: deeper says that"),
        (Plan("nodes", settings=("data.name=camvid",)), "--set data.name: --dataset says that"),
        (Plan("tune", of=("nl",), settings=("data.hold_out=3",)), "--set data.hold_out: tune says that"),
        (Plan("nodes", settings=("optim.lr=3",), tuned=Path("tuning.csv")), "--set optim.lr: --tuned says that"),
        (Plan("grid", settings=("model.context_options.groups=0",)), "groups is 0; a whole number above 0 is needed"),
        (Plan("grid", settings=("model.context_options.groups=a",)), "groups is 'a'; a whole number above 0"),
        (Plan("grid", settings=("model.context_options.mid_channels=a",)), "mid_channels is 'a'; a whole number"),
        (
            Plan("grid", entries=("g1",), settings=("model.context_options.groups=5",)),
            "table grid does not fit voc: groups=5 does not divide",
        ),
        (Plan("grid", settings=("model.context_options.groups=5",)), "table grid does not fit voc: groups=5 does not"),
        (Plan("nodes", settings=("optim.lrr=3",)), "there is no setting 'optim.lrr'; did you mean 'optim.lr'?"),
    ],
)
def test_mistakes(plan, message):
    with pytest.raises(UsageError) as error:
        lay_out(plan, {})
    assert message in str(error.value)


def test_data_sets():
    assert "cityscapes_trainval" not in datasets() and "scenes" in datasets()
