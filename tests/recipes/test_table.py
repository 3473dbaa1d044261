"""The named recipes have the paper's numbers."""

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


def test_every_data_set_has_both_backbones_and_all_three_networks():
    sets = ("ade20k", "cityscapes", "cityscapes_trainval", "pascal_context", "voc", "camvid", "stanford", "folder")
    expected = {f"{s}-{b}-{c}" for s in sets for b in ("r50", "r101") for c in ("baseline", "nl", "rgnet")}
    scenes = {name for name in recipes.NAMES if name.startswith("scenes-")}
    detection = {f"{s}-r50-{c}" for s in ("coco", "voc_instances") for c in ("baseline", "nl", "repgraph")}
    assert set(recipes.NAMES) == expected | scenes | detection
    assert {name for name in recipes.NAMES if recipes.get(name).task == "detection"} == detection
    assert scenes >= {"scenes-baseline", "scenes-rgnet"}


@pytest.mark.parametrize("name", recipes.NAMES)
def test_a_recipe_is_what_its_name_says(name):
    recipe = recipes.get(name)
    assert recipe.name == name
    assert f"repgraph train {name} " in recipe.description
    *_, context = name.split("-")
    assert recipe.model.context == {"baseline": "none", "nl": "non_local", "rgnet": "repgraph"}.get(context, context)
    if recipe.task == "detection":
        assert recipe.model.backbone == "resnet50" and recipe.model.weights == "" and recipe.data.name == "coco"
        assert recipe.model.where == {}  # the network's default, one layer in res4
        assert recipe.model.norm == "frozen" and recipe.data.flip and recipe.data.by_orientation
    elif not name.startswith("scenes"):
        assert recipe.model.backbone == {"r50": "resnet50", "r101": "resnet101"}[name.split("-")[1]]
        assert recipe.model.weights == ""  # nobody trains from random numbers without having said so
        assert recipe.model.output_stride == 8 and recipe.model.auxiliary and recipe.model.channels == 512
        assert recipe.optim.auxiliary_weight == 0.4 and recipe.optim.power == 0.9 and recipe.optim.momentum == 0.9
        assert recipe.data.scales == (0.75, 1.0, 1.25, 1.5, 1.75, 2.0) and recipe.data.flip


@pytest.mark.parametrize("name", [n for n in recipes.NAMES if n.split("-")[0] in PAPER])
def test_the_papers_numbers(name):
    recipe = recipes.get(name)
    lr, decay, batch, iterations, crop, scales = PAPER[name.split("-")[0]]
    assert (recipe.optim.lr, recipe.optim.weight_decay) == (lr, decay)
    assert (recipe.train.batch, recipe.train.iterations) == (batch, iterations)
    assert recipe.data.crop == recipe.test.crop == (crop, crop)
    assert (recipe.test.mode, recipe.test.scales, recipe.test.flip) == ("slide", scales, True)


def test_what_the_paper_scored_is_said_where_it_did():
    said = [name for name in recipes.NAMES if "The paper:" in recipes.get(name).description]
    assert said == [
        *(f"ade20k-{network}" for network in ("r50-baseline", "r50-nl", "r50-rgnet", "r101-rgnet")),
        "cityscapes_trainval-r101-rgnet",
        "pascal_context-r101-rgnet",
        *(f"coco-r50-{network}" for network in ("baseline", "nl", "repgraph")),
    ]
    assert "45.8 mIoU, 81.76" in recipes.get("ade20k-r101-rgnet").description


def test_voc_is_the_short_schedule():
    recipe = recipes.get("voc-r50-rgnet")
    assert (recipe.train.iterations, recipe.train.batch, recipe.data.crop) == (2500, 16, (320, 320))
    assert (recipe.optim.lr, recipe.optim.head, recipe.optim.offset) == (0.01, 10.0, 10.0)
    assert (recipe.test.mode, recipe.test.scales, recipe.test.flip) == ("whole", (1.0,), False)


def test_train_and_val_together():
    recipe = recipes.get("cityscapes_trainval-r101-rgnet")
    assert (recipe.data.split, recipe.data.val_split) == ("trainval", "")  # scores on what was learned say nothing


def test_the_rate_falls_by_a_power():
    recipe = recipes.get("voc-r50-rgnet")
    assert recipe.rate(0) == 1.0
    assert recipe.rate(1250) == 0.5**0.9
    assert 0 < recipe.rate(2499) < 0.001


@pytest.mark.parametrize("context", ["baseline", "nl", "repgraph"])
def test_mask_rcnn_on_coco_is_the_usual_schedule(context):
    recipe = recipes.get(f"coco-r50-{context}", recipes.DetectionRecipe)
    assert (recipe.train.batch, recipe.train.iterations, recipe.optim.lr) == (16, 90_000, 0.02)
    assert (recipe.optim.weight_decay, recipe.optim.momentum, recipe.optim.warmup) == (1e-4, 0.9, 500)
    assert (recipe.model.min_size, recipe.model.max_size, recipe.model.trainable_stages) == ((800,), 1333, 3)
    rates = {iteration: recipe.rate(iteration) for iteration in (0, 500, 59_999, 60_000, 79_999, 80_000, 89_999)}
    expected = {0: 0.001, 500: 1, 59_999: 1, 60_000: 0.1, 79_999: 0.1, 80_000: 0.01, 89_999: 0.01}
    assert rates == pytest.approx(expected)


def test_the_rate_of_a_detector_warms_up_in_a_line():
    recipe = recipes.get("voc_instances-r50-repgraph", recipes.DetectionRecipe)
    warm = [recipe.rate(iteration) for iteration in range(recipe.optim.warmup + 1)]
    steps = {round(after - before, 9) for before, after in itertools.pairwise(warm)}
    assert warm[0] == recipe.optim.warmup_factor and warm[-1] == 1.0 and len(steps) == 1
    assert recipe.rate(1666) == 1.0 and recipe.rate(1667) == pytest.approx(0.1)
    short = recipes.with_settings(recipe, ["train.iterations=9", "optim.warmup=0"])  # steps go with the iterations
    assert [short.rate(iteration) for iteration in range(9)] == pytest.approx([1] * 6 + [0.1] * 2 + [0.01])


def test_a_recipe_for_another_task_is_refused():
    assert recipes.get("voc-r50-rgnet", recipes.Recipe).task == "segmentation"
    with pytest.raises(UsageError, match="coco-r50-nl is a recipe for detection; one for segmentation is needed"):
        recipes.get("coco-r50-nl", recipes.Recipe)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'voc-r50-rgnet'"):
        recipes.get("voc-r50-rgent")
    with pytest.raises(UsageError, match=r"no recipe 'zebra' \(repgraph train --list"):
        recipes.get("zebra")
