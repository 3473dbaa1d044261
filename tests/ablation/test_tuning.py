"""Tuning: equal numbers of deterministic trials, and the choice among them."""

import csv

import pytest
from tests.ablation.test_results import record

from repgraph.ablation import Plan, ablate, lay_out, tables, tuning
from repgraph.ablation.summary import summarize
from repgraph.errors import UsageError

KINDS = tuple(tables.KINDS)


@pytest.fixture
def trials(again):
    return again(table="tune", of=("nl", "rgnet"), entries=(), seeds=(0, 1), trials=3)


@pytest.mark.parametrize("dataset", ["voc", "ade20k", "scenes"])
def test_equal_numbers_of_different_trials(dataset):
    kinds = [kind for kind in KINDS if dataset != "scenes" or kind not in ("fpn", "pyramid")]
    layout = lay_out(Plan("tune", dataset, weights="none", of=kinds, seeds=(0,)), {})
    count = len(tuning.TRIALS)
    assert [len(rows) for _, rows in layout.tables] == [count] * len(kinds)
    for table, rows in layout.tables:
        assert not [row.misfit for row in rows if row.misfit]
        assert len({row.runs[0].key for row in rows}) == count
        assert table.reference == table.entries[0].name
        assert [entry.settings for entry in table.entries] == list(tuning.TRIALS)
        assert all(row.runs[0].recipe.data.hold_out == 5 for row in rows)
    tested = {run.key for run in lay_out(Plan("all", dataset, weights="none", seeds=(0,)), {}).runs}
    assert not tested & {run.key for run in layout.runs}  # those train on all images


def test_a_network_that_does_not_fit_cannot_be_tuned():
    with pytest.raises(UsageError, match="--of fpn does not fit scenes: its backbone has output stride 4"):
        lay_out(Plan("tune", "scenes", weights="none", of=("fpn",)), {})


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(0.5, 0.5), (0.6, 0.5), (0.1, 0.9)], 1),
        ([(0.5, 0.5), (0.9, "diverged"), (0.4, 0.4)], 0),  # scores with every seed are required
        ([(0.5, 0.5), (0.6, None), (0.4, 0.4)], None),
        ([(0.5, 0.5), (0.6, "failed"), (0.4, 0.4)], None),
        ([("diverged", "diverged")] * 3, None),
    ],
)
def test_best(trials, scores, best):
    table, rows = lay_out(trials, {}).tables[0]
    records = {
        run.key: record(run.key, run.seed, **({"miou": score} if isinstance(score, float) else {"status": score}))
        for row, row_scores in zip(rows, scores, strict=True)
        for run, score in zip(row.runs, row_scores, strict=True)
        if score
    }
    chosen = tuning.best(summarize(table, rows, records))
    assert (chosen and chosen.runs) is (None if best is None else rows[best].runs)


def test_chosen_and_used(trials, again, fake):
    report = ablate(trials)
    assert (report.code, len(fake.started()), len(report.tables)) == (0, 12, 2)
    path = trials.out / tuning.NAME
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["nl"] * 3 + ["rgnet"] * 3
    chosen = {row["kind"]: row for row in rows if row["chosen"]}
    assert len(chosen) == 2
    assert all(float(row["miou"]) <= float(chosen[row["kind"]]["miou"]) for row in rows)
    assert f"Chosen: {chosen['nl']['trial']}: " in report.tables[0]

    settings = tuning.load(path, "scenes", ["nl", "rgnet"])
    plan = again(table="nodes", entries=("nl", "s27"), tuned=path)
    with pytest.raises(UsageError, match=r"has no chosen settings of baseline on scenes; run repgraph ablate tune"):
        lay_out(plan, {})
    ablate(again(table="tune", of=("baseline",), entries=(), trials=3))  # the others stay in the file
    recipes = {row.entry.name: row.runs[0].recipe for _, rows in lay_out(plan, {}).tables for row in rows}
    for name, kind in (("nl", "nl"), ("s27", "rgnet")):
        assert recipes[name].optim.lr == settings[kind].get("optim.lr", 0.05)
        assert recipes[name].data.hold_out == 0
    assert recipes["s27"].model.context_options["nodes"] == 27


HEAD = ",".join(tuning.COLUMNS) + "\n"


def row(kind, settings="{}", chosen="chosen", seeds="0"):
    quoted = settings.replace('"', '""')
    return f'scenes,{kind},0,{chosen},0.5,{seeds},3,"{quoted}",k\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read .*No such file"),
        (HEAD + row("nl", "{half"), "line 2, settings of nl, is not valid JSON: .*; tune nl again"),
        (HEAD + row("nl", '{"model.context": "none"}'), "line 2 is damaged: nl .* tune nl again"),
        (
            HEAD + row("nl") + row("rgnet") + row("rgnet", chosen=""),
            r"budgets: nl had 1 trial\(s\) .*; rgnet had 2 trial",
        ),
        (HEAD + row("nl") + row("rgnet", seeds="0 1"), "different tuning budgets: .*; rgnet had .* with seeds 0 1"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, message):
    if text:
        (tmp_path / "tuning.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        tuning.load(tmp_path / "tuning.csv", "scenes", ["nl", "rgnet"])
