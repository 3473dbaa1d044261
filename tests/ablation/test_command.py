"""``repgraph ablate``: output and exit codes."""

import re
from pathlib import Path

import pytest
import torch

from repgraph.cli import main

ROOT = Path(__file__).parents[2]
SCENES = ["--dataset", "scenes", "--entries", "g5"]


@pytest.fixture
def call(tmp_path, capsys):
    def run(*arguments):
        code = main(["ablate", *arguments, "--out", str(tmp_path / "results")])
        return code, *capsys.readouterr()

    return run


def test_the_example_of_the_docs(fake, tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    old = '"nodes", "voc", data="VOC2012", weights="resnet50.safetensors", jobs=4'
    assert old in example
    monkeypatch.chdir(tmp_path)
    exec(example.replace(old, '"grid", "scenes", entries=("g5",), seeds=(0,)'), {})
    assert fake.started() == ["g1-0", "g5-0"] and "g_s = 5" in capsys.readouterr().out


def test_failed_and_left(call, fake):
    fake.set("g5-0", "crash")
    code, out, err = call("grid", *SCENES, "--seeds", "0")
    assert code == 1
    assert "1 run(s) failed or diverged; the reasons are below the table" in err
    assert "exit code 7" in out
    code, _, err = call("grid", *SCENES, "--show")
    assert code == 0
    assert "4 runs are left (g_s = 1, seed 1, g_s = 5, seed 1, " in err


def test_choose_ends_with_the_speed_of_the_networks(call, fake, monkeypatch):
    found = []
    monkeypatch.setattr("repgraph.bench.report.benchmark", lambda *arguments, **_: found.append(arguments) or 0)
    monkeypatch.setattr("repgraph.distributed.parse_device", lambda name: torch.device(name.replace("auto", "cuda")))
    words = ("choose", *SCENES[:2], "--entries", "rgnet", "--seeds", "0")
    assert call(*words)[0] == 0
    assert [path.name for *_, path in found] == ["speed-cuda", "speed-cpu"]
    fake.set("rgnet-1", "crash")
    assert call(*words, "--show")[0] == 0 and call(*words, "1")[0] == 1 and len(found) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid", *SCENES, "--tuned", "nothing.csv"], "cannot read nothing.csv"),
        (["nodes", "--reference", "contrl"], "table nodes has no entry 'contrl'; did you mean 'control'?"),
        (["group", "--dataset", "scenes", "--reference", "g32"], "--reference g32 does not fit scenes: groups=32"),
    ],
)
def test_mistakes(call, fake, arguments, message):
    code, _, err = call(*arguments)
    assert code == 2
    assert message in err
    assert fake.started() == []
