"""Weights from files: whose names, which style, what does not fit, and files that are not what they seem."""

import argparse
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.models.networks import Runs, images, offline, one_thread, stir  # noqa: F401
from tests.shared_data import shared

from repgraph.errors import UsageError
from repgraph.models import Backbone, rgnet, weights

CAFFE = {"style": "caffe: stride on the first 1x1 convolution"}


def whole(name: str = "resnet10t", seed: int = 0) -> dict[str, torch.Tensor]:
    """The state of timm's whole network, with a classifier."""
    torch.manual_seed(seed)
    return stir(timm.create_model(name)).state_dict()


def build(path: Path | str, **options):
    return rgnet(5, **{"backbone": "resnet10t", "channels": 16, **options}, weights=path)


def assert_loaded(backbone: Backbone, state: dict[str, torch.Tensor]) -> None:
    own = backbone.body.state_dict()
    loaded = [name for name in own if name in state]
    assert len(loaded) > 40 and all(torch.equal(own[name], state[name].to(own[name].dtype)) for name in loaded)


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    return whole()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt", ".bin"])
def test_files_of_timm_and_torchvision(state: dict, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    assert_loaded(build(path).backbone, state)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_checkpoints_of_training_scripts(state: dict, key: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pth"
    torch.save({key: {f"module.{name}": value for name, value in state.items()}, "epoch": 90}, path)
    assert_loaded(build(path).backbone, state)


def test_torchvisions_own_names(tmp_path: Path) -> None:
    models = pytest.importorskip("torchvision").models
    state = models.resnet18().state_dict()
    torch.save(state, tmp_path / "resnet18.pth")
    model = build(tmp_path / "resnet18.pth", backbone="resnet18")
    assert_loaded(model.backbone, state)
    assert set(model.backbone.body.state_dict()) == {name for name in state if not name.startswith("fc.")}


@pytest.mark.parametrize("name", ["convnext_atto", "mobilenetv3_small_100", "densenet121", "vit_tiny_patch16_224"])
def test_other_networks_by_timms_names(name: str, tmp_path: Path) -> None:
    """Extractors of features have other names for lists, and end before the classifier and what is next to it."""
    state = whole(name)
    save_file(state, tmp_path / "weights.safetensors")
    stride = {"densenet121": 32, "vit_tiny_patch16_224": 16}.get(name, 8)
    model = build(tmp_path / "weights.safetensors", backbone=name, output_stride=stride, context="none")
    ways = ("{}", "model.{}")
    own = model.backbone.body.state_dict()
    pairs = [(way.format(n), v) for n, v in state.items() for way in ways] + [
        (n.replace(".", "_", 1), v) for n, v in state.items()
    ]
    found = {n for n, v in pairs if n in own and torch.equal(own[n], v)}
    assert found == set(own)


def test_half_precision_is_cast_up_and_counts_may_lack(state: dict, tmp_path: Path) -> None:
    half = {n: v.half() if v.dim() == 4 else v for n, v in state.items() if not n.endswith("num_batches_tracked")}
    save_file(half, tmp_path / "half.safetensors")
    backbone = build(tmp_path / "half.safetensors").backbone
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    assert_loaded(backbone, half)


def test_inserted_layers_are_not_missed(state: dict, tmp_path: Path) -> None:
    save_file(state, tmp_path / "weights.safetensors")
    plain = build(tmp_path / "weights.safetensors").backbone.eval()
    model = build(tmp_path / "weights.safetensors", inserted={"layer3": 1, "layer4": 1})
    assert_loaded(model.backbone, state)
    x = images(33, 33)
    for ours, theirs in zip(model.eval().backbone(x), plain(x), strict=True):
        assert torch.equal(ours, theirs)


def test_the_backbone_of_a_trained_network(tmp_path: Path) -> None:
    """For other classes and another head."""
    options = dict(backbone="resnet26", caffe_style=True, mean=(0.1, 0.2, 0.3))
    trained = stir(rgnet(7, channels=16, **options))
    trained.save_pretrained(tmp_path)
    model = build(tmp_path / "model.safetensors", backbone="resnet26", context="none")
    assert_loaded(model.backbone, trained.backbone.body.state_dict())
    assert model.backbone.caffe_style and model.mean == (0.1, 0.2, 0.3) and model.classes == 5


class TestStyle:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        save_file(whole("resnet26"), tmp_path / "msra.safetensors", metadata=CAFFE)
        return tmp_path / "msra.safetensors"

    def test_the_file_says_it(self, file: Path) -> None:
        model = build(file, backbone="resnet26")
        assert model.backbone.caffe_style and model.config["caffe_style"]
        assert model.backbone.body.layer2[0].conv1.stride == (2, 2)
        assert build(file, backbone="resnet26", caffe_style=True).backbone.caffe_style

    def test_the_other_style_is_refused(self, file: Path) -> None:
        with pytest.raises(UsageError, match=r"msra.safetensors is in caffe style and the backbone in timm style"):
            build(file, backbone="resnet26", caffe_style=False)
        save_file(whole("resnet26"), file, metadata={"style": "torchvision"})
        assert not build(file, backbone="resnet26").backbone.caffe_style
        with pytest.raises(UsageError, match=r"is in timm style .* give caffe_style=False"):
            build(file, backbone="resnet26", caffe_style=True)

    def test_where_the_file_says_nothing_the_caller_does(self, file: Path) -> None:
        save_file(whole("resnet26"), file)
        assert not build(file, backbone="resnet26").backbone.caffe_style
        assert build(file, backbone="resnet26", caffe_style=True).backbone.caffe_style

    def test_a_network_without_such_a_style_is_refused(self, file: Path) -> None:
        with pytest.raises(UsageError, match="caffe_style is for ResNets of bottlenecks"):
            build(file, backbone="resnet18")


def test_real_weights_load_and_dilate() -> None:
    path = shared("weights/resnet50_imagenet_msra.safetensors")
    model = rgnet(21, "resnet50", weights=path, channels=16, auxiliary=False).eval()
    assert model.backbone.caffe_style
    assert_loaded(model.backbone, weights.read(path)[0])
    plain = Backbone("resnet50", output_stride=32, caffe_style=True).eval()
    plain.load_state_dict(model.backbone.state_dict())
    x = images(97, 64)
    with torch.no_grad():
        for wide, narrow, step in zip(model.backbone(x), plain(x), (2, 4), strict=True):
            assert (wide[:, :, ::step, ::step] - narrow).abs().max() < 2e-5 * narrow.abs().max()
            assert 0.01 < narrow.mean() < 5  # features of a trained network: neither dead nor exploded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layer3.0.conv1.weight"), "w.pth does not fit: layer3.0.conv1.weight missing"),
        (lambda s: s.update({"layer5.weight": s["bn1.bias"]}), "does not fit: layer5.weight not known here"),
        (
            lambda s: s.update({"bn1.bias": torch.zeros(7)}),
            "does not fit: bn1.bias (7,) instead of (64,) of another shape",
        ),
    ],
)
def test_what_does_not_fit_is_named(state: dict, change, message: str, tmp_path: Path) -> None:
    changed = dict(state)
    change(changed)
    torch.save(changed, tmp_path / "w.pth")
    with pytest.raises(UsageError) as error:
        build(tmp_path / "w.pth")
    assert message in str(error.value)


def test_weights_of_another_network_are_refused_in_one_line(tmp_path: Path) -> None:
    save_file(whole("resnet18"), tmp_path / "other.safetensors")
    with pytest.raises(UsageError) as error:
        build(tmp_path / "other.safetensors")
    text = str(error.value)
    assert "other.safetensors does not fit:" in text and "more not known here" in text and "more missing" in text
    assert len(text) < 800 and "\n" not in text


def bad_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Files that are not what their names say, and what has to be said of them."""
    mark = str(folder / "ran")
    good = {"a": torch.zeros(1000)}
    torch.save(good, folder / "good.pth")
    save_file(good, folder / "good.safetensors")
    torch.save({"a": torch.zeros(3), "b": Runs(mark)}, folder / "evil.pth")
    torch.save({"a": Runs(mark)}, folder / "old.pth", _use_new_zipfile_serialization=False)
    (folder / "raw.pth").write_bytes(pickle.dumps(Runs(mark)))
    torch.save({"state_dict": good, "args": argparse.Namespace(lr=0.1)}, folder / "namespace.pth")
    torch.save(torch.nn.Linear(2, 2), folder / "module.pth")
    (folder / "cut.pth").write_bytes((folder / "good.pth").read_bytes()[:2000])
    (folder / "cut.safetensors").write_bytes((folder / "good.safetensors").read_bytes()[:2000])
    (folder / "empty.pth").write_bytes(b"")
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "text.pth").write_bytes(b"hello, this is no pickle")
    (folder / "text.safetensors").write_bytes(b"hello, this is nothing of that kind")
    (folder / "zeros.pth").write_bytes(bytes(1000))
    torch.save([torch.zeros(3)], folder / "list.pth")
    torch.save({}, folder / "none.pth")
    (folder / "weights.h5").write_bytes(b"")
    (folder / "folder.pth").mkdir()
    refused, damaged = "could run code when it is read, and is refused", "is damaged or cut short"
    return {
        **dict.fromkeys(("evil.pth", "old.pth", "raw.pth", "namespace.pth", "module.pth"), refused),
        **dict.fromkeys(("cut.pth", "cut.safetensors", "empty.pth", "empty.safetensors", "text.pth"), damaged),
        **dict.fromkeys(("text.safetensors", "zeros.pth"), damaged),
        **dict.fromkeys(("list.pth", "none.pth"), "holds no weights"),
        "weights.h5": "has to end in .safetensors, .pth",
        "folder.pth": "is a folder; a file of weights is needed",
        "absent.pth": "is not there; a file of weights is needed",
        "absent.safetensors": "is not there; a file of weights is needed",
    }


def test_files_that_are_not_what_they_seem(tmp_path: Path) -> None:
    for name, message in bad_files(tmp_path).items():
        with pytest.raises(UsageError) as error:
            weights.read(tmp_path / name)
        assert message in str(error.value) and name in str(error.value), name
        assert "weights_only" not in str(error.value)  # PyTorch's advice to run the code after all
    assert not (tmp_path / "ran").exists()


class TestOfTimm:
    """Without a network: timm's function that would download is replaced."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names: list[str] = []
        create = timm.create_model

        def pretend(name: str, pretrained: bool = False, **more):
            if pretrained:
                names.append(name)
                torch.manual_seed(7)
                model = stir(create(name, **more))
                model.pretrained_cfg["mean"] = (0.5, 0.5, 0.5)
                return model
            return create(name, **more)

        monkeypatch.setattr(timm, "create_model", pretend)
        return names

    def test_only_when_it_is_said(self, asked: list[str]) -> None:
        rgnet(5, "resnet10t", channels=16)
        assert asked == []
        model = build("pretrained")
        assert asked == ["resnet10t"]
        torch.manual_seed(7)
        assert_loaded(model.backbone, stir(timm.create_model("resnet10t")).state_dict())
        assert model.mean == (0.5, 0.5, 0.5) and model.std == (0.229, 0.224, 0.225)
        assert build("pretrained", mean=(0.1, 0.2, 0.3)).mean == (0.1, 0.2, 0.3)

    def test_by_name(self, asked: list[str]) -> None:
        build("timm:resnet18.tv_in1k", backbone="resnet18")
        assert asked == ["resnet18.tv_in1k"]

    def test_mistakes(self, asked: list[str]) -> None:
        with pytest.raises(UsageError, match="are weights of another network than the backbone 'resnet10t'"):
            build("timm:resnet18.tv_in1k")
        with pytest.raises(UsageError, match="has no model 'resnet18x'; did you mean"):
            build("timm:resnet18x", backbone="resnet18")
        with pytest.raises(UsageError, match="in timm style and the backbone in caffe style"):
            build("pretrained", backbone="resnet26", caffe_style=True)
        assert asked == ["resnet26"]


def test_without_a_network_timms_weights_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match=r"the weights of timm's 'resnet10t' could not be had: .* give a local file"):
        build("pretrained")
