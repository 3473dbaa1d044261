"""The page about runs: scores, images, differences, problems, and escaping."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.coco import files
from tests.report.run_folders import finished_run, stopped_run, text_of, write_logs
from tests.trained import save_data

from repgraph import cli, data, models
from repgraph.evaluation import evaluate
from repgraph.inference import Settings
from repgraph.models import MaskRCNN
from repgraph.report import Options, page, report
from repgraph.report.run_log import read_run
from repgraph.report.validation import open_validation

SCRIPT = "<script>alert(1)</script>{{ title }}"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def root(place):
    return save_data(place / "data")


@pytest.fixture(scope="module")
def run(place, root):
    return finished_run(place / SCRIPT.replace("/", "|"), root)


@pytest.fixture(scope="module")
def html(run, place, root):
    """A page about a run, the same network at a checkpoint, and a run that never had a network."""
    stopped = stopped_run(place / "stopped", f"data.root={root}")
    model = models.load(run / "model")
    (stopped / "checkpoints").mkdir()
    torch.save({"config": model.config, "state_dict": model.state_dict()}, stopped / "checkpoints" / "last.ckpt")
    killed = write_logs(stopped_run(place / "killed", "train.seed=5"), rows=["10,2,0.01,8,100,1,2,"])
    return report([run, stopped, killed], Options(pictures=2))


def settings_of(run):
    test = read_run(run).recipe.test
    return Settings(mode=test.mode, crop=test.crop, stride=test.stride)


def test_scores_are_those_of_eval(html, run, root):
    text = text_of(html)
    found = evaluate(models.load(run / "model"), data.load("folder", root, "val"), settings_of(run)).scores
    assert "all 5 images" in text
    assert text.count(f"mIoU {100 * found.miou:.2f} %, pixel accuracy {100 * found.pixel_accuracy:.2f} %") == 2
    for name, value in zip(("field", "[bold]wood[/bold]", "water"), found.iou, strict=True):
        row = re.search(rf">{re.escape(name)}</td>.*?</tr>", html, flags=re.DOTALL).group()
        assert row.count(f'class="number">{100 * value:.1f}<') == 2
    assert "(last checkpoint" in text


def test_best_and_worst_images(html, run, root):
    model, images = models.load(run / "model"), data.load("folder", root, "val")
    each = [evaluate(model, replace(images, items=[images.items[i]]), settings_of(run)).scores.miou for i in range(5)]
    order = np.argsort(each)[::-1]
    parts = re.findall(r"<h3>(Best images|Worst images|Largest diff[a-z]*)</h3>(.*?)(?=<h3|<section)", html, re.DOTALL)
    shown = {title: re.findall(r"<figcaption>([^<]*)</figcaption>", rows) for title, rows in parts}
    best, worst = shown["Best images"], shown["Worst images"]
    assert [name for name in best if name.isdecimal()] == [str(i) for i in order[:2]]
    assert [name for name in worst if name.isdecimal()] == [str(i) for i in order[::-1][:2]]
    assert best[1] == "ground truth" and best[3].endswith(f"mIoU {100 * each[order[0]]:.2f}\N{NO-BREAK SPACE}%")
    assert [name for name in shown["Largest differences"] if name.isdecimal()] == [str(order[2])]


def test_the_page_is_self_contained_and_text_is_escaped(html):
    assert "<script" not in html and "[bold]wood[/bold]" in html
    assert "&lt;script&gt;alert(1)&lt;|script&gt;{{ title }}" in html
    assert "default-src &#39;none&#39;" in html and "light-dark(" in html
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org)", html)
    addresses = re.findall(r'(?:src|[^:]href)="([^"]*)"', html)
    assert addresses and all(address.startswith(("data:image/", "#")) for address in addresses)
    for name in ("figure", "section", "div", "details", "svg", "table", "tr"):
        assert len(re.findall(rf"<{name}[ >]", html)) == html.count(f"</{name}>") > 0


def test_facts_differences_and_problems(html):
    text = text_of(html)
    assert "killed: The network was not evaluated: there is no checkpoint yet." in text
    assert "stopped at iteration 10 of 40" in text and "finished after 40 iterations" in text
    differing = html.split("Differences between the runs:")[1].split("</table>")[0]
    assert re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', differing) == ["data.root", "train.seed"]
    for title in ("Training loss", "mIoU on the validation images", "Learning rate", "Images per second"):
        assert title in text
    assert "Mean distance of the nodes of head.context, in positions of its map" in text
    assert '<td colspan="3">8 images, bf16, seed 0</td>' not in html  # the seeds differ
    assert re.search(r">hardware</th>\s*<td colspan=\"3\">CPU, 2 threads<", html)


def test_one_run_from_its_logs(run):
    html = report([run], Options(evaluate=False))
    assert "Training loss" in html and "IoU of each class" not in html and "parameters" in html
    assert "Differences" not in html and ">train.batch<" in html


@pytest.mark.slow
def test_runs_on_other_images_are_not_compared(tmp_path, run):
    other = finished_run(tmp_path / "other", save_data(tmp_path / "data", count=3))
    html = report([run, other], Options(pictures=0))
    assert html.count("<h2>Scores on folder val</h2>") == 2 and "<img" not in html
    assert "all 5 images" in html and "all 3 images" in html


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ([], "The network was not evaluated: "),
        (["data.root=/nowhere/at all"], "data.root is /nowhere/at all, which is not a folder"),
        (["data.hold_out=2"], "data.hold_out is 2"),
    ],
)
@pytest.mark.slow
def test_missing_data_are_reported(tmp_path, run, settings, problem):
    there = save_data(tmp_path / "data", count=1, split="train")
    given = settings if not settings or "root" in settings[0] else [f"data.root={there}", *settings]
    folder = stopped_run(tmp_path / "run", *given)
    shutil.copytree(run / "model", folder / "model")
    html = report([folder])
    assert problem in text_of(html) and "Training loss" in html and "IoU of each class" not in html


def test_held_out_images_are_evaluated(tmp_path):
    root = save_data(tmp_path / "data", count=5, split="train")
    assert len(open_validation(read_run(stopped_run(tmp_path / "run", f"data.root={root}", "data.hold_out=2")))) == 2


def test_a_network_that_is_not_finite_is_reported(tmp_path, run, root):
    broken = finished_run(tmp_path / "run", root)
    model = models.load(run / "model")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    model.save_pretrained(broken / "model")
    text = text_of(report([broken]))
    assert "The network was not evaluated: " in text and "not finite" in text and "Training loss" in text


def test_detectors(tmp_path):
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")
    other = files.annotation(2, category=90, segmentation=[[12, 4, 25, 4, 25, 16, 12, 16]], bbox=[12, 4, 13, 12])
    root = files.write(tmp_path / "data", files.content(files.annotation(1), other, files.crowd(3)), "val")
    folder = stopped_run(tmp_path / "run", f"data.root={root}", name="coco-r50-repgraph")
    columns = "iteration,loss,loss_mask,val_box_ap,val_mask_ap"
    write_logs(folder, columns=columns, rows=["10,2,1,,", "20,1,0.5,0.25,0.125"])
    torch.manual_seed(0)
    small = dict(min_size=32, max_size=64, score_threshold=0.0, detections=4)
    MaskRCNN(3, "resnet18", context="repgraph", **small).save_pretrained(folder / "model")
    html = report([folder])
    text = text_of(html)
    assert "mask AP 12.50 % at iteration 20" in text and "AP of masks on the validation images" in text
    assert "AP of each class" in text and "run, masks" in text and "run, boxes" in text
    for name in ("cat", "dog", "kite"):
        assert f">{name}</td>" in html
    assert "Confusion matrix" not in text and "<img" not in html


def test_command(run, root, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert (
        cli.main(["report", str(run), "--out", str(out), "--data", str(root), "--limit", "2", "--pictures", "0"]) == 0
    )
    assert f"wrote {out}" in capsys.readouterr().out
    html = out.read_text(encoding="utf-8")
    assert "the first 2 of 5 images" in html and "<img" not in html
    assert cli.main(["report", str(run), "--no-evaluate"]) == 0
    assert (run / "report.html").is_file()


def test_folder_name_that_is_not_text(tmp_path):
    folder = stopped_run(tmp_path / os.fsdecode(b"run\xff"))
    assert cli.main(["report", str(folder), "--no-evaluate", "--out", str(tmp_path / "page.html")]) == 0
    assert "run?" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nowhere"], "repgraph report: {}/nowhere is not the folder of a run: there is no {}/nowhere/recipe.json"),
        (["{}"], "{} is not the folder of a run: there is no {}/recipe.json"),
        (["{}", "--out", "{}/file/page.html"], "cannot write {}/file/page.html: Not a directory"),
        (["{}", "--out", "{}/recipe.json"], "recipe.json; expected a file name that ends in .html"),
    ],
)
def test_mistakes(arguments, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["report", *(each.format(tmp_path) for each in arguments)]) == 2
    assert message.replace("{}", str(tmp_path)) in capsys.readouterr().err


def test_the_example_of_the_docs(run, tmp_path, monkeypatch):
    text = (Path(page.__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    for name in ("baseline", "rgnet"):
        (tmp_path / "runs" / name).symlink_to(run)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "report.md", "exec"), {})
    html = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "2 runs: baseline, rgnet" in html and html.count('class="confusion"') == 2


def test_class_names_are_escaped(tmp_path, run):
    root = save_data(tmp_path / "data", count=2)
    known = json.loads((root / "classes.json").read_text())
    known["classes"][0]["name"] = SCRIPT
    (root / "classes.json").write_text(json.dumps(known))
    html = report([run], Options(data=str(root)))
    assert "<script" not in html and html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3
