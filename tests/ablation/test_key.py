"""The settings that the key of a run depends on."""

import pytest

from repgraph.ablation import key as keys
from repgraph.ablation.key import differences, key
from repgraph.recipes import get, with_settings


def voc(*settings):
    return with_settings(get("voc-r50-rgnet"), ["model.weights=/data/resnet50.pth", *settings])


@pytest.mark.parametrize(
    "settings",
    [
        ["data.root=/elsewhere", "data.workers=3", "data.cache=true", "train.devices=2", "train.accelerator=cpu"],
        ["train.period=7", "train.log_every=7", "train.validate_every=0", "test.flip=true", "test.scales=0.5,1"],
        ["model.weights=/elsewhere/resnet50.pth"],
        ["model.context_options.nodes=9", "model.context_options.radius=12", "model.context_options.rounds=3"],
        ["model.context_options.spread=ring", "model.context_options.backend=reference"],
        ["model.fusion=concat"],
        ["data.hold_out=0"],
    ],
)
def test_same(settings):
    assert key(voc(*settings)) == key(voc())


CHANGES = {
    "model.backbone": "resnet101", "model.weights": "none", "model.output_stride": "16", "model.context": "simple",
    "model.channels": "256", "model.auxiliary": "false", "model.dropout": "0.2", "model.fusion": "sum",
    "model.context_options.radius": "4", "data.hold_out": "5", "data.split": "val", "data.val_split": "train",
    "data.crop": "300", "data.scales": "1", "data.flip": "false",
    "data.limit": "5", "data.val_limit": "5", "optim.lr": "0.3", "optim.head": "3", "optim.offset": "3",
    "optim.momentum": "0.3", "optim.weight_decay": "0.3", "optim.no_decay": "false", "optim.power": "0.3",
    "optim.auxiliary_weight": "0.3", "optim.ohem": "0.3", "optim.ohem_least": "3", "optim.class_weights": "1,2",
    "train.batch": "8", "train.iterations": "8", "train.accumulate": "2", "train.seed": "1", "train.precision": "fp32",
    "train.norm": "local", "train.compile": "true", "train.channels_last": "false", "train.deterministic": "true",
    "test.mode": "slide", "test.stride": "0.5", "optim.optimizer": "adamw", "optim.betas": "0.8,0.9",
    "optim.warmup": "5", "optim.layer_decay": "0.5", "train.ema": "0.9",
    "data.photometric": "1",
}  # fmt: skip


def test_every_setting_that_matters_counts():
    found = {key(voc(f"{name}={value}")) for name, value in CHANGES.items()}
    assert len(found | {key(voc())}) == len(CHANGES) + 1
    named = set(CHANGES) | {"data.name", "data.options", "test.crop"}
    assert set(keys.FIRST.split()) <= named


def test_options_of_absent_layers_do_not_count():
    plain = ["model.context=none", "optim.offset=3"]
    assert key(voc(*plain)) == key(voc("model.context=none"))
    layer = 'model.inserted={"layer2": 1}'
    assert key(voc(*plain, layer)) != key(voc("model.context=none", layer))


def test_differences():
    base = voc()
    assert differences(base, base) == ""
    default = voc("model.context_options.rounds=1")  # of the layer, but not in a head
    assert differences(default, base) == 'model.context_options={"rounds": 1}'
    changed = voc("model.context_options.nodes=27", "optim.lr=0.02", "data.root=/x", "train.seed=1")
    assert differences(changed, base) == 'model.context_options={"nodes": 27}; optim.lr=0.02; train.seed=1'
