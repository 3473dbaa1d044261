"""Constants that several packages share."""

from typing import Literal

MEAN = (0.485, 0.456, 0.406)  # of ImageNet images, RGB from 0 to 1
STD = (0.229, 0.224, 0.225)
SCALES = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)  # of images in training, as in the paper
IGNORE = 255  # class index of unlabeled pixels in masks
DATASETS = ("ade20k", "camvid", "cityscapes", "folder", "pascal_context", "scenes", "stanford", "voc")
INSTANCE_DATASETS = ("coco",)  # for object detection
Precision = Literal["fp32", "bf16", "fp16"]
RECIPE, MODEL, CHECKPOINTS, LAST = "recipe.json", "model", "checkpoints", "last.ckpt"  # in the folder of a run
SHIPPED = "weights/voc-r50-pyramid.safetensors"  # a trained network, in the repository only
PHOTOS = "examples/photos"  # likewise
# How a segmentation network gets from the backbone to classes: output stride of the backbone, channels of the head.
DECODERS: dict[str, tuple[int, int]] = {"dilated": (8, 512), "pyramid": (32, 256)}
