"""Descriptions, schedules and names of the named recipes. (tests/goldens has all values.)"""

import pytest

from repgraph import recipes


def test_descriptions_have_the_command():
    for name in recipes.NAMES:
        assert f"repgraph train {name} " in recipes.get(name).description
    assert "45.8 mIoU, 81.76" in recipes.get("ade20k-r101-rgnet").description


def test_polynomial_schedule_with_warmup():
    recipe = recipes.get("voc-r50-rgnet")
    assert recipe.rate(recipe.train.iterations // 2) == 0.5**0.9
    warm = recipes.with_settings(recipe, ["train.iterations=10", "optim.warmup=4", "optim.warmup_factor=0.2"])
    assert [warm.rate(k) for k in (0, 1, 4, 5)] == pytest.approx([0.2, 0.4 * 0.9**0.9, 0.6**0.9, 0.5**0.9])


def test_mask_rcnn_on_coco_has_the_usual_schedule():
    recipe = recipes.get("coco-r50-repgraph")
    assert (recipe.train.batch, recipe.train.iterations, recipe.optim.lr) == (16, 90_000, 0.02)
    expected = {0: 0.001, 250: 0.5005, 500: 1, 59_999: 1, 60_000: 0.1, 79_999: 0.1, 80_000: 0.01, 89_999: 0.01}
    assert {iteration: recipe.rate(iteration) for iteration in expected} == pytest.approx(expected)
    short = recipes.with_settings(recipe, ["train.iterations=9", "optim.warmup=0"])  # steps are fractions
    assert [short.rate(iteration) for iteration in range(9)] == pytest.approx([1] * 6 + [0.1] * 2 + [0.01])


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
