"""The file of results: what goes in comes out, beside others, and damage is told."""

import dataclasses
import json
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from repgraph.engine.ablation.locks import take
from repgraph.engine.ablation.results import COLUMNS, Record, Results, mean_seconds, parse, to_csv
from repgraph.errors import UsageError


def record(key="a", seed=0, status="ok", miou=0.5, **more):
    scores = dict(miou=miou, pixel_accuracy=0.75, mean_accuracy=1 / 3) if status == "ok" else {}
    usual = dict(
        key=key, dataset="voc", seed=seed, status=status, miou=None, pixel_accuracy=None, mean_accuracy=None,
        iterations=10, seconds=2.5, settings='model.context_options={"nodes": 27}; optim.lr=0.02', weights="r50.pth",
        device="GPU", repgraph="0", torch="2", python="3", finished="2026-01-01", reason="",
    )  # fmt: skip
    return Record(**{**usual, **scores, **more})


def test_round_trip(tmp_path):
    records = [record("a"), record("b", miou=0.1 + 0.2), record("c", status="failed", reason='it said "no",\ntwice')]
    results = Results(tmp_path / "new" / "folder")
    assert results.read() == {}
    assert list(results.add(records).values()) == records == list(results.read().values())
    assert not [path for path in results.folder.iterdir() if path.name.startswith(".results")]


def test_done_stays_done(tmp_path):
    results = Results(tmp_path)
    results.add([record("a", status="failed", reason="memory"), record("b", miou=0.5)])
    results.add([record("a", miou=0.6), record("b", miou=0.7), record("c", status="diverged")])
    results.add([record("a", status="failed"), record("c", miou=0.1)])
    found = results.read()
    assert (found["a"].miou, found["b"].miou, found["c"].status) == (0.6, 0.5, "diverged")
    results.forget(["c"])
    assert results.read().keys() == {"a", "b"}


def test_files_of_two_machines_one_after_the_other():
    first, second = [record("a"), record("b", status="failed")], [record("b"), record("c")]
    found = parse(to_csv(first) + to_csv(second))
    assert list(found) == ["a", "b", "c"] and found["b"].status == "ok"
    assert parse(to_csv(second) + to_csv(first)) == {**found, "b": record("b")}


def test_touched_by_other_programs(tmp_path):
    """A mark at the beginning, other ends of lines, empty lines."""
    text = to_csv([record("a"), record("b")])
    for changed in ("\ufeff" + text, text.replace("\n", "\r\n"), "\n" + text + "\n\n"):
        Results(tmp_path).path.write_bytes(changed.encode())
        assert list(Results(tmp_path).read().values()) == [record("a"), record("b")]


@pytest.mark.parametrize("cut", [-6, -2])
def test_a_quote_that_is_not_closed_hides_nothing(cut):
    """Half a line at the end of the first of two files."""
    first, second = to_csv([record("a", status="failed", reason='it said "no", twice')]), record("b", settings="")
    for text in (first[:cut], first[:cut] + to_csv([second]), first[:cut] + "\n" + to_csv([second])):
        with pytest.raises(UsageError, match=r"line 2 is damaged \(.*\); remove the line"):
            parse(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("b,voc,1", "b,voc"), r"line 3 is damaged: it has 16 of 17 values; remove the line"),
        (lambda t: t[:-60], r"line 4 is damaged: it has \d+ of 17 values"),
        (lambda t: t.replace("b,voc,1", "b,voc,one"), r"line 3 is damaged: seed is 'one'"),
        (lambda t: t.replace("0.625", "nought"), r"line 3 is damaged: miou is 'nought'"),
        (lambda t: t.replace("0.625", "62.5"), r"line 3 is damaged: a score is no fraction"),
        (lambda t: t.replace("0.625", "nan"), r"line 3 is damaged: a score is no fraction; remove the line"),
        (lambda t: t.replace("1,ok", "1,fine"), r"line 3 is damaged: status is 'fine'"),
        (
            lambda t: t.replace("seconds", "minutes", 1),
            r"another version of repgraph: it has no column seconds",
        ),
        (lambda t: t + "x" * 200_000, r"line 5 is damaged \(field larger than field limit"),
        (lambda t: "new," + t, r"another version of repgraph: it has columns in another order, or more of them"),
    ],
)
def test_damage(tmp_path, change, message):
    results = Results(tmp_path)
    results.path.write_text(change(to_csv([record("a"), record("b", 1, miou=0.625), record("c", 2)])))
    with pytest.raises(UsageError, match=message) as error:
        results.read()
    assert str(results.path) in str(error.value)
    before = results.path.read_text()
    with pytest.raises(UsageError, match=r"damaged|version"):
        results.add([record("d")])
    assert results.path.read_text() == before


def test_unreadable(tmp_path):
    results = Results(tmp_path)
    results.path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="cannot read"):
        results.read()


def test_many_writers(tmp_path):
    """The lock is one of open files: to it, threads are as strange to each other as processes."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: Results(tmp_path).add([record(f"{i}")]), range(40)))
    assert Results(tmp_path).read().keys() == {f"{i}" for i in range(40)}


BAD = ({"miou": None}, {"miou": math.nan}, {"status": "fine"}, {"seed": "x"}, {"seconds": None}, {"pixel_accuracy": 75})


def _json(found, **change):
    return json.dumps({**dataclasses.asdict(found), **change, "classes": []})


def test_collected_from_folders(tmp_path):
    results = Results(tmp_path)
    results.add([record("a", miou=0.5), record("b", status="failed")])
    for found in (record("a", miou=0.9), record("b", miou=0.25), record("c")):
        folder = tmp_path / "runs" / found.key
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(_json(found))
    (tmp_path / "runs" / "d").mkdir()
    for bad in ("{half", "[]", "1", *(_json(record("d"), **change) for change in BAD)):
        (tmp_path / "runs" / "d" / "scores.json").write_text(bad)
        assert "d" not in results.collect() and results.read()  # and the file of results is not spoiled
    found = results.collect()
    assert found == results.read() and [found[key].miou for key in "abc"] == [0.5, 0.25, 0.5]


def test_locks(tmp_path):
    first = take(tmp_path / "lock")
    assert take(tmp_path / "lock") is None
    first.close()
    take(tmp_path / "lock").close()


def test_mean_seconds():
    records = [record("a", seconds=2.0), record("b", seconds=4.0), record("c", iterations=9, seconds=50.0)]
    records += [record("d", status="failed", seconds=50.0), record("e", dataset="camvid", seconds=50.0)]
    random.shuffle(records)
    assert mean_seconds(records, "voc", 10) == 3.0 and mean_seconds(records, "voc", 11) is None
    assert COLUMNS[0] == "key"
