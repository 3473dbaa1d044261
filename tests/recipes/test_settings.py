"""Settings and JSON files: types of values, and errors that name the value and the remedy."""

import json

import pytest
from pydantic import ValidationError

from repgraph import recipes
from repgraph.errors import UsageError

SEGMENTATION, DETECTION = recipes.get("voc-r50-rgnet"), recipes.get("coco-r50-repgraph")


@pytest.mark.parametrize(
    ("recipe", "setting", "value"),
    [
        (SEGMENTATION, "optim.lr=1", 1.0),
        (SEGMENTATION, "optim.lr = 2e-3", 0.002),
        (SEGMENTATION, "train.compile=true", True),
        (SEGMENTATION, "data.flip=No", False),
        (SEGMENTATION, "data.scales=0.5,1", (0.5, 1.0)),
        (SEGMENTATION, "data.root=a=b", "a=b"),
        (SEGMENTATION, "model.weights=", ""),
        (SEGMENTATION, 'model.inserted={"layer3": 2}', {"layer3": 2}),
        (SEGMENTATION, "test.crop=360x480", (360, 480)),
        (SEGMENTATION, "test.crop=480", (480, 480)),
        (DETECTION, "model.min_size=640,672,800", (640, 672, 800)),
        (DETECTION, "model.caffe_style=yes", "yes"),
        (DETECTION, "optim.steps=[]", ()),
    ],
)
def test_values_have_their_types(recipe, setting, value):
    section, _, name = setting.partition("=")[0].strip().partition(".")
    changed = recipes.with_settings(recipe, [setting])
    found = getattr(getattr(changed, section), name)
    assert found == value and type(found) is type(value)
    assert changed.model_copy(update={section: getattr(recipe, section)}) == recipe  # nothing else changed


def test_entries_of_dictionaries():
    settings = ["model.context_options.nodes=27", "model.context_options.spread=ring", "model.inserted.layer3=1"]
    changed = recipes.with_settings(SEGMENTATION, settings).model
    assert (changed.context_options, changed.inserted) == ({"nodes": 27, "spread": "ring"}, {"layer3": 1})
    assert SEGMENTATION.model.context_options == {}
    assert recipes.with_values(SEGMENTATION, {"model.inserted.layer3": 1}).model.inserted == {"layer3": 1}


def test_crop_of_the_test_changes_with_the_data():
    recipe = recipes.get("folder-r50-rgnet")
    apart = recipes.with_settings(recipe, ["test.crop=640"])
    assert recipes.with_settings(recipe, ["data.crop=384"]).test.crop == (384, 384)
    assert recipes.with_settings(recipe, ["data.crop=384", "test.crop=512"]).test.crop == (512, 512)
    assert recipes.with_settings(apart, ["data.crop=384"]).test.crop == (640, 640) and apart.data.crop == (512, 512)


@pytest.mark.parametrize(
    ("recipe", "setting", "message"),
    [
        (SEGMENTATION, "optim.lrr=1", "unknown setting 'optim.lrr'; did you mean 'optim.lr'?"),
        (SEGMENTATION, "lr=1", "unknown setting 'lr'; did you mean 'optim.lr'?"),
        (SEGMENTATION, "train.lr=1", "unknown setting 'train.lr'; did you mean 'optim.lr'?"),
        (SEGMENTATION, "zebra=1", "unknown setting 'zebra'; choose one of data, model, optim, test, train"),
        (SEGMENTATION, "model.backbone.depth=50", "unknown setting 'model.backbone.depth'; did you mean"),
        (SEGMENTATION, "optim.lr", "setting 'optim.lr' has no value; write NAME=VALUE"),
        (SEGMENTATION, "optim.lr=fast", "optim.lr is 'fast': "),
        (SEGMENTATION, "optim.lr=1e999", "optim.lr is inf: input should be a finite number"),
        (SEGMENTATION, "optim.lr=0", "optim.lr is 0: input should be greater than 0"),
        (SEGMENTATION, "train.iterations=1e5", "train.iterations is 100000.0: input should be a valid integer"),
        (SEGMENTATION, "train.accelerator=gpu", "train.accelerator is 'gpu'; did you mean 'cuda'?"),
        (SEGMENTATION, "train.norm=zebra", "train.norm is 'zebra'; choose one of frozen, local, sync"),
        (SEGMENTATION, "train.accumulate=3", "train.accumulate is 3; expected a divisor of train.batch=16"),
        (SEGMENTATION, "optim.class_weights=0,0", "optim.class_weights are all 0; "),
        (SEGMENTATION, "model.inserted.layer3=one", "model.inserted.layer3 is 'one': "),
        (SEGMENTATION, "optim.betas=0.9", "optim.betas is (0.9,): "),
        (SEGMENTATION, "data.crop=1,2,3", "data.crop is (1, 2, 3): "),
        (SEGMENTATION, "data.hold_out=1", "data.hold_out is 1, which leaves no image to train on; "),
        (DETECTION, "data.crop=320", "unknown setting 'data.crop'; choose one of by_orientation, cache, "),
        (DETECTION, "model.min_size=64,1", "model.min_size is 1: input should be greater than 1"),
    ],
)
def test_mistakes_in_settings(recipe, setting, message):
    with pytest.raises(UsageError) as caught:
        recipes.with_settings(recipe, [setting])
    assert str(caught.value).startswith(message)


def test_recipes_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        SEGMENTATION.optim.lr = 1.0


def test_json_round_trip():
    for recipe in map(recipes.get, recipes.NAMES):
        assert recipes.from_dict(json.loads(recipes.to_json(recipe))) == recipe


def test_files(tmp_path):
    def load(text: str) -> recipes.AnyRecipe:
        (tmp_path / "mine.json").write_text(text)
        return recipes.load(tmp_path / "mine.json")

    found = load('{"data": {"name": "folder", "crop": [64, 48]}}')
    assert found == recipes.Recipe(name="mine", data=recipes.Data(name="folder", crop=(64, 48)))
    found = load('{"task": "detection", "data": {"root": "here"}}')
    assert found == recipes.with_settings(recipes.DetectionRecipe(name="mine"), ["data.root=here"])
    found = load('{"base": "voc-r50-rgnet", "optim": {"lr": 0.5}, "model": {"context_options": {"nodes": 4}}}')
    changed = recipes.with_settings(SEGMENTATION, ["optim.lr=0.5", "model.context_options.nodes=4"])
    assert found == changed.model_copy(update={"name": "mine", "description": ""})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"data": {"name": "voc"}, "otpim": {}}', "unknown section 'otpim'; did you mean 'optim'?"),
        ('{"data": {"name": "voc", "corp": 3}}', "unknown setting 'data.corp'; did you mean 'crop'?"),
        ('{"data": {"name": "voc"}, "optim": {"lr": "0.1"}}', "optim.lr is '0.1': "),
        ('{"data": {"name": "voc"}, "optim": 3}', "optim is 3: "),
        ('{"data": {}}', "data.name is required"),
        ('{"base": "voc-r50-rgnt"}', "did you mean 'voc-r50-rgnet'?"),
        ('{"base": "voc-r50-rgnet", "train": {"batch": 10000000000000}}', "train.batch is 10000000000000"),
        ('{"base": "coco-r50-nl", "task": "segmentation"}', "unknown setting"),
        ('{"task": "detecting"}', "task is 'detecting'; did you mean 'detection'?"),
        ('{"task": []}', "task is []; choose one of detection, segmentation"),
        *((f'{{"base": "voc-r50-rgnet", "name": "{name}"}}', "name is ") for name in ("../x", "", "..", "\\u0000")),
        ("[1]", "is not a recipe: expected a JSON object"),
        ("{", "is not valid JSON"),
    ],
)
def test_mistakes_in_files(tmp_path, text, words):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        recipes.load(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
