"""The README's examples run, and what it names exists."""

import re
from pathlib import Path

import pytest

from repgraph.cli import COMMANDS

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example):
    exec(compile(example, "README.md", "exec"), {})


def test_commands_exist():
    used = re.findall(r"^(?:\S*/)?repgraph +([a-z].*)$", README, flags=re.MULTILINE)
    unknown = [line for line in used if not any(f"{line} ".startswith(f"{c.words} ") for c in COMMANDS)]
    assert len(used) > 5 and unknown == []
