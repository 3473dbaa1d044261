"""docs/models.md: the examples that need no files run, and the command line finds a layer of one's own."""

import re
from pathlib import Path

import pytest
from tests.models.networks import offline  # noqa: F401

from repgraph import cli
from repgraph.models import context

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
EXAMPLES = [text for text in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL) if ".safetensors" not in text]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LAYERS", dict(context.LAYERS))


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: str) -> None:
    exec(example, {"__name__": "example"})


def test_a_layer_of_ones_own_on_the_command_line(tmp_path, monkeypatch, capsys) -> None:
    example = next(text for text in EXAMPLES if "@register_context" in text)
    (tmp_path / "mylayers.py").write_text(example.partition("\n\nmodel = ")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(context.IMPORT, "")
    train = ["train", "scenes-rgnet", "--set", "model.context=mean", "model.context_options={}", "train.iterations=1"]
    train += ["train.batch=2", "data.options.length=4", "--out", str(tmp_path / "run")]
    assert cli.main(train) == 2 and "context is 'mean'" in capsys.readouterr().err
    assert cli.main(["--import", "nothing", *train]) == 2 and "cannot import 'nothing'" in capsys.readouterr().err
    assert cli.main(["--import", "mylayers", *train]) == 0
    assert (tmp_path / "run" / "model" / "config.json").is_file()
