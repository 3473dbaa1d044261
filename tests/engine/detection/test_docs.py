"""What docs/detection.md says of the network and of scores: the examples run, in small."""

import re
from pathlib import Path

import pytest
import torch
from tests.data.coco.files import annotation, content, write
from tests.models.networks import offline  # noqa: F401

from repgraph.data.coco import load

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "detection.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch):
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")
    data = load(write(tmp_path, content(annotation(1), annotation(2, image=2))))
    monkeypatch.chdir(tmp_path)
    _, network, scores = EXAMPLES
    small = network.replace('20, "resnet50", weights="resnet50.safetensors"', '3, "resnet18", detections=5')
    small = small.replace("320", "64")
    assert small.count("64") == 2 and '"resnet18"' in small
    images, targets = zip(*[data[k] for k in range(2)], strict=True)
    names = {"images": images, "targets": targets, "data": data}
    torch.manual_seed(0)
    exec(small, names)
    assert len(names["losses"]) == 5 and len(names["found"]) == 2
    exec(scores, names)
    assert names["scores"].images == 2 and (tmp_path / "detections.json").is_file()
