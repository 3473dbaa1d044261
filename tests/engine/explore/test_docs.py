"""What docs/explorer.md says: its example runs, it tells of every option and key, its picture is there."""

import argparse
import re
from importlib import resources
from pathlib import Path

from repgraph.engine.explore import command

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "explorer.md").read_text(encoding="utf-8")


def test_the_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["page"].startswith("<!doctype html>") and len(names["sight"].layers) == 2
    assert names["far"].shape == names["much"].shape == (12, 16)


def test_it_tells_of_every_option():
    parser = argparse.ArgumentParser()
    command.configure(parser)
    for action in parser._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in TEXT, option


def test_it_tells_of_every_key():
    page = resources.files("repgraph.pictures.explorer").joinpath("page.html").read_text(encoding="utf-8")
    keys = re.findall(r"<kbd>(.+?)</kbd>", page)
    assert len(keys) == 17
    words = {"\u2190": "arrows", "\u2192": "arrows", "\u2191": "arrows", "\u2193": "arrows", "\u2212": "-"}
    for key in keys:
        assert f" {words.get(key, key)}" in TEXT.replace("| ", "|  "), key


def test_its_picture_is_there_and_small():
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", TEXT)
    assert 10_000 < (DOCS / picture).stat().st_size < 150_000
