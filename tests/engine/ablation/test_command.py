"""``repgraph ablate``: what is printed, and exit codes."""

import argparse
import shlex
from pathlib import Path

import pytest

from repgraph.cli import main
from repgraph.engine.ablation import TABLES, command

SCENES = ["--dataset", "scenes", "--entries", "g5"]


@pytest.fixture
def call(tmp_path, capsys):
    def run(*arguments):
        code = main(["ablate", *arguments, "--out", str(tmp_path / "results")])
        return code, *capsys.readouterr()

    return run


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["ablate", "--help"])
    out = capsys.readouterr().out
    assert "repgraph ablate nodes --show" in out and "--time-limit" in out and "The exit code is 0" in out
    assert "take differences to this entry (default: the table's own) --jobs" in " ".join(out.split())


def test_documented_commands_can_be_given():
    text = Path(__file__).parents[3].joinpath("docs", "ablations.md").read_text() + command.EPILOG
    lines = [line.strip().split("  ")[0].rstrip("\\") for line in text.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("repgraph ablate ")]
    parser = argparse.ArgumentParser()
    command.configure(parser)
    assert len(found) > 12
    for arguments in found:
        assert parser.parse_args(arguments).table in (*TABLES, "all", "tune")
    for name in TABLES:
        assert f"| `{name}` |" in text and name in command.EPILOG.splitlines()[0]


def test_dry_run_then_runs_then_show(call, fake):
    code, out, _ = call("grid", *SCENES, "--dry-run")
    assert code == 0 and out.splitlines()[-1] == "6 of 6 runs to do" and fake.started() == []
    code, out, err = call("grid", *SCENES, "--jobs", "3")
    assert code == 0 and "| g_s = 5 |" in out and "6 of 6 runs done" in err and len(fake.started()) == 6
    code, shown, err = call("grid", *SCENES, "--show")
    assert code == 0 and shown == out and "written: " not in err


def test_failed(call, fake):
    fake.behave("g5-0", "crash")
    code, out, err = call("grid", *SCENES, "--seeds", "0")
    assert code == 1 and "1 run failed or diverged; the table says why" in err and "exit code 7" in out
    assert call("grid", *SCENES, "--seeds", "0", "--show")[0] == 0


def test_time_is_over(call, fake):
    call("grid", *SCENES, "--seeds", "0")
    code, _, err = call("grid", *SCENES, "--time-limit", "0.5")
    assert code == 0 and "4 runs are left (g_s = 1, seed 1, g_s = 5, seed 1, " in err and "left for later" in err


def test_tune(call, fake):
    code, out, _ = call("tune", "--of", "nl", "--dataset", "scenes", "--trials", "2")
    assert code == 0 and "Chosen: " in out and fake.started() == ["nl-0-0", "nl-1-0"]  # one seed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["knots"], "repgraph ablate: there is no table 'knots'"),
        (["grid", *SCENES, "--jobs", "0"], "'0' is not a whole number of at least 1"),
        (["grid", *SCENES, "--seeds", "1", "1"], "--seeds has 1 twice"),
        (["grid", *SCENES, "--time-limit", "0"], "'0' is not a number above 0"),
        (["grid", *SCENES, "--tuned", "nothing.csv"], "cannot read --tuned nothing.csv"),
        (["grid", *SCENES, "--show"], "there are no results in"),
        (["grid", "--dataset", "scenes", "--entrys", "g5"], "unknown argument '--entrys'; did you mean '--entries'?"),
    ],
)
def test_mistakes(call, capsys, fake, arguments, message):
    try:
        code, _, err = call(*arguments)
    except SystemExit as exit_:
        code, err = exit_.code, capsys.readouterr().err
    assert code == 2 and message in err and fake.started() == []


def test_damaged_results(call, fake, tmp_path):
    call("grid", *SCENES, "--seeds", "0")
    with (tmp_path / "results" / "results.csv").open("a") as file:
        file.write("half a line\n")
    code, _, err = call("grid", *SCENES, "--seeds", "0")
    assert code == 2 and "results.csv, line 4 is damaged: it has 1 of 17 values; remove the line" in err
