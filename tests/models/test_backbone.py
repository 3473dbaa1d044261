"""Backbones: output strides, caffe style, any image size, and the small encoder."""

import math

import pytest
import torch
from tests.models.networks import SIZES, images, offline, stir  # noqa: F401

from repgraph import recipes
from repgraph.data.scenes import Scenes
from repgraph.data.scenes.painting import INBOUND, SAND, SNOW
from repgraph.data.transforms import normalise
from repgraph.errors import UsageError
from repgraph.models import Backbone
from repgraph.train.session import make_task

OTHERS = ["convnext_atto", "mobilenetv3_small_100", "regnety_002"]


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        *(("resnet10t", stride) for stride in (8, 16, 32)),
        *((name, 8) for name in OTHERS),
        *(pytest.param(name, stride, marks=pytest.mark.slow) for name in OTHERS for stride in (16, 32)),
    ],
)
def test_maps_of_the_last_two_stages(name: str, stride: int) -> None:
    backbone = Backbone(name, output_stride=stride).eval()
    assert backbone.multiple == (32 if name == "convnext_atto" else 1)  # it starts with patches of 4 x 4
    with torch.no_grad():
        maps = backbone(images(64, 97))
    for found, channels, reduction in zip(maps, backbone.channels, (min(16, stride), stride), strict=True):
        assert found.shape == (1, channels, math.ceil(64 / reduction), math.ceil(97 / reduction))


@pytest.mark.parametrize(
    ("name", "stride", "multiple"),
    [
        ("densenet121", 32, 32),  # cannot halve a map of one position
        ("hrnet_w18_small", 32, 32),  # adds maps that only match at multiples
        ("vit_tiny_patch16_224", 16, 1),  # one image size, unless asked for others
        ("swin_tiny_patch4_window7_224", 32, 32),  # the same; its maps are NHWC
    ],
)
@pytest.mark.slow
def test_networks_of_certain_sizes_take_any(name: str, stride: int, multiple: int) -> None:
    backbone = Backbone(name, output_stride=stride).eval()
    assert backbone.multiple == multiple
    with torch.no_grad():
        for size in SIZES:
            stage4, stage5 = backbone(images(*size))
            assert stage5.shape == (1, backbone.channels[1], math.ceil(size[0] / stride), math.ceil(size[1] / stride))
            assert stage4.shape[:2] == (1, backbone.channels[0])
        if name == "densenet121":  # padding has no effect at a multiple
            for ours, theirs in zip(backbone(images(64, 96)), backbone.body(images(64, 96)), strict=True):
                assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", dict(output_stride=4), "output_stride is 4; timm's 'resnet18' supports 8 or 16 or 32"),
        ("resnet5", {}, "has no model 'resnet5'; did you mean 'resnet50'"),
        ("beit_base_patch16_224", dict(output_stride=16), "'beit_base_patch16_224' takes images of one size only"),
        ("resnet18", dict(caffe_style=True), "'resnet18' does not support Caffe's style"),
    ],
)
def test_errors(name: str, options: dict, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Backbone(name, **options)
    assert message in str(error.value)


@pytest.mark.parametrize("caffe_style", [True, False])
@torch.no_grad()
def test_a_dilated_resnet_is_the_plain_one_at_more_positions(caffe_style: bool) -> None:
    torch.manual_seed(0)
    plain = stir(Backbone("resnet26", output_stride=32, caffe_style=caffe_style)).eval()
    dilated = Backbone("resnet26", output_stride=8, caffe_style=caffe_style).eval()
    dilated.load_state_dict(plain.state_dict())
    for size in [(64, 96), (97, 65), (7, 50)]:
        for found, wide, step in zip(plain(images(*size)), dilated(images(*size)), (2, 4), strict=True):
            assert (wide[:, :, ::step, ::step] - found).abs().max() < 1e-5 * found.abs().max()


def test_small_encoder() -> None:
    backbone = Backbone("repgraph_small", output_stride=4).eval()
    assert backbone.channels == (24, 64) and backbone.multiple == 1
    for size in ((1, 1), (7, 13), (96, 128)):
        for step, found in zip((2, 4), backbone(torch.randn(2, 3, *size)), strict=True):
            assert found.shape[2:] == tuple(-(-side // step) for side in size)
    x = torch.randn(1, 3, 96, 96, requires_grad=True)
    backbone(x)[1][0, :, 12, 12].sum().backward()
    rows, columns = x.grad[0].abs().sum(0).nonzero(as_tuple=True)
    assert int(rows.max() - rows.min()) + 1 == int(columns.max() - columns.min()) + 1 == 23  # its receptive field


@pytest.mark.parametrize("name", ["baseline", "control", "rgnet"])
def test_only_nodes_see_what_decides_the_classes_of_scenes(name: str) -> None:
    """With all cues swapped and any weights, no logit of shore or boats changes without the layer."""
    data = Scenes(None, "test", length=3)
    torch.manual_seed(0)
    model = make_task(recipes.get(f"scenes-{name}")).network(data.labels).eval()
    for index in range(3):
        scene = data.scene(index)
        versions = (scene, scene.swapped(sky=True), scene.swapped(lights=(0, 1, 2)))
        with torch.no_grad():
            logits, other_sky, other_lights = model(normalise(torch.stack([data.draw(each)[0] for each in versions])))
        mask = data[index][1]
        shore, boats = (mask == SAND) | (mask == SNOW), mask >= INBOUND
        for other, decided in ((other_sky, shore), (other_lights, boats)):
            change = (logits - other).abs().amax(0)
            assert change[~decided].max() > 0.05  # the cue itself is seen
            assert (change[decided].max() > 0.01) if name == "rgnet" else (change[decided].max() < 1e-5)
