"""``repgraph ablate``: output and exit codes."""

import shlex
from pathlib import Path

import pytest
import typer

from repgraph.ablation import TABLES
from repgraph.cli import main
from repgraph.cli.app import app

ROOT = Path(__file__).parents[2]
SCENES = ["--dataset", "scenes", "--entries", "g5"]


@pytest.fixture
def call(tmp_path, capsys):
    def run(*arguments):
        code = main(["ablate", *arguments, "--out", str(tmp_path / "results")])
        return code, *capsys.readouterr()

    return run


def test_documented_commands_are_valid():
    command = typer.main.get_command(app).commands["ablate"]
    text = (ROOT / "docs" / "ablations.md").read_text().replace("\\\n", " ") + command.help
    lines = [line.strip().split("  ")[0] for line in text.splitlines() if line.strip().startswith("repgraph ablate ")]
    assert len(lines) > 12
    for line in lines:
        arguments = shlex.split(line, comments=True)[2:]
        assert command.make_context("ablate", arguments).params["table"] in (*TABLES, "all", "tune")
    assert all(f"| `{name}` |" in text for name in TABLES)


def test_failed_and_left(call, fake):
    fake.set("g5-0", "crash")
    code, out, err = call("grid", *SCENES, "--seeds", "0")
    assert code == 1
    assert "1 run(s) failed or diverged; the reasons are below the table" in err
    assert "exit code 7" in out
    code, _, err = call("grid", *SCENES, "--show")
    assert code == 0
    assert "4 runs are left (g_s = 1, seed 1, g_s = 5, seed 1, " in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid", *SCENES, "--tuned", "nothing.csv"], "cannot read nothing.csv"),
        (["nodes", "--reference", "contrl"], "table nodes has no entry 'contrl'; did you mean 'control'?"),
        (["group", "--dataset", "scenes", "--reference", "g32"], "--reference g32 does not fit scenes: groups=32"),
    ],
)
def test_mistakes(call, fake, arguments, message):
    code, _, err = call(*arguments)
    assert code == 2
    assert message in err
    assert fake.started() == []
