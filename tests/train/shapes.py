"""A few small images with objects in COCO's format, and a recipe that trains a small detector on them."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from repgraph import recipes
from repgraph.models.mask_rcnn import MaskRCNN, keep_coordinates_in_float32

COLOURS = {7: (210, 50, 40), 12: (40, 80, 220)}  # boxes and triangles, by category
ONE_STEP = ("train.iterations=1", "train.log_every=1", "optim.warmup=0", "optim.weight_decay=0", "optim.steps=[]")


def outline(category, left, top, side):
    corner = [left + side, top + side] if category == 7 else []
    return [left, top, left + side, top, *corner, left, top + side]


def annotation(number, image, category, shape, **more):
    x, y = shape[0::2], shape[1::2]
    box = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    given = {"id": number, "image_id": image, "category_id": category, "segmentation": [shape], "iscrowd": 0}
    return given | {"bbox": box, "area": box[2] * box[3]} | more


def make_data(root: Path, train: int = 5, val: int = 3) -> Path:
    """Write images with a box and a triangle each; every third image is portrait."""
    rng = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    (root / "images").mkdir()
    for split, count in (("train", train), ("val", val)):
        images, annotations = [], []
        for i in range(count):
            width, height = (60, 72) if i % 3 == 2 else (72 + 2 * i, 60)
            image = Image.fromarray(rng.integers(90, 160, (height, width, 3)).astype(np.uint8))
            draw = ImageDraw.Draw(image)
            for k, category in enumerate(COLOURS):
                left, top = 3 + i + k * 28, 4 + 2 * i + 16 * k
                shape = outline(category, left, top, min(20 + 2 * i, width - left - 2, height - top - 2))
                draw.polygon([tuple(shape[at : at + 2]) for at in range(0, len(shape), 2)], fill=COLOURS[category])
                annotations.append(annotation(len(annotations) + 1, i + 1, category, shape))
            image.save(root / "images" / f"{split}-{i}.png")
            images.append({"id": i + 1, "file_name": f"{split}-{i}.png", "height": height, "width": width})
        categories = [{"id": 7, "name": "box"}, {"id": 12, "name": "triangle"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return root


def edit(root: Path, split: str, change) -> None:
    """Apply ``change`` to the content of an annotation file."""
    path = root / "annotations" / f"{split}.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def settings(data: Path, *more: str) -> list[str]:
    return [
        *(f"data.root={data}", "data.workers=0"),
        *("model.backbone=resnet18", "model.weights=none", "model.min_size=64", "model.max_size=96"),
        *("model.trainable_stages=0", "optim.warmup=2", "optim.lr=0.005"),
        *("train.batch=2", "train.iterations=6", "train.period=3", "train.validate_every=0", "train.log_every=2"),
        *("train.precision=fp32", "train.accelerator=cpu", "test.detections=5"),
        *more,
    ]


def recipe(data: Path, *more: str) -> recipes.DetectionRecipe:
    return recipes.with_settings(recipes.get("voc_instances-r50-repgraph"), settings(data, *more))


def shrink_detectors(monkeypatch) -> None:
    """Give detectors small heads and few boxes."""
    init = MaskRCNN.__init__

    def small(self, *arguments, **keywords):
        init(self, *arguments, **keywords)
        shrink(self)

    monkeypatch.setattr(MaskRCNN, "__init__", small)


def shrink(model):
    """Replace the heads of a detector by small ones with the same parameter names."""
    detector, classes = model.detector, model.classes + 1
    detector.roi_heads.box_head = TwoMLPHead(256 * 7**2, 16)
    detector.roi_heads.box_predictor = FastRCNNPredictor(16, classes)
    detector.roi_heads.mask_head = MaskRCNNHeads(256, (8, 8, 8, 8), 1)
    detector.roi_heads.mask_predictor = MaskRCNNPredictor(8, 8, classes)
    keep_coordinates_in_float32(detector)
    detector.rpn.fg_bg_sampler.batch_size_per_image = 32
    return fewer_boxes(model, training=50, testing=10)


def fewer_boxes(model, training: int, testing: int):
    model.detector.roi_heads.fg_bg_sampler.batch_size_per_image = 16
    rpn = model.detector.rpn
    rpn._pre_nms_top_n = rpn._post_nms_top_n = {"training": training, "testing": testing}
    return model
