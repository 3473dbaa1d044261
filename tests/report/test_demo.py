"""The demo end to end, with very short training, and its measurements."""

import base64
import io
import json
import re
import types
from pathlib import Path

import pytest
import torch
from PIL import Image
from tests.report.run_folders import text_of

from repgraph import cli, files, recipes
from repgraph.constants import PHOTOS, SHIPPED
from repgraph.data.scenes import FAR, LABELS, Scenes
from repgraph.errors import UsageError
from repgraph.report import demo
from repgraph.report.demo import DemoNetwork, run_demo
from repgraph.train.session import make_task

ROOT = Path(demo.__file__).parents[3]
SETTINGS = ("train.iterations=3", "train.batch=2", "data.options.length=6")
QUICK = dict(settings=SETTINGS, tests=4, pictures=2)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished demo in a folder whose name has to be escaped."""
    folder = tmp_path_factory.mktemp("demo") / "a<b>&c"
    return folder, run_demo(folder, **QUICK)


def read(folder, page):
    return (folder / f"{page}.html").read_text(encoding="utf-8")


def scores_of(folder):
    return json.loads((folder / "scores.json").read_text())


def test_page(done):
    folder, path = done
    html = read(folder, "index")
    text = text_of(html)
    assert path == folder / "index.html"
    for part in (*LABELS.names, "Without the layer", "RGNet", "mIoU", "representative nodes"):
        assert part in text
    assert "<title>RepGraph demo<" in html and "seeds" not in text  # there is one
    for one in scores_of(folder):
        assert one["network"] in ("baseline", "rgnet") and one["seconds"] >= 0 and 0 <= one["changed"] <= 1
        assert f"{100 * one['miou']:.1f} %" in text
        for name, value in one["iou"].items():
            assert value is None or re.search(rf"{name}.*?{100 * value:.1f}", text)


def test_page_is_self_contained(done):
    folder, _ = done
    html = read(folder, "index")
    has_photos = bool(files.in_clone(SHIPPED))
    addresses = re.findall(r'(?:src|href)="([^"]*)"', html)
    links = [each for each in addresses if not each.startswith("data:image/")]
    assert links == [*(["photos.html"] if has_photos else []), "report.html", "explore.html"]
    assert all((folder / each).is_file() for each in links)
    photos = len(list(files.in_clone(PHOTOS).glob("*.jpg"))) if has_photos else 0
    # 2 x 4 swapped, 2 x 4 predictions, and the nodes.
    assert html.count("<img") == photos + 8 + 8 + 1 == len(addresses) - len(links)
    for name in ("figure", "section", "table"):
        assert len(re.findall(rf"<{name}[ >]", html)) == html.count(f"</{name}>")


def test_report_and_explorer(done):
    folder, _ = done
    html = read(folder, "report")
    text = text_of(html)
    for one in scores_of(folder):
        assert f"{one['network']}-0 : mIoU {100 * one['miou']:.2f} %" in text  # on the test images
    assert "all 4 images of scenes test" in text and f"torch {torch.__version__}" in text
    assert html.count("<img") == 4 * 4
    explorer = read(folder, "explore")
    assert "image 1" in explorer and "image 2" not in explorer and "head.context" in explorer


def test_pictures_are_sharp(done):
    """Scenes are drawn larger for the page than for the networks; label maps have the size that is scored."""
    folder, _ = done
    explorer = json.loads(re.findall(r'type="application/json"[^>]*>(.*?)</script>', read(folder, "explore"))[0])
    photos = [f'src="{image["photo"]}"' for image in explorer["images"]]
    for page in (read(folder, "index").split("Trained on this machine")[1], read(folder, "report"), *photos):
        pictures = re.findall(r'(?:src|href)="data:image/(\w+);base64,([^"]*)"', page)
        sizes = {(kind, Image.open(io.BytesIO(base64.b64decode(text))).size) for kind, text in pictures}
        assert {size for kind, size in sizes if kind == "jpeg" and size[0] <= 640} == {(640, 480)}
        assert {size for kind, size in sizes if kind == "png"} <= {(128, 96)}


def test_a_second_call_uses_the_trained_networks(done, capsys):
    folder, _ = done
    before = scores_of(folder)
    run_demo(folder, **QUICK)
    printed = capsys.readouterr()
    assert printed.err.count("already trained") == 2 and "network 2 of 2: rgnet, seed 0" in printed.err
    assert f"RGNet: {100 * before[1]['miou']:.1f} % mIoU, " in printed.out
    assert scores_of(folder) == before


def test_networks_with_other_settings_are_an_error(done):
    folder, _ = done
    with pytest.raises(UsageError, match="was trained with other settings"):
        run_demo(folder, settings=("train.iterations=4", *SETTINGS[1:]))


@pytest.mark.slow
def test_interrupted_training_is_resumed(tmp_path, monkeypatch, capsys):
    def stop(recipe, folder, show=None):
        folder.mkdir(parents=True)
        (folder / "recipe.json").write_text(recipes.to_json(recipe))
        return types.SimpleNamespace(stop=types.SimpleNamespace(signal=2, reason="stopped by SIGINT"), exit_code=130)

    monkeypatch.setattr(demo, "train", stop)
    arguments = ["demo", "--out", str(tmp_path), "--iterations", "2", "--set", *SETTINGS[1:], "--test", "2"]
    arguments += ["--networks", "rgnet", "--pictures", "1"]
    assert cli.main(arguments) == 130
    assert "repgraph demo: stopped by SIGINT; run the command again to resume" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 'index.html'}\n")
    assert "Without the layer" not in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_seeds(tmp_path):
    run_demo(tmp_path, ("control",), seeds=2, settings=SETTINGS, tests=2, pictures=1)
    found = json.loads((tmp_path / "scores.json").read_text())
    assert [(one["network"], one["seed"]) for one in found] == [("control", 0), ("control", 1)]
    assert not (tmp_path / "explore.html").exists() and (tmp_path / "report.html").is_file()  # it has no nodes
    low, high = sorted(100 * one["miou"] for one in found)
    text = text_of(read(tmp_path, "index"))
    assert f"({low:.1f} to {high:.1f})" in text and "averaged over 2 seeds" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "{}/file/demo"], "repgraph demo: cannot write {}/file/demo/index.html"),
        (["--networks", "resnet", "--out", "{}"], "--networks is 'resnet'; expected some of baseline"),
        (["--out", "{}"], "{} is not empty; delete it or choose another --out"),
    ],
)
def test_mistakes(arguments, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", *(each.format(tmp_path) for each in arguments)]) == 2
    assert message.replace("{}", str(tmp_path)) in capsys.readouterr().err


def test_swapped_cues(monkeypatch):
    data = Scenes(None, "test", length=4)
    known = {}
    for index in range(4):
        scene = data.scene(index)
        for each in (scene, scene.swapped(sky=True), scene.swapped(lights=(0, 1, 2))):
            image, mask = data.draw(each)
            known[image.numpy().tobytes()] = mask
    monkeypatch.setattr(demo, "predict", lambda model, image: known[image.numpy().tobytes()])
    assert demo.swap_cues(None, data, 4) == 1
    monkeypatch.setattr(demo, "predict", lambda model, image: torch.full(image.shape[1:], 4))
    assert demo.swap_cues(None, data, 4) == 0


def test_the_receptive_field_has_no_cue():
    torch.manual_seed(0)
    model = make_task(recipes.get("scenes-baseline")).network(LABELS).eval()
    image = torch.randn(1, 3, 96, 128, requires_grad=True)
    model(image)[0, :, 48, 64].max().backward()
    rows, columns = image.grad[0].abs().sum(0).nonzero().T
    assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (34, 34)  # 35 x 35 pixels


def test_means_of_classes():
    scores = types.SimpleNamespace(iou=(1.0, 1.0, float("nan"), 1.0, 0.5, 0.3, 0.2, 0.0))
    one = DemoNetwork("rgnet", 0, None, None, types.SimpleNamespace(scores=scores), 0)
    assert one.iou(FAR) == pytest.approx(0.25) and one.iou(["sky", "building"]) == 1


def test_the_makefile_runs_it():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo: .*##.*\n\t\$\(BIN\)/repgraph demo", makefile, re.MULTILINE)
