"""The named recipes: one row per data set, times backbone, times context layer.

Learning rates, batches, iterations, crops and test scales of ADE20K, Cityscapes and PASCAL-Context are the paper's;
what it does not give follows its authors' other work (docs/training.md). Other recipes are short, for small data.
"""

import re
from typing import Any

from repgraph.errors import UsageError, nearest
from repgraph.recipes.schema import AnyRecipe, DetectionRecipe, Recipe

BACKBONES = {"r50": ("resnet50", "ResNet-50"), "r101": ("resnet101", "ResNet-101")}
# The network without its backbone, and a title.
NETWORKS: dict[str, tuple[dict[str, Any], str]] = {
    "baseline": ({"context": "none"}, "The backbone baseline"),
    "nl": ({"context": "non_local"}, "The non-local baseline"),
    "rgnet": ({"context": "repgraph"}, "RGNet"),
    "fpn": ({"context": "none", "decoder": "pyramid"}, "A feature pyramid (FPN)"),
    "pyramid": ({"context": "repgraph", "decoder": "pyramid"}, "RGNet with a feature pyramid"),
}
PAPER = {  # its scores
    "ade20k-r50-baseline": "36.48 mIoU, 77.57 pixel accuracy, on val",
    "ade20k-r50-nl": "40.97 mIoU, 80.01 pixel accuracy, on val",
    "ade20k-r50-rgnet": "44.02 mIoU, 81.12 pixel accuracy, on val; 43.12 and 80.27 in its ablations",
    "ade20k-r101-rgnet": "45.8 mIoU, 81.76 pixel accuracy, on val",
    "cityscapes_trainval-r101-rgnet": "81.5 mIoU, on test",
    "pascal_context-r101-rgnet": "53.9 mIoU, on val",
    "coco-r50-baseline": "box AP 38.0, AP50 59.6, AP75 41.0; mask AP 34.6, AP50 56.4, AP75 36.5, on test2017",
    "coco-r50-nl": "box AP 39.0, AP50 61.1, AP75 41.9; mask AP 35.5, AP50 58.0, AP75 37.4, on test2017",
    "coco-r50-repgraph": "box AP 39.6, AP50 61.4, AP75 42.1; mask AP 36.0, AP50 57.9, AP75 37.9, on test2017",
}

_HEAD = dict(lr=0.01, head=10.0, offset=10.0)  # offsets have the learning rate of their head
# Of pyramids, on every data set: attention and its feed-forward part learn far better with AdamW (docs/results.md).
PYRAMID_OPTIMIZER: dict[str, Any] = dict(
    optimizer="adamw", lr=1e-4, head=10.0, offset=10.0, weight_decay=0.05, warmup=50
)
_SHORT = dict(optim=_HEAD, train=dict(batch=16, iterations=2_500))
_SCALES = dict(mode="slide", scales=(0.5, 0.75, 1.0, 1.25), flip=True)
_PAPER = dict(optim=dict(lr=0.02, weight_decay=1e-4), test=_SCALES)
_LONG = dict(batch=16, period=1_000, validate_every=10)
_CITYSCAPES = dict(
    optim=dict(lr=0.01, weight_decay=5e-4),
    train=dict(batch=8, iterations=40_000, period=1_000, validate_every=5),
    test=_SCALES | dict(scales=(0.5, 0.75, 1.0, 1.5)),
)
_TRAINVAL = dict(name="cityscapes", split="trainval", val_split="")
_FOLDER = dict(optim=_HEAD, train=dict(batch=16, iterations=5_000), test=dict(mode="slide"))
# The title of a data set, the crop in training and in tests, and the sections of its recipes without the network.
SEGMENTATION: dict[str, tuple[str, tuple[int, int], dict[str, Any]]] = {
    "ade20k": ("ADE20K", (520, 520), dict(train=dict(iterations=100_000, **_LONG), **_PAPER)),
    "cityscapes": ("Cityscapes", (769, 769), _CITYSCAPES),
    "cityscapes_trainval": (
        "Cityscapes, train and val together, for its test server", (769, 769), dict(data=_TRAINVAL, **_CITYSCAPES)
    ),
    "pascal_context": (
        "PASCAL-Context, 59 classes", (520, 520), dict(train=dict(iterations=80_000, **_LONG), **_PAPER)
    ),
    "voc": ("PASCAL VOC 2012", (320, 320), _SHORT),
    "camvid": ("CamVid", (360, 480), _SHORT),
    "stanford": ("Stanford Background", (240, 320), _SHORT),
    "folder": ("a folder of images and masks", (512, 512), _FOLDER),
}  # fmt: skip


def _segmentation(row: str, backbone: str, network: str) -> Recipe:
    data, crop, sections = SEGMENTATION[row]
    (body, body_title), (model, title) = BACKBONES[backbone], NETWORKS[network]
    name = f"{row}-{backbone}-{network}"
    sections = sections | {
        "data": dict(name=row, crop=crop) | sections.get("data", {}),
        "model": dict(backbone=body, **model),
        "test": dict(crop=crop) | sections.get("test", {}),
    }
    if "decoder" in model:
        sections["optim"] = PYRAMID_OPTIMIZER
    return Recipe(name=name, description=_description(f"{title}, {body_title}, on {data}.", name), **sections)


def _description(title: str, name: str) -> str:
    command = f"\n  repgraph train {name} --data ROOT --weights FILE --out runs/{name}"
    return title + command + (f"\n  The paper: {PAPER[name]}." if name in PAPER else "")


# For two cores and a few dozen photos; docs/training.md has its time and scores.
_LAPTOP_TITLE = "RGNet with a feature pyramid, ResNet-50, on a folder of a few dozen images and masks, for a CPU."
_LAPTOP: dict[str, Any] = dict(
    data=dict(name="folder", crop=256, scales=(0.75, 1.0, 1.25, 1.5)),
    model=dict(backbone="resnet50", decoder="pyramid"),
    optim=PYRAMID_OPTIMIZER,
    train=dict(batch=4, iterations=300, period=100, precision="fp32", norm="local", log_every=10),
    test=dict(mode="slide", crop=384),
)

# A small network on the drawn scenes, a minute on the CPU. Nodes start on a ring with a radius of 10 positions (40
# pixels), and offsets have 20 times the learning rate of the rest: with a radius of 4, or with unscaled logits, RGNet
# scored no more than the baseline. Nodes are points, because the cues are small. Boats are a few percent of the pixels.
_RING = {"spread": "ring", "rounds": 1, "radius": 10.0, "scale": 0.125, "node_view": 1, "norm_expand": True}
SCENES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "baseline": ("The backbone baseline", "none", {}),
    "control": ("The control (the layer's convolutions without its nodes)", "control", {"norm_expand": True}),
    "nl": ("The non-local baseline", "non_local", {}),
    "rgnet": ("RGNet", "repgraph", _RING),
}


def _scenes(context: str) -> Recipe:
    title, layer, options = SCENES[context]
    small = dict(backbone="repgraph_small", weights="none", output_stride=4, channels=96, auxiliary=False, dropout=0.0)
    name, size = f"scenes-{context}", (96, 128)
    sections: dict[str, Any] = dict(
        data=dict(name="scenes", crop=size, scales=(1.0,), workers=0, cache=True),
        model=dict(**small, context=layer, context_options=options),
        optim=dict(lr=0.05, offset=20.0, weight_decay=1e-4, class_weights=(*(1.0,) * 6, 5.0, 5.0)),
        train=dict(batch=8, iterations=600, period=150, precision="fp32", norm="local", accelerator="cpu"),
        test=dict(crop=size),
    )
    description = f"{title}, small, on the drawn scenes.\n  repgraph train {name} --out runs/{name}"
    return Recipe(name=name, description=description, **sections)


# Mask R-CNN. The paper does not give its schedule for COCO; this is the usual short one. The recipe for VOC is for one
# GPU: images with segmentations, resized to a shorter side of 320 pixels.
DETECTION_NETWORKS: dict[str, tuple[dict[str, Any], str]] = {
    "baseline": ({"context": "none"}, "Mask R-CNN"),
    "nl": ({"context": "non_local"}, "Mask R-CNN with a non-local block in res4"),
    "repgraph": ({"context": "repgraph"}, "Mask R-CNN with a RepGraph layer in res4"),
}
DETECTION: dict[str, tuple[str, dict[str, Any]]] = {
    "coco": ("COCO 2017", dict(train=dict(iterations=90_000, **_LONG))),
    "voc_instances": (
        "objects of PASCAL VOC 2012 (annotations/instances_SPLIT.json)",
        dict(
            model=dict(min_size=(320,), max_size=480),
            optim=dict(warmup=250),
            train=dict(batch=16, iterations=2_500, period=500, validate_every=5),
        ),
    ),
}


def _detection(row: str, network: str) -> DetectionRecipe:
    (data, sections), (model, title) = DETECTION[row], DETECTION_NETWORKS[network]
    name = f"{row}-r50-{network}"
    description = _description(f"{title}, ResNet-50-FPN, on {data}.", name)
    return DetectionRecipe(
        name=name, description=description, **sections | {"model": sections.get("model", {}) | model}
    )


_ALL: list[AnyRecipe] = [
    *(_segmentation(row, backbone, network) for row in SEGMENTATION for backbone in BACKBONES for network in NETWORKS),
    Recipe(name="laptop-r50-pyramid", description=_description(_LAPTOP_TITLE, "laptop-r50-pyramid"), **_LAPTOP),
    *(_scenes(context) for context in SCENES),
    *(_detection(row, network) for row in DETECTION for network in DETECTION_NETWORKS),
]
RECIPES: dict[str, AnyRecipe] = {recipe.name: recipe for recipe in _ALL}
NAMES: tuple[str, ...] = tuple(RECIPES)


def get(name: str) -> AnyRecipe:
    if name not in RECIPES:
        raise UsageError(f"unknown recipe {name!r}{nearest(name, NAMES, '')} (repgraph train --list shows all)")
    return RECIPES[name]


def renamed(recipe: Any) -> Any:
    """Return the recipe, renamed if settings changed the network of a named recipe."""
    base = RECIPES.get(recipe.name)
    model = recipe.model
    if base is None or (base.model.backbone, _network(base.model)) == (model.backbone, _network(model)):
        return recipe
    row, *parts = recipe.name.split("-")
    if model.backbone != base.model.backbone:
        short = {network: name for name, (network, _) in BACKBONES.items()}
        parts = [short.get(model.backbone, re.sub(r"[^\w.]", "_", model.backbone)), parts[-1]]
    if (network := _network(model)) != _network(base.model):
        networks = DETECTION_NETWORKS if recipe.task == "detection" else NETWORKS
        usual = "_".join(network[key] for key in sorted(network))
        parts[-1] = next((name for name, (each, _) in networks.items() if each == network), usual)
    name = "-".join([row, *parts])
    description = RECIPES[name].description if name in RECIPES else ""
    return recipe.model_copy(update={"name": name, "description": description})


def _network(model: Any) -> dict[str, str]:
    """Return the settings that distinguish the networks in :data:`NETWORKS`."""
    if getattr(model, "decoder", "dilated") == "dilated":
        return {"context": model.context}
    return {"context": "repgraph" if model.context == "pyramid" else model.context, "decoder": model.decoder}
