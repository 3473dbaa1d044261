"""The examples in the README run, and the commands exist."""

import re
from pathlib import Path

import pytest
import typer

from repgraph.cli.app import app

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example):
    exec(compile(example, "README.md", "exec"), {})


def test_commands_exist():
    assert len(EXAMPLES) >= 2
    used = re.findall(r"^(?:\S*/)?repgraph +([a-z].*)$", README, flags=re.MULTILINE)
    assert len(used) > 5
    for line in used:
        found, words = typer.main.get_command(app), line.split()
        while hasattr(found, "commands"):
            assert words[0] in found.commands, line
            found = found.commands[words.pop(0)]
