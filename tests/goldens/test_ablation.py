"""Goldens of ablations: benchmarks/**/results.csv gives the tables of docs/results.md, with the same run keys.

Expected values are the files in benchmarks/: there is nothing to regenerate here. Notes below tables are not pinned,
nor are entries of options that the redesign removes.
"""

import csv
import re
import shutil
from pathlib import Path

import pytest
from tests.goldens.harness import repgraph

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VOC = BENCHMARKS / "h200" / "ablation"
SCENES = BENCHMARKS / "cpu" / "ablation"
REMOVED_LABELS = ("rings ", "regions", "learned temperature", "offsets from", "offsets in units")
REMOVED_SETTINGS = ("offset_view", "offset_unit", "learn_scale", '"rings"', '"regions"')

# The commands of docs/results.md; --set comes last.
TUNED = ("--out", VOC, "--tuned", VOC / "tuning.csv", "--set", "train.iterations=1000")
PLAIN = ("--out", VOC, "--set", "train.iterations=1000")
SOME = ("--out", VOC, "--entries", "baseline", "nl", "control", "s9", "--seeds", 0, 1, "--set", "train.iterations=400")
ON_SCENES = ("--out", SCENES, "--dataset", "scenes")
TABLES = {
    "nodes-voc": ("nodes", *TUNED),
    "instantiations-voc": ("instantiations", *TUNED),
    "offsets-voc": ("offsets", *TUNED),
    **{f"{table}-voc": (table, "--seeds", 0, *TUNED) for table in ("stages", "deeper", "grid", "group")},
    **{f"nodes-{dataset}": ("nodes", "--dataset", dataset, *SOME) for dataset in ("camvid", "stanford")},
    **{f"{table}-scenes": (table, *ON_SCENES) for table in ("nodes", "grid", "group", "offsets", "forms")},
}
OTHERS = (
    ("nodes", "--entries", "s9", "--reference", "s9", *PLAIN, "optim.head=3"),
    ("nodes", "--entries", "nl", "s9", "--reference", "s9", *TUNED, "data.hold_out=5"),
    ("nodes", "--entries", "s9", "s12", "s18", "s27", "--reference", "s9", "--seeds", 0, 1, *TUNED, "data.hold_out=5"),
    ("nodes", "--entries", "s9", "--reference", "s9", *PLAIN, "data.hold_out=5", "optim.head=3"),
    ("grid", *ON_SCENES, "--entries", "map", "--reference", "map", "--set", "optim.offset=1"),
)


def cells(markdown):
    """Return the rows of a Markdown table, without rows of removed options."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:1] == "|"]
    return [row for row in rows if not row[0].startswith(("-", *REMOVED_LABELS))]


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_results(name):
    arguments = TABLES[name]
    folder = SCENES if name.endswith("scenes") else VOC
    assert cells(repgraph("ablate", *arguments, "--show")) == cells((folder / f"{name}.md").read_text())


def test_differences_from_another_reference():
    rows = cells(repgraph("ablate", "nodes", "--reference", "nl", *TUNED, "--show"))
    differences = [row[5] for row in rows[1:]]  # of the baseline, non-local, control, and 1, 9, ... nodes
    assert differences[:3] == ["-5.60 ± 0.59", "", "-6.42 ± 2.40"]
    assert differences[4] == "-0.13 ± 0.23"


@pytest.mark.parametrize("folder", [VOC, SCENES], ids=["voc", "scenes"])
def test_every_stored_run_is_found_by_its_key(folder):
    listed = [repgraph("ablate", *each, "--dry-run") for each in (*TABLES.values(), *OTHERS) if folder in each]
    found = set(re.findall(r"\b[0-9a-f]{12}\b", "\n".join(listed)))
    runs = read(folder / "results.csv")
    kept = {run["key"] for run in runs if not any(word in run["settings"] for word in REMOVED_SETTINGS)}
    trials = {run["key"] for run in runs if "data.hold_out" in run["settings"]}  # tuning has other trials now
    assert kept - found - trials == set()
    assert found - {run["key"] for run in runs} == set()  # nothing is left to do
    assert len(kept) >= 90


def test_files_of_a_table_are_made_from_results_alone(tmp_path):
    shutil.copy(SCENES / "results.csv", tmp_path)
    repgraph("ablate", "nodes", "--dataset", "scenes", "--out", tmp_path)
    assert cells((tmp_path / "nodes-scenes.md").read_text()) == cells((SCENES / "nodes-scenes.md").read_text())
    assert (tmp_path / "nodes-scenes.png").stat().st_size > 10_000
    ours, theirs = read(tmp_path / "nodes-scenes.csv"), read(SCENES / "nodes-scenes.csv")
    assert len(ours) == len(theirs)
    for our, their in zip(ours, theirs, strict=True):
        assert [name for name in their if our[name] != their[name]] == []
