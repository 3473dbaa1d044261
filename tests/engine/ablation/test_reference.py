"""``--reference``: differences to another entry of the table, and nothing else is changed by it."""

import csv
import statistics
from dataclasses import fields, replace

import pytest
from tests.engine.ablation.fake import score

from repgraph.cli import main
from repgraph.engine.ablation import Plan, ablate, lay_out, show_tables
from repgraph.errors import UsageError
from repgraph.pictures.figure import scores

ENTRIES = ("baseline", "g1", "g5", "map")


def gains(plan):
    with (plan.out / "grid-scenes.csv").open() as file:
        return {row["entry"]: row for row in csv.DictReader(file)}


def cells(text):
    """Scores and seeds of a table in Markdown."""
    return [line.split("|")[2:6] for line in text.splitlines() if line.startswith("| ")][1:]


@pytest.fixture
def lines(monkeypatch):
    """The rows at which pictures have their line."""
    found = []
    original = scores.draw
    monkeypatch.setattr(scores, "draw", lambda *given, **more: found.append(given[3]) or original(*given, **more))
    return found


def test_differences_are_paired_to_it(again, fake, lines):
    plan = again(entries=ENTRIES, seeds=(0, 1, 2))
    own = ablate(plan)
    assert fake.started() and gains(plan)["g1"]["gain_pairs"] == "" and "| mIoU against g_s = 1" in own.tables[0]
    other = replace(plan, reference="map")
    report = ablate(other)
    assert fake.started() == [], "the runs are the same"
    found = gains(plan)
    assert found["map"]["gain_pairs"] == found["map"]["gain_mean"] == "" and found["g1"]["gain_pairs"] == "3"
    each = [score("g1", seed) - score("map", seed) for seed in range(3)]
    assert float(found["g1"]["gain_mean"]) == pytest.approx(statistics.fmean(each))
    assert float(found["g1"]["gain_deviation"]) == pytest.approx(statistics.stdev(each)) != pytest.approx(0)
    assert "| mIoU against the whole map " in report.tables[0] and "to the entry 'the whole map' of" in report.tables[0]
    assert show_tables(other).tables == report.tables
    assert lines == [1, 3]
    assert cells(own.tables[0]) == cells(report.tables[0]), "only the differences change"


def test_only_seeds_that_it_has_count(again, fake):
    fake.behave("g5-1", "nan")
    plan = again(entries=ENTRIES, reference="g5", seeds=(0, 1, 2))
    ablate(plan)
    each = [score("g1", seed) - score("g5", seed) for seed in (0, 2)]
    assert gains(plan)["g1"]["gain_pairs"] == "2"
    assert float(gains(plan)["g1"]["gain_mean"]) == pytest.approx(sum(each) / 2)


@pytest.mark.parametrize("table", ["nodes", "grid", "forms"])
def test_keys_stay(table):
    plan = Plan(table, "scenes")
    keys = [run.key for run in lay_out(plan, {}).runs]
    for entry in lay_out(plan, {}).tables[0][0].entries:
        assert [run.key for run in lay_out(replace(plan, reference=entry.name), {}).runs] == keys


def test_it_comes_with_the_entries():
    layout = lay_out(Plan("nodes", "scenes", entries=("s9", "s1"), reference="nl"), {})
    ((table, found),) = layout.tables
    assert [line.entry.name for line in found] == ["nl", "s1", "s9"] and table.reference == "nl"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nodes", "--reference", "contrl"], "table nodes has no entry 'contrl'; did you mean 'control'?"),
        (["nodes", "--reference", "xyz"], "repgraph ablate: table nodes has no entry 'xyz'; there are "),
        (["all", "--reference", "nl"], "repgraph ablate: --reference is for one table, not for all; leave it out"),
        (["tune", "--of", "nl", "--reference", "nl-1"], "--reference is for one table, not for tune; leave it out"),
        (["group", "--reference", "g32"], "--reference g32 does not fit scenes: groups=32 does not divide"),
    ],
)
@pytest.mark.parametrize("how", ["--show", "--dry-run", "--keep"])
def test_mistakes(fake, tmp_path, capsys, arguments, message, how):
    (tmp_path / "results.csv").write_text("")
    assert main(["ablate", *arguments, how, "--dataset", "scenes", "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err and fake.started() == []
    assert not list(tmp_path.glob("*.md"))


def test_in_a_plan(plan):
    with pytest.raises(UsageError, match="table grid has no entry 'g2'"):
        lay_out(replace(plan, reference="g2"), {})
    for strange in (5, 0, None):
        with pytest.raises(UsageError, match=f"--reference is {strange}; give the name of an entry, or '' for"):
            lay_out(replace(plan, reference=strange), {})


def test_earlier_fields_of_a_plan_keep_their_places():
    names = [field.name for field in fields(Plan)]
    assert names[7:9] == ["entries", "jobs"] and names[-1] == "reference"


def test_files_name_it(again, fake):
    plan = again(entries=ENTRIES, seeds=(0,))
    for reference, told in (("", "g1"), ("map", "map")):
        ablate(replace(plan, reference=reference))
        found = gains(plan)
        assert found.keys() == set(ENTRIES) and {row["reference"] for row in found.values()} == {told}


def test_command(again, fake, capsys):
    plan = again(entries=ENTRIES, seeds=(0,))
    ablate(plan)
    call = ["ablate", "grid", "--dataset", "scenes", "--seeds", "0", "--out", str(plan.out), "--show"]
    assert main([*call, "--reference", "baseline"]) == 0
    shown = capsys.readouterr().out
    assert "mIoU against backbone baseline" in shown
    assert f"{100 * (score('g5', 0) - score('baseline', 0)):+.2f}" in shown
