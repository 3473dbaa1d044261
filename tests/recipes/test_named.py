"""The named recipes have the paper's numbers. (tests/goldens has all values.)"""

import itertools

import pytest

from repgraph import recipes
from repgraph.errors import UsageError

PAPER = {  # lr, weight decay, batch, iterations, crop, test scales
    "ade20k": (0.02, 1e-4, 16, 100_000, 520, (0.5, 0.75, 1.0, 1.25)),
    "cityscapes": (0.01, 5e-4, 8, 40_000, 769, (0.5, 0.75, 1.0, 1.5)),
    "cityscapes_trainval": (0.01, 5e-4, 8, 40_000, 769, (0.5, 0.75, 1.0, 1.5)),
    "pascal_context": (0.02, 1e-4, 16, 80_000, 520, (0.5, 0.75, 1.0, 1.25)),
}
CONTEXTS = {"baseline": "none", "nl": "non_local", "rgnet": "repgraph"}
NETWORKS = {**CONTEXTS, "fpn": "none", "pyramid": "repgraph"}


def test_names():
    sets = (*PAPER, "voc", "camvid", "stanford", "folder")
    segmentation = {"-".join(parts) for parts in itertools.product(sets, ("r50", "r101"), NETWORKS)}
    scenes = {f"scenes-{context}" for context in (*CONTEXTS, "control")}
    detection = {f"{name}-r50-{c}" for name in ("coco", "voc_instances") for c in ("baseline", "nl", "repgraph")}
    assert set(recipes.NAMES) == segmentation | scenes | detection | {"laptop-r50-pyramid"}
    assert {name for name in recipes.NAMES if recipes.get(name).task == "detection"} == detection
    for name in recipes.NAMES:
        recipe, (data_set, *_, context) = recipes.get(name), name.split("-")
        assert recipe.name == name and f"repgraph train {name} " in recipe.description
        assert recipe.model.context == NETWORKS.get(context, context)
        pyramid = context in ("fpn", "pyramid")
        assert getattr(recipe.model, "decoder", "") == (
            "" if name in detection else "pyramid" if pyramid else "dilated"
        )
        assert recipe.model.weights == ("none" if data_set == "scenes" else "")  # has to be requested
    assert "45.8 mIoU, 81.76" in recipes.get("ade20k-r101-rgnet").description


@pytest.mark.parametrize("data_set", PAPER)
def test_numbers_of_the_paper(data_set):
    recipe = recipes.get(f"{data_set}-r101-rgnet")
    optim, train, test = recipe.optim, recipe.train, recipe.test
    found = (optim.lr, optim.weight_decay, train.batch, train.iterations, recipe.data.crop[0], test.scales)
    assert found == PAPER[data_set] and recipe.data.crop == test.crop and (test.mode, test.flip) == ("slide", True)
    assert (optim.auxiliary_weight, optim.power, optim.momentum) == (0.4, 0.9, 0.9)
    assert recipe.rate(train.iterations // 2) == 0.5**0.9
    warm = recipes.with_settings(recipe, ["train.iterations=10", "optim.warmup=4", "optim.warmup_factor=0.2"])
    assert [warm.rate(k) for k in (0, 1, 4, 5)] == pytest.approx([0.2, 0.4 * 0.9**0.9, 0.6**0.9, 0.5**0.9])


def test_mask_rcnn_on_coco_has_the_usual_schedule():
    recipe = recipes.get("coco-r50-repgraph")
    assert (recipe.train.batch, recipe.train.iterations, recipe.optim.lr) == (16, 90_000, 0.02)
    expected = {0: 0.001, 250: 0.5005, 500: 1, 59_999: 1, 60_000: 0.1, 79_999: 0.1, 80_000: 0.01, 89_999: 0.01}
    assert {iteration: recipe.rate(iteration) for iteration in expected} == pytest.approx(expected)
    short = recipes.with_settings(recipe, ["train.iterations=9", "optim.warmup=0"])  # steps are fractions
    assert [short.rate(iteration) for iteration in range(9)] == pytest.approx([1] * 6 + [0.1] * 2 + [0.01])


def test_unknown_recipe():
    with pytest.raises(UsageError, match="unknown recipe 'voc-r50-rgent'; did you mean 'voc-r50-rgnet'"):
        recipes.get("voc-r50-rgent")
    with pytest.raises(UsageError, match=r"unknown recipe 'zebra' \(repgraph train --list"):
        recipes.get("zebra")


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("folder-r50-rgnet", "model.backbone=resnet18 optim.lr=0.1", "folder-resnet18-rgnet"),
        ("folder-r50-rgnet", "model.backbone=resnet101", "folder-r101-rgnet"),
        ("voc-r50-rgnet", "model.context=non_local", "voc-r50-nl"),
        ("voc-r50-rgnet", "model.context=dual", "voc-r50-dual"),
        ("scenes-rgnet", "model.backbone=hf-hub:timm/resnet18", "scenes-hf_hub_timm_resnet18-rgnet"),
        ("coco-r50-repgraph", "model.context=none", "coco-r50-baseline"),
        ("coco-r50-repgraph", "train.batch=8", "coco-r50-repgraph"),
    ],
)
def test_names_change_with_the_network(name, settings, expected):
    recipe = recipes.with_settings(recipes.get(name), settings.split())
    assert recipe.name == expected
    assert recipe.description == (recipes.get(expected).description if expected in recipes.NAMES else "")
