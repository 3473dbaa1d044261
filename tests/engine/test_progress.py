"""Reading ahead, and how far a command says it is."""

import io
import threading

import pytest

from repgraph.engine import progress
from repgraph.engine.ahead import ahead
from repgraph.engine.progress import Meter


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_reading_ahead_keeps_the_order_and_raises_in_its_turn(workers):
    def read(item: int) -> int:
        if item == 3:
            raise ValueError("the third")
        return 10 * item

    found = []
    with pytest.raises(ValueError, match="the third"):
        for value in ahead(read, range(6), workers):
            found.append(value)
    assert found == [0, 10, 20]
    assert list(ahead(read, [1, 2], workers)) == [10, 20] and list(ahead(read, [], workers)) == []


def test_no_more_is_read_ahead_than_allowed():
    read: list[int] = []
    for asked, _ in enumerate(ahead(read.append, range(20), workers=2), start=1):
        assert len(read) <= asked + 2


def test_threads_end_with_the_reader():
    before = threading.active_count()
    reader = ahead(str, range(100), workers=4)
    next(reader)
    reader.close()
    assert threading.active_count() == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Meter("evaluating", 4, out) as meter:
        meter.at(1.5)
        meter.bar.refresh()
        meter.say("[b]a.png[/b] is damaged")
    shown = out.getvalue()
    assert "evaluating" in shown and "1 of 4 images" in shown and "left" in shown
    assert "[b]a.png[/b] is damaged" in shown


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    with Meter("predicting", 10, out) as meter:
        for i in range(1, 11):
            now[0] += 20
            meter.at(i)
    assert out.getvalue().splitlines() == [
        "predicting: 2 of 10 images, 3 min left",
        "predicting: 4 of 10 images, 2 min left",
        "predicting: 6 of 10 images, 80 s left",
        "predicting: 8 of 10 images, 40 s left",
        "predicting: 10 of 10 images, 0 s left",
    ]


def test_where_nobody_looks_only_problems_are_told(capsys):
    with Meter("predicting", 2, None) as meter:
        meter.at(1)
        meter.say("a.png is damaged")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "a.png is damaged\n"
