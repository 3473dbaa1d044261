"""The picture of a table: beside it, of the same numbers, and no trouble where matplotlib is not installed."""

import csv
import os

import pytest
from PIL import Image
from tests.absent import run_without
from tests.engine.ablation.fake import score

from repgraph.cli import main
from repgraph.engine.ablation import ablate, picture, show_tables
from repgraph.pictures.figure import paper, scores


@pytest.fixture
def drawn(monkeypatch):
    """What each picture was drawn from."""
    calls = []

    def draw(title, labels, found, reference, **more):
        calls.append(dict(title=title, labels=labels, scores=found, reference=reference, **more))
        return original(title, labels, found, reference, **more)

    original = scores.draw
    monkeypatch.setattr(scores, "draw", draw)
    return calls


def per_cent(name, *seeds):
    return [pytest.approx(100 * score(name, seed)) for seed in seeds]


def test_beside_the_table(plan, fake, drawn):
    report = ablate(plan)
    path = plan.out / "grid-scenes.png"
    assert [file.name for file in report.files] == ["grid-scenes.md", "grid-scenes.csv", "grid-scenes.png"]
    assert report.notes == [] and path.stat().st_size < 100_000
    with Image.open(path) as image:
        assert image.width == 966 and image.height < image.width
    (given,) = drawn
    assert given["title"] == "Spatial group: nodes shared by cells of g_s x g_s positions"
    assert given["labels"] == ["g_s = 1", "g_s = 5"] and given["reference"] == 0
    assert given["scores"] == [per_cent("g1", 0, 1), per_cent("g5", 0, 1)]
    assert given["axis"] == "mIoU on val, %" and given["note"] == "scenes, repgraph_small, 600 iterations, seeds 0 1."
    with (plan.out / "grid-scenes.csv").open() as file:
        means = [100 * float(row["miou_mean"]) for row in csv.DictReader(file)]
    assert [sum(found) / len(found) for found in given["scores"]] == pytest.approx(means)


def test_the_same_again(plan, fake):
    ablate(plan)
    path = plan.out / "grid-scenes.png"
    before = path.read_bytes()
    path.unlink()
    ablate(plan)
    assert path.read_bytes() == before


def test_runs_that_failed_or_do_not_fit_leave_their_rows_empty(again, fake, drawn):
    for run in ("g4-0", "g4-1", "g8-1"):
        fake.behave(run, "nan")
    ablate(again(table="group", entries=("g4", "g8", "g32")))
    (given,) = drawn
    assert given["labels"] == ["g_c = 1", "g_c = 4", "g_c = 8", "g_c = 32"]
    assert given["scores"] == [per_cent("g1", 0, 1), [], per_cent("g8", 0), []]


def test_nothing_is_done(again, fake):
    fake.behave("g1-0", "crash")
    report = ablate(again(seeds=(0,), entries=("g1",)))
    assert report.code == 1 and (report.files[-1].name, report.notes) == ("grid-scenes.png", [])
    assert report.files[-1].stat().st_size > 0


def test_trials_are_scored_on_images_of_train(again, fake, drawn):
    report = ablate(again(table="tune", of=("nl", "control"), trials=2, seeds=(0,), entries=()))
    assert [path.name for path in report.files][-3:] == ["tuning.csv", "tune-nl-scenes.png", "tune-control-scenes.png"]
    assert [given["axis"] for given in drawn] == ["mIoU on held-out images of train, %"] * 2
    assert drawn[0]["note"].endswith(", seed 0.") and drawn[0]["scores"] == [per_cent("nl-0", 0), per_cent("nl-1", 0)]


def test_show_draws_nothing(plan, fake, drawn):
    ablate(plan)
    drawn.clear()
    (plan.out / "grid-scenes.png").unlink()
    assert show_tables(plan).files == [] and drawn == [] and not list(plan.out.glob("*.png"))


def test_without_matplotlib(again, fake):
    """Tables are written as always, and one line says what to install, however many there are."""
    plan = again(table="tune", of=("nl", "control"), trials=2, seeds=(0,), entries=())
    report = ablate(plan)
    for path in report.files:
        path.unlink()
    call = ["ablate", "tune", "--of", *plan.of, "--trials", "2", "--dataset", "scenes", "--out", str(plan.out)]
    done = run_without(("matplotlib",), f"from repgraph.cli import main\nraise SystemExit(main({call!r}))")
    assert done.returncode == 0 and done.stdout == "\n".join(report.tables), done.stderr
    written, said = [f"written: {path}" for path in report.files if path.suffix != ".png"], done.stderr.splitlines()
    assert said == [
        *written,
        "repgraph ablate: no picture of a table without matplotlib: pip install 'repgraph[train]'",
    ]
    assert len(written) == 5 and not list(plan.out.glob("*.png"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ImportError("ft2font: undefined symbol"), "ImportError: ft2font: undefined symbol): pip install --force"),
        (ModuleNotFoundError("No module named 'kiwisolver'", name="kiwisolver"), "'kiwisolver'): pip install --force"),
        (ImportError("cannot import name 'rc'", name="matplotlib"), "cannot import name 'rc'): pip install --force"),
        (
            ValueError("Key backend: 'bogus'\nis not valid"),
            "'bogus' is not valid): look at MPLBACKEND and matplotlibrc",
        ),
        (AttributeError(), "imported (AttributeError): look at"),
    ],
)
def test_a_broken_matplotlib_costs_no_table(again, fake, monkeypatch, error, told):
    def fail(name, *rest, **more):
        if name == "repgraph.pictures.figure":
            raise error
        return original(name, *rest, **more)

    original = __import__
    monkeypatch.setattr("builtins.__import__", fail)
    report = ablate(again(table="tune", of=("nl", "control"), trials=2, seeds=(0,), entries=()))
    (note,) = report.notes  # one for all
    assert note.startswith("no picture of tune-nl, tune-control: matplotlib cannot be imported (") and told in note
    assert "\n" not in note and report.code == 0 and len(report.tables) == 2 and len(report.files) == 5


def test_a_backend_that_is_none(plan, fake):
    report = ablate(plan)
    call = ["ablate", "grid", "--entries", "g5", "--dataset", "scenes", "--seeds", "0", "1", "--out", str(plan.out)]
    first = "import os\nos.environ['MPLBACKEND'] = 'bogus'\n"
    done = run_without((), f"{first}from repgraph.cli import main\nraise SystemExit(main({call!r}))")
    assert done.returncode == 0 and done.stdout == report.tables[0], done.stderr
    *written, said = done.stderr.splitlines()
    assert written == [f"written: {path}" for path in report.files[:2]]
    assert "no picture of grid: matplotlib cannot be imported (ValueError: Key backend: 'bogus'" in said


def test_a_picture_that_cannot_be_written(plan, fake, capsys):
    """All else is there, printed and named."""
    report = ablate(plan)
    (plan.out / "grid-scenes.png").unlink()
    (plan.out / "grid-scenes.png").mkdir()
    os.remove(plan.out / "grid-scenes.csv")
    call = ["grid", "--dataset", "scenes", "--entries", "g5", "--seeds", "0", "1", "--out", str(plan.out)]
    assert main(["ablate", *call]) == 0
    out, err = capsys.readouterr()
    assert out == report.tables[0] and f"written: {plan.out / 'grid-scenes.csv'}" in err
    assert f"no picture of grid: cannot write {plan.out / 'grid-scenes.png'}: Is a directory; the same command" in err
    assert (plan.out / "grid-scenes.csv").exists()


def test_one_that_fails_leaves_the_others(again, fake, monkeypatch):
    def draw(title, *rest, **more):
        return original(title, *rest, **more) if "NL" not in title else 1 / 0

    original = scores.draw
    monkeypatch.setattr(scores, "draw", draw)
    report = ablate(again(table="tune", of=("nl", "control"), trials=2, seeds=(0,), entries=()))
    assert [path.name for path in report.files][-2:] == ["tuning.csv", "tune-control-scenes.png"]
    (note,) = report.notes
    assert note.startswith("no picture of tune-nl: ZeroDivisionError: division by zero; ") and len(report.tables) == 2


@pytest.mark.parametrize(
    ("behaviour", "seeds", "told"),
    [
        ({}, (0, 1, 2), "seeds 0 1 2."),
        ({"g5-1": "nan"}, (0, 1, 2), "up to 3 seeds: 0 1 2."),
        ({"g5-0": "nan", "g5-1": "nan"}, (0, 1), "seeds 0 1."),  # its row is empty
        ({"g5-0": "nan"}, (0,), "seed 0."),
    ],
)
def test_seeds_in_the_small_print(again, fake, drawn, behaviour, seeds, told):
    for run, how in behaviour.items():
        fake.behave(run, how)
    ablate(again(seeds=seeds))
    assert drawn[0]["note"] == f"scenes, repgraph_small, 600 iterations, {told}"


def test_every_table_is_a_small_file(tmp_path):
    """With three seeds for each entry."""
    from repgraph.engine.ablation import TABLES

    for table in TABLES.values():
        labels = [entry.label for entry in table.entries]
        found = [[60 + row / 3, 61 + row / 5, 62 + row / 7] for row in range(len(labels))]
        with paper.style():
            chart = scores.draw(table.title, labels, found, 0, axis="mIoU on val, %", note="voc, seeds 0 1 2.")
            path = paper.save(chart, tmp_path / f"{table.name}.png", picture.DPI)
        assert path.stat().st_size < 100_000, table.name
