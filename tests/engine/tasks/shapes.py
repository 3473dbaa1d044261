"""A few small pictures with drawn objects in COCO's format, and recipes that train a small detector on them."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from repgraph import recipes
from repgraph.models.coordinates import keep_coordinates

COLOURS = {7: (210, 50, 40), 12: (40, 80, 220)}  # boxes and discs, by category


def outline(category, left, top, side):
    if category == 7:
        return [left, top, left + side, top, left + side, top + side, left, top + side]
    turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    x, y = left + side / 2 * (1 + np.cos(turns)), top + side / 2 * (1 + np.sin(turns))
    return np.stack((x, y), 1).reshape(-1).round(2).tolist()


def make_data(root: Path, train: int = 5, val: int = 3, extra: tuple = ()) -> Path:
    """Pictures with a box and a disc each, every third of them higher than wide; ``extra`` annotations of the first."""
    chance = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    (root / "images").mkdir()
    for split, count in (("train", train), ("val", val)):
        images, annotations = [], []
        for i in range(count):
            width, height = (60, 72) if i % 3 == 2 else (72 + 2 * i, 60)
            pixels = chance.integers(90, 160, (height, width, 3)).astype(np.uint8)
            picture = Image.fromarray(pixels)
            draw = ImageDraw.Draw(picture)
            for k, category in enumerate(COLOURS):
                side = 20 + 2 * i
                left, top = 3 + i + k * 28, 4 + 2 * i + 16 * k
                shape = outline(category, left, top, min(side, width - left - 2, height - top - 2))
                draw.polygon([tuple(shape[at : at + 2]) for at in range(0, len(shape), 2)], fill=COLOURS[category])
                annotations.append(entry(len(annotations) + 1, i + 1, category, shape))
            name = f"{split}-{i}.png"
            picture.save(root / "images" / name)
            images.append({"id": i + 1, "file_name": name, "height": height, "width": width})
        if split == "train":
            annotations += [each | {"id": 900 + number} for number, each in enumerate(extra)]
        categories = [{"id": 7, "name": "box"}, {"id": 12, "name": "disc"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return root


def entry(number, image, category, shape, **more):
    x, y = shape[0::2], shape[1::2]
    box = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    given = {"id": number, "image_id": image, "category_id": category, "segmentation": [shape], "iscrowd": 0}
    return given | {"bbox": box, "area": box[2] * box[3]} | more


def settings(data: Path, *more: str) -> list[str]:
    return [
        f"data.root={data}",
        "data.workers=0",
        "model.backbone=resnet18",
        "model.weights=none",
        "model.min_size=64",
        "model.max_size=96",
        "model.trainable_stages=0",
        "optim.warmup=2",
        "optim.lr=0.005",
        "train.batch=2",
        "train.iterations=6",
        "train.period=3",
        "train.validate_every=0",
        "train.log_every=2",
        "train.precision=fp32",
        "train.accelerator=cpu",
        "test.detections=5",
        *more,
    ]


def recipe(data: Path, *more: str) -> recipes.DetectionRecipe:
    named = recipes.get("voc_instances-r50-repgraph", recipes.DetectionRecipe)
    return recipes.with_settings(named, settings(data, *more))


def shrink(model):
    """The network with small heads, of the same names, that look at few boxes; not the one that its config says."""
    detector, classes = model.detector, model.classes + 1
    if not hasattr(detector.roi_heads, "shrunk"):
        with torch.random.fork_rng():
            detector.roi_heads.box_head = TwoMLPHead(256 * 7**2, 16)
            detector.roi_heads.box_predictor = FastRCNNPredictor(16, classes)
            detector.roi_heads.mask_head = MaskRCNNHeads(256, (8, 8, 8, 8), 1)
            detector.roi_heads.mask_predictor = MaskRCNNPredictor(8, 8, classes)
        for part in (detector.backbone, detector.rpn.head):
            part._forward_hooks.clear()
        keep_coordinates(detector)
        detector.roi_heads.fg_bg_sampler.batch_size_per_image = 16
        detector.rpn.fg_bg_sampler.batch_size_per_image = 32
        detector.rpn._pre_nms_top_n = detector.rpn._post_nms_top_n = {"training": 50, "testing": 10}
        detector.roi_heads.shrunk = True
    return model
