"""docs/explorer.md and docs/figures.md: options and keys are complete, images exist."""

import re
from importlib import resources
from pathlib import Path

import pytest
import typer

from repgraph.cli.app import app

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPLORER, FIGURES = ((DOCS / name).read_text(encoding="utf-8") for name in ("explorer.md", "figures.md"))
COMMANDS = typer.main.get_command(app).commands
SHARED = {"--help", "--option", "--json", "--workers", "--device", "--model"}  # as in other commands


@pytest.mark.parametrize(("name", "text"), [("explore", EXPLORER), ("nodes", FIGURES), ("affinity", FIGURES)])
def test_options_are_documented(name, text):
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts if option[:2] == "--"}
    assert {option for option in options - SHARED if not re.search(f"`{option}|--no{option[1:]}", text)} == set()


def test_keys():
    page = resources.files("repgraph.visualize.explorer").joinpath("explorer.html").read_text(encoding="utf-8")
    keys = re.findall(r"<kbd>(.+?)</kbd>", page)
    words = {"\u2190": "arrows", "\u2192": "arrows", "\u2191": "arrows", "\u2193": "arrows", "\u2212": "-"}
    assert len(keys) == 17 and all(f" {words.get(key, key)}" in EXPLORER.replace("| ", "|  ") for key in keys)


def test_images():
    paths = re.findall(r"\]\((images/[^)]+)\)", EXPLORER + FIGURES)
    assert len(paths) == 4 and all(0 < (DOCS / path).stat().st_size < 150_000 for path in paths)
