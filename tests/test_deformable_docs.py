"""docs/deformable.md: the examples run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "deformable.md").read_text(encoding="utf-8")


def test_examples_run():
    names: dict = {}
    for example in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(example, names)
    assert len(names["names"]) == 12 and names["names"][0] == "model.encoder.layers.0.self_attn.attn"
    assert names["y"].shape == (1, 300, 256)
