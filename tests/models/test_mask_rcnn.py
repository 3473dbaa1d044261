"""Mask R-CNN: torchvision's network, the layers in it, weights, and networks on disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tests.models.networks import offline, stir  # noqa: F401
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

import repgraph
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph
from repgraph.models import MaskRCNN, RGNet, load, mask_rcnn, rgnet

SMALL: dict[str, Any] = dict(backbone="resnet18", min_size=64, max_size=96, detections=5)
LABELS = {"names": ["cat", "dog", "kite"], "palette": [[0, 0, 1]] * 3, "ids": [3, 7, 90], "ignored": []}


def network(seed: int = 0, **options: Any) -> MaskRCNN:
    torch.manual_seed(seed)
    return MaskRCNN(3, **{**SMALL, **options}).eval()


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, *size, generator=generator) for size in ((40, 64), (56, 48))]


def detect(model: nn.Module) -> list[dict[str, Tensor]]:
    with torch.no_grad():
        return model.eval()(images())


def assert_same(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> None:
    assert [len(each["scores"]) for each in theirs] == [5, 5]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys() == {"boxes", "labels", "scores", "masks"}
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(autouse=True, scope="module")
def few_proposals() -> Iterator[None]:
    """Limit the number of proposals; with the default of 1,000, a call takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("pre_nms_top_n", "post_nms_top_n"):
            patch.setattr(detection.rpn.RegionProposalNetwork, name, lambda self: 30)
        yield


@pytest.fixture(scope="module")
def plain() -> MaskRCNN:
    """A detector with random weights and statistics, as if it were trained."""
    return stir(network(labels=LABELS))


@pytest.fixture(scope="module")
def whole(plain: MaskRCNN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its weights as torchvision's training script saves them."""
    path = tmp_path_factory.mktemp("weights") / "detector.pth"
    torch.save({"model": plain.detector.state_dict(), "epoch": 3}, path)
    return path


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("resnet") / "resnet50.safetensors"
    save_file(torchvision.models.resnet50(weights=None).state_dict(), path, {"style": "caffe: the first 1x1"})
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    network(context="repgraph", labels=LABELS, context_options={"nodes": 5}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("context", "layer"),
    [
        ("repgraph", BottleneckRepGraph),
        ("non_local", NonLocal),
        pytest.param("simple", SimpleRepGraph, marks=pytest.mark.slow),
        pytest.param("dual", DualAttention, marks=pytest.mark.slow),
    ],
)
def test_inserted_layers_start_as_the_identity(plain: MaskRCNN, whole: Path, context: str, layer: type) -> None:
    model = mask_rcnn(3, weights=whole, context=context, where={"layer3": 1}, **SMALL)
    layers = repgraph.inserted(model)
    assert {path: type(each) for path, each in layers.items()} == {"detector.backbone.body.layer3.1.repgraph": layer}
    before = detect(plain)
    assert_same(detect(model), before)
    for each in layers.values():
        for parameter in each.parameters():
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(detect(model)[0]["scores"], before[0]["scores"])


@pytest.mark.slow
def test_without_layers_it_is_torchvisions(plain: MaskRCNN, whole: Path) -> None:
    backbone = detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    theirs = detection.MaskRCNN(backbone, 4, min_size=64, max_size=96, box_detections_per_img=5)
    theirs.load_state_dict(torch.load(whole, weights_only=True)["model"])
    assert_same(detect(mask_rcnn(3, weights=whole, **SMALL)), detect(theirs))
    assert repgraph.inserted(plain) == {} and repgraph.inserted(network(context="none")) == {}


def test_training() -> None:
    """With uint8 images, and one image without objects."""
    model = network(context="repgraph", trainable_stages=2).train()
    masks = torch.zeros(1, 40, 64, dtype=torch.uint8)
    masks[0, 5:30, 10:50] = 1
    box = BoundingBoxes([[10.0, 5, 50, 30]], format="XYXY", canvas_size=(40, 64))  # type: ignore[call-overload]
    nothing = BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(56, 48))  # type: ignore[call-overload]
    targets = [
        dict(boxes=box, labels=torch.tensor([3]), masks=Mask(masks), image_id=5),
        dict(boxes=nothing, labels=torch.zeros(0, dtype=torch.int64), masks=Mask(torch.zeros(0, 56, 48)), image_id=6),
    ]
    in_bytes = [(255 * image).byte() for image in images()]
    losses = model([Image(image) for image in in_bytes], targets)
    assert isinstance(losses, dict) and len(losses) == 5
    sum(losses.values()).backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any(".layer2." in name or ".layer1." in name or ".body.conv1" in name for name in learned)
    assert any(".layer3.0." in name for name in learned) and any("roi_heads.mask" in name for name in learned)
    layer = repgraph.inserted(model)["detector.backbone.body.layer3.1.repgraph"]
    assert layer.expand_norm.weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert_same(model.eval()([image.float() / 255 for image in in_bytes]), model([Image(i) for i in in_bytes]))


@pytest.mark.slow
def test_detections_do_not_depend_on_the_first_image(plain: MaskRCNN, tmp_path: Path) -> None:
    """From an image of 40 pixels, torchvision's RoIAlign would infer wrong scales and keep them."""
    plain.save_pretrained(tmp_path)
    twin = load(tmp_path)
    twin.detector.transform.min_size = (40,)
    with torch.no_grad():
        twin([torch.rand(3, 40, 40)])
    twin.detector.transform.min_size = plain.detector.transform.min_size
    assert_same(detect(twin), detect(plain))


@pytest.mark.slow
def test_coordinates_are_in_float32_under_autocast() -> None:
    """In an image 400 pixels wide, where bfloat16 has steps of two pixels."""
    model, found = network(max_size=400), []
    rpn = model.detector.rpn
    rpn.anchor_generator.register_forward_hook(lambda module, inputs, output: found.append(output[0]))
    rpn.register_forward_hook(lambda module, inputs, output: found.append(output[0][0]))
    for enabled in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model([torch.zeros(3, 16, 400)])
    want, _, anchors, proposals = found
    assert anchors.dtype == proposals.dtype == torch.float32
    assert torch.equal(anchors, want) and want.max() > 256


class TestWeights:
    def test_backbone_in_caffe_style(self, resnet: Path) -> None:
        """The feature maps are the same as in the network that the weights are from."""
        model = mask_rcnn(3, weights=resnet, context="repgraph", min_size=64)
        assert model.caffe_style and model.config["caffe_style"]
        body = model.detector.backbone.body.eval()
        theirs = rgnet(3, "resnet50", weights=resnet, output_stride=32, channels=16).eval().backbone
        x = torch.randn(1, 3, 65, 97)
        with torch.no_grad():
            ours, (stage4, stage5) = body(x), theirs(x)
        torch.testing.assert_close(ours["2"], stage4, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours["3"], stage5, rtol=1e-4, atol=1e-4)
        with pytest.raises(UsageError, match="in caffe style; pass caffe_style=True"):
            mask_rcnn(3, weights=resnet, caffe_style=False)

    def test_whole_detector(self, plain: MaskRCNN, whole: Path, tmp_path: Path) -> None:
        network(context="repgraph", seed=4, norm_eps=1e-3, mean=(0.5, 0.5, 0.5)).save_pretrained(tmp_path)
        model = mask_rcnn(3, weights=tmp_path / "model.safetensors", context="repgraph", **SMALL)
        assert (model.mean, model.config["norm_eps"]) == ((0.5, 0.5, 0.5), 1e-3)
        assert_same(detect(model), detect(MaskRCNN.from_pretrained(tmp_path)))
        body = rgnet(5, "resnet18", weights=whole, channels=16).backbone.body  # its backbone for segmentation
        assert torch.equal(body.layer4[0].conv1.weight, plain.detector.backbone.body.layer4[0].conv1.weight)

    def test_other_classes(self, plain: MaskRCNN, whole: Path, resnet: Path) -> None:
        with pytest.raises(UsageError, match=r"detector.pth has 3 classes; for others, pass new_predictors=True"):
            mask_rcnn(7, weights=whole, **SMALL)
        model = mask_rcnn(7, weights=whole, new_predictors=True, **SMALL)
        assert torch.equal(model.detector.rpn.head.cls_logits.weight, plain.detector.rpn.head.cls_logits.weight)
        assert model.detector.roi_heads.box_predictor.cls_score.out_features == 8
        with pytest.raises(UsageError, match=r"resnet50.safetensors has only a backbone"):
            mask_rcnn(3, weights=resnet, new_predictors=True)

    def test_torchvision(self, monkeypatch: pytest.MonkeyPatch) -> None:
        states = {
            "ResNet18_Weights.IMAGENET1K_V1": torchvision.models.resnet18().state_dict(),
            "MaskRCNN_ResNet50_FPN_Weights.COCO_V1": detection.MaskRCNN(
                detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet50", weights=None), 91
            ).state_dict(),
        }
        get = lambda entry, **options: states[str(entry)]  # noqa: E731
        monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", get)
        model = mask_rcnn(3, weights="torchvision:ResNet18_Weights.IMAGENET1K_V1", **SMALL)
        wanted = states["ResNet18_Weights.IMAGENET1K_V1"]["conv1.weight"]
        assert torch.equal(model.detector.backbone.body.conv1.weight, wanted)
        assert mask_rcnn(90, weights="torchvision:MaskRCNN_ResNet50_FPN_Weights.COCO_V1").config["norm_eps"] == 0

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("torchvision:ResNet50_Weights.IMAGENET1K_V1", "has no weights .* did you mean 'ResNet18_Weights.IMAGENE"),
            ("torchvision:ResNet18_Weights.IMAGENET1K_V1", "cannot load .*use a local file"),
            ("~no such user/x.pth", "cannot read ~no such user/x.pth: No such file"),
        ],
    )
    def test_errors(self, given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        with pytest.raises(UsageError, match=message):
            mask_rcnn(3, weights=given, **SMALL)


def test_save_and_load(saved: Path, tmp_path: Path) -> None:
    model = network(context="repgraph", labels=LABELS, context_options={"nodes": 5})
    torch.save({"config": model.config, "state_dict": model.state_dict()}, tmp_path / "last.ckpt")
    for path in (saved, saved.parent, saved / "model.safetensors", tmp_path / "last.ckpt"):
        twin = load(path)
        assert type(twin) is MaskRCNN and twin.config == model.config and twin.labels == LABELS and not twin.training
    assert_same(detect(model), detect(twin))
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.pipeline_tag == "object-detection" and "semantic-segmentation" not in card.data.tags


def test_networks_of_another_class(saved: Path, tmp_path: Path) -> None:
    RGNet(5, "resnet10t", channels=16).save_pretrained(tmp_path)
    assert type(load(tmp_path)) is RGNet
    with pytest.raises(UsageError, match="has a network of class MaskRCNN; expected RGNet"):
        RGNet.from_pretrained(saved)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("{", '{"network": "Other", ', 1))
    with pytest.raises(UsageError, match="has a network of class Other; expected MaskRCNN or RGNet"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(context="control"), "context is 'control'; expected one of 'repgraph'"),
        (dict(where={"layer3": 1}), "where and context_options need context"),
        (dict(context="repgraph", where={"layer3": 9}), r"inserted layers: where\['layer3'\] is 9"),
        (dict(trainable_stages=6), "trainable_stages is 6; expected an integer from 0 to 5"),
    ],
)
def test_invalid_arguments(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MaskRCNN(**{"classes": 3, **SMALL, **options})
