"""Goldens of recipes: the named ones, recipe files with a base, and ``--set`` with values of every kind.

``python tests/goldens/regenerate.py`` rewrites the stored values. Descriptions are not pinned.
"""

import json

import pytest
from tests.goldens.harness import golden, repgraph

from repgraph import recipes

# Values of every type, in the forms that are accepted: words for true and false, lists with commas, spaces or "x".
SEGMENTATION_SETTINGS = (
    *("data.crop=320x480", "data.scales=0.5,1", "data.flip=no", "data.cache=on", "data.limit=7", "data.root=my data"),
    *("data.options.classes=3", "model.context=non_local", "model.auxiliary=false", "model.channels=64"),
    *('model.context_options={"groups": 2}', "model.context_options.scale=0.5", "model.inserted.layer3=1"),
    *("model.fusion=sum", "model.weights=timm:resnet50.tv_in1k", "optim.lr=2e-2", "optim.head=3"),
    *("optim.class_weights=1 2 0.5", "train.seed=9007199254740993", "train.precision=fp16", "test.mode=slide"),
    *("test.crop=200", "test.stride=0.5", "test.scales=1", "test.flip=yes"),
)
DETECTION_SETTINGS = (
    *("model.min_size=480,512", "model.max_size=900", "model.where.layer4=2", "model.caffe_style=yes"),
    *("model.context=none", "model.new_predictors=true", "data.by_orientation=false", "data.options.images=photos"),
    *("optim.steps=0.5", "optim.warmup=0", "optim.gamma=0.5", "test.score_threshold=0", "test.detections=5"),
)


def printed(*arguments):
    """Return the recipe that ``repgraph train ARGUMENTS --print`` prints, without its description."""
    recipe = json.loads(repgraph("train", *arguments, "--print"))
    assert isinstance(recipe.pop("description"), str)
    return recipe


def test_named_recipes():
    found = {name: printed(name) for name in recipes.NAMES}
    stored = golden("recipes.json", "named", found)
    assert list(found) == list(stored)
    for name, recipe in found.items():
        assert recipe == stored[name], name


def test_recipes_of_the_api():
    for name in recipes.NAMES:
        assert json.loads(recipes.to_json(recipes.get(name))) == json.loads(repgraph("train", name, "--print")), name


def test_list_of_recipes():
    listed = repgraph("train", "--list")
    assert [name for name in recipes.NAMES if name not in listed] == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [("voc-r50-rgnet", SEGMENTATION_SETTINGS), ("coco-r50-repgraph", DETECTION_SETTINGS)],
    ids=["segmentation", "detection"],
)
def test_settings(name, settings):
    found = printed(name, "--set", *settings)
    assert found == golden("recipes.json", f"{name} with settings", found)
    each_with_its_own_option = [part for setting in settings for part in ("--set", setting)]
    assert printed(name, *each_with_its_own_option) == found


def test_options_that_are_settings():
    found = printed(
        *("voc-r50-rgnet", "--data", "VOC2012", "--weights", "none", "--iterations", 7, "--batch", 4, "--seed", 3),
        *("--devices", 2, "--precision", "fp32", "--workers", 0, "--compile", "--set", "data.crop=256"),
    )
    train, data = found["train"], found["data"]
    assert [train[name] for name in ("iterations", "batch", "seed", "devices")] == [7, 4, 3, 2]
    assert (train["precision"], train["compile"]) == ("fp32", True)
    assert (data["workers"], found["model"]["weights"]) == (0, "none")
    assert data["root"].endswith("VOC2012")
    assert data["crop"] == found["test"]["crop"] == [256, 256]  # windows of tests follow the crop


def test_file_with_a_base(tmp_path):
    path = tmp_path / "mine.json"
    changes = {"optim": {"lr": 0.02}, "model": {"context_options": {"nodes": 4}}, "data": {"crop": [64, 96]}}
    path.write_text(json.dumps({"base": "scenes-rgnet", **changes}))
    found, base = printed(path), printed("scenes-rgnet")
    assert found == golden("recipes.json", "scenes-rgnet as base", found)
    assert found["name"] == "mine"
    assert found["train"] == base["train"]


def test_printed_recipe_can_be_read_again(tmp_path):
    path = tmp_path / "again.json"
    path.write_text(repgraph("train", "coco-r50-nl", "--set", *DETECTION_SETTINGS, "--print"))
    assert printed(path) == printed("coco-r50-nl", "--set", *DETECTION_SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["voc-r50-rgnt"], "voc-r50-rgnet"),
        (["voc-r50-rgnet", "--set", "optim.momentm=1"], "optim.momentum"),
        (["voc-r50-rgnet", "--set", "train.batch=two"], "train.batch"),
        (["voc-r50-rgnet", "--set", "optim.lr=-1"], "optim.lr"),
        (["voc-r50-rgnet", "--set", "model.decoder=pyramids"], "pyramid"),
        (["voc-r50-rgnet", "--set", "data.crop=1,2,3"], "data.crop"),
    ],
)
def test_mistakes_are_one_line_with_a_hint(arguments, hint, capsys):
    repgraph("train", *arguments, "--print", code=2)
    error = capsys.readouterr().err
    assert hint in error
    assert len(error.splitlines()) == 1
