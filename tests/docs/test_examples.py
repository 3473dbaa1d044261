"""The Python blocks of all pages run, and what they state holds."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import objects
from tests.data.layouts import folder
from tests.docs.pages import PAGES, blocks, name, read
from tests.models.networks import offline  # noqa: F401

from repgraph import cli
from repgraph.data import NAMES
from repgraph.data.readers import read_labels
from repgraph.inference.sliding_window import make_tiles, make_views
from repgraph.models import context

# Pages whose examples need fixtures of other tests.
ELSEWHERE = {"report.md": "tests/report/test_report.py", "ablations.md": "tests/ablation/test_command.py"}
# Smaller networks and no downloads.
REPLACED = {
    "benchmarks.md": [("height=65, width=65", "height=9, width=9")],
    "detection.md": [
        ('"resnet50", weights="resnet50.safetensors"', '"resnet18", detections=5'),
        ("min_size=320, max_size=320", "min_size=64, max_size=64"),
    ],
    "models.md": [('"resnet50", weights="resnet50.safetensors"', '"resnet18"')],
    "training.md": [
        ('"folder-r50-rgnet"), settings', '"scenes-rgnet"), settings'),
        (
            '["data.root=my-data", "model.weights=pretrained"]',
            '["train.iterations=1", "train.batch=2", "data.options.length=4"]',
        ),
    ],
}


def check_inference(names: dict[str, Any]) -> None:
    assert names["labels"].shape == (300, 400) and names["probabilities"].shape == (5, 300, 400)
    assert 0 <= names["evaluation"].scores.miou <= 1


def check_detection(names: dict[str, Any]) -> None:
    assert len(names["losses"]) == 5 and names["data"].labels.names[0] == "cat"
    assert names["scores"] == names["found"].scores and names["scores"].images == 2
    assert {"detections.json", "bbox.json"} <= {path.name for path in Path.cwd().iterdir()}
    assert names["picture"].size == (480, 320)


def check_deformable(names: dict[str, Any]) -> None:
    assert len(names["names"]) == 12 and names["names"][0] == "model.encoder.layers.0.self_attn.attn"
    assert names["y"].shape == (1, 300, 256)


def check_explorer(names: dict[str, Any]) -> None:
    assert names["page"].startswith("<!doctype html>") and len(names["attention"]) == 4
    assert len(names["layer"].nodes_at(40, 60).nodes) == 9


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "inference.md": check_inference,
    "detection.md": check_detection,
    "deformable.md": check_deformable,
    "explorer.md": check_explorer,
}
WITH_EXAMPLES = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"), "python")]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data that pages mention."""
    folder(tmp_path / "my-data")
    objects.write(tmp_path / "data/coco", objects.annotation(1), objects.annotation(2, image=2), split="train")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(context, "LAYERS", dict(context.LAYERS))
    return tmp_path


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=name)
def test_examples_run(page: Path, workplace: Path) -> None:
    if name(page) in ELSEWHERE:
        assert name(page) in (Path(__file__).parents[2] / ELSEWHERE[name(page)]).read_text(encoding="utf-8")
        return
    text = page.read_text(encoding="utf-8")
    if "transformers" in text and "import" in text and name(page) == "deformable.md":
        pytest.importorskip("transformers", reason="transformers is not installed")
    for old, new in REPLACED.get(name(page), []):
        assert old in text, f"{name(page)} no longer has {old}"
        text = text.replace(old, new)
    names: dict[str, Any] = {"__name__": "example"}
    for example in blocks(text, "python"):
        exec(compile(example, name(page), "exec"), names)
    CHECKS.get(name(page), lambda names: None)(names)


def test_there_are_examples() -> None:
    assert {"README.md", "index.md", "getting-started.md", "insertion.md"} <= {name(page) for page in WITH_EXAMPLES}


def test_a_context_layer_on_the_command_line(workplace: Path, monkeypatch, capsys) -> None:
    (example,) = blocks(read("context-layer.md"), "python")
    Path("mylayers.py").write_text(example.partition("\n\nmodel = ")[0])
    monkeypatch.setenv(context.IMPORT, "")
    train = ["train", "scenes-rgnet", "--set", "model.context=mean", "model.context_options={}", "train.iterations=1"]
    train += ["train.batch=2", "data.options.length=4", "--out", "run"]
    assert cli.main(train) == 2 and "context is 'mean'" in capsys.readouterr().err
    assert cli.main(["--import", "nothing", *train]) == 2 and "cannot import 'nothing'" in capsys.readouterr().err
    assert cli.main(["--import", "mylayers", *train]) == 0
    assert Path("run/model/config.json").is_file()


def test_classes_and_data_sets(workplace: Path) -> None:
    first, second = blocks(read("data.md"), "json")
    Path("classes.json").write_text(first)
    labels = read_labels(workplace)
    assert (labels.names, labels.ids, labels.ignored) == (("ground", "tree"), (1, 4), (0, 255))
    Path("classes.json").write_text(second)
    assert read_labels(workplace).rgb_masks and not labels.rgb_masks
    assert all(f"| `{name}` |" in read("data.md") for name in NAMES)


@pytest.mark.parametrize(("gibibytes", "row"), [(10**6, "not bounded"), (32, "32 GiB"), (8, "8 GiB"), (2, "2 GiB")])
def test_windows_in_bounded_memory(gibibytes: int, row: str) -> None:
    stated = re.search(rf"^\| {row}.*?\| ([\d,]+) \| ([\d,]+) \|$", read("large-images.md"), flags=re.MULTILINE)
    assert stated is not None
    for scales, count in zip(((1.0,), (0.5, 0.75, 1.0, 1.25)), stated.groups(), strict=True):
        views = make_views((10_000, 20_000), scales, (520, 520), 2 / 3)
        tiles = make_tiles(views, gibibytes * 2**30 // (4 * 150))
        windows = 0
        for view in views:
            axes = [(axis, map(axis.backward.source_span, spans)) for axis, spans in zip(view, tiles, strict=True)]
            windows += math.prod(sum(len(axis.covering(part)) for part in parts) for axis, parts in axes)
        assert f"{windows:,}" == count
