"""Trials: equal in number, always the same, on held-out images; and what is chosen."""

import csv

import pytest
from tests.engine.ablation.test_results import record

from repgraph.engine.ablation import Plan, ablate, lay_out, tuning
from repgraph.engine.ablation.runs import base, lines
from repgraph.errors import UsageError

KINDS = tuple(tuning.SPACES)


@pytest.fixture
def trials(again):
    return again(table="tune", of=("nl", "rgnet"), entries=(), seeds=(0, 1), trials=3)


@pytest.mark.parametrize("dataset", ["voc", "ade20k", "scenes"])
def test_equal_numbers_of_different_trials(dataset):
    layout = lay_out(Plan("tune", dataset, weights="none", of=KINDS, seeds=(0,)), {})
    assert [len(found) for _, found in layout.tables] == [tuning.TRIALS] * len(KINDS)
    for table, found in layout.tables:
        assert len({line.runs[0].key for line in found}) == tuning.TRIALS
        assert table.entries[0].settings == {} and table.reference == table.entries[0].name
        assert all(line.runs[0].recipe.data.hold_out == 5 for line in found)
        tried = {name for entry in table.entries for name in entry.settings}
        assert tried == tuning.SPACES[table.entries[0].kind].keys()
    final = {run.key for run in lay_out(Plan("all", dataset, weights="none", seeds=(0,)), {}).runs}
    assert not final & {run.key for run in layout.runs}  # those are trained on other images


def test_always_the_same():
    start = base("voc", ["model.weights=none"])
    assert tuning.points("nl", start, 3) == tuning.points("nl", start, 8)[:3]
    fixed = [{"optim.lr": 0.04, "optim.head": 10.0}, {"optim.lr": 0.005, "optim.head": 3.0}]
    assert tuning.points("baseline", start, 3) == [{}, *fixed]


def test_rates_are_multiples_of_the_recipes():
    found = {point.get("optim.lr") for point in tuning.points("baseline", base("ade20k"), 15)}
    assert found - {None} <= {0.005, 0.01, 0.02, 0.04, 0.08}


def test_too_many():
    with pytest.raises(UsageError, match=r"--trials 99: baseline has 15 different ones; give at most that"):
        tuning.points("baseline", base("voc"), 99)


def scored(found, scores):
    return {
        run.key: record(run.key, run.seed, **({"miou": score} if isinstance(score, float) else {"status": score}))
        for line, line_scores in zip(found, scores, strict=True)
        for run, score in zip(line.runs, line_scores, strict=True)
        if score
    }


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.5, 0.5), (0.6, 0.5), (0.1, 0.9)], 1),
        ([(0.5, 0.5), (0.9, "diverged"), (0.4, 0.4)], 0),  # it has to work with every seed
        ([(0.5, 0.5), (0.6, None), (0.4, 0.4)], None),
        ([(0.5, 0.5), (0.6, "failed"), (0.4, 0.4)], None),
        ([("diverged", "diverged")] * 3, None),
    ],
)
def test_best(trials, scores, best):
    found = lay_out(trials, {}).tables[0][1]
    chosen = tuning.best(found, scored(found, scores))
    assert chosen is (None if best is None else found[best])


def test_chosen_and_used(trials, again, fake):
    report = ablate(trials)
    assert report.code == 0 and len(fake.started()) == 12 and len(report.tables) == 2
    path = trials.out / tuning.NAME
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["nl"] * 3 + ["rgnet"] * 3
    chosen = {row["kind"]: row for row in rows if row["chosen"]}
    assert all(float(row["miou"]) <= float(chosen[row["kind"]]["miou"]) for row in rows) and len(chosen) == 2
    assert f"Chosen: {chosen['nl']['trial']}: " in report.tables[0]

    settings = tuning.load(path, "scenes", ["nl", "rgnet"])
    tables = again(table="nodes", entries=("nl", "s27"), tuned=path)
    with pytest.raises(UsageError, match=r"has no chosen settings of baseline on scenes; repgraph ablate tune --of"):
        lay_out(tables, {})
    ablate(again(table="tune", of=("baseline",), entries=(), trials=3))  # others stay in the file
    layout = lay_out(tables, {})
    by_name = {line.entry.name: line.runs[0].recipe for _, found in layout.tables for line in found}
    for name, kind in (("nl", "nl"), ("s27", "rgnet")):
        assert by_name[name].optim.lr == settings[kind].get("optim.lr", 0.05)
        assert by_name[name].data.hold_out == 0
    assert by_name["s27"].model.context_options["nodes"] == 27


def test_nothing_is_chosen_before_all_is_done(trials, fake):
    fake.behave("nl-1-0", "crash")
    report = ablate(trials)
    assert report.code == 1 and "Nothing is chosen before all trials are done." in report.tables[0]
    with pytest.raises(UsageError, match="has no chosen settings of nl on scenes"):
        tuning.load(trials.out / tuning.NAME, "scenes", ["nl"])


HEAD = ",".join(tuning.COLUMNS) + "\n"


def row(kind, settings="{}", chosen="chosen", seeds="0", head=HEAD):
    """A file with one trial, or a line of it."""
    quoted = settings.replace('"', '""')
    return f'{head}scenes,{kind},0,{chosen},0.5,{seeds},3,"{quoted}",k\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read --tuned .*No such file"),
        ("a,b\n1,2\n", "line 2 is damaged, or of another version: it needs dataset, kind"),
        (",".join(tuning.COLUMNS) + "\nscenes,nl,0,chosen,0.5\n", "line 2 is damaged"),
        (HEAD + "scenes,nl,0,chosen,0.5,0,3,{half,k\n", "line 2 is damaged: its settings are"),
        (HEAD + 'scenes,nl,0,chosen,0.5,0,3,"{half,k\n', "cannot read --tuned .*unexpected end of data"),
        (row("nl", '{"model.context": "none"}'), "line 2: model.context is not tuned for nl"),
        (row("nl", '{"no.such": 1}'), "line 2: no.such is not tuned for nl"),
        (row("nl") + row("nl", '{"optim.lr": 1}', head=""), "line 3: nl is chosen a second time"),
        (
            row("nl") + row("rgnet", head="") + row("rgnet", chosen="", head=""),
            "not fair: nl had 1 trials of 3 iterations with seeds 0; rgnet had 2 trials",
        ),
        (row("nl") + row("rgnet", seeds="0 1", head=""), "not fair: .*; rgnet had .* with seeds 0 1"),
    ],
)
def test_damaged_file(tmp_path, text, message):
    if text:
        (tmp_path / "tuning.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        tuning.load(tmp_path / "tuning.csv", "scenes", ["nl", "rgnet"])


def test_lines_of_every_trial_fit():
    for table in tuning.tables(KINDS, base("scenes"), 8):
        assert not [line.misfit for line in lines(table, base("scenes"), [0]) if line.misfit]
