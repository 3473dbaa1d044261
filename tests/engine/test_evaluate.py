"""Scores over a data set: the function, the command, its files, and several processes."""

import csv
import json
import math
import subprocess
import sys

import pytest
import torch
from tests.absent import run_without
from tests.engine import trained
from tests.engine.networks import Pointwise
from tests.shared_data import shared

from repgraph import cli
from repgraph import data as sets
from repgraph.engine.evaluate import evaluate
from repgraph.engine.inference import Settings, predict
from repgraph.engine.inference.memory import NotEnoughMemory, explained
from repgraph.engine.metrics import Confusion
from repgraph.errors import UsageError
from repgraph.models import RGNet, load

FOLDER = ["--dataset", "folder", "--device", "cpu", "--workers", "0"]


@pytest.fixture
def val(data):
    return sets.load("folder", data, "val")


def command(*arguments) -> int:
    return cli.main(["eval", *map(str, arguments)])


@pytest.mark.parametrize("workers", [0, 2])
def test_scores_are_those_of_every_image_in_one_matrix(val, workers):
    model = Pointwise(classes=3, dtype=torch.float32)
    by_hand = Confusion(3)
    for image, mask in val:
        by_hand.update(predict(model, image, mode="slide", crop=16, scales=(0.5, 1.0)), mask)
    seen = []
    found = evaluate(
        model,
        val,
        Settings(mode="slide", crop=16),
        scales=(0.5, 1.0),
        workers=workers,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found.scores == by_hand.scores() and torch.equal(found.confusion, by_hand.matrix)
    assert found.images == 5 and found.seconds > 0
    assert seen[-1] == (5, 5) and [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert any(done % 1 for done, _ in seen)


def test_shares_of_the_images_add_up(val):
    model = Pointwise(classes=3, dtype=torch.float32)
    whole = evaluate(model, val)
    parts = [evaluate(model, val, rank=rank, world=3).confusion for rank in range(3)]
    assert torch.equal(sum(parts), whole.confusion)


def test_another_number_of_classes(val):
    with pytest.raises(UsageError, match="the network has 4 classes, the data set 3; give the data set it was trained"):
        evaluate(Pointwise(classes=4), val)


def test_images_without_labels(tmp_path):
    root = trained.save_data(tmp_path / "data", split="test", count=1)
    (root / "masks" / "test" / "0.png").unlink()
    (root / "masks" / "test").rmdir()
    with pytest.raises(UsageError, match="have no labels to compare with"):
        evaluate(Pointwise(classes=3), sets.load("folder", root, "test"))
    network = trained.save_network(tmp_path / "network")
    assert command(network, *FOLDER, "--data", root, "--split", "test") == 2


def test_a_table_in_per_cent_and_files_with_fractions(network, data, val, tmp_path, capsys):
    assert command(network, *FOLDER, "--data", data, "--out", tmp_path / "a" / "b") == 0
    shown = capsys.readouterr().out
    wanted = evaluate(load(network), val)
    scores = wanted.scores
    assert f"mIoU {100 * scores.miou:.2f} %, pixel accuracy {100 * scores.pixel_accuracy:.2f} %" in shown
    assert "[bold]wood[/bold]" in shown and "folder val, 5 images, whole images, scale 1, fp32" in shown
    assert "scores.json" in shown and "classes.csv" in shown
    record = json.loads((tmp_path / "a" / "b" / "scores.json").read_text())
    assert record["miou"] == scores.miou and record["mean_accuracy"] == scores.mean_accuracy
    assert record["images"] == 5
    with (tmp_path / "a" / "b" / "confusion.csv").open(newline="") as file:
        head, *lines = csv.reader(file)
    assert head == ["truth", *trained.NAMES] and [line[0] for line in lines] == list(trained.NAMES)
    assert [[int(cell) for cell in line[1:]] for line in lines] == wanted.confusion.tolist()
    assert (record["dataset"], record["split"]) == ("folder", "val")
    with (tmp_path / "a" / "b" / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list(trained.NAMES)
    for row, iou, pixels in zip(rows, scores.iou, wanted.confusion.sum(1).tolist(), strict=True):
        assert (float(row["iou"]) if row["iou"] else math.nan) == pytest.approx(iou, nan_ok=True)
        assert int(row["pixels"]) == pixels


def test_json_is_all_there_is_on_the_output(network, data, capsys):
    assert command(network, *FOLDER, "--data", data, "--json", "--limit", "2") == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["images"] == 2 and len(record["classes"]) == 3 and captured.err == ""


def test_classes_that_are_nowhere_are_told(tmp_path, capsys):
    root = trained.save_data(tmp_path / "data", count=1)
    (root / "classes.json").write_text(
        json.dumps(
            {"classes": [{"name": n, "id": i} for n, i in zip("abcd", (2, 5, 9, 11), strict=True)], "ignored": [0]}
        )
    )
    torch.manual_seed(0)
    model = RGNet(4, "resnet10t", channels=16, output_stride=32, auxiliary=False)
    with torch.no_grad():
        model.head.classifier.bias[3] = -1e9  # never the last class
    model.save_pretrained(tmp_path / "network")
    assert command(tmp_path / "network", *FOLDER, "--data", root, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["classes"][3]["iou"] is None
    assert command(tmp_path / "network", *FOLDER, "--data", root) == 0
    assert "1 of 4 classes are neither in the images nor predicted: left out of mIoU" in capsys.readouterr().out


def test_a_narrow_screen_cuts_nothing(network, data, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert command(network, *FOLDER, "--data", data) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["class", "name", "IoU", "%", "accuracy", "%", "of", "pixels", "%"]
    assert [line.split()[:2] for line in lines[2:5]] == [[str(k), name] for k, name in enumerate(trained.NAMES)]
    assert max(map(len, lines)) < 100


def test_a_run_brings_its_defaults_and_options_replace_them(tmp_path, data, capsys):
    run = trained.save_run(
        tmp_path / "run", "test.mode=slide", "test.crop=32", "test.scales=0.5,1", "test.flip=true", f"data.root={data}"
    )
    common = ["--device", "cpu", "--json", "--limit", "1"]
    for path in (run, run / "model", run / "model" / "model.safetensors"):
        assert command(path, *common) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["settings"] == "windows of 32 x 32, scales 0.5 1, flipped, fp32"
    changes = ["--mode", "whole", "--scales", "1", "--no-flip", "--precision", "bf16", "--split", "val"]
    assert command(run, *common, *changes) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == "whole images, scale 1, bf16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{network}", "--data", "{data}"], "--dataset is needed: there is no recipe beside the network"),
        (["{network}", "--dataset", "folder"], "--data is needed: the folder of folder"),
        (["{network}", "--dataset", "folder", "--data", "nowhere"], "nowhere"),
        (["nowhere", "--dataset", "folder", "--data", "{data}"], "nowhere is not there"),
        (["{network}", "--dataset", "folder", "--data", "{data}", "--mode", "slide"], "mode 'slide' needs crop"),
        (["{network}", "--dataset", "folder", "--data", "{data}", "--option", "classes"], "give it as NAME=VALUE"),
        (
            ["{network}", "--dataset", "folder", "--data", "{data}", "--option", "classes=7"],
            "has 3 classes, the data set 7",
        ),
        (["{network}", "--dataset", "folder", "--data", "{data}", "--device", "meta"], "--device 'meta'"),
        (["{network}", "--dataset", "folder", "--data", "{data}", "--out", "{data}/classes.json"], "cannot write"),
    ],
)
def test_mistakes_are_one_line(arguments, message, network, data, capsys):
    filled = [a.format(network=network, data=data) for a in arguments]
    assert command(*filled) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph eval: ")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--crop", "0"], "'0' is not a size; give a side in pixels, or height x width"),
        (["--crop", "3x"], "'3x' is not a size"),
        (["--stride", "1.5"], "'1.5' is more than 1; windows would leave gaps"),
        (["--scales", "0"], "'0' is not a number above 0"),
        (["--dataset", "vocc"], "invalid choice: 'vocc'"),
    ],
)
def test_options_that_cannot_be(option, message, network, capsys):
    with pytest.raises(SystemExit) as end:
        command(network, *option)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_damaged_image_is_named(network, tmp_path, capsys):
    root = trained.save_data(tmp_path / "data")
    path = root / "images" / "val" / "3.png"
    path.write_bytes(path.read_bytes()[:100])
    assert command(network, *FOLDER, "--data", root) == 2
    assert f"{path}: cannot read this image" in capsys.readouterr().err


def test_another_data_set_with_as_many_classes_is_noted(network, data, tmp_path, capsys):
    assert command(network, *FOLDER, "--data", data, "--json") == 0
    assert capsys.readouterr().err == ""
    other = trained.save_network(
        tmp_path / "other", labels=sets.Labels(("a", "b", "c"), trained.LABELS.palette, (0, 1, 2))
    )
    assert command(other, *FOLDER, "--data", data, "--json") == 0
    assert "the network's class names differ from the data set's" in capsys.readouterr().err


@pytest.mark.parametrize("processes", [2])
def test_torchrun_with_uneven_shards_gives_the_scores_of_one_process(processes, network, data, tmp_path, capsys):
    arguments = ["eval", str(network), *FOLDER, "--data", str(data), "--json"]
    assert cli.main(arguments) == 0
    alone = json.loads(capsys.readouterr().out)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([*torchrun, "-m", "repgraph", *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    together = json.loads(done.stdout)
    assert {**together, "seconds": 0} == {**alone, "seconds": 0}


def test_help_needs_no_extra():
    hidden = ("rich", "torchvision", "PIL", "timm", "lightning", "huggingface_hub", "safetensors")
    for name in ("eval", "predict"):
        script = f"import sys; from repgraph.cli import main; sys.exit(main([{name!r}, '--help']))"
        done = run_without(hidden, script)
        assert done.returncode == 0 and "examples:" in done.stdout, done.stderr


def test_lack_of_memory_says_what_helps():
    for error in (
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ):
        message = r"a.png: out of memory; try --mode slide, a smaller --batch"
        with pytest.raises(NotEnoughMemory, match=message), explained(Settings(), "a.png: "):
            raise error
    settings = Settings(mode="slide", crop=9, batch=1, precision="bf16")
    with pytest.raises(NotEnoughMemory, match="try a smaller --crop, less --memory"), explained(settings):
        raise MemoryError
    with pytest.raises(RuntimeError, match="something else"), explained(Settings()):
        raise RuntimeError("something else")


def test_real_images(capsys, tmp_path):
    root = shared("data/samples/ADEChallengeData2016")
    torch.manual_seed(0)
    RGNet(150, "resnet10t", channels=16, output_stride=32, auxiliary=False).save_pretrained(tmp_path)
    options = ["--dataset", "ade20k", "--data", root, "--device", "cpu", "--limit", "1", "--json"]
    assert command(tmp_path, *options, "--mode", "slide", "--crop", "256", "--scales", "0.5", "--flip") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["pixels"] > 10_000 and len(record["classes"]) == 150
