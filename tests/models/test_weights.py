"""Weights from files: names, styles, mismatches, and files that are damaged or could run code."""

import argparse
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.models.networks import Runs, images, offline, stir  # noqa: F401
from tests.shared_data import shared

from repgraph.errors import UsageError
from repgraph.models import Backbone, rgnet, weights

CAFFE = {"style": "caffe: stride on the first 1x1 convolution"}


def whole(name: str = "resnet10t", seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the state of timm's whole model, with its classifier."""
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


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", "state_dict", "model"])
def test_files(state: dict, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix if '.' in suffix else '.pth'}"
    if suffix == ".safetensors":
        save_file(state, path)
    elif suffix == ".pth":
        torch.save(state, path)
    else:  # checkpoints of training scripts
        torch.save({suffix: {f"module.{name}": value for name, value in state.items()}, "epoch": 90}, path)
    assert_loaded(build(path).backbone, state)


@pytest.mark.parametrize("name", ["convnext_atto", "mobilenetv3_small_100", "densenet121", "vit_tiny_patch16_224"])
@pytest.mark.slow
def test_names_of_timm(name: str, tmp_path: Path) -> None:
    """timm's feature extractors rename lists, and have no classifier or final layers."""
    state = whole(name)
    save_file(state, tmp_path / "weights.safetensors")
    stride = {"densenet121": 32, "vit_tiny_patch16_224": 16}.get(name, 8)
    model = build(tmp_path / "weights.safetensors", backbone=name, output_stride=stride, context="none")
    own = model.backbone.body.state_dict()
    names = [
        (way(n), v) for n, v in state.items() for way in (str, "model.{}".format, lambda n: n.replace(".", "_", 1))
    ]
    assert {n for n, v in names if n in own and torch.equal(own[n], v)} == set(own)


def test_half_precision_missing_counts_and_inserted_layers(state: dict, tmp_path: Path) -> None:
    half = {n: v.half() if v.dim() == 4 else v for n, v in state.items() if not n.endswith("num_batches_tracked")}
    save_file(half, tmp_path / "half.safetensors")
    model = build(tmp_path / "half.safetensors", inserted={"layer3": 1, "layer4": 1})
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert_loaded(model.backbone, half)


def test_the_backbone_of_a_trained_network(tmp_path: Path) -> None:
    trained = stir(rgnet(7, "resnet26", channels=16, caffe_style=True, mean=(0.1, 0.2, 0.3)))
    trained.save_pretrained(tmp_path)
    model = build(tmp_path / "model.safetensors", backbone="resnet26", context="none")
    assert_loaded(model.backbone, trained.backbone.body.state_dict())
    assert model.backbone.caffe_style and model.mean == (0.1, 0.2, 0.3) and model.classes == 5


def test_styles(tmp_path: Path) -> None:
    state, file = whole("resnet26"), tmp_path / "msra.safetensors"
    save_file(state, file, metadata=CAFFE)
    model = build(file, backbone="resnet26")
    assert model.backbone.caffe_style and model.config["caffe_style"]
    assert model.backbone.body.layer2[0].conv1.stride == (2, 2)
    with pytest.raises(UsageError, match=r"msra\.safetensors is in caffe style; pass caffe_style=True"):
        build(file, backbone="resnet26", caffe_style=False)
    with pytest.raises(UsageError, match="'resnet18' does not support Caffe's style"):
        build(file, backbone="resnet18")
    save_file(state, file, metadata={"style": "torchvision"})
    assert not build(file, backbone="resnet26").backbone.caffe_style
    with pytest.raises(UsageError, match="is in timm style; pass caffe_style=False"):
        build(file, backbone="resnet26", caffe_style=True)
    save_file(state, file)  # unknown: the caller decides
    assert not build(file, backbone="resnet26").backbone.caffe_style
    assert build(file, backbone="resnet26", caffe_style=True).backbone.caffe_style


def test_real_weights() -> None:
    path = shared("weights/resnet50_imagenet_msra.safetensors")
    model = rgnet(21, "resnet50", weights=path, channels=16, auxiliary=False).eval()
    assert model.backbone.caffe_style
    assert_loaded(model.backbone, weights.read_file(path)[0])
    with torch.no_grad():
        assert all(0.01 < found.mean() < 5 for found in model.backbone(images(97, 64)))  # neither dead nor exploded


def test_mismatches(state: dict, tmp_path: Path) -> None:
    changed = {**state, "layer5.weight": state["bn1.bias"], "bn1.bias": torch.zeros(7)}
    del changed["layer3.0.conv1.weight"]
    torch.save(changed, tmp_path / "w.pth")
    with pytest.raises(UsageError) as error:
        build(tmp_path / "w.pth")
    assert str(error.value).endswith(
        "w.pth does not fit; unexpected: layer5.weight; missing: layer3.0.conv1.weight; "
        "wrong shape or type: bn1.bias (7,) float32 for (64,) float32"
    )
    for value in (state["bn1.bias"].int(), state["bn1.bias"].to_sparse()):
        torch.save({**state, "bn1.bias": value}, tmp_path / "w.pth")
        with pytest.raises(UsageError, match=r"w\.pth does not fit; wrong shape or type: bn1\.bias"):
            build(tmp_path / "w.pth")
    save_file(whole("resnet18"), tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match=r"more; missing: .* more;") as error:
        build(tmp_path / "other.safetensors")
    assert len(str(error.value)) < 800 and "\n" not in str(error.value)


def test_damaged_and_dangerous_files(tmp_path: Path) -> None:
    mark, good = str(tmp_path / "ran"), {"a": torch.zeros(1000)}
    torch.save(good, tmp_path / "good.pth")
    save_file(good, tmp_path / "good.safetensors")
    torch.save({"a": torch.zeros(3), "b": Runs(mark)}, tmp_path / "evil.pth")
    torch.save({"a": Runs(mark)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "raw.pth").write_bytes(pickle.dumps(Runs(mark)))
    torch.save({"state_dict": good, "args": argparse.Namespace(lr=0.1)}, tmp_path / "namespace.pth")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pth")
    for name in ("pth", "safetensors"):
        (tmp_path / f"cut.{name}").write_bytes((tmp_path / f"good.{name}").read_bytes()[:2000])
        (tmp_path / f"empty.{name}").write_bytes(b"")
        (tmp_path / f"text.{name}").write_bytes(b"hello, this is neither of them")
    content = bytearray((tmp_path / "good.pth").read_bytes())
    content[content.index(good["a"].numpy().tobytes())] ^= 1
    (tmp_path / "bit.pth").write_bytes(content)
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    (tmp_path / "weights.h5").write_bytes(b"")
    (tmp_path / "folder.pth").mkdir()
    damaged = [f"{kind}.{suffix}" for kind in ("cut", "empty", "text") for suffix in ("pth", "safetensors")]
    messages = {
        **dict.fromkeys(("evil.pth", "old.pth", "raw.pth", "namespace.pth", "module.pth"), "could run code"),
        **dict.fromkeys((*damaged, "bit.pth"), "is damaged"),
        "list.pth": "has no weights; expected a dict of tensors",
        "weights.h5": "is not a file of weights; expected .safetensors, .pth",
        "folder.pth": "Is a directory",
        **dict.fromkeys(("absent.pth", "absent.safetensors"), "No such file or directory"),
    }
    for name, message in messages.items():
        with pytest.raises(UsageError) as error:
            weights.read_file(tmp_path / name)
        assert message in str(error.value) and name in str(error.value), name
        assert "weights_only" not in str(error.value)  # PyTorch's advice to run the code after all
    assert not (tmp_path / "ran").exists()


def test_weights_of_timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    create = timm.create_model
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    with pytest.raises(UsageError, match=r"cannot load timm's 'resnet10t': .* use a local file"):
        build("pretrained")

    def pretend(name: str, pretrained: bool = False, **options):
        model = create(name, **options)
        if pretrained:
            model.load_state_dict(whole(name, seed=7))
            model.pretrained_cfg["mean"] = (0.5, 0.5, 0.5)
        return model

    monkeypatch.setattr(timm, "create_model", pretend)
    for given in ("pretrained", "timm:resnet18.tv_in1k"):
        model = build(given, backbone="resnet18")
        assert_loaded(model.backbone, whole("resnet18", seed=7))
        assert model.mean == (0.5, 0.5, 0.5) and model.std == (0.229, 0.224, 0.225)
    assert build("pretrained", mean=(0.1, 0.2, 0.3)).mean == (0.1, 0.2, 0.3)
    with pytest.raises(UsageError, match="has weights of another network than the backbone 'resnet10t'"):
        build("timm:resnet18.tv_in1k")
