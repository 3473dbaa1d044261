"""What docs/detection.md says of the network, scores and commands: the examples run, in small."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
import torch
from tests.data.coco.files import annotation, content, write
from tests.models.networks import offline  # noqa: F401

from repgraph.data.coco import load
from repgraph.engine.evaluation import command as evaluation
from repgraph.engine.export import command as export
from repgraph.engine.prediction import command as prediction

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "detection.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch):
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")
    data = load(write(tmp_path, content(annotation(1), annotation(2, image=2))))
    monkeypatch.chdir(tmp_path)
    network, scores, pictures = (
        next(text for text in EXAMPLES if word in text) for word in ("mask_rcnn(", "evaluate(", "import draw")
    )
    small = network.replace('"resnet50", weights="resnet50.safetensors"', '"resnet18", detections=5')
    small = small.replace("320", "64")
    assert small.count("64") == 2 and '"resnet18"' in small
    images, targets = zip(*[data[k] for k in range(2)], strict=True)
    names = {"images": images, "targets": targets, "data": data}
    torch.manual_seed(0)
    exec(small, names)
    assert len(names["losses"]) == 5 and len(names["found"]) == 2
    exec(scores, names)
    assert names["scores"] == names["found"].scores and names["scores"].images == 2
    assert {"detections.json", "bbox.json"} <= {path.name for path in tmp_path.iterdir()}
    exec(pictures, names)
    assert names["picture"].size == (480, 320)


def test_commands_can_be_read():
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
    modules = {"eval": evaluation, "predict": prediction, "export": export}
    found = [re.search(r"repgraph (eval|predict|export) (.*)", line.split("#")[0]) for line in lines]
    assert sum(match is not None for match in found) >= 9
    for match in found:
        if match is not None:
            parser = argparse.ArgumentParser(exit_on_error=False)
            modules[match[1]].configure(parser)
            parser.parse_args(shlex.split(match[2]))
