"""Settings and JSON files: types of values, and errors that name the value and the remedy."""

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
        (SEGMENTATION, "data.root=a=b", "a=b"),
        (SEGMENTATION, "model.weights=", ""),
        (DETECTION, "optim.steps=[]", ()),
    ],
)
def test_values_have_their_types(recipe, setting, value):
    section, _, name = setting.partition("=")[0].strip().partition(".")
    changed = recipes.with_settings(recipe, [setting])
    found = getattr(getattr(changed, section), name)
    assert found == value and type(found) is type(value)
    assert changed.model_copy(update={section: getattr(recipe, section)}) == recipe  # nothing else changed


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
        (SEGMENTATION, "optim.learning_rate=1", "unknown setting 'optim.learning_rate'; did you mean 'optim.lr'?"),
        (SEGMENTATION, "epochs=1", "unknown setting 'epochs'; did you mean 'train.iterations'?"),
        (SEGMENTATION, "zebra=1", "unknown setting 'zebra'; choose one of data, model, optim, test, train"),
        (SEGMENTATION, "optim.lr", "setting 'optim.lr' has no value; write NAME=VALUE"),
        (SEGMENTATION, "optim.lr=1e999", "optim.lr is inf; input should be a finite number"),
        (SEGMENTATION, "train.norm=zebra", "train.norm is 'zebra'; input should be 'sync', 'local' or 'frozen'"),
        (SEGMENTATION, "model.inserted.layer3=one", "model.inserted.layer3 is 'one'; "),
        (SEGMENTATION, "data.scales=1,0", "data.scales[1] is 0; input should be greater than 0"),
        (DETECTION, "data.crop=320", "unknown setting 'data.crop'; choose one of by_orientation, cache, "),
    ],
)
def test_mistakes_in_settings(recipe, setting, message):
    with pytest.raises(UsageError) as caught:
        recipes.with_settings(recipe, [setting])
    assert str(caught.value).startswith(message)


def test_recipes_and_values_are_not_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        SEGMENTATION.optim.lr = 1.0
    options, before = {"nodes": 4}, recipes.to_dict(SEGMENTATION)
    values = {"model.context_options": options, "model.context_options.scale": 1}
    assert recipes.with_values(SEGMENTATION, values).model.context_options == {"nodes": 4, "scale": 1}
    assert options == {"nodes": 4} and recipes.to_dict(SEGMENTATION) == before


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
        ('{"data": {"name": "voc", "corp": 3}}', "unknown setting 'data.corp'; did you mean 'crop'?"),
        ('{"data": {}}', "data.name is missing"),
        ('{"base": "coco-r50-nl", "task": "segmentation"}', "unknown setting"),
        ('{"task": "detecting"}', "task is 'detecting'; did you mean 'detection'?"),
        *((f'{{"base": "voc-r50-rgnet", "name": "{name}"}}', "name is ") for name in ("../x", "", "..", "\\u0000")),
    ],
)
def test_mistakes_in_files(tmp_path, text, words):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        recipes.load(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
