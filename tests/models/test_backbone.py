"""Backbones: strides, what timm supports, caffe style, any size of image."""

import copy
import math

import pytest
import torch
from tests.models.networks import SIZES, images, offline, one_thread, stir  # noqa: F401

from repgraph.errors import UsageError
from repgraph.models import Backbone


@pytest.mark.parametrize("stride", [8, 16, 32])
@pytest.mark.parametrize("name", ["resnet10t", "resnet18", "convnext_atto", "mobilenetv3_small_100", "regnety_002"])
def test_gives_the_last_two_stages_at_the_output_stride(name: str, stride: int) -> None:
    backbone = Backbone(name, output_stride=stride).eval()
    assert backbone.multiple == (32 if name == "convnext_atto" else 1)  # it starts with patches of 4 x 4
    with torch.no_grad():
        maps = backbone(images(64, 97))
    for found, channels, reduction in zip(maps, backbone.channels, (min(16, stride), stride), strict=True):
        assert found.shape == (1, channels, math.ceil(64 / reduction), math.ceil(97 / reduction))


def test_a_resnets_stages_are_layer3_and_layer4() -> None:
    backbone = Backbone("resnet18").eval()
    body, seen = backbone.body, {}
    for name in ("layer3", "layer4"):
        body[name].register_forward_hook(lambda module, args, result, name=name: seen.update({name: result}))
    stage4, stage5 = backbone(images(33, 33))
    assert stage4 is seen["layer3"] and stage5 is seen["layer4"]
    assert backbone.channels == (256, 512)


@pytest.mark.parametrize(
    ("name", "stride", "multiple"),
    [
        ("densenet121", 32, 32),  # cannot halve a map of one position
        ("hrnet_w18_small", 32, 32),  # adds maps that only match at multiples
        ("vit_tiny_patch16_224", 16, 1),  # one size of image, unless asked for others
        ("swin_tiny_patch4_window7_224", 32, 32),  # the same; and its maps have channels at the end
    ],
)
def test_networks_that_do_not_take_any_size_do(name: str, stride: int, multiple: int) -> None:
    backbone = Backbone(name, output_stride=stride).eval()
    assert backbone.multiple == multiple
    with torch.no_grad():
        for size in SIZES:
            stage4, stage5 = backbone(images(*size))
            assert stage5.shape == (1, backbone.channels[1], math.ceil(size[0] / stride), math.ceil(size[1] / stride))
            assert stage4.shape[:2] == (1, backbone.channels[0])
            assert all(4 * a >= b for a, b in zip(stage4.shape[2:], stage5.shape[2:], strict=True))


def test_padding_changes_nothing_at_a_multiple() -> None:
    backbone = Backbone("densenet121", output_stride=32).eval()
    x = images(64, 96)
    for ours, theirs in zip(backbone(x), backbone.body(x), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "stride", "message"),
    [
        ("resnet18", 4, "output_stride is 4; timm's 'resnet18' supports 8 or 16 or 32"),
        ("vgg11_bn", 8, "output_stride is 8; timm's 'vgg11_bn' supports 32"),
        ("densenet121", 16, "output_stride is 16; timm's 'densenet121' supports 32"),
        ("swin_tiny_patch4_window7_224", 8, "'swin_tiny_patch4_window7_224' supports 32"),
        ("vit_tiny_patch16_224", 8, "'vit_tiny_patch16_224' supports 16"),
        ("resnet5", 8, "has no model 'resnet5'; did you mean 'resnet50'"),
        ("hf-hub:timm/resnet18.a1_in1k", 8, "has no model 'hf-hub:timm/resnet18.a1_in1k'"),
        (50, 8, "has no model 50"),
        ("beit_base_patch16_224", 16, "'beit_base_patch16_224' takes images of one size only"),
    ],
)
def test_what_timm_has_not_is_an_error_that_says_what_it_has(name: str, stride: int, message: str) -> None:
    with pytest.raises(UsageError) as error:
        Backbone(name, output_stride=stride)
    assert message in str(error.value)


def plain_and_dilated(caffe_style: bool) -> tuple[Backbone, Backbone]:
    torch.manual_seed(0)
    plain = stir(Backbone("resnet26", output_stride=32, caffe_style=caffe_style)).eval()
    dilated = Backbone("resnet26", output_stride=8, caffe_style=caffe_style).eval()
    dilated.load_state_dict(plain.state_dict())
    return plain, dilated


def difference(plain: Backbone, dilated: Backbone, size: tuple[int, int]) -> float:
    """Of the dilated maps at every 2nd and 4th position from the plain ones, as a share of the largest feature."""
    x = images(*size)
    with torch.no_grad():
        stage4, stage5 = plain(x)
        wide4, wide5 = dilated(x)
    shares = [(wide4[:, :, ::2, ::2] - stage4).abs().max() / stage4.abs().max()]
    shares += [(wide5[:, :, ::4, ::4] - stage5).abs().max() / stage5.abs().max()]
    return float(max(shares))


@pytest.mark.parametrize("caffe_style", [True, False])
@pytest.mark.parametrize("size", [(64, 96), (97, 65), (7, 50)])
def test_a_dilated_resnet_is_the_plain_one_at_more_positions(size: tuple[int, int], caffe_style: bool) -> None:
    assert difference(*plain_and_dilated(caffe_style), size) < 1e-5


def test_timms_dilation_of_the_first_block_would_be_wrong_in_caffe_style() -> None:
    plain, dilated = plain_and_dilated(caffe_style=True)
    for index, dilation in ((3, 1), (4, 2)):
        convolution = dilated.body[f"layer{index}"][0].conv2
        convolution.dilation = convolution.padding = (dilation, dilation)
    assert difference(plain, dilated, (64, 96)) > 1e-2


def test_where_strides_and_dilations_are() -> None:
    backbone = Backbone("resnet26", caffe_style=True)
    first = [backbone.body[f"layer{i}"][0] for i in (1, 2, 3, 4)]
    assert [block.conv1.stride[0] for block in first] == [1, 2, 1, 1]
    assert [block.conv2.stride[0] for block in first] == [1, 1, 1, 1]
    assert [block.downsample[0].stride[0] for block in first] == [1, 2, 1, 1]
    for index, dilation in zip((1, 2, 3, 4), (1, 1, 2, 4), strict=True):
        for block in backbone.body[f"layer{index}"]:
            assert block.conv2.dilation == block.conv2.padding == (dilation, dilation)


@pytest.mark.parametrize("name", ["resnet18", "resnet26d", "resnet26t", "convnext_atto"])
def test_caffe_style_is_for_plain_bottlenecks(name: str) -> None:
    with pytest.raises(UsageError, match=f"such as 'resnet50'; not for '{name}'"):
        Backbone(name, caffe_style=True)


def test_copies_and_memory_formats() -> None:
    backbone, x = stir(Backbone("resnet10t")).eval(), images(33, 47)
    for ours, theirs in zip(copy.deepcopy(backbone)(x), backbone(x), strict=True):
        assert torch.equal(ours, theirs)
    last = copy.deepcopy(backbone).to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    for ours, theirs in zip(last, backbone(x), strict=True):
        assert ours.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_building_leaves_a_network_in_training() -> None:
    assert all(module.training for module in Backbone("resnet10t").modules())
    assert "'resnet10t', output_stride=8" in repr(Backbone("resnet10t"))
