"""A detector with ImageNet's weights learns two real images by heart."""

import json
import shutil

import pytest
from tests.shared_data import shared

from repgraph import recipes
from repgraph.data.coco import load
from repgraph.engine.tasks.detection import Detection
from repgraph.engine.train import train

NAMES = ("2007_000039.jpg", "2007_000068.jpg")  # a screen, and a bird


@pytest.fixture
def pair(tmp_path):
    """Two images of VOC with their objects, as data of their own."""
    data = load(shared("data/VOC2012"), "train")
    truth = data.truth()
    truth["images"] = [image for image in truth["images"] if image["file_name"] in NAMES]
    kept = {image["id"] for image in truth["images"]}
    truth["annotations"] = [each for each in truth["annotations"] if each["image_id"] in kept]
    for folder in ("annotations", "images"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for name in NAMES:
        shutil.copy(shared(f"data/VOC2012/JPEGImages/{name}"), tmp_path / "data" / "images" / name)
    (tmp_path / "data" / "annotations" / "train.json").write_text(json.dumps(truth))
    return tmp_path / "data"


@pytest.mark.slow
def test_two_real_images(pair, tmp_path, monkeypatch):
    bind = Detection.bind

    def fewer(self, model):  # boxes in each image, for time
        detector = model.detector
        detector.roi_heads.fg_bg_sampler.batch_size_per_image = 16
        detector.rpn._pre_nms_top_n = detector.rpn._post_nms_top_n = {"training": 200, "testing": 50}
        bind(self, model)

    monkeypatch.setattr(Detection, "bind", fewer)
    settings = [
        f"data.root={pair}",
        "data.val_split=train",
        "data.cache=true",
        "data.flip=false",
        "data.workers=0",
        f"model.weights={shared('weights/resnet50_imagenet_msra.safetensors')}",
        "model.min_size=96",
        "model.max_size=128",
        "model.trainable_stages=1",
        "optim.lr=0.0025",
        "optim.warmup=10",
        "optim.steps=0.8",
        "train.batch=2",
        "train.iterations=80",
        "train.period=40",
        "train.precision=fp32",
        "train.accelerator=cpu",
    ]
    recipe = recipes.with_settings(recipes.get("voc_instances-r50-repgraph"), settings)
    outcome = train(recipe, tmp_path / "run")
    assert outcome.scores.box.ap50 > 0.9 and outcome.scores.mask.ap50 > 0.8
