"""Damaged JSON, in files, in metadata and on the command line: errors of one line that name the source."""

import json
import os

import pytest
import safetensors.torch
from tests.trained import save_data, save_network

from repgraph import data, recipes
from repgraph.ablation import Results
from repgraph.cli.options import named_values
from repgraph.errors import UsageError
from repgraph.inference import load
from repgraph.models import rgnet
from repgraph.report.run_log import read_run
from repgraph.train import run_folder
from repgraph.train.metrics import MetricsLog

NESTED = "[" * 150 + "]" * 150
WHOLE = ["[" * 100_000, '{"a":' * 100_000, NESTED, "{", "[]", "null", '"x"', '{"classes": 3}{}', "1" + "0" * 5000]
VALUES = [NESTED, "null", "[]", "{}", '"x"', '["x"]', '"\\ud800"', "-1", "1" + "0" * 400, "NaN", "1e400", "true"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = save_network(tmp_path_factory.mktemp("files"))
    return save_data(folder, 1, "train")


@pytest.fixture(scope="module")
def read(folder):
    """A function that writes JSON to a file, or to the metadata of weights, and reads it."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    readers = {
        "config.json": lambda path: load(folder),
        "w.safetensors": lambda path: (rgnet(3, "resnet10t", weights=path, channels=8, output_stride=32), load(path)),
        "mine.json": recipes.load,
        "classes.json": lambda path: data.load("folder", folder, "train"),
    }

    def read(name, text):
        if name == "w.safetensors":
            safetensors.torch.save_file(tensors, folder / name, {"config": text})
        else:
            (folder / name).write_text(text)
        readers[name](folder / name)

    return read


@pytest.mark.parametrize("text", WHOLE, ids=range(len(WHOLE)))
def test_whole_files(folder, read, text):
    for name in ("config.json", "w.safetensors", "mine.json", "classes.json"):
        with pytest.raises(UsageError, match=name):
            read(name, text)
    (folder / "versions.json").write_text(text)
    assert run_folder.sessions(folder) == []
    with pytest.raises(UsageError, match=r"optim\.lr is "):
        recipes.with_settings(recipes.get("voc-r50-rgnet"), [f"optim.lr={text}"])
    assert named_values("--option", [f"a={text}"]).keys() == {"a"}


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_single_values(folder, read, value):
    """A file is read, or its error names it."""
    config, recipe = load(folder / "model.safetensors").model.config, recipes.to_dict(recipes.get("folder-r50-rgnet"))
    labels = [{"name": "a", "id": 0}]
    session = {"started": "2026-01-02T03:04:05+00:00", "versions": {}, "ended": None}
    damaged = [("config.json", {**config, name: "?"}) for name in ("mean", "labels", "map_sizes")]
    damaged += [("config.json", {**config, "context_options": {**config["context_options"], "radius": "?"}})]
    damaged += [("config.json", {**config, "labels": {**config["labels"], "ids": "?"}})]
    damaged += [("w.safetensors", {**config, name: "?"}) for name in ("std", "labels")]
    damaged += [("mine.json", {**recipe, name: "?"}) for name in (*recipe, "base")]
    damaged += [("mine.json", {**recipe, "optim": {"lr": "?"}}), ("mine.json", {**recipe, "data": {"crop": "?"}})]
    damaged += [("classes.json", {"classes": "?"}), ("classes.json", {"classes": labels, "ignored": "?"})]
    damaged += [("classes.json", [{**labels[0], name: "?"}]) for name in ("name", "id", "colour")]
    for name, content in damaged:
        try:
            read(name, json.dumps(content).replace('"?"', value))
        except UsageError as error:
            assert name in str(error) or str(folder) in str(error)
    for name in session:
        damaged = json.dumps({"sessions": [{**session, name: "?"}]}).replace('"?"', value)
        (folder / "versions.json").write_text(damaged)
        run_folder.sessions(folder)


def test_pipes_are_not_read(tmp_path):
    """Reading a pipe may block."""
    for name in ("metrics.csv", "results.csv"):
        os.mkfifo(tmp_path / name)
    for read in (lambda: MetricsLog(tmp_path, ["loss"], 5), Results(tmp_path).read):
        with pytest.raises(UsageError, match=r"s\.csv: Not a regular file"):
            read()
    (tmp_path / "recipe.json").write_text("{}")
    assert any("metrics.csv cannot be read (Not a regular file)" in problem for problem in read_run(tmp_path).problems)
