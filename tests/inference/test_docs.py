"""docs/inference.md and docs/detection.md: examples run, and commands parse."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import typer
from tests import objects

from repgraph.cli.app import app
from repgraph.data.coco import load
from repgraph.inference import tiling

DOCS = Path(__file__).resolve().parents[2] / "docs"
INFERENCE, DETECTION = ((DOCS / name).read_text(encoding="utf-8") for name in ("inference.md", "detection.md"))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_examples_of_inference_run():
    names: dict = {}
    for example in blocks(INFERENCE, "python"):
        exec(example, names)
    assert names["labels"].shape == (300, 400) and names["probabilities"].shape == (5, 300, 400)
    assert 0 <= names["evaluation"].scores.miou <= 1


def test_examples_of_detection_run(tmp_path, monkeypatch):
    data = load(objects.write(tmp_path, objects.annotation(1), objects.annotation(2, image=2)), "val")
    monkeypatch.chdir(tmp_path)
    examples = blocks(DETECTION, "python")
    network, scores, pictures = (
        next(text for text in examples if word in text) for word in ("mask_rcnn(", "evaluate_detection(", "import draw")
    )
    small = network.replace('"resnet50", weights="resnet50.safetensors"', '"resnet18", detections=5')
    small = small.replace("320", "64")
    assert small.count("64") == 2 and '"resnet18"' in small
    names = {"data": data}
    torch.manual_seed(0)
    exec(small, names)
    assert len(names["losses"]) == 5 and len(names["found"]) == 2
    exec(scores, names)
    assert names["scores"] == names["found"].scores and names["scores"].images == 2
    assert {"detections.json", "bbox.json"} <= {path.name for path in tmp_path.iterdir()}
    exec(pictures, names)
    assert names["picture"].size == (480, 320)


@pytest.mark.parametrize("text", [INFERENCE, DETECTION, (DOCS / "models.md").read_text(encoding="utf-8")])
def test_commands_can_be_parsed(text):
    lines = [line.split("#")[0] for block in blocks(text, "sh") for line in block.splitlines()]
    found = [match for line in lines if (match := re.search(r"repgraph (eval|predict|export) (.*)", line))]
    assert len(found) >= 4
    commands = typer.main.get_command(app).commands
    for match in found:
        commands[match[1]].make_context(match[1], shlex.split(match[2]))


@pytest.mark.parametrize(("gibibytes", "row"), [(10**6, "not bounded"), (32, "32 GiB"), (8, "8 GiB"), (2, "2 GiB")])
def test_windows_in_bounded_memory(gibibytes, row):
    stated = re.search(rf"^\| {row}.*?\| ([\d,]+) \| ([\d,]+) \|$", INFERENCE, flags=re.MULTILINE)
    for scales, count in zip(((1.0,), (0.5, 0.75, 1.0, 1.25)), stated.groups(), strict=True):
        views = tiling.make_views((10_000, 20_000), scales, (520, 520), 2 / 3)
        tiles = tiling.make_tiles(views, gibibytes * 2**30 // (4 * 150))
        assert f"{tiling.count_windows(views, tiles):,}" == count
