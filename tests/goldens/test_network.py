"""Goldens of networks: predictions of a trained one, names and shapes of parameters, config files.

``python tests/goldens/regenerate.py`` rewrites the stored values, but neither the trained network nor the configs:
they stand for files that users have.
"""

import json
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from tests.goldens.harness import NETWORK, assert_close, golden, golden_file, repgraph, rounded

from repgraph import BottleneckRepGraph, DANetHead, DualAttention, NonLocal, SimpleRepGraph
from repgraph.models import MaskRCNN, RGNet, load, mask_rcnn, rgnet

REMOVED = ("offset_view", "offset_unit", "learn_scale")  # options in earlier config files
ADDED = ("rounds",)  # options that are not in them
OPTIONS = dict(groups=2, fusion="concat")
LAYERS = {
    "bottleneck": lambda: BottleneckRepGraph(16, nodes=4, backend="reference"),
    "bottleneck with options": lambda: BottleneckRepGraph(
        *(16, 6), nodes=5, grid=3, node_view=3, norm_expand=False, scale=0.5, backend="reference", **OPTIONS
    ),
    "bottleneck inserted": lambda: BottleneckRepGraph(16, spread="grid", final_act=False, backend="reference"),
    "simple": lambda: SimpleRepGraph(16, nodes=4, backend="reference"),
    "simple with options": lambda: SimpleRepGraph(16, 6, grid="map", norm_qk=True, backend="reference", **OPTIONS),
    "non-local": lambda: NonLocal(16),
    "non-local with options": lambda: NonLocal(16, 6, share_query_key=True, norm_qk=True, scale=1.0, **OPTIONS),
    "dual attention": lambda: DualAttention(16),
    "DANet's head": lambda: DANetHead(16, 8, num_classes=3),
}
SPREADS = {
    "ring": {"radius": 3.0},
    "grid": {"spread": "grid"},
    "points": {"spread": [[0.0, 0.0], [2.5, -1.0], [-4.0, 3.0]], "nodes": 3},
}
SMALL = dict(backbone="repgraph_small", output_stride=4, channels=16)
LABELS = {"names": ["land", "sea"], "palette": [[0, 9, 0], [0, 0, 9]], "ids": [1, 2], "ignored": [0]}
MEANS = {"nodes": 4, "radius": 3.0, "rounds": 1, "node_view": 15}  # the form of the stored config
CONFIGS = {
    "repgraph": (RGNet, dict(classes=2, context_options=MEANS, labels=LABELS, **SMALL)),
    "paper": (RGNet, dict(classes=3, context="paper", fusion="sum", **SMALL)),
    "simple": (RGNet, dict(classes=3, context="simple", context_options={"grid": 5, "groups": 2}, **SMALL)),
    "non_local": (RGNet, dict(classes=3, context="non_local", mean=[0.5, 0.4, 0.3], **SMALL)),
    "dual": (RGNet, dict(classes=3, context="dual", dropout=0.2, **SMALL)),
    "control": (RGNet, dict(classes=3, context="control", auxiliary=False, **SMALL)),
    "none": (RGNet, dict(classes=3, context="none", **SMALL)),
    "inserted": (RGNet, dict(classes=3, backbone="resnet18", channels=16, context="none", inserted={"layer3": 1})),
    "Mask R-CNN": (MaskRCNN, dict(classes=2, backbone="resnet18", context="repgraph", min_size=[64, 96], max_size=128)),
}


def seeded(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def fill(module):
    """Give every parameter and buffer values that depend only on its name and shape; return the module."""
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                numbers = torch.randn(value.shape, generator=generator)
                scale = max(1, value[0].numel()) ** -0.5 if value.dim() > 1 else 1.0
                value.copy_(numbers.abs() + 0.5 if name.endswith("running_var") else numbers * scale)
    return module.eval()


def shapes(module):
    return {name: list(value.shape) for name, value in module.state_dict().items()}


@pytest.fixture(scope="module")
def network():
    return load(NETWORK)


def test_logits(network):
    with torch.no_grad():
        logits = network(seeded(1, 3, 50, 71))
    assert logits.shape == (1, 8, 50, 71)
    found = logits[..., ::7, ::10]
    assert_close(found, golden("network.json", "logits", rounded(found)))


def test_nodes(network):
    with torch.no_grad():
        nodes, weights = network.nodes(seeded(1, 3, 48, 64))
    for name, found in (("nodes", nodes[..., ::5, ::5]), ("weights", weights[..., ::5, ::5])):
        assert_close(found, golden("network.json", name, rounded(found)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("whole", ["--limit", 4]),
        ("slide", ["--limit", 2, "--mode", "slide", "--crop", "64x64", "--scales", 0.75, 1, "--flip"]),
    ],
)
def test_scores_on_the_scenes(name, options, tmp_path):
    given = ("--dataset", "scenes", "--split", "val", "--device", "cpu", "--out", tmp_path, "--json")
    found = json.loads(repgraph("eval", NETWORK, *options, *given))
    stored = golden("network.json", f"scores {name}", {**found, "model": "", "settings": "", "seconds": 0})
    assert {path.name for path in tmp_path.iterdir()} >= {"scores.json", "classes.csv", "confusion.csv"}
    assert found.keys() >= stored.keys()
    for key in ("dataset", "split", "images", "pixels"):
        assert found[key] == stored[key], key
    for key in ("miou", "pixel_accuracy", "mean_accuracy"):
        assert found[key] == pytest.approx(stored[key], abs=2e-3), key
    for ours, theirs in zip(found["classes"], stored["classes"], strict=True):
        for key in ("class", "name", "pixels"):
            assert ours[key] == theirs[key]
        for key in ("iou", "accuracy"):
            assert ours[key] == pytest.approx(theirs[key], abs=5e-3)


def test_predicted_labels(bays, tmp_path):
    repgraph("predict", "--model", NETWORK, *bays, "--out", tmp_path, "--device", "cpu")
    for bay in bays:
        path = tmp_path / "labels" / bay.name
        with Image.open(path) as ours, Image.open(golden_file(f"labels-{bay.name}", path)) as stored:
            assert ours.mode == stored.mode == "P"
            assert ours.getpalette() == stored.getpalette()
            labels, expected = np.array(ours), np.array(stored)
        assert labels.shape == expected.shape
        assert np.mean(labels == expected) >= 0.999
        assert len(np.unique(labels)) >= 5  # otherwise the test would be weak
        with Image.open(tmp_path / "overlays" / bay.name) as overlay:
            assert list(overlay.size) == golden("network.json", f"overlay size of {bay.name}", overlay.size)


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    layer = fill(LAYERS[name]())
    with torch.no_grad():
        found = layer(seeded(2, 16, 7, 10))
    kept = {"parameters": shapes(layer), "shape": list(found.shape), "result": rounded(found[0, :, ::3, ::3])}
    stored = golden("layers.json", name, kept)
    assert shapes(layer) == stored["parameters"]
    assert list(found.shape) == stored["shape"]
    assert_close(found[0, :, ::3, ::3], stored["result"])


@pytest.mark.parametrize("name", SPREADS)
def test_where_nodes_start(name):
    layer = BottleneckRepGraph(8, backend="reference", **SPREADS[name]).eval()
    with torch.no_grad():
        nodes = layer(torch.zeros(1, 8, 9, 13), return_nodes=True)[1]
    found = nodes[..., ::4, ::4]
    assert_close(found, golden("layers.json", f"spread {name}", rounded(found)))


def test_names_and_shapes_of_parameters():
    with torch.device("meta"):
        found = {
            f"RGNet {context}": shapes(rgnet(21, "resnet50", context=context))
            for context in ("repgraph", "paper", "simple", "non_local", "dual", "control", "none")
        }
        found["RGNet inserted"] = shapes(rgnet(21, "resnet50", context="none", inserted={"layer2": 1, "layer4": 2}))
        for context in ("repgraph", "paper", "simple", "non_local", "dual", "none"):
            found[f"Mask R-CNN {context}"] = shapes(mask_rcnn(20, "resnet50", context=context))
    stored = golden("parameters.json.gz", "parameters", found)
    assert found.keys() == stored.keys()
    for name, parameters in found.items():
        assert parameters == stored[name], name


@pytest.mark.parametrize("name", CONFIGS)
def test_config_files(name, tmp_path):
    kind, arguments = CONFIGS[name]
    model = kind(**arguments)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    stored = golden("configs.json", name, config, once=True)
    assert common(config) == common(stored)
    (tmp_path / "config.json").write_text(json.dumps(stored))  # as an earlier version wrote it
    again = load(tmp_path, kind).state_dict()
    assert again.keys() == model.state_dict().keys()
    assert [key for key, value in model.state_dict().items() if not torch.equal(value, again[key])] == []


def common(config):
    """Return the config with the options that both versions have."""
    if not isinstance(config, dict):
        return config
    return {key: common(value) for key, value in config.items() if key not in (*REMOVED, *ADDED)}
