"""What docs/inference.md says: its examples run, its figures are right, and it tells of every option."""

import argparse
import re
from pathlib import Path

import pytest

from repgraph.engine.evaluation import command as evaluation
from repgraph.engine.inference import Settings, tiles
from repgraph.engine.inference.settings import MEMORY
from repgraph.engine.inference.views import views
from repgraph.engine.prediction import command as prediction
from repgraph.engine.prediction.reading import LARGEST

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "inference.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
SCALES = ((1.0,), (0.5, 0.75, 1.0, 1.25))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example):
    found: dict = {}
    exec(compile(example, "inference.md", "exec"), found)
    assert found["labels"].shape == (300, 400) and found["shares"].shape == (5, 300, 400)


@pytest.mark.parametrize(("gibibytes", "row"), [(10**6, "not bounded"), (32, "32 GiB"), (8, "8 GiB"), (2, "2 GiB")])
def test_what_bounded_memory_costs(gibibytes, row):
    told = re.search(rf"^\| {row}.*?\| ([\d,]+) \| ([\d,]+) \|$", TEXT, flags=re.MULTILINE)
    assert told is not None
    for scales, count in zip(SCALES, told.groups(), strict=True):
        found = views(10_000, 20_000, Settings(mode="slide", crop=520, scales=scales))
        parts = tiles.tiles(found, 10_000, 20_000, gibibytes * 2**30 // (4 * 150))
        assert f"{tiles.windows(found, parts):,}" == count


def test_figures():
    assert 4 * 150 * 20_000 * 10_000 == 120e9 and "120 GB" in TEXT
    for classes, millions in ((19, "28"), (150, "3.6")):
        assert f"{MEMORY / (4 * classes) / 1e6:.2g}" == millions and f"{millions}\nmillion" in TEXT.replace(
            " million", "\nmillion"
        )
    assert LARGEST == 2**30 and "2³⁰ pixels" in TEXT


def test_commands_can_be_read():
    lines = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL) for line in block.splitlines()]
    found = [re.search(r"repgraph (eval|predict) (.*)", line.split("#")[0]) for line in lines]
    assert len(found) >= 4
    for match in found:
        assert match is not None
        parser = argparse.ArgumentParser(exit_on_error=False)
        {"eval": evaluation, "predict": prediction}[match[1]].configure(parser)
        parser.parse_args(match[2].split())
