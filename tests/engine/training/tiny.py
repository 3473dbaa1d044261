"""A data set of a few small pictures, and recipes that train on it in seconds."""

import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from repgraph import models, recipes
from repgraph.engine.training.module import Training

COLOURS = np.array([[40, 60, 200], [200, 60, 40], [60, 200, 60]])


def make_data(root: Path, train: int = 6, val: int = 3) -> Path:
    """Pictures whose colours tell the class, as a folder of images and masks."""
    chance = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            mask = np.zeros((36 + i, 44), np.uint8)
            mask[8 : 20 + i, 4 + i : 24] = 1
            mask[20:, 24:] = 2
            image = (COLOURS[mask] + chance.integers(-40, 40, (*mask.shape, 3))).clip(0, 255).astype(np.uint8)
            mask[0] = 255
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
    (root / "classes.txt").write_text("sea\nfire\nforest\n")
    return root


def settings(data: Path, *more: str) -> list[str]:
    """Of a recipe for the folder."""
    return [
        f"data.root={data}",
        "data.crop=32",
        "data.workers=0",
        "model.backbone=test_resnet",
        "model.weights=none",
        "model.channels=16",
        "optim.lr=0.02",
        "train.batch=4",
        "train.iterations=10",
        "train.period=4",
        "train.log_every=3",
        "train.precision=fp32",
        "train.accelerator=cpu",
        "test.mode=whole",
        *more,
    ]


def recipe(data: Path, *more: str) -> recipes.Recipe:
    return recipes.with_settings(recipes.get("folder-r50-rgnet"), settings(data, *more))


def rows(run):
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def weights(run):
    return models.load(run).state_dict()


def assert_same_weights(left, right):
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def at_iteration(monkeypatch, number, act):
    """Do something at the end of an iteration."""
    note = Training._note

    def noted(self, losses):
        note(self, losses)
        if self.iteration == number:
            act(self)

    monkeypatch.setattr(Training, "_note", noted)
