"""Networks overfit a few real images."""

import json
import shutil

import pytest
from PIL import Image
from tests.shared_data import shared
from tests.train import shapes

from repgraph import data, recipes
from repgraph.data.coco import load
from repgraph.train import train
from repgraph.train.detection import Detection

COMMON = ("data.cache=true", "data.flip=false", "data.workers=0", "train.precision=fp32", "train.accelerator=cpu")


@pytest.fixture(autouse=True, scope="module")
def small_detectors():
    """Overrides the fixture of the other tests: here detectors have the usual heads."""


@pytest.mark.slow
def test_segmentation_of_four_images(tmp_path):
    voc = data.load("voc", shared("data/VOC2012"), "train")
    for item in voc.items[:4]:  # at half their size, for time
        for kind, path, resample in (("images", item.image, Image.BILINEAR), ("masks", item.mask, Image.NEAREST)):
            (tmp_path / "data" / kind / "train").mkdir(parents=True, exist_ok=True)
            with Image.open(path) as picture:
                small = picture.resize((picture.width // 2, picture.height // 2), resample)
            small.save(tmp_path / "data" / kind / "train" / f"{item.name}.png")
    (tmp_path / "data" / "classes.txt").write_text("\n".join(voc.labels.names))
    settings = [
        *(f"data.root={tmp_path / 'data'}", "data.val_split=train", "data.crop=160", "data.scales=1"),
        *("model.backbone=test_resnet", "model.weights=none", "model.channels=64", "model.dropout=0"),
        *("optim.lr=0.05", "optim.head=1", "optim.offset=1", "train.batch=4", "train.iterations=60", "test.mode=whole"),
    ]
    recipe = recipes.with_settings(recipes.get("folder-r50-rgnet"), [*COMMON, *settings])
    assert train(recipe, tmp_path / "run").validation.scores.pixel_accuracy > 0.95


@pytest.mark.slow
def test_detection_in_two_images(tmp_path, monkeypatch):
    """A screen and a bird, with ImageNet's weights."""
    root, names = tmp_path / "data", ("2007_000039.jpg", "2007_000068.jpg")
    truth = load(shared("data/VOC2012"), "train").truth()
    truth["images"] = [image for image in truth["images"] if image["file_name"] in names]
    kept = {image["id"] for image in truth["images"]}
    truth["annotations"] = [each for each in truth["annotations"] if each["image_id"] in kept]
    for folder in ("annotations", "images"):
        (root / folder).mkdir(parents=True)
    for name in names:
        shutil.copy(shared(f"data/VOC2012/JPEGImages/{name}"), root / "images" / name)
    (root / "annotations" / "train.json").write_text(json.dumps(truth))
    build = Detection.build
    monkeypatch.setattr(Detection, "build", lambda self, labels: shapes.fewer_boxes(build(self, labels), 200, 50))
    settings = [
        *(f"data.root={root}", "data.val_split=train", "model.min_size=96", "model.max_size=128"),
        f"model.weights={shared('weights/resnet50_imagenet_msra.safetensors')}",
        *("model.trainable_stages=1", "optim.lr=0.0025", "optim.warmup=10", "optim.steps=0.8"),
        *("train.batch=2", "train.iterations=80", "train.period=40"),
    ]
    recipe = recipes.with_settings(recipes.get("voc_instances-r50-repgraph"), [*COMMON, *settings])
    scores = train(recipe, tmp_path / "run").validation.scores
    assert scores.box.ap50 > 0.9 and scores.mask.ap50 > 0.8
