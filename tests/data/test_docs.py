"""What docs/data.md says: its examples run, and it tells of every set."""

import re
from pathlib import Path

import pytest
from tests.data.layouts import folder

from repgraph.data import NAMES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
CLASSES = re.findall(r"```json\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example, tmp_path, monkeypatch):
    folder(tmp_path / "my-data")
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(compile(example, "data.md", "exec"), found)
    assert len(found["data"]) == 3


def test_the_example_of_classes(tmp_path):
    from repgraph.data.folder import read_labels

    (tmp_path / "classes.json").write_text(CLASSES[0])
    labels = read_labels(tmp_path)
    assert (labels.names, labels.ids, labels.ignored) == (("ground", "tree"), (1, 4), (0, 255))


@pytest.mark.parametrize("name", NAMES)
def test_every_set_is_told_of(name):
    assert f"| `{name}` |" in TEXT
