"""The examples in docs/data.md and docs/detection.md run, and every data set is documented."""

import re
from pathlib import Path

from tests.data.coco.files import annotation, content, write
from tests.data.layouts import folder

from repgraph.data import NAMES
from repgraph.data.readers import read_labels

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "data.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_examples_of_images(tmp_path, monkeypatch):
    folder(tmp_path / "my-data")
    monkeypatch.chdir(tmp_path)
    for example in blocks(TEXT, "python"):
        found: dict = {}
        exec(compile(example, "data.md", "exec"), found)
        assert len(found["data"]) == 3
    Path("classes.json").write_text(blocks(TEXT, "json")[0])
    labels = read_labels(tmp_path)
    assert (labels.names, labels.ids, labels.ignored) == (("ground", "tree"), (1, 4), (0, 255))
    Path("classes.json").write_text(blocks(TEXT, "json")[1])
    assert read_labels(tmp_path).rgb_masks and not labels.rgb_masks
    assert all(f"| `{name}` |" in TEXT for name in NAMES)


def test_the_example_of_objects(tmp_path, monkeypatch):
    write(tmp_path / "data/coco", content(annotation(1, category=3)))
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(blocks((DOCS / "detection.md").read_text(encoding="utf-8"), "python")[0], found)
    assert found["target"]["labels"].tolist() == [1] and found["data"].labels.names[0] == "cat"
