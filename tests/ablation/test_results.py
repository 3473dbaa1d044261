"""``results.csv``: several writers, files of several machines, and damage."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from repgraph.ablation.results import COLUMNS, Record, Results
from repgraph.errors import UsageError
from repgraph.files import to_csv


def record(key="a", seed=0, status="ok", miou=0.5, **more):
    scores = dict(miou=miou, pixel_accuracy=0.75, mean_accuracy=1 / 3) if status == "ok" else {}
    usual = dict(
        key=key, dataset="voc", seed=seed, status=status, miou=None, pixel_accuracy=None, mean_accuracy=None,
        iterations=10, seconds=2.5, settings='model.context_options={"nodes": 27}; optim.lr=0.02', weights="r50.pth",
        device="GPU", repgraph="0", torch="2", python="3", finished="2026-01-01", reason="",
    )  # fmt: skip
    return Record(**{**usual, **scores, **more})


def text(*records):
    return to_csv(COLUMNS, [list(each.model_dump().values()) for each in records])


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "new" / "folder")


def test_runs_with_scores_are_not_replaced(results):
    results.add([record("a", status="failed", reason="memory"), record("b", miou=0.5)])
    results.add([record("a", miou=0.6), record("b", miou=0.7), record("c", status="diverged")])
    results.add([record("a", status="failed"), record("c", miou=0.1)])
    found = results.read()
    assert (found["a"].miou, found["b"].miou, found["c"].miou) == (0.6, 0.5, 0.1)


def test_files_of_two_machines(results):
    first, second = text(record("a"), record("b", status="failed")), text(record("b"), record("c"))
    results.folder.mkdir(parents=True)
    for joined in (
        first + second,
        second + first,
        "\ufeff" + first + "\n\n" + second,
        (first + second).replace("\n", "\r\n"),
    ):
        results.path.write_bytes(joined.encode())
        found = results.read()
        assert sorted(found) == ["a", "b", "c"]
        assert found["b"].status == "ok"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("b,voc,1", "b,voc"), r"line 3 is damaged \(16 values, expected 17\); remove the line"),
        (lambda t: t.replace("b,voc,1", "b,voc,one"), r"line 3 is damaged; remove the line .*: seed is 'one'"),
        (lambda t: t.replace("0.625", "62.5"), r"line 3 is damaged; .*: miou is "),
        (lambda t: t.replace("0.625", ""), r"line 3 is damaged; .*a score is missing"),
        (lambda t: t + 'x,"half', r"line 5 is damaged \("),
        (lambda t: t.replace("seconds", "minutes", 1), "written by another version"),
        (lambda t: "\udcff", "cannot read"),
    ],
)
def test_damage(results, change, message):
    results.folder.mkdir(parents=True)
    damaged = change(text(record("a"), record("b", 1, miou=0.625), record("c", 2)))
    results.path.write_bytes(damaged.encode(errors="surrogateescape"))
    for act in (results.read, lambda: results.add([record("d")])):
        with pytest.raises(UsageError, match=message) as error:
            act()
        assert str(results.path) in str(error.value)
    assert results.path.read_bytes() == damaged.encode(errors="surrogateescape")


def test_many_writers(results):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: Results(results.folder).add([record(f"{i}")]), range(40)))
    assert results.read().keys() == {f"{i}" for i in range(40)}
