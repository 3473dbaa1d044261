"""What tells runs apart, and what does not."""

import random

import pytest
import torch

from repgraph.engine.ablation import key as keys
from repgraph.engine.ablation.key import content, differences, key
from repgraph.engine.ablation.runs import resolve
from repgraph.engine.ablation.tables import get as get_table
from repgraph.layers import spread
from repgraph.models import context
from repgraph.models.context import make
from repgraph.recipes import Data, Model, Optim, Recipe, Train, from_dict, get, to_dict, with_settings


def voc(*settings):
    return with_settings(get("voc-r50-rgnet", Recipe), ["model.weights=/data/resnet50.pth", *settings])


def test_stable():
    """Results of earlier days are found by these: when one changes they are lost, and GENERATION has to say why."""
    data, train = Data("folder", crop=(64, 96), scales=(1.0,)), Train(batch=8, iterations=300, seed=3)
    options = {"nodes": 9, "radius": 4.0, "spread": "ring", "scale": 1.0, "offset_view": 1}
    options |= {"node_view": 1, "norm_expand": True}
    nodes = Recipe("a", data, Model(weights="x/r50.pth", context_options=options), Optim(lr=0.01, head=10.0), train)
    plain = Recipe("b", data, Model(weights="none", context="none"), Optim(lr=0.02), train)
    assert (key(nodes), key(plain)) == ("846b96bf672f", "27239503e8ea")


def test_order_plays_no_part():
    given = to_dict(voc("model.context_options.nodes=27", "model.context_options.scale=0.5"))
    for seed in range(5):
        assert key(from_dict(_shuffled(given, random.Random(seed)))) == key(from_dict(given))


def _shuffled(value, chance):
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    chance.shuffle(items)
    return {name: _shuffled(inner, chance) for name, inner in items}


@pytest.mark.parametrize(
    "settings",
    [
        ["data.root=/elsewhere", "data.workers=3", "data.cache=true", "train.devices=2", "train.accelerator=cpu"],
        ["train.period=7", "train.log_every=7", "train.validate_every=0", "test.flip=true", "test.scales=0.5,1"],
        ["model.weights=/elsewhere/resnet50.pth"],
        ["model.context_options.nodes=9", "model.context_options.radius=8", "model.context_options.node_view=15"],
        ["model.context_options.spread=ring", "model.context_options.backend=reference"],
        ["model.fusion=concat"],
        ["data.hold_out=0"],
    ],
)
def test_same(settings):
    assert key(voc(*settings)) == key(voc())


def test_the_papers_form_by_name_and_spelled_out():
    spelled = ("model.context_options.scale=1.0", "model.context_options.spread=default")
    points = ("model.context_options.node_view=1", "model.context_options.norm_expand=true")  # as outside a head
    assert key(voc("model.context=paper")) == key(voc(*spelled, *points)) != key(voc())
    inside = ("model.inserted.res3=1", "model.inserted_options.layer=paper")
    own = [setting.replace("context_options", "inserted_options") for setting in spelled]
    assert key(voc(*inside)) == key(voc(inside[0], *own)) != key(voc(inside[0]))


def test_options_that_go_back_to_their_defaults_are_told():
    points = voc("model.context_options.node_view=1")
    assert differences(points, voc()) == 'model.context_options={"node_view": 1}'
    assert differences(voc("model.context_options.norm_expand=true"), voc()) == (
        'model.context_options={"norm_expand": true}'
    )
    paper = resolve(get_table("forms").entry("paper"), voc())[0]
    assert key(paper) == key(voc("model.context=paper"))


def test_the_control_is_of_the_recipes_layer():
    scenes = get("scenes-rgnet", Recipe)
    for start, norm in ((scenes, True), (voc(), False)):
        control = resolve(get_table("nodes").entry("control"), start)[0]
        layer = make(control.model.context, 8, layer_options=control.model.context_options)
        assert isinstance(layer.expand_norm, torch.nn.BatchNorm2d) == norm


CHANGES = {
    "model.backbone": "resnet101", "model.weights": "none", "model.output_stride": "16", "model.context": "simple",
    "model.channels": "256", "model.auxiliary": "false", "model.dropout": "0.2", "model.fusion": "sum",
    "model.context_options.radius": "4", "model.context_options.offset_view": "3", "data.hold_out": "5",
    "data.split": "val", "data.val_split": "train", "data.crop": "300", "data.scales": "1", "data.flip": "false",
    "data.limit": "5", "data.val_limit": "5", "optim.lr": "0.3", "optim.head": "3", "optim.offset": "3",
    "optim.momentum": "0.3", "optim.weight_decay": "0.3", "optim.no_decay": "false", "optim.power": "0.3",
    "optim.auxiliary_weight": "0.3", "optim.ohem": "0.3", "optim.ohem_least": "3", "optim.class_weights": "1,2",
    "train.batch": "8", "train.iterations": "8", "train.accumulate": "2", "train.seed": "1", "train.precision": "fp32",
    "train.norm": "local", "train.compile": "true", "train.channels_last": "false", "train.deterministic": "true",
    "test.mode": "slide", "test.stride": "0.5",
}  # fmt: skip


def test_every_setting_that_matters_counts():
    found = {key(voc(f"{name}={value}")) for name, value in CHANGES.items()}
    assert len(found | {key(voc())}) == len(CHANGES) + 1
    named = set(CHANGES) | {"data.name", "data.options", "test.crop"}
    assert set(keys.FIRST.split()) <= named


def test_settings_that_came_later_count_only_when_used(monkeypatch):
    """A key does not change when recipes get a new setting."""
    before = key(voc())
    monkeypatch.setattr(keys, "FIRST", keys.FIRST.replace("optim.ohem_least", "").replace("train.compile", ""))
    later = key(voc())  # as if these two had come later
    assert key(voc("optim.ohem_least=10000")) == later != before and key(voc("optim.ohem_least=3")) != later


def test_what_is_not_there_does_not_count():
    plain = ["model.context=none", "optim.offset=3"]
    assert key(voc(*plain)) == key(voc("model.context=none"))
    layer = 'model.inserted={"layer2": 1}'
    assert key(voc(*plain, layer)) != key(voc("model.context=none", layer))
    assert "model.fusion" not in content(voc(*plain))


def test_a_new_default_of_a_layer_is_another_run(monkeypatch):
    before = key(voc())
    monkeypatch.setitem(context.HEAD["repgraph"], "radius", 16.0)
    assert key(voc()) != before == key(voc("model.context_options.radius=8"))
    inside = key(voc("model.inserted.res3=1"))
    monkeypatch.setattr(spread, "RADIUS", 8.0)
    assert (
        key(voc("model.inserted.res3=1"))
        != inside
        == key(voc("model.inserted.res3=1", "model.inserted_options.radius=4"))
    )


def test_folders_of_ones_own():
    """Scores on some images are not those on others; but a folder may move."""
    mine, moved, other = (
        with_settings(get("folder-r50-rgnet", Recipe), [f"data.root={root}"]) for root in ("/a/mine", "/b/mine", "/a/x")
    )
    assert key(mine) == key(moved) != key(other) and differences(other, mine) == 'data.folder="x"'


def test_large_seeds_are_told_apart():
    """Not all whole numbers of 63 bits are floats; those that are have the keys that they always had."""
    assert len({key(voc(f"train.seed={2**53 + i}")) for i in range(3)} | {key(voc(f"train.seed={2**63 - 1}"))}) == 4
    assert content(voc("train.seed=3"))["train.seed"] == 3.0 and isinstance(content(voc())["train.seed"], float)


def test_generation(monkeypatch):
    before = key(voc())
    monkeypatch.setattr(keys, "GENERATION", 2)
    assert key(voc()) != before


def test_differences():
    base = voc()
    assert differences(base, base) == ""
    changed = voc("model.context_options.nodes=27", "optim.lr=0.02", "data.root=/x", "train.seed=1")
    assert differences(changed, base) == 'model.context_options={"nodes": 27}; optim.lr=0.02; train.seed=1'
