"""``repgraph eval``: tables, JSON and files, for segmentation and detection; mistakes; several processes."""

import csv
import json
import math

import pytest
import torch
from tests import objects, trained

from repgraph import cli
from repgraph import data as datasets
from repgraph.data.coco import load as load_coco
from repgraph.evaluation import detection, evaluate
from repgraph.models import load
from repgraph.recipes import DetectionData, DetectionRecipe

CPU = ["--device", "cpu", "--workers", "0"]
FOLDER = ["--dataset", "folder", *CPU]
SPLIT = ["--dataset", "folder", "--data", "{data}"]


def command(*arguments) -> int:
    return cli.main(["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def coco(tmp_path_factory):
    return objects.save_data(tmp_path_factory.mktemp("coco"))


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_tables_and_files_of_segmentation(network, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")  # a narrow terminal cuts nothing
    out = tmp_path / "a" / "b"
    assert command(network, *FOLDER, "--data", data, "--out", out) == 0
    shown = capsys.readouterr().out
    expected = evaluate(load(network), datasets.load("folder", data, "val"))
    scores = expected.scores
    lines = shown.splitlines()
    assert lines[0].split() == ["class", "name", "IoU", "%", "accuracy", "%", "pixels"]
    assert [line.split()[:2] for line in lines[2:5]] == [[str(k), name] for k, name in enumerate(trained.NAMES)]
    assert f"mIoU {100 * scores.miou:.2f} %, pixel accuracy {100 * scores.pixel_accuracy:.2f} %" in shown
    assert "folder val, 5 images, whole images, scale 1, fp32" in shown and "scores.json" in shown
    record = json.loads((out / "scores.json").read_text())
    assert record["miou"] == scores.miou and record["mean_accuracy"] == scores.mean_accuracy
    assert (record["dataset"], record["split"], record["images"]) == ("folder", "val", 5)
    with (out / "confusion.csv").open(newline="") as file:
        head, *matrix = csv.reader(file)
    assert head == ["truth", *trained.NAMES] and [line[0] for line in matrix] == list(trained.NAMES)
    assert [[int(cell) for cell in line[1:]] for line in matrix] == expected.confusion.tolist()
    classes = rows(out / "classes.csv")
    assert [row["name"] for row in classes] == list(trained.NAMES)
    for row, iou, pixels in zip(classes, scores.iou, expected.confusion.sum(1).tolist(), strict=True):
        assert (float(row["iou"]) if row["iou"] else math.nan) == pytest.approx(iou, nan_ok=True)
        assert int(row["pixels"]) == pixels


def test_tables_and_files_of_detection(model, coco, tmp_path, monkeypatch, capsys):
    data, indices, out = load_coco(coco, "val"), iter(range(3)), tmp_path / "a" / "b"
    objects.use(monkeypatch, model)
    monkeypatch.setattr(detection, "detect", lambda *given, **options: objects.truth(data, next(indices)))
    assert command("network", "--data", coco, "--out", out, *CPU) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["class", "name", "box", "AP", "%", "mask", "AP", "%", "objects"] in lines
    assert ["1", "cat", "100.00", "100.00", "1"] in lines and ["3", "kite", "100.00", "100.00", "1"] in lines
    few = "AP 100.00 %, AP50 100.00 %, AP75 100.00 %; AP of small, medium and large objects 100.00, -, - %"
    assert f"box {few}\nmask {few}\n" in shown
    assert "coco val, 3 images, fp32, " in shown and "bbox.json" in shown
    record = json.loads((out / "scores.json").read_text())
    assert (record["dataset"], record["split"], record["images"], record["left_out"]) == ("coco", "val", 3, 0)
    assert record["box"]["ap"] == pytest.approx(1)
    assert record["box"]["large"] is None and record["classes"][2]["mask_ap"] == pytest.approx(1)
    columns = [(row["class"], row["id"], row["name"], row["objects"]) for row in rows(out / "classes.csv")]
    assert columns == [("1", "3", "cat", "1"), ("2", "7", "dog", "1"), ("3", "90", "kite", "1")]
    boxes, masks = (json.loads((out / name).read_text()) for name in ("bbox.json", "segm.json"))
    assert [set(result) for result in boxes] == [{"image_id", "category_id", "bbox", "score"}] * 3
    assert [set(result) for result in masks] == [{"image_id", "category_id", "segmentation", "score"}] * 3


def test_a_recipe_has_the_defaults(tmp_path, data, model, coco, monkeypatch, capsys):
    test = ("test.mode=slide", "test.crop=32", "test.scales=0.5,1", "test.flip=true")
    run = trained.save_run(tmp_path / "run", *test, f"data.root={data}")
    common = [*CPU, "--json", "--limit", "1"]
    for path in (run, run / "model", run / "model" / "model.safetensors"):
        assert command(path, *common) == 0
        captured = capsys.readouterr()
        record = json.loads(captured.out)  # and nothing else
        assert record["settings"] == "windows of 32 x 32, scales 0.5 1, flipped, fp32"
        assert captured.err == "" and record["images"] == 1 and len(record["classes"]) == 3
    changes = ["--mode", "whole", "--scales", "1", "--no-flip", "--precision", "bf16", "--split", "val"]
    assert command(run, *common, *changes) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == "whole images, scale 1, bf16"
    # A detector's data, but not the options with which its training skips images.
    recipe = DetectionRecipe(name="mine", data=DetectionData(root=str(coco), options={"crowds": False, "empty": False}))
    objects.use(monkeypatch, model, recipe)
    assert command("run", "--json", *CPU) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["images"] == 3 and captured.err == ""  # one image has no object
    (run / "recipe.json").write_text("{")
    monkeypatch.undo()
    assert command(run, *common) == 2
    assert f"{run / 'recipe.json'} is not valid JSON" in capsys.readouterr().err


def test_notes(network, data, tmp_path, monkeypatch, capsys):
    names = datasets.Labels(("a", "b", "c"), trained.LABELS.palette, (0, 1, 2))
    other = trained.save_network(tmp_path / "other", labels=names)
    assert command(other, *FOLDER, "--data", data, "--json") == 0
    assert "note: the network's class names differ from the data set's" in capsys.readouterr().err
    objects.use(monkeypatch, objects.network(labels=names))
    broken = objects.annotation(901, bbox=[1, 1, 0, 0]), objects.annotation(902, image=99)
    root = objects.write(tmp_path / "coco", objects.annotation(1), *broken)
    assert command("network", "--data", root, "--json", "--limit", "1", *CPU) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["left_out"] == 2
    assert "note: the network's class names differ" in captured.err and "note: 2 annotations of" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["{network}", "--data", "{data}"],
            "the data set of this network is unknown (it has no recipe); pass --dataset, one of",
        ),
        (
            ["{network}", "--dataset", "coco", "--data", "{coco}"],
            "--dataset is 'coco', but this is a segmentation network; choose",
        ),
        (["{network}", *SPLIT, "--crop", "3x"], "--crop is '3x'; expected a side or HEIGHTxWIDTH"),
        (["{network}", *SPLIT, "--option", "classes"], "--option is 'classes'; expected NAME=VALUE"),
        (["{network}", *SPLIT, "--out", "{data}/classes.json"], "cannot write"),
        (["detector", "--data", "{coco}", "--flip"], "--flip is for segmentation; a detector resizes images"),
    ],
)
def test_mistakes_are_one_line(arguments, message, network, data, model, coco, monkeypatch, capsys):
    if arguments[0] == "detector":
        objects.use(monkeypatch, model)
    assert command(*(argument.format(network=network, data=data, coco=coco) for argument in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph eval: ")


def test_damaged_images_and_weights_name_the_image(network, tmp_path, monkeypatch, capsys):
    root = trained.save_data(tmp_path / "data")
    path = root / "images" / "val" / "3.png"
    path.write_bytes(path.read_bytes()[:100])
    assert command(network, *FOLDER, "--data", root) == 2
    assert f"{path}: cannot read this image" in capsys.readouterr().err
    broken, coco = objects.network(), objects.save_data(tmp_path / "coco")
    broken.detector.roi_heads.box_predictor.cls_score.bias.data.fill_(torch.nan)
    objects.use(monkeypatch, broken)
    assert command("network", "--data", coco, *CPU) == 2
    assert f"{coco / 'val2017' / '1.png'}: the network's outputs are not finite" in capsys.readouterr().err
