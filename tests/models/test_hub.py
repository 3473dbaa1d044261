"""Networks in folders: what is saved comes back, and what is wrong is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from tests.models.networks import Runs, assert_same_state, images, network, no_space, offline, one_thread  # noqa: F401
from torch import nn

import repgraph
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph
from repgraph.models import RGNet, load, weights

LABELS = {
    "names": ["sky", "tree", "road", "car", "bär"],
    "palette": [[i, 0, 255 - i] for i in range(5)],
    "ignored": [255],
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    network(labels=LABELS).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    return shutil.copytree(saved, tmp_path / "model")


def edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    (folder / "config.json").write_text(json.dumps({n: v for n, v in config.items() if v != "gone"}))


@pytest.mark.parametrize(
    "options",
    [
        dict(labels=LABELS, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1)),
        dict(context="simple", context_options={"nodes": 5, "spread": [(i, 0.5) for i in range(5)]}, auxiliary=False),
        dict(context="non_local", inserted={"layer3": 1}, inserted_options={"nodes": 3}, output_stride=16),
        dict(backbone="resnet26", caffe_style=True, context="dual"),
    ],
    ids=str,
)
def test_what_is_saved_comes_back(options: dict, tmp_path: Path) -> None:
    model = network(**options)
    assert model.save_pretrained(tmp_path / "a" / "model") is None
    assert sorted(path.name for path in (tmp_path / "a" / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    twin = RGNet.from_pretrained(tmp_path / "a" / "model")
    assert type(twin) is RGNet and not twin.training
    assert_same_state(model, twin)
    assert twin.config == model.config and twin.labels == model.labels
    assert (twin.mean, twin.std) == (model.mean, model.std)
    assert twin.backbone.caffe_style == model.backbone.caffe_style
    x = images(33, 47)
    assert torch.equal(model(x), twin(x))
    twin.save_pretrained(tmp_path / "b")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / "model" / name).read_bytes()


def test_formats_and_half_precision_are_saved_too(tmp_path: Path) -> None:
    model = network().to(memory_format=torch.channels_last)
    model.save_pretrained(tmp_path / "last")
    assert_same_state(model, RGNet.from_pretrained(str(tmp_path / "last")))
    model.bfloat16().save_pretrained(tmp_path / "half")
    twin = RGNet.from_pretrained(tmp_path / "half")
    for ours, theirs in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        assert ours.dtype in (torch.float32, torch.int64) and torch.equal(ours, theirs.to(ours.dtype))


def test_a_version_with_other_defaults_makes_the_same_of_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread and scale are not in the weights, and decide what is computed."""
    model = network(inserted={"layer2": 1}, inserted_options={"nodes": 4})
    model.save_pretrained(tmp_path)
    x = images(33, 47)
    usual = BottleneckRepGraph.__init__.__kwdefaults__
    monkeypatch.setitem(usual, "scale", 3.0)
    monkeypatch.setitem(usual, "spread", "grid")
    monkeypatch.setattr("repgraph.layers.spread.RADIUS", 9.0)
    later = RGNet.from_pretrained(tmp_path)
    assert torch.equal(later(x), model(x))
    assert not torch.equal(network(inserted={"layer2": 1}, inserted_options={"nodes": 4})(x), model(x))


BEFORE = {"scale": 1.0, "spread": "ring", "radius": 4.0, "node_view": 1, "norm_expand": True}


@pytest.mark.parametrize(
    "written", [None, {"nodes": 9}, {"nodes": 9, "scale": 1.0, "radius": 4.0, "node_view": 1}], ids=str
)
def test_a_config_from_before_all_options_were_written(tmp_path: Path, written: dict[str, Any] | None) -> None:
    """Then logits had no scale, nodes were points on a ring of 4, and there was a last normalisation."""
    model = network(context_options={"nodes": 9, **BEFORE})
    model.save_pretrained(tmp_path)
    edit(tmp_path, context_options=written)
    x = images(33, 47)
    assert torch.equal(RGNet.from_pretrained(tmp_path)(x), model(x))
    built = RGNet.build({**network().config, "inserted": {"layer2": 1}, "inserted_options": {"nodes": 4}}, "here")
    assert [layer.scale for layer in repgraph.inserted(built).values()] == [1.0]


def test_a_control_from_before_its_last_normalisation_was_an_option(tmp_path: Path) -> None:
    model = network(context="control", context_options={"norm_expand": True})
    model.save_pretrained(tmp_path)
    edit(tmp_path, context_options={"mid_channels": model.head.context.mid_channels})
    assert torch.equal(RGNet.from_pretrained(tmp_path)(images(33, 47)), model(images(33, 47)))


def test_a_simple_layer_from_before(tmp_path: Path) -> None:
    model = network(context="simple", context_options={"scale": 1.0, "radius": 4.0, "node_view": 1})
    model.save_pretrained(tmp_path)
    edit(tmp_path, context_options={"nodes": 9})
    assert torch.equal(RGNet.from_pretrained(tmp_path)(images(33, 47)), model(images(33, 47)))


def test_options_that_are_given_go_over_those_of_the_file(saved: Path) -> None:
    x = images(33, 47)
    want = RGNet.from_pretrained(saved)
    other = RGNet.from_pretrained(saved, context_options={"backend": "reference"})
    assert other.head.context.backend == "reference" and other.head.context.node_view == want.head.context.node_view
    torch.testing.assert_close(other(x), want(x), rtol=1e-4, atol=1e-4)
    assert RGNet.from_pretrained(saved, context_options={"node_view": 1}).head.context.node_view == 1


@pytest.mark.parametrize(
    "change", [dict(context=["x"]), dict(inserted={"layer3": 1}, inserted_options={"layer": ["x"]})]
)
def test_a_layer_that_is_no_name(folder: Path, change: dict[str, Any]) -> None:
    edit(folder, **change)
    with pytest.raises(UsageError, match="unknown"):
        RGNet.from_pretrained(folder)


def test_arguments_replace_the_configs(saved: Path) -> None:
    assert RGNet.from_pretrained(saved, dropout=0.5).head.dropout.p == 0.5
    assert RGNet.from_pretrained(saved, map_location="cpu").config == network(labels=LABELS).config
    with pytest.raises(UsageError, match=r"model.safetensors does not fit: .*head.classifier.weight .* another shape"):
        RGNet.from_pretrained(saved, classes=7, labels=None)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "model has no config.json: it is not a folder that save_pretrained"),
        (lambda f: (f / "model.safetensors").unlink(), "model has no model.safetensors"),
        (lambda f: (f / "config.json").write_text('{"classes": 5,'), "config.json is not JSON"),
        (lambda f: (f / "config.json").write_text("[5]"), "config.json is a list; a dict of settings is needed"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot read"),
        (lambda f: edit(f, clases=5), "config.json: unknown setting 'clases'; did you mean 'classes'?"),
        (lambda f: edit(f, classes="gone"), "config.json: 'classes' is missing"),
        (lambda f: edit(f, classes="five"), "config.json: classes is 'five'; a whole number is needed"),
        (lambda f: edit(f, backbone="resnet5"), "config.json: timm"),
        (lambda f: edit(f, context="rg"), "config.json: unknown context 'rg'"),
        (lambda f: edit(f, channels=32), "model.safetensors does not fit: "),
        (lambda f: edit(f, auxiliary=False), "auxiliary.norm.bias, "),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
            "model.safetensors is damaged or cut short",
        ),
    ],
)
def test_a_spoilt_folder_is_an_error(folder: Path, spoil, message: str) -> None:
    spoil(folder)
    for read in (RGNet.from_pretrained, load):
        if "no config.json" in message and read is load:
            message = "has no config.json and no model/config.json"
        with pytest.raises(UsageError) as error:
            read(folder)
        assert message in str(error.value)


@pytest.mark.parametrize("name", ["nowhere", "./owner/name", "a/b/c", "../model", "/no/such/folder", "runs/x/"])
def test_a_folder_that_is_not_there_is_not_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        RGNet.from_pretrained(name)
    with pytest.raises(UsageError, match="there is no folder"):
        RGNet.from_pretrained(Path("owner/name"))


def test_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mixin asks the Hub for; here it is answered from a folder."""
    asked = []

    def answer(repo_id: str, filename: str, **more: object) -> str:
        asked.append((repo_id, filename, more["revision"]))
        return str(saved / filename)

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", answer)
    monkeypatch.setattr("repgraph.models.hub.hf_hub_download", answer)
    assert_same_state(RGNet.from_pretrained("owner/name", revision="v1"), RGNet.from_pretrained(saved))
    assert asked == [("owner/name", "config.json", "v1"), ("owner/name", "model.safetensors", "v1")]


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **more: object) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", fail)
    with pytest.raises(UsageError, match=r"owner/name is no folder here, and could not be had from the Hub: no route$"):
        RGNet.from_pretrained("owner/name")


def test_pushing_saves_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Api:
        uploaded: list[str] = []  # noqa: RUF012

        def __init__(self, token: object = None) -> None: ...

        def create_repo(self, repo_id: str, **more: object):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, folder_path: Path, **more: object) -> str:
            self.uploaded += sorted(path.name for path in Path(folder_path).iterdir())
            return "url"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    assert network().save_pretrained(tmp_path / "mine", push_to_hub=True, repo_id="owner/mine") == "url"
    assert Api.uploaded == ["README.md", "config.json", "model.safetensors"]
    assert (tmp_path / "mine" / "config.json").exists()


def test_the_card_says_what_it_is(saved: Path) -> None:
    card = huggingface_hub.ModelCard.load(saved / "README.md")
    assert card.data.library_name == "repgraph" and card.data.pipeline_tag == "image-segmentation"
    assert "RGNet.from_pretrained" in card.text


def test_saving_again_replaces_all_but_the_card(folder: Path) -> None:
    (folder / "README.md").write_text("mine")
    model = network(seed=1, context="none")
    model.save_pretrained(folder)
    assert_same_state(RGNet.from_pretrained(folder), model)
    assert (folder / "README.md").read_text() == "mine"


def test_a_full_disk_leaves_what_was_there(folder: Path, no_space: None) -> None:  # noqa: F811
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"cannot write .*model: File too large"):
        network(seed=1, context="none").save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/model: Not a directory"):
        network().save_pretrained(tmp_path / "file" / "model")


def test_a_network_that_was_changed_is_not_saved(tmp_path: Path) -> None:
    model = repgraph.fuse(network())
    with pytest.raises(UsageError, match=r"no longer what its config says: .* save it before"):
        model.save_pretrained(tmp_path / "model")
    model = network()
    repgraph.insert(model, {"layer3": 1})
    with pytest.raises(UsageError, match="no longer what its config says"):
        model.save_pretrained(tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


class TestLoad:
    def test_a_run_and_its_model(self, saved: Path) -> None:
        model = network(labels=LABELS)
        for path in (saved, saved.parent, str(saved), saved / "model.safetensors"):
            found = load(path)
            assert_same_state(found, model)
            assert found.config == model.config and not found.training

    def test_a_checkpoint_of_training(self, tmp_path: Path) -> None:
        model = network(labels=LABELS)
        state = {f"model.{name}": value for name, value in model.state_dict().items()}
        torch.save({"config": model.config, "state_dict": state, "iteration": 7}, tmp_path / "best.ckpt")
        found = load(tmp_path / "best.ckpt")
        assert_same_state(found, model)
        assert found.config == model.config and not found.training

    def test_a_run_that_was_interrupted(self, tmp_path: Path) -> None:
        last = tmp_path / "checkpoints" / "last.ckpt"
        last.parent.mkdir()
        last.touch()
        with pytest.raises(UsageError, match=f"no network was saved there .* give its last checkpoint instead: {last}"):
            load(tmp_path)

    @pytest.mark.parametrize("suffix", [".ckpt", ".pth"])
    def test_one_flipped_bit_is_noticed(self, suffix: str, tmp_path: Path) -> None:
        model, path = network(), tmp_path / f"last{suffix}"
        state = {f"model.{name}": value for name, value in model.state_dict().items()}
        torch.save({"config": model.config, "state_dict": state}, path)
        content = bytearray(path.read_bytes())
        content[content.index(model.state_dict()["head.classifier.weight"].numpy().tobytes())] ^= 1
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"last{suffix} is damaged"):
            load(path) if suffix == ".ckpt" else weights.read(path)

    def test_mistakes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        build = nn.Conv2d.__init__

        def large(self: nn.Conv2d, inside: int, outside: int, *more: Any, **options: Any) -> None:
            if outside == 2**16:  # there is memory for it on some machines
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 7")
            build(self, inside, outside, *more, **options)

        monkeypatch.setattr(nn.Conv2d, "__init__", large)
        torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
        torch.save({"config": Runs(str(tmp_path / "ran")), "state_dict": {}}, tmp_path / "evil.ckpt")
        (tmp_path / "notes.txt").write_text("")
        torch.save({"config": {"classes": 2, 3: 4}, "state_dict": {}}, tmp_path / "number.ckpt")
        torch.save({"config": {**network().config, "channels": 10**9}, "state_dict": {}}, tmp_path / "wide.ckpt")
        torch.save({"config": {**network().config, "channels": 2**16}, "state_dict": {}}, tmp_path / "large.ckpt")
        shutil.copy(tmp_path / "other.ckpt", tmp_path / "cut.ckpt")
        (tmp_path / "cut.ckpt").write_bytes((tmp_path / "cut.ckpt").read_bytes()[:100])
        for name, message in {
            "other.ckpt": "is no checkpoint of repgraph's training",
            "evil.ckpt": "is refused",
            "wide.ckpt": "wide.ckpt: channels is 1000000000; at most 65536 is possible",
            "large.ckpt": "large.ckpt: a network of this size does not fit into memory",
            "number.ckpt": "number.ckpt: unknown setting 3",
            "cut.ckpt": "is damaged or cut short",
            "gone.ckpt": "is not there",
            "gone.safetensors": "is not there",
            "gone": "gone is not there; the folder of a run",
            "notes.txt": "is no network: a folder, a .safetensors or a .ckpt file is needed",
            ".": "has no config.json and no model/config.json: no network was saved there",
        }.items():
            with pytest.raises(UsageError) as error:
                load(tmp_path / name)
            assert message in str(error.value), name
        assert not (tmp_path / "ran").exists()

    def test_weights_of_a_backbone_are_no_network(self, tmp_path: Path) -> None:
        from safetensors.torch import save_file

        save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
        with pytest.raises(UsageError, match="has no config of a network in its metadata"):
            load(tmp_path / "w.safetensors")
