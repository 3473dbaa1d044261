"""Settings and JSON: what is right is taken, what is wrong is refused by name."""

import dataclasses
import json

import pytest

from repgraph import recipes
from repgraph.errors import UsageError

RECIPE = recipes.get("voc-r50-rgnet")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("optim.lr=0.02", 0.02),
        ("optim.lr=1", 1.0),
        ("optim.lr = 2e-3", 0.002),
        ("train.iterations=300", 300),
        ("train.compile=true", True),
        ("data.flip=No", False),
        ("data.crop=480", (480, 480)),
        ("data.crop=360x480", (360, 480)),
        ("data.crop=[360, 480]", (360, 480)),
        ("data.scales=0.5,1", (0.5, 1.0)),
        ("data.scales=1", (1.0,)),
        ("data.root=2012", "2012"),
        ("data.root=a=b", "a=b"),
        ("model.weights=", ""),
        ("model.context=non_local", "non_local"),
        ('model.inserted={"layer3": 2}', {"layer3": 2}),
    ],
)
def test_a_setting_is_taken_with_its_type(setting, value):
    section, _, name = setting.partition("=")[0].strip().partition(".")
    changed = recipes.with_settings(RECIPE, [setting])
    found = getattr(getattr(changed, section), name)
    assert found == value and type(found) is type(value)
    same = dataclasses.replace(changed, **{section: getattr(RECIPE, section)})
    if name == "crop":  # which that of the tests follows
        same = dataclasses.replace(same, test=RECIPE.test)
    assert same == RECIPE  # and nothing else has changed


def test_options_that_are_passed_on_have_names_of_their_own():
    settings = ["model.context_options.nodes=27", "model.context_options.spread=rings", "model.inserted.layer3=1"]
    changed = recipes.with_settings(RECIPE, settings).model
    assert changed.context_options == {"nodes": 27, "spread": "rings"}
    assert changed.inserted == {"layer3": 1}
    assert RECIPE.model.context_options == {}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("optim.lrr=1", "no setting 'optim.lrr'; did you mean 'optim.lr'?"),
        ("optim.learning=1", "no setting 'optim.learning'; optim has lr, head"),
        ("lr=1", "did you mean 'optim.lr'?"),
        ("train.lr=1", "did you mean 'optim.lr'?"),
        ("optimm.lr=1", "did you mean 'optim.lr'?"),
        ("zebra=1", "the sections are data, model, optim, train, test"),
        ("name=x", "no setting 'name'"),
        ("optim.lr", "'optim.lr' has no value; write NAME=VALUE"),
        ("optim.lr=fast", "optim.lr is 'fast'; a number is needed"),
        ("optim.lr=nan", "optim.lr is 'nan'; a number is needed"),
        ("optim.lr=NaN", "a number is needed"),
        ("optim.lr=1e999", "a number is needed"),
        ("optim.lr=true", "optim.lr is True; a number is needed"),
        ("optim.lr=0", "optim.lr is 0.0; a number above 0 is needed"),
        ("optim.momentum=1", "from 0 to below 1"),
        ("optim.ohem=7", "a probability below 1"),
        ("optim.class_weights=0,0", "not all of them 0"),
        ("optim.weight_decay=-1", "of at least 0"),
        ("train.iterations=1e5", "train.iterations is 100000.0; a whole number is needed"),
        ("train.batch=16.0", "a whole number is needed"),
        ("train.accumulate=3", "a divisor of 16 images"),
        ("train.seed=-1", "from 0 to below 2**63"),
        ("train.compile=maybe", "true or false is needed"),
        ("train.accelerator=gpu", "train.accelerator is 'gpu'; did you mean 'cuda'?"),
        ("train.precision=bf61", "train.precision is 'bf61'; did you mean 'bf16'?"),
        ("train.norm=zebra", "there are frozen, local, sync"),
        ("model.context=repgaph", "did you mean 'repgraph'?"),
        ("model.context_options=9", 'such as {"nodes": 9}'),
        ("model.inserted.layer3=one", "model.inserted.layer3 is 'one'; a whole number is needed"),
        ("model.backbone.depth=50", "did you mean 'model.backbone'?"),
        ("model.dropout=1", "from 0 to below 1"),
        ("data.crop=1,2,3", "2 numbers"),
        ("data.crop=0", "a height and a width above 0"),
        ("data.crop=wide", "data.crop is ['wide']"),
        ("data.crop=1000000", "data.crop is (1000000, 1000000); a height and a width above 0 and up to 16384 is"),
        ("test.crop=1000000", "test.crop is (1000000, 1000000); a height and a width above 0 and up to 16384 is"),
        ("data.scales=[]", "one number above 0 and up to 16, or several"),
        ("data.scales=1e9", "one number above 0 and up to 16, or several"),
        ("data.workers=-2", "-1 for all cores"),
        ("data.hold_out=1", "data.hold_out is 1; 0 for none, or a number of at least 2 (every n-th image) is needed"),
        ("test.stride=2", "a share of the crop"),
    ],
)
def test_a_mistake_is_refused_with_what_is_needed(setting, words):
    with pytest.raises(UsageError) as caught:
        recipes.with_settings(RECIPE, [setting])
    assert words in str(caught.value)


@pytest.mark.parametrize("name", recipes.NAMES)
def test_json_gives_back_the_same_recipe(name):
    recipe = recipes.get(name)
    assert recipes.from_dict(json.loads(recipes.to_json(recipe))) == recipe


def test_a_file_has_defaults_and_a_base(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"data": {"name": "folder", "crop": [64, 48]}}')
    assert recipes.load(path) == recipes.Recipe("mine", recipes.Data("folder", crop=(64, 48)))
    path.write_text('{"base": "voc-r50-rgnet", "optim": {"lr": 0.5}, "model": {"context_options": {"nodes": 4}}}')
    found = recipes.load(path)
    assert (found.name, found.optim.lr, found.optim.head) == ("mine", 0.5, 10.0)
    assert found.model.context_options == {"nodes": 4}
    assert found.data == RECIPE.data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"data": {"name": "voc"}, "otpim": {}}', "no section 'otpim'; did you mean 'optim'?"),
        ('{"data": {"name": "voc", "corp": 3}}', "no setting 'data.corp'; did you mean 'crop'?"),
        ('{"data": {"name": "voc", "crop": 3.5}}', "data.crop is 3.5; a whole number is needed"),
        ('{"data": {"name": "voc"}, "optim": {"lr": "0.1"}}', "optim.lr is '0.1'; a number is needed"),
        ('{"data": {"name": "voc"}, "optim": 3}', "optim is 3; a section with its settings is needed"),
        ('{"data": {}}', "data.name is not given"),
        ("{}", "data is not given"),
        ('{"base": "voc-r50-rgnt"}', "did you mean 'voc-r50-rgnet'?"),
        ("[1]", "holds no recipe"),
        ("{", "is not JSON"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, words):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        recipes.load(path)
    assert words in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        recipes.load(tmp_path / "none.json")


DETECTION = recipes.get("coco-r50-repgraph", recipes.DetectionRecipe)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.min_size=640,672,800", (640, 672, 800)),
        ("model.min_size=320", (320,)),
        ("model.context=none", "none"),
        ('model.where={"layer3": 2}', {"layer3": 2}),
        ("model.caffe_style=yes", "yes"),
        ("optim.steps=0.5", (0.5,)),
        ("optim.steps=[]", ()),
        ("optim.clip=10", 10.0),
        ("data.by_orientation=false", False),
        ("data.hold_out=5", 5),
        ("test.detections=50", 50),
    ],
)
def test_settings_of_a_detector(setting, value):
    section, _, name = setting.partition("=")[0].partition(".")
    assert getattr(getattr(recipes.with_settings(DETECTION, [setting]), section), name) == value


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.crop=320", "no setting 'data.crop'; data has name, root"),
        ("optim.power=1", "no setting 'optim.power'; optim has lr, head"),
        ("model.min_sise=3", "did you mean 'model.min_size'?"),
        ("steps=0.5", "did you mean 'optim.steps'?"),
        ("zebra=1", "the sections are data, model, optim, train, test"),
        ("optim.steps=60000", "optim.steps is (60000.0,); shares of the iterations, up to 1, is needed"),
        ("optim.warmup=-1", "of at least 0"),
        ("optim.warmup_factor=2", "optim.warmup_factor is 2.0; a number from 0 to 1 is needed"),
        ("optim.clip=-1", "of at least 0"),
        ("optim.gamma=0", "a number above 0"),
        ("model.context=control", "model.context is 'control'"),
        ("model.trainable_stages=6", "a number from 0 to 5"),
        ("model.min_size=[]", "one number above 1 and up to 16384, or several"),
        ("model.min_size=64,1", "one number above 1 and up to 16384, or several"),
        ("model.max_size=1", "a number above 1 and up to 16384"),
        ("model.max_size=99999", "model.max_size is 99999; a number above 1 and up to 16384"),
        ("model.caffe_style=maybe", "there are auto, no, yes"),
        ("test.nms_threshold=2", "test.nms_threshold is 2.0; a number from 0 to 1"),
        ("test.detections=0", "a number above 0"),
        ("test.mode=slide", "no setting 'test.mode'"),
        ("model.backbone=", "model.backbone is ''; the name of a ResNet"),
    ],
)
def test_mistakes_in_settings_of_a_detector(setting, words):
    with pytest.raises(UsageError) as caught:
        recipes.with_settings(DETECTION, [setting])
    assert words in str(caught.value)


def test_a_file_says_its_task_and_older_ones_are_of_segmentation(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"task": "detection", "data": {"root": "here"}}')
    assert recipes.load(path) == recipes.DetectionRecipe("mine", recipes.DetectionData(root="here"))
    path.write_text('{"base": "coco-r50-nl", "optim": {"lr": 0.01}}')
    assert recipes.load(path, recipes.DetectionRecipe).model.context == "non_local"
    older = recipes.to_dict(RECIPE)
    del older["task"], older["data"]["hold_out"], older["optim"]["clip"]  # as files were before there was detection
    path.write_text(json.dumps(older))
    assert recipes.load(path, recipes.Recipe) == RECIPE
    with pytest.raises(UsageError, match="is a recipe for segmentation; one for detection is needed"):
        recipes.load(path, recipes.DetectionRecipe)
    path.write_text('{"task": "detecting"}')
    with pytest.raises(UsageError, match=r"task is 'detecting'; did you mean 'detection'\?"):
        recipes.load(path)
    path.write_text('{"base": "coco-r50-nl", "task": "segmentation"}')
    with pytest.raises(UsageError, match="no setting"):
        recipes.load(path)


def test_recipes_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPE.optim.lr = 1.0


def test_windows_of_the_crops_size_follow_the_crop():
    recipe = recipes.get("folder-r50-rgnet")
    assert recipes.with_settings(recipe, ["data.crop=384"]).test.crop == (384, 384)
    assert recipes.with_settings(recipe, ["data.crop=384", "test.crop=512"]).test.crop == (512, 512)
    assert recipes.with_settings(recipe, ["test.crop=640"]).data.crop == (512, 512)
    apart = recipes.with_settings(recipe, ["test.crop=640"])
    assert recipes.with_settings(apart, ["data.crop=384"]).test.crop == (640, 640)
