"""Insertion into networks of torchvision and timm."""

import copy

import pytest
import torch
from tests.layers.networks import assert_same, images, stir

from repgraph.layers import insert, inserted, stages

vision = pytest.importorskip("torchvision.models")
timm = pytest.importorskip("timm")

FRESH = dict(weights=None, weights_backbone=None)
# A network; where; channels by block.
SLOW = ("torchvision fcn", "timm resnetv2_50", "timm efficientnet_b0")
NETWORKS = {
    "torchvision resnext50": (
        vision.resnext50_32x4d,
        {"layer2": 1, "layer3": 2, "layer4": 2},  # the paper's five layers
        {"layer2.3": 512, "layer3.4": 1024, "layer3.5": 1024, "layer4.1": 2048, "layer4.2": 2048},
    ),
    "torchvision regnet": (
        vision.regnet_y_400mf,
        {"block1": 1, "block3": 1},
        {"trunk_output.block1.block1-0": 48, "trunk_output.block3.block3-5": 208},
    ),
    "torchvision fcn": (
        lambda: vision.segmentation.fcn_resnet50(**FRESH, num_classes=5, aux_loss=True),
        {"layer3": 2},
        {"backbone.layer3.4": 1024, "backbone.layer3.5": 1024},
    ),
    "timm resnet10t": ({}, {"layer3": 1}, {"layer3.0": 256}),
    "timm convnext_atto": (
        dict(drop_path_rate=0.1),
        {"stages.2": 2, "stages.3": 1},
        {"stages.2.blocks.4": 160, "stages.2.blocks.5": 160, "stages.3.blocks.1": 320},
    ),
    "timm resnetv2_50": ({}, {"stages.2": 1}, {"stages.2.blocks.5": 1024}),
    "torchvision swin": (
        lambda: vision.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [3, 3]),
        {"features.1": 1, "features.3": 1},
        {"features.1.1": 24, "features.3.1": 48},
    ),
    "timm swin": (
        lambda: timm.models.SwinTransformer(
            (44, 48), window_size=3, embed_dim=24, depths=(2, 3, 1), num_heads=(2, 2, 2)
        ),
        {"layers.0": 1, "layers.1": 2, "layers.2": 1},
        {"layers.0.blocks.1": 24, "layers.1.blocks.1": 48, "layers.1.blocks.2": 48, "layers.2.blocks.0": 96},
    ),
    "timm efficientnet_b0": ({}, {"blocks.5": 1, "blocks.0": 1}, {"blocks.0.0": 16, "blocks.5.3": 192}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in NETWORKS])
def test_outputs_do_not_change(name):
    make, where, channels = NETWORKS[name]
    torch.manual_seed(0)
    before = timm.create_model(name.removeprefix("timm "), **make) if isinstance(make, dict) else make()
    model = insert(copy.deepcopy(before), where)
    assert {path.removesuffix(".repgraph"): layer.channels for path, layer in inserted(model).items()} == channels
    assert [key for key in model.state_dict() if ".repgraph." not in key] == list(before.state_dict())
    x = images(44)
    assert_same(model, before, x)
    with torch.no_grad(), pytest.raises(AssertionError):  # layers that are not the identity have an effect
        assert_same(stir(model), before, x)


def test_stages_of_known_networks():
    with torch.device("meta"):
        assert stages(vision.resnet18()) == {"layer1": 2, "layer2": 2, "layer3": 2, "layer4": 2}
        assert stages(timm.create_model("regnetx_002")) == {"s1": 1, "s2": 1, "s3": 4, "s4": 7}
        atto = stages(timm.create_model("convnext_atto"))
        assert atto == {"stages.0": 2, "stages.1": 2, "stages.2": 6, "stages.3": 2}
        assert stages(vision.mobilenet_v3_small()) == {"features": 13}
        assert stages(vision.shufflenet_v2_x0_5()) == {"stage2": 4, "stage3": 8, "stage4": 4}
        assert stages(vision.vgg11()) == {}
        assert stages(vision.swin_t()) == {"features.1": 2, "features.3": 2, "features.5": 6, "features.7": 2}
        assert stages(timm.create_model("vit_tiny_patch16_224")) == {"blocks": 12}


@pytest.mark.parametrize(
    ("make", "where", "reason"),
    [
        (vision.vit_b_16, "encoder.layers", r"'encoder.layers.encoder_layer_11': the block gets tokens \(B, N, C\)"),
        (vision.densenet121, "denseblock2", "'features.denseblock2.denselayer12': the block gets a list"),
    ],
    ids=["vit", "densenet"],
)
def test_networks_without_maps_between_blocks_are_refused(make, where, reason):
    for options in ({}, {"channels": {where: 192}}):
        with torch.device("meta"), pytest.raises(ValueError, match=f"cannot insert at .*{reason}"):
            insert(make(), {where: 1}, **options)


@pytest.mark.slow
def test_channels_at_the_end():
    """Swin's maps (B, H, W, C): copies and traces permute them too."""
    model = stir(insert(vision.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [3, 3]), {"features.3": 1}).eval())
    (layer,) = inserted(model).values()
    seen = []
    layer.register_forward_hook(lambda module, args, y: seen.append((args[0].shape, y.shape)))
    x = images(40)
    expected = model(x)
    assert seen == [((2, 48, 5, 6), (2, 48, 5, 6))]
    assert torch.equal(copy.deepcopy(model)(x), expected) and torch.equal(
        torch.export.export(model, (x,)).module()(x), expected
    )
