"""``repgraph eval`` of a Mask R-CNN: tables, files, what is refused, and what there is without pycocotools."""

import csv
import json
from pathlib import Path

import pytest
from tests.absent import run_without
from tests.data.coco import files
from tests.engine import objects, trained
from tests.shared_data import shared

from repgraph import cli
from repgraph.data.coco import load
from repgraph.engine import trained as networks
from repgraph.engine.detection import split
from repgraph.models import MaskRCNN
from repgraph.recipes import DetectionData, DetectionRecipe, to_json

CPU = ["--device", "cpu"]


def command(*arguments) -> int:
    return cli.main(["eval", *map(str, arguments)])


def package() -> None:
    pytest.importorskip("pycocotools", reason="pip install 'repgraph[detection]'")


@pytest.fixture(scope="module")
def model() -> MaskRCNN:
    return objects.network()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return objects.save_data(tmp_path_factory.mktemp("coco"))


@pytest.fixture
def network(model, monkeypatch) -> str:
    objects.use(monkeypatch, model)
    return "network"


def test_the_truth_scores_one_in_tables_and_files(network, root, tmp_path, monkeypatch, capsys):
    package()
    data = load(root, "val")
    indices = iter(range(3))
    monkeypatch.setattr(split, "detect", lambda *given, **more: objects.truth(data, next(indices)))
    out = tmp_path / "a" / "b"
    assert command(network, "--data", root, "--out", out, *CPU) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["class", "name", "box", "AP", "%", "mask", "AP", "%", "objects"] in lines
    assert ["1", "cat", "100.00", "100.00", "1"] in lines and ["3", "kite", "100.00", "100.00", "1"] in lines
    head = ["%", "AP", "AP50", "AP75", "small", "medium", "large", "AR1", "AR10", "AR100", "small", "medium", "large"]
    assert head in lines
    few = ["100.00", "100.00", "100.00", "100.00", "-", "-"]
    assert ["box", *few, *few[:4], "-", "-"] in lines and ["mask", *few, *few[:4], "-", "-"] in lines
    assert "coco val, 3 images, fp32, " in shown and "bbox.json" in shown
    record = json.loads((out / "scores.json").read_text())
    assert (record["dataset"], record["split"], record["images"]) == ("coco", "val", 3)
    assert record["box"]["ap"] == pytest.approx(1) and record["mask"]["recall"]["ar100"] == pytest.approx(1)
    assert record["box"]["large"] is None and record["classes"][2]["mask_ap"] == pytest.approx(1)
    with (out / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["class"], row["id"], row["name"], row["objects"]) for row in rows] == [
        ("1", "3", "cat", "1"), ("2", "7", "dog", "1"), ("3", "90", "kite", "1"),
    ]  # fmt: skip
    boxes, masks = (json.loads((out / name).read_text()) for name in ("bbox.json", "segm.json"))
    assert [set(result) for result in boxes] == [{"image_id", "category_id", "bbox", "score"}] * 3
    assert [set(result) for result in masks] == [{"image_id", "category_id", "segmentation", "score"}] * 3


def test_a_run_and_json(model, root, tmp_path, capsys):
    package()
    model.save_pretrained(tmp_path / "run" / "model")
    recipe = DetectionRecipe("mine", DetectionData(root=str(root), options={"crowds": False, "empty": False}))
    (tmp_path / "run" / "recipe.json").write_text(to_json(recipe))
    assert command(tmp_path / "run", "--limit", "2", "--json", *CPU) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["images"] == 2 and 0 <= record["box"]["ap"] <= 1 and captured.err == ""
    assert [row["name"] for row in record["classes"]] == ["cat", "dog", "kite"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "slide"], "--mode is for networks that label pixels; this one finds objects, and resizes images"),
        (["--scales", "0.5", "1"], "--scales is for networks that label pixels"),
        (["--crop", "64"], "--crop is for networks that label pixels"),
        (["--flip"], "--flip is for networks that label pixels"),
        (["--batch", "4"], "--batch is for networks that label pixels"),
        (["--memory", "2"], "--memory is for networks that label pixels"),
        (["--dataset", "voc"], "the network finds objects, and voc has label maps; give --dataset coco and --data"),
        (["--split", "nowhere"], "instances_nowhere2017.json: there is no such file"),
        (["--option", "annotations=other.json"], "other.json: there is no such annotation file"),
        (["--option", "classes=3"], "coco has no option 'classes'; its options are"),
        (["--split", "test"], "has no annotations to compare with; repgraph predict --split test writes results"),
        (["--split", "two"], "the network has 3 classes, the data set 2; give the data set it was trained on"),
        (["--out", "{root}/annotations/instances_val2017.json"], "cannot write"),
    ],
)
def test_mistakes_are_one_line(options, message, network, root, capsys):
    given = files.content()
    del given["annotations"]
    files.write(root, given, "test")
    files.write(root, files.content(categories=files.CATEGORIES[:2]), "two")
    assert command(network, "--data", root, *[option.format(root=root) for option in options], *CPU) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph eval: ")


def test_a_folder_is_needed_and_objects_are_not_label_maps(network, root, tmp_path, monkeypatch, capsys):
    assert command(network, *CPU) == 2
    assert "--data is needed: the folder of coco" in capsys.readouterr().err
    monkeypatch.undo()
    pixels = trained.save_network(tmp_path / "pixels")
    assert command(pixels, "--dataset", "coco", "--data", root, *CPU) == 2
    assert "the network labels pixels, and coco has objects; give one of ade20k" in capsys.readouterr().err


def test_a_run_brings_its_data_but_not_what_its_training_left_out(model, root, monkeypatch, capsys):
    package()
    data = DetectionData(root=str(root), options={"crowds": False, "empty": False})
    run = networks.Trained(model, None, DetectionRecipe("mine", data))
    monkeypatch.setattr(networks, "load", lambda path, device: run)
    assert command("run", "--json", *CPU) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 3  # one has no object


def test_other_names_are_noted_and_weights_that_are_not_finite_named(root, monkeypatch, capsys):
    package()
    other = objects.network(labels=objects.Labels(("a", "b", "c"), objects.LABELS.palette, (1, 2, 3)))
    objects.use(monkeypatch, other)
    assert command("network", "--data", root, "--json", "--limit", "1", *CPU) == 0
    assert "note: the network's class names differ from the data set's" in capsys.readouterr().err
    other.detector.roi_heads.box_predictor.cls_score.bias.data.fill_(float("nan"))
    assert command("network", "--data", root, *CPU) == 2
    told = f"{root / 'val2017' / '1.png'}: the box head gives numbers that are not finite: its weights are not"
    assert told in capsys.readouterr().err


def test_annotations_that_are_left_out_are_counted(network, tmp_path, capsys):
    package()
    root = objects.save_data(tmp_path / "coco")
    path = root / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    content["annotations"] += [files.annotation(901, bbox=[1, 1, 0, 0]), files.annotation(902, image=99)]
    path.write_text(json.dumps(content))
    assert command(network, "--data", root, "--json", "--limit", "1", *CPU) == 0
    said = capsys.readouterr()
    left_out = {"objects whose box has no area in the image": 1, "annotations of images that are not in the file": 1}
    assert json.loads(said.out)["left_out"] == left_out
    told = ", ".join(f"{kind}: {count}" for kind, count in left_out.items())
    assert f"repgraph eval: note: left out of {path} are {told}\n" in said.err


def test_a_damaged_image_is_named(network, tmp_path, capsys):
    root = objects.save_data(tmp_path / "coco")
    path = root / "val2017" / "2.png"
    path.write_bytes(path.read_bytes()[:60])
    assert command(network, "--data", root, *CPU) == 2
    assert f"{path}: cannot read this image" in capsys.readouterr().err


def test_without_the_package_what_is_found_is_written(root, tmp_path):
    script = f"""
    import pytest
    from repgraph.cli import main
    from tests.engine import objects
    with pytest.MonkeyPatch.context() as patch:
        objects.use(patch, objects.network())
        options = ["eval", "network", "--data", {str(root)!r}, "--device", "cpu"]
        print(main([*options, "--out", {str(tmp_path / "out")!r}]), main(options))
    """
    done = run_without(("pycocotools",), f"import sys\nsys.path.insert(0, '.')\nif True:\n{script}")
    assert done.stdout.splitlines()[-1] == "1 2", done.stderr
    first, second = done.stderr.splitlines()
    assert first == "repgraph eval: scores need pycocotools: pip install 'repgraph[detection]'"
    assert second == f"{first} (without it, --out DIR writes what is found all the same)"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"bbox.json", "segm.json"}
    assert len(json.loads((tmp_path / "out" / "segm.json").read_text())) > 0


def test_real_images(capsys, monkeypatch):
    package()
    objects.use(monkeypatch, objects.network(classes=80, labels=None))
    assert command("network", "--data", shared("data/coco"), "--limit", "2", "--json", *CPU) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["classes"]) == 80 and sum(row["objects"] for row in record["classes"]) > 2
