"""Mask R-CNN: torchvision's network, the layers in it, weights, and networks on disk."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tests.models.networks import offline, one_thread  # noqa: F401
from tests.shared_data import shared
from torch import Tensor, nn
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

import repgraph
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph
from repgraph.models import MaskRCNN, RGNet, load, mask_rcnn, param_groups, rgnet

SMALL: dict[str, Any] = dict(backbone="resnet18", min_size=64, max_size=96, detections=5)
LABELS = {"names": ["cat", "dog", "kite"], "palette": [[0, 0, 1]] * 3, "ids": [3, 7, 90], "ignored": []}


def network(seed: int = 0, **options: Any) -> MaskRCNN:
    torch.manual_seed(seed)
    return MaskRCNN(3, **{**SMALL, **options}).eval()


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, *size, generator=generator) for size in ((40, 64), (56, 48))]


def found(model: nn.Module) -> list[dict[str, Tensor]]:
    with torch.no_grad():
        return model.eval()(images())


def assert_same(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> None:
    assert [len(each["scores"]) for each in theirs] == [5, 5]
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys() == {"boxes", "labels", "scores", "masks"}
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(scope="module")
def plain() -> MaskRCNN:
    """A detector with random weights, norms included, which stands for a trained one."""
    model = network(labels=LABELS)
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm2d):
            module.weight.uniform_(0.5, 1.0, generator=generator)
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return model


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
    [("repgraph", BottleneckRepGraph), ("non_local", NonLocal), ("simple", SimpleRepGraph), ("dual", DualAttention)],
)
def test_a_detector_with_layers_finds_the_same(plain: MaskRCNN, whole: Path, context: str, layer: type) -> None:
    """Bit for bit, before training; and something else after the layer has learned something."""
    model = mask_rcnn(3, weights=whole, context=context, **SMALL)
    layers = repgraph.inserted(model)
    assert {path: type(each) for path, each in layers.items()} == {"detector.backbone.body.layer3.1.repgraph": layer}
    before = found(plain)
    assert_same(found(model), before)
    for each in layers.values():
        for parameter in each.parameters():
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(found(model)[0]["scores"], before[0]["scores"])


def test_without_layers_it_is_torchvisions(plain: MaskRCNN, whole: Path) -> None:
    backbone = detection.backbone_utils.resnet_fpn_backbone(backbone_name="resnet18", weights=None)
    theirs = detection.MaskRCNN(backbone, 4, min_size=64, max_size=96, box_detections_per_img=5)
    theirs.load_state_dict(torch.load(whole, weights_only=True)["model"])
    assert_same(found(mask_rcnn(3, weights=whole, **SMALL)), found(theirs))
    assert repgraph.inserted(plain) == {} and repgraph.inserted(network(context="none")) == {}


def test_where_the_layers_go() -> None:
    model = network(
        backbone="resnet50", context="repgraph", where={"layer2": 2, "layer3": 1}, context_options={"nodes": 5}
    )
    layers = repgraph.inserted(model.detector.backbone.body)
    assert list(layers) == ["layer2.2.repgraph", "layer2.3.repgraph", "layer3.5.repgraph"]
    assert {layer.nodes for layer in layers.values()} == {5}
    assert list(repgraph.inserted(network(backbone="resnet50", context="repgraph").detector.backbone.body)) == [
        "layer3.5.repgraph"
    ]


def test_training_gives_losses_and_gradients() -> None:
    """Images in bytes and targets as the data sets have them; one image without objects."""
    model = network(context="repgraph", trainable_stages=2).train()
    masks = torch.zeros(1, 40, 64, dtype=torch.uint8)
    masks[0, 5:30, 10:50] = 1
    box = BoundingBoxes([[10.0, 5, 50, 30]], format="XYXY", canvas_size=(40, 64))  # type: ignore[call-overload]
    nothing = BoundingBoxes(torch.zeros(0, 4), format="XYXY", canvas_size=(56, 48))  # type: ignore[call-overload]
    targets = [
        dict(boxes=box, labels=torch.tensor([3]), masks=Mask(masks), image_id=5),
        dict(boxes=nothing, labels=torch.zeros(0, dtype=torch.int64), masks=Mask(torch.zeros(0, 56, 48)), image_id=6),
    ]
    losses = model([Image((255 * image).byte()) for image in images()], targets)
    assert isinstance(losses, dict) and len(losses) == 5
    sum(losses.values()).backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert not any(".layer2." in name or ".layer1." in name or ".body.conv1" in name for name in learned)
    assert any(".layer3.0." in name for name in learned) and any("roi_heads.mask" in name for name in learned)
    layer = repgraph.inserted(model)["detector.backbone.body.layer3.1.repgraph"]
    assert layer.expand_norm.weight.grad.abs().sum() > 0


def test_bytes_and_numbers_are_one_image(plain: MaskRCNN) -> None:
    in_bytes = [(255 * image).byte() for image in images()]
    with torch.no_grad():
        assert_same(plain([image.float() / 255 for image in in_bytes]), plain([Image(image) for image in in_bytes]))


@pytest.mark.parametrize(("stages", "frozen"), [(0, 62 - 2), (3, None), (5, 0)])
def test_stages_that_learn(stages: int, frozen: int | None) -> None:
    body = network(trainable_stages=stages, norm="batch").detector.backbone.body
    still = [name for name, parameter in body.named_parameters() if not parameter.requires_grad]
    if frozen is None:
        assert {name.split(".")[0] for name in still} == {"conv1", "bn1", "layer1"}
    else:
        assert len(still) == frozen


def test_norms() -> None:
    assert any(isinstance(module, FrozenBatchNorm2d) for module in network().modules())
    model = network(norm="batch", norm_eps=0.001)
    assert not any(isinstance(module, FrozenBatchNorm2d) for module in model.modules())
    assert {module.eps for module in model.modules() if isinstance(module, nn.BatchNorm2d)} == {0.001}


def test_rates_of_parts() -> None:
    model = network(context="repgraph")
    groups = {group["name"]: group for group in param_groups(model, 0.01, new_lr=0.1, offset_lr=0.2)}
    rates = {name: group["lr"] for name, group in groups.items()}
    assert rates == {
        "offset weights": 0.2,
        "offset biases": 0.2,
        "new norms and biases": 0.1,
        "backbone weights": 0.01,
        "new weights": 0.1,
    }
    counted = sum(len(group["params"]) for group in groups.values())
    assert counted == sum(parameter.requires_grad for parameter in model.parameters())


class TestWeights:
    def test_of_a_backbone_in_its_style(self, resnet: Path) -> None:
        """The maps of the pyramid's input are those of the network that the weights are of."""
        model = mask_rcnn(3, weights=resnet, context="repgraph", min_size=64)
        assert model.caffe_style and model.config["caffe_style"]
        body = model.detector.backbone.body.eval()
        theirs = rgnet(3, "resnet50", weights=resnet, output_stride=32, channels=16).eval().backbone
        x = torch.randn(1, 3, 65, 97)
        with torch.no_grad():
            ours, (stage4, stage5) = body(x), theirs(x)
        torch.testing.assert_close(ours["2"], stage4, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours["3"], stage5, rtol=1e-4, atol=1e-4)
        assert body.layer2[0].conv1.stride == (2, 2) and body.layer2[0].conv2.stride == (1, 1)

    def test_of_the_other_style(self, resnet: Path) -> None:
        with pytest.raises(UsageError, match=r"in caffe style and the backbone in timm style.*give caffe_style=True"):
            mask_rcnn(3, weights=resnet, caffe_style=False)
        assert not mask_rcnn(3, **SMALL).caffe_style

    def test_the_real_file(self) -> None:
        model = mask_rcnn(20, weights=shared("weights/resnet50_imagenet_msra.safetensors"), context="non_local")
        assert model.caffe_style and model.detector.backbone.body.bn1.running_var.mean() != 1

    def test_a_whole_detector_of_ours(self, plain: MaskRCNN, tmp_path: Path) -> None:
        network(context="repgraph", seed=4, norm_eps=1e-3, mean=(0.5, 0.5, 0.5)).save_pretrained(tmp_path)
        model = mask_rcnn(3, weights=tmp_path / "model.safetensors", context="repgraph", **SMALL)
        twin = MaskRCNN.from_pretrained(tmp_path)
        assert (model.mean, model.config["norm_eps"]) == ((0.5, 0.5, 0.5), 1e-3)
        assert_same(found(model), found(twin))

    def test_its_backbone_for_segmentation(self, plain: MaskRCNN, whole: Path, tmp_path: Path) -> None:
        plain.save_pretrained(tmp_path)
        for path in (whole, tmp_path / "model.safetensors"):
            model = rgnet(5, "resnet18", weights=path, channels=16)
            own = plain.detector.backbone.body.layer4[0].conv1.weight
            assert torch.equal(model.backbone.body.layer4[0].conv1.weight, own)

    def test_other_classes(self, plain: MaskRCNN, whole: Path) -> None:
        with pytest.raises(UsageError, match=r"detector.pth does not fit: .* another shape; .*new_predictors=True"):
            mask_rcnn(7, weights=whole, **SMALL)
        model = mask_rcnn(7, weights=whole, new_predictors=True, **SMALL)
        assert torch.equal(model.detector.rpn.head.cls_logits.weight, plain.detector.rpn.head.cls_logits.weight)
        assert model.detector.roi_heads.box_predictor.cls_score.out_features == 8

    def test_torchvisions_by_name(self, whole: Path, resnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def state(entry: Any, *arguments: object, **more: object) -> dict[str, Tensor]:
            asked.append(str(entry))
            torch.manual_seed(6)
            if "MaskRCNN" in str(entry):
                return detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None).state_dict()
            return torchvision.models.resnet18(weights=None).state_dict()

        monkeypatch.setattr(torchvision.models._api.WeightsEnum, "get_state_dict", state)
        model = mask_rcnn(3, weights="torchvision:ResNet18_Weights.IMAGENET1K_V1", **SMALL)
        torch.manual_seed(6)
        wanted = torchvision.models.resnet18(weights=None).conv1.weight
        assert torch.equal(model.detector.backbone.body.conv1.weight, wanted)
        name = "MaskRCNN_ResNet50_FPN_Weights.COCO_V1"
        assert mask_rcnn(90, weights=f"torchvision:{name}").config["norm_eps"] == 0
        assert asked == ["ResNet18_Weights.IMAGENET1K_V1", name]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                "torchvision:ResNet18_Weights.IMAGENET1K_V2",
                "has no weights .* did you mean 'ResNet18_Weights.IMAGENET1K",
            ),
            ("torchvision:ResNet50_Weights.IMAGENET1K_V1", "of another network than Mask R-CNN with 'resnet18'"),
            ("torchvision:ResNet18_Weights.IMAGENET1K_V1", "could not be had: .*give a local file instead"),
            ("timm:resnet50", "weights of another network than the backbone 'resnet18'"),
            ("nowhere.pth", "nowhere.pth is not there"),
            ("~no such user/x.pth", "~no such user/x.pth is not there"),
        ],
    )
    def test_mistakes(self, given: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        with pytest.raises(UsageError, match=message):
            mask_rcnn(3, weights=given, **SMALL)

    def test_new_predictors_need_a_detector(self, resnet: Path) -> None:
        with pytest.raises(UsageError, match="has those of a backbone"):
            mask_rcnn(3, weights=resnet, new_predictors=True)
        with pytest.raises(UsageError, match="no weights are given"):
            mask_rcnn(3, new_predictors=True, **SMALL)

    def test_what_does_not_fit_is_named(self, tmp_path: Path) -> None:
        state = torchvision.models.resnet18(weights=None).state_dict()
        del state["layer1.0.conv1.weight"]
        state["layer9"] = torch.zeros(1)
        torch.save(state, tmp_path / "odd.pth")
        with pytest.raises(
            UsageError, match=r"odd.pth does not fit: layer9 not known here; layer1.0.conv1.weight missing"
        ):
            mask_rcnn(3, weights=tmp_path / "odd.pth", **SMALL)


class TestOnDisk:
    def test_what_is_saved_comes_back(self, saved: Path, tmp_path: Path) -> None:
        model = network(context="repgraph", labels=LABELS, context_options={"nodes": 5})
        for twin in (
            MaskRCNN.from_pretrained(saved),
            load(saved),
            load(saved.parent),
            load(saved / "model.safetensors"),
            load(saved, MaskRCNN),
        ):
            assert type(twin) is MaskRCNN and twin.config == model.config and twin.labels == LABELS
            assert not twin.training
        assert_same(found(model), found(twin))

    def test_a_checkpoint_of_training(self, saved: Path, tmp_path: Path) -> None:
        model = MaskRCNN.from_pretrained(saved)
        state = {f"model.{name}": value for name, value in model.state_dict().items()}
        torch.save({"config": model.config, "state_dict": state}, tmp_path / "last.ckpt")
        assert type(load(tmp_path / "last.ckpt")) is MaskRCNN

    def test_networks_are_told_apart(self, saved: Path, tmp_path: Path) -> None:
        RGNet(5, "resnet10t", channels=16).save_pretrained(tmp_path)
        assert type(load(tmp_path)) is RGNet
        with pytest.raises(UsageError, match="has a network of the kind MaskRCNN; one of the kind RGNet is needed"):
            load(saved, RGNet)
        with pytest.raises(UsageError, match=r"is of a MaskRCNN, and not of a RGNet; repgraph.models.load reads both"):
            RGNet.from_pretrained(saved)
        with pytest.raises(UsageError, match="is of a RGNet, and not of a MaskRCNN"):
            MaskRCNN.from_pretrained(tmp_path)
        text = (tmp_path / "config.json").read_text()
        (tmp_path / "config.json").write_text(text.replace("{", '{"network": "Other", ', 1))
        with pytest.raises(UsageError, match="has a network of the kind 'Other'; known are RGNet, MaskRCNN"):
            load(tmp_path)

    def test_the_card_says_what_it_is(self, saved: Path) -> None:
        card = huggingface_hub.ModelCard.load(saved / "README.md")
        assert card.data.pipeline_tag == "object-detection" and "semantic-segmentation" not in card.data.tags
        assert "MaskRCNN.from_pretrained" in card.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(classes=0), "classes is 0; at least 1"),
        (dict(backbone="resnet5"), "unknown backbone 'resnet5'; did you mean 'resnet50'"),
        (dict(context="repgraf"), "unknown context 'repgraf'; did you mean 'repgraph'"),
        (dict(context="control"), "unknown context 'control'"),
        (dict(where={"layer3": 1}), "context does not say which layer"),
        (dict(context="repgraph", where={"layer3": 9}), "inserted layers: 9 layers for 'layer3'"),
        (
            dict(context="repgraph", context_options={"node": 3}),
            "context_options of 'repgraph': .*did you mean 'nodes'",
        ),
        (dict(norm="frosen"), "unknown norm 'frosen'; did you mean 'frozen'"),
        (dict(norm_eps="x"), "norm_eps is 'x'; a number from 0 to 1"),
        (dict(trainable_stages=6), "trainable_stages is 6; a ResNet has 5"),
        (dict(caffe_style=True), "caffe_style is for ResNets of bottlenecks, such as 'resnet50'; not for 'resnet18'"),
        (dict(min_size=0), "min_size is 0"),
        (dict(score_threshold=2), "score_threshold is 2; a number from 0 to 1"),
        (dict(labels={"names": ["a"]}), "labels has 1 names for 3 classes"),
        (dict(std=(0, 1, 1)), "std is .*; three positive numbers"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskRCNN(**{"classes": 3, **SMALL, **options})


def test_images_that_cannot_be_used(plain: MaskRCNN) -> None:
    for image, message in {
        torch.zeros(1, 3, 8, 8): r"\(1, 3, 8, 8\); a list of tensors \(3, H, W\) is needed",
        torch.zeros(3, 8, 8, dtype=torch.int64): "an image is torch.int64; uint8, or floating point",
    }.items():
        with pytest.raises(TypeError, match=message):
            plain([image])
    with pytest.raises(TypeError, match="an image is str"):
        plain("abc")  # type: ignore[arg-type]
