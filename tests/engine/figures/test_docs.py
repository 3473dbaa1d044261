"""What docs/figures.md says: its example runs, its commands can be read, all options are told, its pictures exist."""

import argparse
import re
from pathlib import Path

from repgraph.engine.figures import affinity_command, nodes_command

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "figures.md").read_text(encoding="utf-8")
COMMANDS = {"affinity": affinity_command, "nodes": nodes_command}
ELSEWHERE = {"--help", "--option", "--json", "--workers", "--device"}  # as in all commands


def parser(name):
    made = argparse.ArgumentParser(exit_on_error=False)
    COMMANDS[name].configure(made)
    return made


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    found: dict = {}
    exec(compile(example, "figures.md", "exec"), found)
    assert found["weights"].shape == (1, 15, 20) and "of 300.0 positions" in capsys.readouterr().out


def test_commands_can_be_read():
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
    found = [match for line in lines if (match := re.search(r"repgraph (affinity|nodes) (.*)", line.split("#")[0]))]
    assert len(found) == 4
    for match in found:
        parser(match[1]).parse_args(match[2].split())


def test_every_option_is_told():
    for name in COMMANDS:
        options = {option for action in parser(name)._actions for option in action.option_strings if option[:2] == "--"}
        told = {option for option in options if option in TEXT or option.replace("--", "--no-") in TEXT}
        assert options - told - ELSEWHERE == set()


def test_pictures_are_there_and_small():
    pictures = re.findall(r"\]\((images/[^)]+)\)", TEXT)
    assert len(pictures) == 3
    for picture in pictures:
        assert 0 < (DOCS / picture).stat().st_size < 100_000
