"""Networks in folders and files: saving and loading, and errors for damaged files."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.models.networks import Runs, assert_same_state, images, network, no_space, offline  # noqa: F401

import repgraph
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph
from repgraph.models import RGNet, load

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
    """A copy that may be changed."""
    return shutil.copytree(saved, tmp_path / "model")


def edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= changes
    (folder / "config.json").write_text(json.dumps({n: v for n, v in config.items() if v != "removed"}))


@pytest.mark.parametrize(
    "options",
    [
        dict(labels=LABELS, mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1)),
        dict(context="simple", context_options={"nodes": 5, "spread": [(i, 0.5) for i in range(5)]}, auxiliary=False),
        dict(backbone="resnet26", caffe_style=True, context="dual"),
    ],
    ids=str,
)
def test_save_and_load(options: dict, tmp_path: Path) -> None:
    model, files = network(**options), ["README.md", "config.json", "model.safetensors"]
    assert model.save_pretrained(tmp_path / "a" / "model") is None
    assert sorted(path.name for path in (tmp_path / "a" / "model").iterdir()) == files
    twin = RGNet.from_pretrained(tmp_path / "a" / "model")
    assert type(twin) is RGNet and not twin.training
    assert_same_state(model, twin)
    assert twin.config == model.config and twin.labels == model.labels
    assert (twin.mean, twin.std) == (model.mean, model.std)
    assert torch.equal(model(images(33, 47)), twin(images(33, 47)))
    twin.save_pretrained(tmp_path / "b")
    for name in files[1:]:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / "model" / name).read_bytes()


def test_a_config_does_not_depend_on_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread and scale are not in the weights, but change the output."""
    model, x = network(inserted={"layer2": 1}, inserted_options={"nodes": 4}), images(33, 47)
    model.save_pretrained(tmp_path)
    defaults = BottleneckRepGraph.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "scale", 3.0)
    monkeypatch.setitem(defaults, "spread", "grid")
    monkeypatch.setattr("repgraph.layers.spread.RADIUS", 9.0)
    assert torch.equal(RGNet.from_pretrained(tmp_path)(x), model(x))
    assert not torch.equal(network(inserted={"layer2": 1}, inserted_options={"nodes": 4})(x), model(x))


# The options as version 0.1.0 wrote them; some were removed later.
WRITTEN = {
    "mid_channels": 8, "nodes": 9, "grid": 1, "groups": 1, "scale": 0.125, "norm_expand": False, "spread": "ring",
    "radius": 8.0, "offset_view": 1, "offset_unit": "pixels", "node_view": 15, "learn_scale": False,
}  # fmt: skip


def test_configs_of_earlier_versions(tmp_path: Path) -> None:
    want = network(context_options={"rounds": 1, "radius": 8.0, "node_view": 15}).eval()  # not the defaults of a head
    folder = tmp_path / "model"
    want.save_pretrained(folder)
    edit(folder, context_options=WRITTEN)
    found = load(folder)
    assert torch.equal(found(images(33, 47)), want(images(33, 47))) and found.config == want.config
    edit(folder, context_options={**WRITTEN, "offset_view": 3})
    with pytest.raises(UsageError, match="context_options of 'repgraph' has no option 'offset_view'"):
        load(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "contains no saved network (no config.json)"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors: No such file"),
        (lambda f: edit(f, clases=5), "config.json: RGNet.__init__() got an unexpected keyword argument 'clases'"),
        (lambda f: edit(f, classes="removed"), "missing 1 required positional argument: 'classes'"),
        (lambda f: edit(f, classes="five"), "config.json: classes is 'five'; expected an integer"),
        (lambda f: edit(f, context=["x"]), "config.json: context is ['x']; choose one of"),
        (lambda f: edit(f, channels=32), "model.safetensors does not fit; "),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 5000), "model.safetensors is damaged"),
    ],
)
def test_damaged_folders(folder: Path, damage, message: str) -> None:
    damage(folder)
    for read in (RGNet.from_pretrained, load):
        with pytest.raises(UsageError) as error:
            read(folder)
        assert message in str(error.value)


def test_options_of_a_download_and_backends(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; only networks on the Hub take revision"):
        RGNet.from_pretrained(folder, revision="main")
    model = RGNet(3, "resnet18", channels=16, context_options={"backend": "triton"})
    model.save_pretrained(tmp_path / "other")  # the config is for any machine
    assert RGNet.from_pretrained(tmp_path / "other").head.context.backend == "auto"


@pytest.mark.parametrize("name", ["nowhere", "./owner", "a/b/c", "/no/such/folder", "runs/x/", Path("owner/name")])
def test_paths_are_not_looked_up_on_the_hub(name) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        RGNet.from_pretrained(name)


def test_from_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("repgraph.models.hub.hf_hub_download", fail)
    with pytest.raises(UsageError, match=r"owner/name is not a folder, and loading from the Hub failed: no route$"):
        RGNet.from_pretrained("owner/name")
    asked = []

    def answer(repo_id: str, filename: str, **options: object) -> str:
        asked.append((repo_id, filename, options["revision"]))
        return str(saved / filename)

    monkeypatch.setattr("repgraph.models.hub.hf_hub_download", answer)
    assert_same_state(RGNet.from_pretrained("owner/name", revision="v1"), RGNet.from_pretrained(saved))
    assert asked == [("owner/name", "config.json", "v1"), ("owner/name", "model.safetensors", "v1")]


def test_a_full_disk_leaves_the_previous_network(folder: Path, no_space: None) -> None:  # noqa: F811
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"cannot write .*model\.safetensors: File too large"):
        network(seed=1, context="none").save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_networks_that_do_not_match_their_config_are_not_saved(tmp_path: Path) -> None:
    for change in (repgraph.fuse, lambda model: repgraph.insert(model, {"layer3": 1})):
        with pytest.raises(
            UsageError, match=r"cannot save: .* more tensors were added or removed .*; save the network before"
        ):
            change(network()).save_pretrained(tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


def test_load(saved: Path, tmp_path: Path) -> None:
    model, checkpoint = network(labels=LABELS), tmp_path / "best.ckpt"
    torch.save({"config": model.config, "state_dict": model.state_dict(), "iteration": 7}, checkpoint)
    for path in (saved, saved.parent, str(saved), saved / "model.safetensors", checkpoint):
        found = load(path)
        assert_same_state(found, model)
        assert found.config == model.config and not found.training


def test_load_other_files(tmp_path: Path) -> None:
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.touch()
    (tmp_path / "notes.txt").write_text("")
    save_file({"conv1.weight": torch.zeros(3)}, tmp_path / "w.safetensors")
    for name, config in {
        "evil": Runs(str(tmp_path / "ran")),
        "wide": {**network().config, "channels": 10**9},
        "other": None,
    }.items():
        torch.save({"config": config, "state_dict": {}}, tmp_path / f"{name}.ckpt")
    torch.save({"config": {}, "state_dict": {5: torch.zeros(1)}}, tmp_path / "numbers.ckpt")
    for name, message in {
        "other.ckpt": "other.ckpt: the config is a NoneType; expected a dict",
        "evil.ckpt": "could run code",
        "wide.ckpt": "wide.ckpt: channels is 1000000000; expected an integer from 1 to 65536",
        "gone": "gone does not exist; expected the folder of a run",
        "numbers.ckpt": "numbers.ckpt: RGNet.__init__() missing 1 required positional argument: 'classes'",
        "notes.txt": "is not a network; expected the folder of a run or of a network, a .safetensors",
        "w.safetensors": "has no config of a network in its metadata",
        "run": "run contains no saved network (no config.json); use its last checkpoint, ",
    }.items():
        with pytest.raises(UsageError) as error:
            load(tmp_path / name)
        assert message in str(error.value), name
    assert not (tmp_path / "ran").exists()
