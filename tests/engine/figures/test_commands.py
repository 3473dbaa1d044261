"""``repgraph affinity`` and ``repgraph nodes``: what they write and print, and what they say of mistakes."""

import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from tests.absent import run_without
from tests.data.coco import files as coco
from tests.engine import trained

from repgraph import cli, models
from repgraph.data.files import read_image
from repgraph.engine.figures import affinity_statistics, one_position
from repgraph.engine.figures.nodes import Subject, Wanted, row
from repgraph.engine.trained import load
from repgraph.models import MaskRCNN, RGNet

FOLDER = ("--dataset", "folder")
KINDS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def command(name, *arguments):
    coarse = [] if "--dpi" in arguments else ["--dpi", "30"]  # which is fast
    return cli.main([name, *(str(argument) for argument in arguments), *coarse])


def save(folder, context="non_local", **options):
    torch.manual_seed(0)
    given = dict(channels=16, output_stride=8, auxiliary=False, labels=trained.LABELS.to_dict()) | options
    RGNet(3, "resnet10t", context=context, **given).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def nl(tmp_path_factory):
    return save(tmp_path_factory.mktemp("nl"))


@pytest.fixture(scope="module")
def repgraph(tmp_path_factory):
    options = {"groups": 2, "nodes": 4}
    return save(tmp_path_factory.mktemp("repgraph"), "repgraph", context_options=options, inserted={"layer2": 1})


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """72 x 104 pixels."""
    return trained.save_picture(tmp_path_factory.mktemp("photos") / "a $x_^ photo.png", 72, 104)


def test_affinity_of_an_image(nl, photo, tmp_path, capsys):
    assert command("affinity", nl, photo, "--at", "60,20", "--out", tmp_path / "a", "--top", "5", "--dpi", "50") == 0
    shown = capsys.readouterr().out
    model, image = models.load(nl), read_image(photo)
    found = affinity_statistics(model, [image], top=5)
    one = one_position(model, image, (60, 20), top=5)
    assert f"{found.effective.mean:.1f}" in shown and "mass in the top 5, %" in shown and "117.0" in shown
    assert "1 image, layer head.context, 117 queries, N = 117" in shown
    assert "a $x_^ photo at 59.5,19.5: top 5: " in shown
    record = json.loads((tmp_path / "a" / "affinity.json").read_text())
    for name in ("top", "percent", "effective", "effective_share"):
        assert record[name]["mean"] == pytest.approx(getattr(found, name).mean, rel=1e-5)
        assert record[name]["quantiles"]["0.5"] == pytest.approx(getattr(found, name).median, rel=2e-3)
        assert record["one_position"][name] == pytest.approx(one.statistics[name], rel=1e-5)
    assert record["one_position"]["map"] == [9, 13] and record["top_count"] == 5 and record["positions"] == 117
    with (tmp_path / "a" / "affinity.csv").open(newline="") as file:
        table = {line["statistic"]: line for line in csv.DictReader(file)}
    assert float(table["top 5"]["mean"]) == record["top"]["mean"]
    assert float(table["effective"]["uniform"]) == 117
    with (tmp_path / "a" / "histogram.csv").open(newline="") as file:
        bars = list(csv.DictReader(file))
    assert sum(float(line["mass"]) for line in bars) == pytest.approx(1)
    for kind, start in KINDS.items():
        assert (tmp_path / "a" / f"affinity.{kind}").read_bytes().startswith(start)
    with Image.open(tmp_path / "a" / "affinity.png") as picture:
        assert picture.width == round(6.9 * 50)


def test_affinity_of_a_split_as_json(nl, data, tmp_path, capsys):
    arguments = ["affinity", nl, *FOLDER, "--data", data, "--split", "val", "--limit", "3", "--format", "svg"]
    assert command(*arguments, "--json", "--out", tmp_path, "--width", "4.8") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["images"] == 3 and record["data"] == "folder val, 3 images"
    assert record == json.loads((tmp_path / "affinity.json").read_text())
    with (tmp_path / "images.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["image"] for line in lines] == ["0", "1", "2"]
    images = [read_image(data / "images" / "val" / f"{i}.png") for i in range(3)]
    each = [affinity_statistics(models.load(nl), [image]) for image in images]
    for line, one in zip(lines, each, strict=True):
        assert int(line["positions"]) == one.images[0].positions
        assert float(line["effective"]) == pytest.approx(one.effective.mean, rel=1e-5)
    assert not (tmp_path / "affinity.png").exists()


@pytest.mark.slow  # processes take long to start
def test_affinity_by_torchrun_is_that_of_one_process(nl, data, tmp_path, capsys):
    arguments = [
        "affinity",
        nl,
        *FOLDER,
        "--data",
        data,
        "--split",
        "val",
        "--json",
        "--format",
        "svg",
        "--device",
        "cpu",
    ]
    arguments = [str(argument) for argument in arguments]
    assert command(*arguments, "--out", tmp_path / "alone") == 0
    alone = json.loads(capsys.readouterr().out)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    whole = [*torchrun, "-m", "repgraph", *arguments, "--out", str(tmp_path / "two")]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    together = json.loads(done.stdout)
    for name in ("top", "percent", "effective", "effective_share"):
        assert together[name]["mean"] == pytest.approx(alone[name]["mean"], rel=1e-5)
        assert together[name]["uniform"] == pytest.approx(alone[name]["uniform"], rel=1e-9)
    assert together["queries"] == alone["queries"] and together["images"] == 5
    images = [(tmp_path / run / "images.csv").read_text().splitlines() for run in ("alone", "two")]
    assert [line.split(",")[:2] for line in images[0]] == [line.split(",")[:2] for line in images[1]]


def test_nodes_as_png_svg_and_pdf(repgraph, photo, tmp_path, capsys):
    out = [tmp_path / "deep" / f"figure.{kind}" for kind in KINDS]
    asked = ["--at", "60,20", "5,71", "--dpi", "80", "--width", "4.8", "--links"]
    assert command("nodes", repgraph, photo, *asked, "--out", *out) == 0
    shown = capsys.readouterr().out
    for path, start in zip(out, KINDS.values(), strict=True):
        assert path.read_bytes().startswith(start)
    with Image.open(out[0]) as picture:
        assert picture.width == round(4.8 * 80)
    text = out[1].read_text()
    assert text.count("<image") == 3 and text.count('id="PathCollection_') == 2 * (4 + 1)
    assert "at 59.5,19.5 (" in shown and "at 3.5,67.5 (" in shown and "4 nodes" in shown and "head.context" in shown


def test_nodes_are_those_of_the_network(repgraph, photo):
    network, image = load(repgraph), read_image(photo)
    cells = row(Subject(network, "photo", image), Wanted(first="none"), [(60, 20)])
    found = cells[0].look
    with torch.no_grad():
        normal = (image[None].float() / 255 - torch.tensor(network.model.mean).view(3, 1, 1)) / torch.tensor(
            network.model.std
        ).view(3, 1, 1)
        nodes, weights = network.model.nodes(normal)
    assert (found.x, found.y) == (59.5, 19.5)
    places = np.array([node[:2] for node in found.nodes])
    np.testing.assert_allclose(places, nodes[0, :, :, 2, 7].numpy(), atol=1e-3)
    np.testing.assert_allclose([node[2] for node in found.nodes], weights[0, :, :, 2, 7].mean(0).numpy(), atol=1e-5)
    second = row(Subject(network, "photo", image), Wanted(first="none", group=1), [(60, 20)])[0].look
    np.testing.assert_allclose([node[2] for node in second.nodes], weights[0, 1, :, 2, 7].numpy(), atol=1e-5)
    other = row(Subject(network, "photo", image), Wanted(first="none", layer="layer2.0.repgraph"), [(60, 20)])
    assert len(other[0].look.nodes) == 9


def test_nodes_of_a_split_with_positions_chosen(repgraph, data, tmp_path, capsys):
    arguments = ["nodes", repgraph, *FOLDER, "--data", data, "--split", "val", "--limit", "2", "--positions", "3"]
    out = tmp_path / "figure.svg"
    assert command(*arguments, "--first", "truth", "--under", "prediction", "--out", out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 3 + 1 and out.read_text().count("<image") == 2 * 4
    assert all(any(name in line for name in trained.NAMES) for line in lines[:-1])


def test_positions_for_each_image(repgraph, photo, tmp_path, capsys):
    small = trained.save_picture(tmp_path / "small.png", 16, 16)
    arguments = ["nodes", repgraph, photo, small, "--out", tmp_path / "figure.svg", "--no-captions", "--no-legend"]
    assert command(*arguments, "--at", "100,70", "--at", "4,4", "12,12") == 0
    shown = capsys.readouterr().out
    assert "photo at 99.5,67.5" in shown and "small at 3.5,3.5" in shown and "small at 11.5,11.5" in shown
    assert command(*arguments, "--at", "100,70") == 2
    assert "position 100,70 is outside of small, which has 16 x 16 pixels" in capsys.readouterr().err


def test_nodes_of_a_non_local_layer_are_its_strongest_positions(nl, photo, tmp_path, capsys):
    out = tmp_path / "figure.svg"
    assert command("nodes", nl, photo, "--at", "60,20", "--strongest", "7", "--out", out) == 0
    assert "the 7 strongest positions, which have " in capsys.readouterr().out
    assert out.read_text().count('id="PathCollection_') == 8


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("detector")
    MaskRCNN(2, "resnet18", context="non_local", min_size=64, max_size=96, detections=2).save_pretrained(folder)
    return folder


def test_both_with_a_detector(detector, photo, tmp_path, capsys):
    assert command("nodes", detector, photo, "--positions", "2", "--out", tmp_path / "figure.svg") == 0
    assert command("affinity", detector, photo, "--format", "svg", "--out", tmp_path / "affinity") == 0
    assert "detector.backbone.body.layer3.1.repgraph" in capsys.readouterr().out
    assert (tmp_path / "figure.svg").read_text().count("<image") == 3
    root = coco.write(tmp_path / "coco", coco.content(coco.annotation(1)), split="val")
    asked = ["--data", root, "--split", "val", "--limit", "1", "--format", "svg", "--out", tmp_path / "split"]
    assert command("affinity", detector, *asked) == 0
    assert "coco val, 1 image, layer detector" in capsys.readouterr().out


MISTAKES = {
    "no run": (["{none}", "{photo}"], "is not there; the folder of a run, or of a network, is needed"),
    "no image": (["{nl}", "nothing.png"], "nothing.png is not there; give images"),
    "not an image": (["{nl}", "{text}"], "text.png"),
    "nothing to look at": (["{nl}"], "give images (files, folders, patterns), or --split and --data"),
    "both": (["{nl}", "{photo}", "--split", "val"], "give images (files, folders, patterns), or --split and --data"),
    "outside": (["{nl}", "{photo}", "--at", "104,3"], "position 104,3 is outside of a $x_^ photo, which has 104 x 72"),
    "layer": (["{nl}", "{photo}", "--layer", "head.contxt"], "head.context"),
}


@pytest.mark.parametrize("name", ["affinity", "nodes"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_both(name, mistake, nl, photo, tmp_path, capsys):
    (tmp_path / "text.png").write_text("this is no image")
    given, message = MISTAKES[mistake]
    known = {"nl": nl, "photo": photo, "none": tmp_path / "none", "text": tmp_path / "text.png"}
    out = tmp_path / ("out" if name == "affinity" else "out.svg")
    assert command(name, *(text.format(**known) for text in given), "--out", out) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"repgraph {name}: ") and message in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["affinity", "{repgraph}", "{photo}", "--out", "{new}"], "it has BottleneckRepGraph at "),
        (["affinity", "{nl}", "{photo}", "--out", "{photo}/x"], "cannot write "),
        (["nodes", "{nl}", "{photo}", "--out", "{photo}/x.png"], "cannot write "),
        (["nodes", "{nl}", "{photo}", "--out", "x.gif"], "x.gif: figures are written as .svg, .pdf, .png"),
        (["nodes", "{nl}", "{photo}", "--out", "{new}"], "figures are written as .svg, .pdf, .png"),
        (
            ["nodes", "{repgraph}", "{photo}", "--group", "2", "--out", "{new}.svg"],
            "has no such group; there is 0 to 1",
        ),
        (["nodes", "{nl}", "{photo}", "--first", "truth", "--out", "{new}.svg"], "is not known; it is, for a data set"),
        (
            ["nodes", "{nl}", "{photo}", "--at", "1,1", "--at", "2,2", "--out", "{new}.svg"],
            "--at is given 2 times for 1",
        ),
        (["nodes", "{repgraph}", "{photo}", "--layer", "repgraph2", "--out", "{new}.svg"], "there is no layer"),
    ],
)
def test_mistakes_in_one(arguments, message, nl, repgraph, photo, tmp_path, capsys):
    known = {"nl": nl, "repgraph": repgraph, "photo": photo, "new": tmp_path / "new"}
    assert command(*(text.format(**known) for text in arguments)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("at", ["12", "a,b", "1,2,3", "nan,1"])
@pytest.mark.parametrize("name", ["affinity", "nodes"])
def test_what_is_no_position(name, at, capsys):
    with pytest.raises(SystemExit) as stop:
        command(name, "run", "photo.png", "--out", "x.png", "--at", at)
    assert stop.value.code == 2
    assert f"'{at}' is not a position; give X,Y in pixels, such as 120,80" in capsys.readouterr().err


def test_too_many_images_for_a_figure(nl, tmp_path, capsys):
    for i in range(25):
        trained.save_picture(tmp_path / "many" / f"{i}.png", 8, 8)
    assert command("nodes", nl, tmp_path / "many", "--out", tmp_path / "figure.svg") == 2
    assert "25 images do not fit into a figure; give 24 at most, or --limit" in capsys.readouterr().err


def test_help_needs_no_extra():
    hidden = ("rich", "torchvision", "PIL", "timm", "lightning", "huggingface_hub", "safetensors", "matplotlib")
    script = """
    import sys
    from repgraph.cli import main
    for name in ("affinity", "nodes"):
        try:
            main([name, "--help"])
        except SystemExit as stop:
            assert not stop.code
    """
    done = run_without(hidden, script)
    assert done.returncode == 0 and done.stdout.count("examples:") == 2, done.stderr


def test_an_image_is_not_written_over(nl, repgraph, tmp_path, capsys):
    photo = trained.save_picture(tmp_path / "affinity.png", 40, 56)
    before = photo.read_bytes()
    assert command("nodes", repgraph, photo, "--out", tmp_path / "nodes.svg", tmp_path / "x" / ".." / photo.name) == 2
    assert "is one of the images and would be written over; give another --out" in capsys.readouterr().err
    assert command("affinity", nl, photo, "--out", tmp_path) == 2
    assert "affinity.png is one of the images" in capsys.readouterr().err
    assert photo.read_bytes() == before


@pytest.mark.parametrize(("side", "more"), [(3000, ()), (40, ("--width", "50", "--dpi", "2400"))])
def test_a_figure_that_no_one_could_print(repgraph, tmp_path, capsys, side, more):
    photo = trained.save_picture(tmp_path / "long.png", side, 2 if side > 40 else 56)
    assert command("nodes", repgraph, photo, "--at", "1,1", "--out", tmp_path / "nodes.png", *more) == 2
    assert "pixels; give a smaller --width or --dpi, fewer images" in capsys.readouterr().err


def test_a_name_that_is_not_text(nl, repgraph, tmp_path, monkeypatch):
    photo = trained.save_picture(tmp_path / os.fsdecode(b"a\xff.png"), 24, 32)
    out = tmp_path / os.fsdecode(b"\xfe")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8"))  # which is strict
    assert command("nodes", repgraph, photo, "--at", "1,1", "--out", out / "nodes.png") == 0
    assert command("affinity", nl, photo, "--format", "png", "--out", out) == 0
    assert b"a? at" in shown.getvalue() and b"\\udcfe/nodes.png" in shown.getvalue()
    assert (out / "images.csv").read_text().splitlines()[1].startswith("a?,")


def test_a_folder_without_images(repgraph, tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert command("nodes", repgraph, tmp_path / "none", "--out", tmp_path / "a.png") == 2
    said = capsys.readouterr().err
    assert "/none/**/*.jpg' looks in folders below it too" in said and "--recursive" not in said
