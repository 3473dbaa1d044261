"""The page about runs: right numbers, right images, everything said, nothing that is text becomes markup."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.coco import files
from tests.engine.report.runs import bare, note, save_data, whole

from repgraph import cli, data, models, recipes
from repgraph.engine.evaluate import evaluate
from repgraph.engine.report import Options, network, report, testing
from repgraph.engine.report.labels import as_validated
from repgraph.engine.training.parts import Part
from repgraph.models import MaskRCNN

SETTINGS = as_validated(recipes.with_settings(recipes.get("folder-r50-rgnet"), ["data.crop=64"]), "fp32")
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def root(place):
    return save_data(place / "data")


@pytest.fixture(scope="module")
def run(place, root):
    return whole(place / SCRIPT.replace("/", "|"), root)


@pytest.fixture(scope="module")
def page(run, place, root):
    """A page about a run, the same stopped at a checkpoint, and one that never had a network."""
    stopped = bare(place / "stopped", f"data.root={root}")
    model = models.load(run / "model")
    (stopped / "checkpoints").mkdir()
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"config": model.config, "state_dict": state}, stopped / "checkpoints" / "last.ckpt")
    killed = note(bare(place / "killed", "train.seed=5"), rows=["10,2,0.01,8,100,1,2,"])
    return report([run, stopped, killed], Options(pictures=2), command="repgraph report a <b>")


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)))


def test_scores_are_those_of_eval(page, run, root):
    text = text_of(page)
    found = evaluate(models.load(run / "model"), data.load("folder", root, "val"), SETTINGS).scores
    assert "all 5 images" in text
    assert text.count(f"mIoU {100 * found.miou:.2f} %, pixel accuracy {100 * found.pixel_accuracy:.2f} %") == 2
    for name, value in zip(("field", "[bold]wood[/bold]", "water"), found.iou, strict=True):
        row = re.search(rf">{re.escape(name)}</td>.*?</tr>", page).group()
        assert row.count(f'class="number">{100 * value:.1f}<') == 2
    assert "its last checkpoint" in text


def test_images_are_the_best_and_the_worst(page, run, root):
    model, images = models.load(run / "model"), data.load("folder", root, "val")
    each = [evaluate(model, Part(images, [i]), SETTINGS).scores.miou for i in range(5)]
    order = np.argsort(each)[::-1]
    titles = re.findall(r"<h3>(Best images|Worst images|Where the runs differ most)</h3>(.*?)(?=<h3|<section)", page)
    shown = {title: re.findall(r"<figcaption>([^<]*)</figcaption>", rows) for title, rows in titles}
    best, worst = shown["Best images"], shown["Worst images"]
    assert [name for name in best if name.isdecimal()] == [str(i) for i in order[:2]]
    assert [name for name in worst if name.isdecimal()] == [str(i) for i in order[::-1][:2]]
    assert best[3].endswith(f"mIoU {100 * each[order[0]]:.2f} %") and best[1] == "truth"
    assert [name for name in shown["Where the runs differ most"] if name.isdecimal()] == [str(order[2])]


def test_the_page_stands_alone_and_text_stays_text(page):
    assert "<script" not in page and "[bold]wood[/bold]" in page
    assert "&lt;script&gt;alert(1)&lt;|script&gt;" in page
    assert "repgraph report a &lt;b&gt;" in page
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org)", page)
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(address.startswith(("data:image/", "#")) for address in addresses)
    for name in ("figure", "section", "div", "details", "svg", "g", "table"):
        assert page.count(f"<{name}") - page.count(f"<{name}s") >= 1
        assert len(re.findall(rf"<{name}[ >]", page)) == page.count(f"</{name}>")


def test_what_runs_did_and_what_differs_is_told(page):
    text = text_of(page)
    assert "killed: There are no scores of its network: there was no checkpoint yet." in text
    assert "not finished: 10 of 40 iterations were noted" in text and "finished: 40 iterations" in text
    differing = page.split("What differs between the runs:")[1].split("</table>")[0]
    assert re.findall(r'<th scope="row">([^<]*)</th>', differing) == ["data.root", "train.seed"]
    for title in ("Loss in training", "mIoU on the validation images", "Rate of learning", "Speed of training"):
        assert title in text
    assert "Reach of the nodes of head.context" in text and "pixels of the image" in text


def test_reach_is_in_pixels_of_the_image(run):
    known = network.steps(network.Log(run, {}, None, {}, [], "", []), models.load(run / "model"))
    assert known == {"head.context": 32.0}  # its output stride


def test_class_names_are_text(tmp_path, run):
    root = save_data(tmp_path / "data", count=2)
    known = json.loads((root / "classes.json").read_text())
    known["classes"][0]["name"] = SCRIPT
    (root / "classes.json").write_text(json.dumps(known))
    page = report([run], Options(data=str(root)))
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 3


def test_runs_on_other_images_stand_apart(tmp_path, run):
    other = whole(tmp_path / "other", save_data(tmp_path / "data", count=3))
    page = report([run, other], Options(pictures=0))
    assert page.count("<h2>Scores on folder val</h2>") == 2 and "<img" not in page
    assert "all 5 images" in page and "all 3 images" in page


def test_from_the_logs_alone(run, monkeypatch):
    monkeypatch.setattr(network, "validation", None)
    page = report([run], Options(evaluate=False))
    assert "Loss in training" in page and "IoU of each class" not in page and "parameters" in page
    assert "What differs between the run and the recipe that it is named after" in page


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "It was not evaluated: where is folder? Give its folder: --data ROOT."),
        (["data.root=/nowhere/at all"], "the data are not there: /nowhere/at all is no folder"),
        (["data.val_split="], "it has no validation images: data.val_split is empty"),
        (["data.hold_out=2"], "data.hold_out is 2"),
    ],
)
def test_data_that_are_not_there_are_said(tmp_path, run, settings, said):
    there = save_data(tmp_path / "data", count=1, split="train")
    given = settings if not settings or "root" in settings[0] else [f"data.root={there}", *settings]
    folder = bare(tmp_path / "run", *given)
    shutil.copytree(run / "model", folder / "model")
    page = report([folder])
    assert said in text_of(page) and "Loss in training" in page and "IoU of each class" not in page


def test_images_held_out_are_what_is_tested_on(tmp_path, run):
    root = save_data(tmp_path / "data", count=5, split="train")
    folder = bare(tmp_path / "run", f"data.root={root}", "data.hold_out=2")
    shutil.copytree(run / "model", folder / "model")
    assert "folder train, all 2 images" in text_of(report([folder]))


def test_a_network_that_is_not_finite_is_said(tmp_path, run, root):
    broken = whole(tmp_path / "run", root)
    model = models.load(run / "model")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    model.save_pretrained(broken / "model")
    text = text_of(report([broken]))
    assert "It was not evaluated: the network's logits are not finite" in text and "Loss in training" in text


def test_detectors(tmp_path, monkeypatch):
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")
    other = files.annotation(2, category=90, segmentation=[[12, 4, 25, 4, 25, 16, 12, 16]], bbox=[12, 4, 13, 12])
    root = files.write(tmp_path / "data", files.content(files.annotation(1), other, files.crowd(3)), "val")
    folder = bare(tmp_path / "run", f"data.root={root}", name="coco-r50-repgraph")
    note(folder, columns="iteration,loss,loss_mask,val_box_ap,val_mask_ap", rows=["10,2,1,,", "20,1,0.5,0.25,0.125"])
    torch.manual_seed(0)
    small = dict(min_size=32, max_size=64, score_threshold=0.0, detections=4)
    monkeypatch.setattr(
        network, "load", lambda log, device: MaskRCNN(3, "resnet18", context="repgraph", **small).eval()
    )
    page = report([folder])
    text = text_of(page)
    assert "mask AP 12.50 % after 20 iterations" in text and "AP of masks on the validation images" in text
    assert "AP of each class" in text and "run, masks, %" in text and "run, boxes, %" in text
    for name in ("cat", "dog", "kite"):
        assert f">{name}</td>" in page
    assert "Best images" in text and "What was taken for what" not in text
    assert page.count("data:image/jpeg") == 3  # of two images, one has nothing in it to find and no score


def test_no_image_is_best_and_worst():
    class Test(testing.Tested):
        measure, score, run, of = "IoU", "mIoU", 0, ""
        scores = how = truth = prediction = None

        def __init__(self, each):
            self.each = each

    Test.__abstractmethods__ = frozenset()
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_shown", lambda group, names, index: shown.append(index))
        sheets = testing._sheets([Test([0.5, float("nan"), 0.25, 1.0])], ["a"], 4)
    assert [sheet.title for sheet in sheets] == ["Best images", "Worst images"] and shown == [3, 0, 2]


def test_the_command_writes_the_page(run, root, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert cli.main(["report", str(run), "--out", str(out), "--data", str(root), "--limit", "2", "--no-images"]) == 0
    assert f"the page: {out}" in capsys.readouterr().out
    page = out.read_text(encoding="utf-8")
    assert "the first 2 of 5 images" in page and "<img" not in page
    assert cli.main(["report", str(run), "--no-evaluate"]) == 0
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nowhere"], "repgraph report: {}/nowhere: there is no such folder; give the folder of a run"),
        (["{}"], "{} is not the folder of a run: there is no {}/recipe.json"),
        (["{}/file"], "{}/file: there is no such folder"),
        (["{}", "--out", "{}/file/page.html"], "cannot write {}/file/page.html: Not a directory"),
        (["{}", "--out", "{}"], "cannot write {}: Is a directory"),
        (["{}", "--limit", "0"], "'0' is not a whole number"),
        (["{}", "--device", "tpu"], "tpu"),
        ([], "RUN"),
    ],
)
def test_mistakes_are_named(arguments, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    try:
        code = cli.main(["report", *(each.format(tmp_path) for each in arguments)])
    except SystemExit as end:
        code = end.code
    assert code == 2 and message.replace("{}", str(tmp_path)) in capsys.readouterr().err


def test_the_example_of_the_docs_runs(run, root, tmp_path, monkeypatch):
    text = (Path(__file__).resolve().parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "runs").mkdir()
    for name in ("baseline", "rgnet"):
        (tmp_path / "runs" / name).symlink_to(run)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "report.md", "exec"), {})
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "2 runs: baseline, rgnet" in page and page.count('class="cell"') > 2
