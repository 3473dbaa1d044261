"""Insertion into the networks of torchvision and timm."""

import copy

import pytest
import torch
from tests.layers.networks import assert_same, images, one_thread, stir

from repgraph.layers.insertion import insert, inserted
from repgraph.layers.stages import stages

vision = pytest.importorskip("torchvision.models")
timm = pytest.importorskip("timm")

__all__ = ["one_thread"]  # for all tests here

FRESH = dict(weights=None, weights_backbone=None)


def timm_model(name: str, **options):
    return lambda: timm.create_model(name, **options)


def vision_model(name: str, **options):
    return lambda: getattr(vision, name)(**options)


# A network; where; the paths of the blocks; the channels.
NETWORKS = {
    "torchvision-resnet18": (
        vision_model("resnet18"),
        {"layer2": 1, "layer3": 1},
        {"layer2.1": 128, "layer3.1": 256},
    ),
    "torchvision-resnext50": (
        vision_model("resnext50_32x4d"),
        {"layer2": 1, "layer3": 2, "layer4": 2},  # the paper's five layers
        {"layer2.3": 512, "layer3.4": 1024, "layer3.5": 1024, "layer4.1": 2048, "layer4.2": 2048},
    ),
    "torchvision-regnet": (
        vision_model("regnet_y_400mf"),
        {"block1": 1, "block3": 2},
        {
            "trunk_output.block1.block1-0": 48,
            "trunk_output.block3.block3-4": 208,
            "trunk_output.block3.block3-5": 208,
        },
    ),
    "torchvision-convnext": (vision_model("convnext_tiny"), {"features.5": 1}, {"features.5.8": 384}),
    "torchvision-fcn": (
        lambda: vision.segmentation.fcn_resnet50(**FRESH, num_classes=5, aux_loss=True),
        {"layer3": 2},
        {"backbone.layer3.4": 1024, "backbone.layer3.5": 1024},
    ),
    "timm-resnet18": (timm_model("resnet18"), {"layer3": 1}, {"layer3.1": 256}),
    "timm-resnet26": (timm_model("resnet26"), {"layer4": 1}, {"layer4.1": 2048}),
    "timm-resnet10": (timm_model("resnet10t"), {"layer3": 1}, {"layer3.0": 256}),
    "timm-resnet-features": (
        timm_model("resnet18", features_only=True, output_stride=8),
        {"layer3": 1, "layer4": 1},
        {"layer3.1": 256, "layer4.1": 512},
    ),
    "timm-resnext": (timm_model("resnext26ts"), {"stages.2": 1}, {"stages.2.1": 1024}),
    "timm-regnet": (
        timm_model("regnetx_002"),
        {"s2": 1, "s3": 3},
        {"s2.b1": 56, "s3.b2": 152, "s3.b3": 152, "s3.b4": 152},
    ),
    "timm-regnet-features": (timm_model("regnetx_002", features_only=True), {"s3": 1}, {"s3.b4": 152}),
    "timm-convnext": (
        timm_model("convnext_atto", drop_path_rate=0.1),
        {"stages.2": 2, "stages.3": 1},
        {"stages.2.blocks.4": 160, "stages.2.blocks.5": 160, "stages.3.blocks.1": 320},
    ),
    "timm-convnext-features": (
        timm_model("convnext_atto", features_only=True),
        {"stages_2": 1},
        {"stages_2.blocks.5": 160},
    ),
    "timm-preact": (timm_model("resnetv2_50"), {"stages.2": 1}, {"stages.2.blocks.5": 1024}),
    "timm-efficientnet": (
        timm_model("efficientnet_b0"),
        {"blocks.5": 1, "blocks.0": 1},
        {"blocks.0.0": 16, "blocks.5.3": 192},
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_what_they_did(name):
    make, where, wanted = NETWORKS[name]
    torch.manual_seed(0)
    before = make()
    model = insert(copy.deepcopy(before), where)
    assert {path.removesuffix(".repgraph"): layer.channels for path, layer in inserted(model).items()} == wanted
    assert [key for key in model.state_dict() if ".repgraph." not in key] == list(before.state_dict())
    x = images(44)
    assert_same(model, before, x)
    # And the layers are called: the same with other weights is not the same.
    with torch.no_grad(), pytest.raises(AssertionError):
        assert_same(stir(model), before, x)


@pytest.mark.parametrize("kind", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn"])
def test_detectors_compute_what_they_did(kind):
    torch.manual_seed(0)
    before = getattr(vision.detection, kind)(
        **FRESH, num_classes=3, min_size=48, max_size=64, box_detections_per_img=5
    ).eval()
    model = insert(copy.deepcopy(before), {"layer3": 1})
    assert list(inserted(model)) == ["backbone.body.layer3.5.repgraph"]
    x = [torch.rand(3, 40, 56), torch.rand(3, 56, 40)]
    with torch.no_grad():
        ours, theirs = model(x), before(x)
        assert all(len(each["boxes"]) for each in theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)
        layer = inserted(model)["backbone.body.layer3.5.repgraph"]
        torch.nn.init.ones_(layer.expand_norm.weight)
        assert not torch.equal(model(x)[0]["boxes"], theirs[0]["boxes"])


def test_stages_of_known_networks():
    assert stages(vision.resnet18()) == {"layer1": 2, "layer2": 2, "layer3": 2, "layer4": 2}
    assert stages(timm.create_model("regnetx_002")) == {"s1": 1, "s2": 1, "s3": 4, "s4": 7}
    assert stages(timm.create_model("convnext_atto")) == {"stages.0": 2, "stages.1": 2, "stages.2": 6, "stages.3": 2}
    assert stages(vision.regnet_y_400mf()) == {
        f"trunk_output.block{i}": n for i, n in zip("1234", (1, 3, 6, 6), strict=True)
    }
    assert stages(vision.mobilenet_v3_small()) == {"features": 13}
    assert stages(vision.shufflenet_v2_x0_5()) == {"stage2": 4, "stage3": 8, "stage4": 4}
    assert stages(vision.vgg11()) == {}


def test_feature_extractors_are_made_of_networks_with_layers():
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    model = vision.resnet18().eval()
    traced = extraction.create_feature_extractor(model, ["layer3"])
    with pytest.raises(ValueError, match=r"'layer3.1' is in a torch.fx.GraphModule"):
        insert(traced, {"layer3": 1})
    stir(insert(model, {"layer3": 1}))
    traced = extraction.create_feature_extractor(model, ["layer3"])
    x = images(40)
    features = model.layer3(model.layer2(model.layer1(model.maxpool(model.relu(model.bn1(model.conv1(x)))))))
    assert torch.equal(traced(x)["layer3"], features)


def test_timm_graphs():
    traced = timm.create_model("resnet18", features_only=True, feature_cls="fx")
    with pytest.raises(ValueError, match=r"is in a torch.fx.GraphModule.*insert the layers first, then trace it"):
        insert(traced, {"layer3": 1})
