"""What is shown in the course of training."""

import io
import re
import time

from repgraph.engine.training.module import Report
from repgraph.engine.training.progress import Clock, Display

REPORT = Report(10, {"loss": 1.2345, "auxiliary_loss": 0.5}, None, False)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_where_there_is_no_terminal():
    out = io.StringIO()
    with Display(20, 100, 16, out) as display:
        display.advance(25)
        display.report(30, REPORT, 5.0)
        display.say("val mIoU 50.00")
    assert out.getvalue() == "30/100  loss 1.2345  32 images/s  35 s left\nval mIoU 50.00\n"


def test_a_bar_in_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with Display(20, 100, 16, out) as display:
        display.report(30, REPORT, 5.0)
        display.advance(35)
        display.say("val mIoU 50.00 [brackets]")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "35/100" in shown and "loss 1.2345  32 images/s  35 s left" in shown
    assert "val mIoU 50.00 [brackets]" in shown


def test_nothing_from_other_processes(capsys):
    with Display(0, 100, 16, None) as display:
        display.report(30, REPORT, 5.0)
        display.testing(3, 10)
        display.say("nothing")
    assert capsys.readouterr() == ("", "")


def test_time_left_follows_the_speed():
    out = io.StringIO()
    display = Display(0, 1000, 16, out)
    display.report(10, REPORT, 10.0)  # one iteration in a second: 990 s
    display.report(20, REPORT, 1.0)  # ten: the mean of late is 3.7
    assert [line.split("images/s  ")[1] for line in out.getvalue().splitlines()] == ["16 min left", "4 min left"]


def test_a_clock_does_not_count_pauses():
    clock = Clock()
    clock.read()
    clock.pause()
    time.sleep(0.05)
    clock.resume()
    assert clock.read() < 0.04
