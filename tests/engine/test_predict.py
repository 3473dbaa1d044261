"""Predictions as files: what is in them, how they are called, and what happens when something goes wrong."""

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tests.engine import trained
from tests.shared_data import shared

from repgraph import cli
from repgraph.data import cityscapes
from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.engine.inference import predict
from repgraph.engine.prediction.encoding import label_image
from repgraph.engine.prediction.reading import large_images, read_upright, turned
from repgraph.models import RGNet, load

CPU = ["--device", "cpu"]


def command(*arguments) -> int:
    return cli.main(["predict", *map(str, arguments)])


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def values(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


@pytest.fixture
def photos(tmp_path):
    for i, name in enumerate(("a.jpg", "b.png", "sub/a.jpg")):
        trained.save_picture(tmp_path / "photos" / name, 30 + i, 41, seed=i)
    return tmp_path / "photos"


def test_label_files_have_the_ids_and_a_palette_and_overlays_a_legend(network, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--recursive", *CPU) == 0
    names = {"a.png", "b.png", "sub/a.png"}
    assert tree(out) == {f"{kind}/{name}" for kind in ("labels", "overlays") for name in names}
    assert "3 of 3 images predicted, 6 files in" in capsys.readouterr().out
    image = torch.from_numpy(values(photos / "b.png")).permute(2, 0, 1)
    wanted = trained.LABELS.to_file(predict(load(network), image).numpy())
    found = values(out / "labels" / "b.png")
    assert np.array_equal(found, wanted) and set(np.unique(found)) <= set(trained.LABELS.ids)
    with Image.open(out / "labels" / "b.png") as picture:
        assert picture.mode == "P"
        colours = np.asarray(picture.convert("RGB"))
    place = tuple(int(i) for i in np.argwhere(found == found[0, 0])[0])
    assert tuple(colours[place]) == trained.LABELS.palette[trained.LABELS.ids.index(found[0, 0])]
    with Image.open(out / "overlays" / "b.png") as picture:
        assert picture.mode == "RGB" and picture.height > 31


def test_options_of_the_files(network, photos, tmp_path):
    assert command(network, photos / "a.jpg", "--out", tmp_path / "1", "--no-overlays", "--plain", *CPU) == 0
    assert tree(tmp_path / "1") == {"labels/a.png"}
    with Image.open(tmp_path / "1" / "labels" / "a.png") as picture:
        assert picture.mode == "L"
    options = ["--no-legend", "--side", "20", "--opacity", "1", "--workers", "0"]
    assert command(network, photos / "a.jpg", "--out", tmp_path / "2", *options, *CPU) == 0
    with Image.open(tmp_path / "2" / "overlays" / "a.png") as picture:
        assert picture.size == (20, 15)
        assert {colour for _, colour in picture.getcolors()} <= set(trained.LABELS.palette)


def test_inputs_of_one_name_do_not_meet(network, photos, tmp_path):
    trained.save_picture(photos / "a.png", 12, 13)
    out = tmp_path / "out"
    assert command(network, photos, photos / "sub", "--out", out, "--no-overlays", *CPU) == 0
    assert tree(out) == {"labels/a.jpg.png", "labels/a.png.png", "labels/b.png", "labels/sub/a.png"}
    assert values(out / "labels" / "a.png.png").shape == (12, 13)
    assert {values(out / name).shape for name in tree(out)} == {(30, 41), (31, 41), (12, 13), (32, 41)}


def test_a_network_without_labels_gives_class_numbers(tmp_path, photos):
    trained.save_network(tmp_path / "network", labels=None)
    assert command(tmp_path / "network", photos / "a.jpg", "--out", tmp_path / "out", *CPU) == 0
    assert set(np.unique(values(tmp_path / "out" / "labels" / "a.png"))) <= {0, 1, 2}


def test_large_ids_make_16_bits():
    labels = Labels(("a", "b"), spread_palette(2), ids=(7, 1000))
    image = label_image(torch.tensor([[0, 1]], dtype=torch.uint8), labels)
    content = io.BytesIO()
    image.save(content, "PNG")
    with Image.open(content) as again:
        assert again.mode.startswith("I") and np.array(again).tolist() == [[7, 1000]]


def test_what_cannot_be_read_is_told_and_the_rest_is_done(network, photos, tmp_path, capsys):
    whole = (photos / "b.png").read_bytes()
    (photos / "b.png").write_bytes(whole[: len(whole) // 2])
    (photos / "c.jpg").write_text("no image")
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--no-overlays", *CPU) == 1
    captured = capsys.readouterr()
    assert "1 of 3 images predicted, 1 files in" in captured.out
    assert f"{photos / 'b.png'}: cannot read this image" in captured.err
    assert f"{photos / 'c.jpg'}: cannot read this image" in captured.err
    assert "2 of 3 images could not be predicted" in captured.err and "Traceback" not in captured.err
    assert tree(out) == {"labels/a.png"}


def test_an_image_that_is_too_large_for_memory_is_left_out(network, photos, tmp_path, monkeypatch, capsys):
    from repgraph.engine import predict as module

    original = module.predict

    def scarce(model, image, *more, **options):
        if image.shape[1] == 31:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return original(model, image, *more, **options)

    monkeypatch.setattr(module, "predict", scarce)
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--no-overlays", *CPU) == 1
    assert tree(out) == {"labels/a.png"}
    assert "b.png (41 x 31 pixels): out of memory; try --mode slide" in capsys.readouterr().err


def test_weights_that_are_not_finite_are_told_with_the_image(network, photos, tmp_path, capsys):
    model = load(network)
    with torch.no_grad():
        model.head.classifier.bias.fill_(torch.nan)
    model.save_pretrained(tmp_path / "broken")
    assert command(tmp_path / "broken", photos, "--out", tmp_path / "out", *CPU) == 2
    told = f"{photos / 'a.jpg'}: the network's logits are not finite: its weights or the image are not\n"
    assert capsys.readouterr().err.endswith(told)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user who is refused something")
def test_an_output_folder_that_cannot_be_written(network, photos, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o500)
    assert command(network, photos, "--out", out, *CPU) == 2
    assert "cannot write" in capsys.readouterr().err


def test_an_output_that_is_a_file(network, photos, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert command(network, photos, "--out", tmp_path / "out", *CPU) == 2
    error = capsys.readouterr().err
    assert "cannot write" in error and error.count("\n") == 1
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_full_disk_leaves_whole_files_only(network, photos, tmp_path, monkeypatch, capsys, workers):
    original, replaced = os.replace, []

    def replace(source, target):
        if len(replaced) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replaced.append(target)
        return original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--no-overlays", "--workers", workers, *CPU) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and "cannot write" in error and "Traceback" not in error
    assert len(tree(out)) == 1
    assert values(next(path for path in out.rglob("*.png"))).ndim == 2


def test_an_input_is_not_written_over(network, tmp_path, capsys):
    path = trained.save_picture(tmp_path / "out" / "labels" / "a.png")
    before = path.read_bytes()
    assert command(network, path, "--out", tmp_path / "out", *CPU) == 2
    assert "is an input and would be written over; give another --out" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", [".", "photos"])
def test_predictions_may_go_to_a_folder_of_the_images(where, network, photos, tmp_path):
    out = tmp_path / where
    for _ in range(2):  # the second time, what the first wrote is no input
        assert command(network, photos, "--recursive", "--out", out, "--no-overlays", *CPU) == 0
        assert tree(out / "labels") == {"a.png", "b.png", "sub/a.png"}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_as_their_exif_says(orientation, tmp_path):
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(trained.picture(16, 24)).save(path, exif=exif, quality=100)
    with Image.open(path) as picture:
        wanted = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(read_upright(path).permute(1, 2, 0).numpy(), wanted)


def test_an_orientation_that_does_not_exist_changes_nothing():
    image = torch.arange(6).view(1, 2, 3)
    assert all(torch.equal(turned(image, value), image) for value in (0, 9, -1))


def test_predictions_of_a_photograph_lie_on_it_as_one_sees_it(network, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(trained.picture(16, 24)).save(tmp_path / "photo.jpg", exif=exif)
    assert command(network, tmp_path / "photo.jpg", "--out", tmp_path / "out", *CPU) == 0
    assert values(tmp_path / "out" / "labels" / "photo.png").shape == (24, 16)


def test_images_beyond_pillows_limit(tmp_path, monkeypatch):
    path = trained.save_picture(tmp_path / "a.png", 30, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(DataError, match="exceeds limit"):
        read_upright(path)
    with large_images():
        assert read_upright(path).shape == (3, 30, 40)
    assert Image.MAX_IMAGE_PIXELS == 500


def test_a_split_goes_by_the_names_and_ids_of_its_server(tmp_path, capsys):
    root = tmp_path / "cityscapes"
    for split, city, frame in (("test", "berlin", "000000_000019"), ("test", "bonn", "000001_000019")):
        save = root / "leftImg8bit" / split / city / f"{city}_{frame}_leftImg8bit.png"
        trained.save_picture(save, 32, 64)
    network = trained.save_network(tmp_path / "network", labels=cityscapes.LABELS, classes=19)
    out = tmp_path / "out"
    arguments = [network, "--dataset", "cityscapes", "--data", root, "--split", "test", "--out", out, *CPU]
    assert command(*arguments) == 0
    names = {"berlin_000000_000019_pred_labelIds.png", "bonn_000001_000019_pred_labelIds.png"}
    assert tree(out) == {f"labels/{name}" for name in names}
    for name in names:
        with Image.open(out / "labels" / name) as picture:
            assert picture.mode == "L" and picture.size == (64, 32)
            assert set(np.unique(np.asarray(picture))) <= set(cityscapes.LABELS.ids)
    assert command(*arguments, "--limit", "1", "--overlays") == 0
    assert {path for path in tree(out) if "overlays" in path} == {"overlays/berlin_000000_000019_pred_labelIds.png"}


def test_scenes_are_drawn_and_not_read(network, data, tmp_path, monkeypatch):
    from repgraph import data as sets
    from repgraph.data.dataset import Item, SegmentationData

    class Drawn(SegmentationData):
        def __getitem__(self, index):
            return torch.full((3, 9 + index, 7), 40 * index, dtype=torch.uint8), None

    items = [Item(f"scene-{i}", Path(f"scene-{i}"), None) for i in range(3)]
    drawn = Drawn("scenes", Path(), "val", trained.LABELS, items)
    monkeypatch.setattr(sets, "load", lambda name, root, split, **options: drawn)
    options = ["--dataset", "scenes", "--split", "val", "--limit", "2", "--out", tmp_path / "out", *CPU]
    assert command(network, *options) == 0
    assert tree(tmp_path / "out") == {"labels/scene-0.png", "labels/scene-1.png"}
    assert values(tmp_path / "out" / "labels" / "scene-1.png").shape == (10, 7)


def test_a_folder_of_ones_own_as_a_split(network, data, tmp_path):
    arguments = ["--dataset", "folder", "--data", data, "--split", "val", "--out", tmp_path / "out", *CPU]
    assert command(network, *arguments) == 0
    assert tree(tmp_path / "out") == {f"labels/{i}.png" for i in range(5)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{network}"], "give images (files, folders, patterns), or --split and --data"),
        (["{network}", "{data}", "--split", "val"], "give images (files, folders, patterns), or --split and --data"),
        (["{network}", "{data}/images/val", "--data", "x"], "go with --split, and not with images"),
        (["{network}", "nowhere"], "nowhere is not there"),
        (["nowhere", "{data}/images/val"], "nowhere is not there"),
        (["~no such user/run", "{data}/images/val"], "~no such user/run is not there"),
        (["{network}", "~no such user/x.png"], "~no such user/x.png is not there"),
        (["{network}", "--dataset", "cityscapes", "--data", "{data}", "--split", "test"], "leftImg8bit"),
        (["{network}", "--dataset", "folder", "--data", "{data}", "--split", "val", "--option", "classes=4"],
         "the network has 3 classes, folder 4; give the data set it was trained on"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(arguments, message, network, data, tmp_path, capsys):
    filled = [a.format(network=network, data=data) for a in arguments]
    assert command(*filled, "--out", tmp_path, *CPU) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph predict: ")
    assert tree(tmp_path) == set()


def test_two_processes_share_the_images(network, photos, tmp_path):
    out = tmp_path / "out"
    (photos / "c.jpg").write_text("no image")
    arguments = ["predict", str(network), str(photos), "--recursive", "--out", str(out), "--no-overlays", *CPU]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "-m", "repgraph", *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode != 0  # torchrun's own code where a process ends with another than 0
    assert "3 of 4 images predicted, 3 files in" in done.stdout and "1 of 4 images could not" in done.stderr
    assert tree(out) == {"labels/a.png", "labels/b.png", "labels/sub/a.png"}


def test_real_photographs(tmp_path):
    root = shared("data/VOC2012")
    torch.manual_seed(0)
    model = RGNet(21, "resnet10t", channels=16, output_stride=32, auxiliary=False)
    model.save_pretrained(tmp_path / "network")
    first = sorted((root / "JPEGImages").glob("*.jpg"))[0]
    options = ["--mode", "slide", "--crop", "160", "--scales", "0.5", "1", "--flip"]
    assert command(tmp_path / "network", first, "--out", tmp_path / "out", *options, *CPU) == 0
    with Image.open(first) as picture:
        assert values(tmp_path / "out" / "labels" / f"{first.stem}.png").shape == picture.size[::-1]
    config = json.loads((tmp_path / "network" / "config.json").read_text())
    assert config["classes"] == 21
