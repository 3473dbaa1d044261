"""Commands without ``--model``: the network that comes with a clone, and errors without it."""

import pytest
import torch
from PIL import Image

from repgraph import cli, files
from repgraph.constants import SHIPPED
from repgraph.models import RGNet


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a photo; the package is not in a clone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "__file__", str(tmp_path / "a" / "b" / "c" / "files.py"))
    Image.new("RGB", (48, 40), "red").save("photo.png")
    return tmp_path


@pytest.mark.parametrize("command", ["predict", "explore", "nodes"])
def test_without_a_clone(folder, capsys, command):
    assert cli.main([command, "photo.png"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"repgraph {command}: --model is required outside of a clone") and error.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["photo.png"]


def test_in_a_clone(folder, capsys, monkeypatch):
    torch.manual_seed(0)
    path = folder / SHIPPED
    path.parent.mkdir()
    path.write_bytes(RGNet(3, "resnet18", channels=16, decoder="pyramid").to_bytes(int8=True))
    (folder / "recipe.json").write_text("{}")  # not of the network
    assert cli.main(["predict", "photo.png", "--device", "cpu"]) == 0
    assert capsys.readouterr().err.startswith(
        f"using {SHIPPED}, trained on PASCAL VOC; --model names another network\n"
    )
    assert (folder / "predictions" / "labels" / "photo.png").is_file()
    monkeypatch.chdir(path.parent)  # below the root
    assert cli.main(["predict", "../photo.png", "--device", "cpu"]) == 0


@pytest.mark.parametrize("network", ["run", "model.safetensors"])
def test_network_in_place_of_an_image(folder, capsys, network):
    (folder / "run").mkdir()
    (folder / "run" / "recipe.json").touch()
    assert cli.main(["predict", network, "photo.png"]) == 2
    assert f"{network} is a network, not an image; pass it as --model {network}" in capsys.readouterr().err
