"""Prefetching, and progress of commands."""

import io
import re
import threading

import pytest

import repgraph.progress
from repgraph.data.files import prefetch
from repgraph.progress import Progress


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_prefetching_keeps_the_order_and_raises_errors_in_order(workers):
    def read(item: int) -> int:
        if item == 3:
            raise ValueError("the third")
        return 10 * item

    found = []
    with pytest.raises(ValueError, match="the third"):
        for value in prefetch(read, range(6), workers):
            found.append(value)
    assert found == [0, 10, 20]
    assert list(prefetch(read, [1, 2], workers)) == [10, 20] and list(prefetch(read, [], workers)) == []


def test_prefetching_is_limited():
    read: list[int] = []
    for asked, _ in enumerate(prefetch(read.append, range(20), workers=2), start=1):
        assert len(read) <= asked + 2


def test_threads_end_with_the_reader():
    before = threading.active_count()
    reader = prefetch(str, range(100), workers=4)
    next(reader)
    reader.close()
    assert threading.active_count() == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_in_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with Progress("evaluating", 4, out) as progress:
        progress.update(1.5)
        progress.print("[b]a.png[/b] is damaged")
        progress.update(2, "loss 0.5")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "evaluating" in shown and "50%" in shown and "loss 0.5" in shown
    assert "[b]a.png[/b] is damaged" in shown


def test_lines_elsewhere(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(repgraph.progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with Progress("predicting", 10, out, start=2) as progress:
        for i in range(3, 11):
            now[0] += 20
            progress.update(i, "note" if i == 5 else None, line=i == 5)
    assert out.getvalue().splitlines() == [
        "predicting: 4/10 images, 2 min left",
        "predicting: note",
        "predicting: 7/10 images, 60 s left",
        "predicting: 9/10 images, 20 s left",
    ]


def test_time_left_follows_the_speed_of_the_last_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(repgraph.progress.time, "monotonic", lambda: now[0])
    progress = Progress("training", 1000, io.StringIO())
    for i in range(1, 201):
        now[0] += 1 if i <= 100 else 0.1
        progress.update(i)
    assert progress.remaining(200) == "80 s" and progress.remaining(0) == ""


def test_only_problems_are_printed_without_a_stream(capsys):
    with Progress("predicting", 2, None) as progress:
        progress.update(1, line=True)
        progress.print("a.png is damaged")
    assert capsys.readouterr() == ("", "a.png is damaged\n")
