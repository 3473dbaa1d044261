"""The demo from end to end with networks that hardly learn, and what it says on its page."""

import json
import re
import sys
import types
from html import unescape
from pathlib import Path

import pytest
import torch

from repgraph import cli, recipes
from repgraph.data.scenes import FAR, LABELS, Scenes
from repgraph.demo import measure, report, training
from repgraph.demo.demo import Plan, demo
from repgraph.engine import tasks
from repgraph.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("train.iterations=3", "train.batch=2", "data.options.length=6")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished demo in a folder with a name that is not HTML."""
    plan = Plan(tmp_path_factory.mktemp("demo") / "a<b>&c", settings=QUICK, tests=4, pictures=2)
    return plan, demo(plan)


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)))


def test_the_page_says_what_was_found(done):
    plan, path = done
    page = path.read_text(encoding="utf-8")
    text = text_of(page)
    assert path == plan.out / "index.html"
    for said in (*LABELS.names, "Without the layer", "RGNet", "mIoU", "9 representative nodes"):
        assert said in text
    assert f"torch {torch.__version__}" in text
    for one in json.loads((plan.out / "scores.json").read_text()):
        assert one["network"] in plan.networks and one["seconds"] > 0
        assert f"{100 * one['miou']:.1f}" in text
        for name, value in one["iou"].items():
            assert value is None or re.search(rf"{name}.*?{100 * value:.1f}", text, re.DOTALL)
    assert "3 iterations of 2 pictures" in text and "6 to learn from, 4 others to test on" in text
    assert "35 x 35 pixels around it" in text


def test_the_page_stands_alone_and_names_are_escaped(done):
    plan, path = done
    page = path.read_text(encoding="utf-8")
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    # Explained, truth, 4 of what answers depend on, 2 x 4 swapped, 2 x 4 predictions, 2 with nodes.
    assert addresses[:2] == ["report.html", "explore.html"]
    assert len(addresses[2:]) == 2 + 4 + 8 + 8 + 2 and all(a.startswith("data:image/") for a in addresses[2:])
    pictures = page.split("What was run")[0]  # after it there are curves
    assert len(re.findall(r"<circle", pictures)) == 4 + 2 * 2 * (9 + 1)
    assert "a<b>" not in page and "a&lt;b&gt;&amp;c" in page
    assert str(plan.out) in text_of(page)
    assert page.count("<figure") == page.count("</figure>") and page.rstrip().endswith("</html>")


def test_there_are_pages_about_the_runs_and_to_explore(done):
    plan, _ = done
    page = (plan.out / "report.html").read_text(encoding="utf-8")
    text = text_of(page)
    for one in json.loads((plan.out / "scores.json").read_text()):
        assert f"{one['network']}-0: mIoU {100 * one['miou']:.2f} %" in text  # of the tests that were made anyway
    assert "scenes test, all 4 images" in text and "Where the runs differ most" not in text  # too few for that
    assert 'href="index.html"' in page and page.count("<img") == 4 * 4
    explorer = (plan.out / "explore.html").read_text(encoding="utf-8")
    assert "test picture 1" in explorer and "test picture 2" not in explorer and "head.context" in explorer


def test_a_second_call_takes_the_networks_that_are_there(done, capsys):
    plan, _ = done
    before = json.loads((plan.out / "scores.json").read_text())
    demo(plan, show=sys.stderr, out=sys.stdout)
    shown = capsys.readouterr()
    assert shown.err.count("trained before") == 2 and "loss" not in shown.err
    assert "network 2 of 2: rgnet, seed 0" in shown.err
    assert "outbound boat *" in shown.out and "mean, far *" in shown.out
    assert json.loads((plan.out / "scores.json").read_text()) == before


def test_a_folder_with_other_networks_is_refused(done):
    plan, _ = done
    with pytest.raises(UsageError, match="has a network of another recipe"):
        demo(Plan(plan.out, settings=("train.iterations=4", *QUICK[1:])))


@pytest.mark.slow
def test_what_was_interrupted_goes_on(tmp_path, monkeypatch, capsys):
    calls = []

    def stopped(recipe, folder, show=None):
        calls.append("train")
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_text(recipes.to_json(recipe))
        return types.SimpleNamespace(stop=types.SimpleNamespace(signal=2, reason="stopped by SIGINT"), code=130)

    monkeypatch.setattr(training, "train", stopped)
    arguments = ["demo", "--out", str(tmp_path), "--iterations", "2", "--set", *QUICK[1:], "--test", "2"]
    assert cli.main([*arguments, "--networks", "rgnet", "--pictures", "1"]) == 130
    assert "repgraph demo: stopped by SIGINT; call it once more to go on" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()
    assert cli.main([*arguments, "--networks", "rgnet", "--pictures", "1"]) == 0  # it resumes: train is not called
    assert calls == ["train"]
    assert capsys.readouterr().out.endswith(f"the page: {tmp_path / 'index.html'}\n")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "not known, in several parts" in page and "Without the layer" not in page


@pytest.mark.slow
def test_several_seeds(tmp_path):
    path = demo(Plan(tmp_path, ("control",), seeds=2, settings=QUICK, tests=2, pictures=1))
    found = json.loads((tmp_path / "scores.json").read_text())
    assert [(one["network"], one["seed"]) for one in found] == [("control", 0), ("control", 1)]
    assert not (tmp_path / "explore.html").exists() and (tmp_path / "report.html").is_file()  # the control has no nodes
    low, high = sorted(100 * one["miou"] for one in found)
    assert f"({low:.1f} to {high:.1f} over 2 seeds)" in path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_found_out_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--out", str(tmp_path / "file" / "demo")]) == 2
    assert "repgraph demo: cannot write to --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--networks", "resnet"], "invalid choice: 'resnet'"),
        (["--seeds", "0"], "'0' is not a whole number"),
        (["--set", "optim.lrr=1", "--out", "{}"], "there is no setting 'optim.lrr'; did you mean 'optim.lr'?"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, capsys):
    try:
        code = cli.main(["demo", *(each.format(tmp_path) for each in arguments)])
    except SystemExit as end:
        code = end.code
    assert code == 2 and message in capsys.readouterr().err


def test_swapping_tells_who_follows_the_cues(monkeypatch):
    data = Scenes(None, "test", length=4)
    known = {}
    for index in range(4):
        what = data.scene(index)
        for each in (what, what.swapped(sky=True), what.swapped(lights=(0, 1, 2))):
            image, mask = data.draw(each)
            known[image.numpy().tobytes()] = mask
    monkeypatch.setattr(measure, "predict", lambda model, image: known[image.numpy().tobytes()])
    assert measure.swap(None, data, 4) == (1.0, 1.0)
    monkeypatch.setattr(measure, "predict", lambda model, image: torch.full(image.shape[1:], 4))
    assert measure.swap(None, data, 4) == (0.0, 0.0)  # what does not change is wrong before or after


def test_what_an_answer_depends_on_is_measured():
    torch.manual_seed(0)
    model = tasks.of(recipes.get("scenes-baseline")).network(LABELS).eval()
    assert measure.seen(model, (96, 128)) == (35, 35)
    image, _ = Scenes(None, "test")[0]
    counts = measure.depends_on(model, image, (60, 50))
    assert counts.shape == (96, 128) and counts[50, 60] > 0 and counts[50, 79:].max() == 0


def test_means_of_classes():
    scores = types.SimpleNamespace(iou=(1.0, 1.0, float("nan"), 1.0, 0.5, 0.3, 0.2, 0.0))
    measured = types.SimpleNamespace(evaluation=types.SimpleNamespace(scores=scores))
    assert report.iou(measured, FAR) == pytest.approx(0.25)
    assert report.iou(measured, ["sky", "building"]) == 1
    assert [row[0] for row in report.rows({"rgnet": [measured]}) if row[1]] == list(FAR)


def test_the_makefile_runs_it():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo: .*##.*\n\t\$\(BIN\)/repgraph demo", makefile, re.MULTILINE)


def test_the_examples_of_the_docs_run():
    text = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(example, "demo.md", "exec"), {})
