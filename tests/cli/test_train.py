"""``repgraph train``."""

import functools
import json
import math
import os
import re
import signal

import pytest
from tests.train.tiny import at_iteration, make_data, recipe, settings

import repgraph.train
from repgraph import recipes
from repgraph.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("tiny") / "data")


@pytest.fixture
def typed(capsys, tmp_path, monkeypatch):
    """Run ``repgraph train ARGUMENTS`` in an empty folder; return exit code and output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = main(["train", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "pass the name of a recipe (repgraph train --list shows all), a JSON file, or --resume RUN"),
        ("voc-r50-rgnet --batch 0", "'--batch'"),
        ("voc-r50-rgnet --set", "--set"),
        ("voc-r50-rgnet", "root is required for 'voc' (command line: --data ROOT)"),
        ("--resume none", "none is neither the folder of a run"),
        ("voc-r50-rgnet --resume none", "--resume cannot be combined with a recipe, --out, --print or --measure"),
    ],
)
def test_mistakes(typed, tmp_path, arguments, words):
    code, out, err = typed(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("repgraph train: ") and words in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_run_from_a_file_in_the_default_folder(typed, tmp_path, data):
    content = recipes.to_dict(recipe(os.path.relpath(data), "train.iterations=2")) | {"name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(content))
    code, out, err = typed("mine.json")
    assert code == 0 and "training: 2/2  loss " in err and " images/s  0 s left" in err
    score, model = out.splitlines()
    assert score.startswith("val mIoU ") and model == "runs/mine/model: the network after 2 iterations"
    assert recipes.load(tmp_path / "runs" / "mine" / "recipe.json").data.root == str(data)
    code, out, err = typed("mine.json")
    assert (code, out) == (2, "") and "--resume runs/mine" in err
    assert typed("--resume", "runs/mine")[0] == 0


@pytest.mark.parametrize(
    ("act", "code", "words"),
    [
        (
            lambda _: os.kill(os.getpid(), signal.SIGINT),
            130,
            "stopped by SIGINT .*; resume with: repgraph train --resume",
        ),
        (
            lambda model: model.head.classifier.weight.data.fill_(math.nan),
            3,
            "the loss is .*; there is no checkpoint; try a lower",
        ),
    ],
    ids=["SIGINT", "not finite"],
)
def test_exit_codes_of_runs_that_stop(typed, monkeypatch, data, act, code, words):
    at_iteration(monkeypatch, 1, act)
    found, out, err = typed("folder-r50-rgnet", "--out", "run", "--set", *settings(data, "data.val_split="))
    assert (found, out) == (code, "") and re.match(f"repgraph train: {words}", err.splitlines()[-1])


def test_measure(typed, tmp_path, monkeypatch, data):
    quick = functools.partial(repgraph.train.measure, iterations=3, warmup=1)
    monkeypatch.setattr(repgraph.train, "measure", quick)
    code, out, err = typed("folder-r50-rgnet", "--measure", "--set", *settings(data))
    assert code == 0 and "images/s with the data" in out and "images/s with one batch in memory" in out
    assert err.splitlines() == ["timing 4 iterations with one batch in memory", "timing 4 iterations with the data"]
    assert list(tmp_path.iterdir()) == []
