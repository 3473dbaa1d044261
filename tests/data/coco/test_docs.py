"""What docs/detection.md says of data: the example runs."""

import re
from pathlib import Path

from tests.data.coco.files import annotation, content, write

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "detection.md").read_text(encoding="utf-8")


def test_the_example_of_data_runs(tmp_path, monkeypatch):
    write(tmp_path / "data/coco", content(annotation(1, category=3)))
    monkeypatch.chdir(tmp_path)
    found: dict = {}
    exec(re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)[0], found)
    assert found["target"]["labels"].tolist() == [1] and found["data"].labels.names[0] == "cat"
