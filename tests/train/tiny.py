"""A data set of a few small images with masks, and a recipe that trains on it in a second."""

import csv
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from repgraph import models, recipes
from repgraph.train import checkpoint, loop

COLOURS = np.array([[40, 60, 200], [200, 60, 40], [60, 200, 60]])
# One iteration after which the momentum is the gradient of the whole batch.
ONE_STEP = ("train.iterations=1", "train.log_every=1", "train.norm=frozen", "model.dropout=0", "optim.weight_decay=0")
ONE_STEP = (*ONE_STEP, "data.val_split=")


def make_data(root: Path, train: int = 6, val: int = 3, labelled: bool = True) -> Path:
    """Write a folder of images, in which colors correspond to classes, and masks."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            mask = np.zeros((36 + i, 44), np.uint8)
            mask[8 : 20 + i, 4 + i : 24] = 1
            mask[20:, 24:] = 2
            image = (COLOURS[mask] + rng.integers(-40, 40, (*mask.shape, 3))).clip(0, 255).astype(np.uint8)
            mask[: 1 if labelled else None] = 255
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
    (root / "classes.txt").write_text("sea\nfire\nforest\n")
    return root


def settings(data: Path, *more: str) -> list[str]:
    return [
        *(f"data.root={data}", "data.crop=32", "data.workers=0"),
        *("model.backbone=repgraph_small", "model.output_stride=4", "model.weights=none", "model.channels=16"),
        *("optim.lr=0.02", "train.batch=4", "train.iterations=10", "train.period=4", "train.log_every=3"),
        *("train.precision=fp32", "train.accelerator=cpu", "test.mode=whole"),
        *more,
    ]


def recipe(data: Path, *more: str) -> recipes.Recipe:
    return recipes.with_settings(recipes.get("folder-r50-rgnet"), settings(data, *more))


def rows(run: Path) -> list[dict[str, str]]:
    with open(run / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def last(run: Path) -> dict:
    return checkpoint.read(run / "checkpoints" / "last.ckpt")


def gradients(run: Path) -> torch.Tensor:
    """Return the gradients of a run with the settings of ``ONE_STEP``, flattened."""
    states = last(run)["optimizer_states"][0]["state"]
    return torch.cat([state["momentum_buffer"].flatten() for state in states.values()])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return models.load(run).state_dict()


def assert_same(run: Path, other: Path) -> None:
    """Compare weights, momenta, sums of losses, best scores and metrics of two runs, bit for bit."""
    ours, theirs = last(run), last(other)
    for found in (ours, theirs):
        found["momenta"] = found["optimizer_states"][0]["state"]
    for name in ("state_dict", "unaveraged", "momenta", "sums", "best", "iteration"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0)
    for row, expected in zip(rows(run), rows(other), strict=True):
        assert row | {name: expected[name] for name in ("images_per_second", "peak_memory_mib")} == expected


def at_iteration(monkeypatch, number: int, act) -> None:
    """Call ``act(model)`` after the step of an iteration, counted from 0."""
    step = loop.step

    def stepped(fabric, session, model, optimizer, batch):
        losses = step(fabric, session, model, optimizer, batch)
        if batch.iteration == number:
            act(model.module)
        return losses

    monkeypatch.setattr(loop, "step", stepped)


def fail(*_) -> None:
    raise RuntimeError("power cut")
