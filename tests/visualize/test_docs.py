"""docs/explorer.md and docs/figures.md: examples run, commands parse, options and keys are complete, images exist."""

import re
from importlib import resources
from pathlib import Path

import pytest
import typer

from repgraph.cli.app import app

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPLORER, FIGURES = ((DOCS / name).read_text(encoding="utf-8") for name in ("explorer.md", "figures.md"))
COMMANDS = typer.main.get_command(app).commands
SHARED = {"--help", "--option", "--json", "--workers", "--device"}  # as in other commands


def run_example(text):
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(code, names)
    return names


def test_examples(capsys):
    names = run_example(EXPLORER)
    assert names["page"].startswith("<!doctype html>") and len(names["attention"]) == 2
    assert names["reach"].shape == names["received"].shape == (12, 16)
    assert run_example(FIGURES)["weights"].shape == (1, 15, 20) and "of 300.0 positions" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "text"), [("explore", EXPLORER), ("nodes", FIGURES), ("affinity", FIGURES)])
def test_commands_and_options(name, text):
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    found = [match for line in lines if (match := re.search(rf"repgraph {name} (.*)", line.split("#")[0]))]
    assert len(found) >= 2
    for match in found:
        COMMANDS[name].make_context(name, match[1].replace("'", "").split())
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts if option[:2] == "--"}
    assert {option for option in options - SHARED if not re.search(f"`{option}|--no{option[1:]}", text)} == set()


def test_keys():
    page = resources.files("repgraph.visualize.explorer").joinpath("explorer.html").read_text(encoding="utf-8")
    keys = re.findall(r"<kbd>(.+?)</kbd>", page)
    words = {"\u2190": "arrows", "\u2192": "arrows", "\u2191": "arrows", "\u2193": "arrows", "\u2212": "-"}
    assert len(keys) == 19 and all(f" {words.get(key, key)}" in EXPLORER.replace("| ", "|  ") for key in keys)


def test_images():
    paths = re.findall(r"\]\((images/[^)]+)\)", EXPLORER + FIGURES)
    assert len(paths) == 4 and all(0 < (DOCS / path).stat().st_size < 150_000 for path in paths)
