"""Golden tests: results and files of repgraph, compared with stored values.

They use only the command line and the public API (``repgraph``, ``repgraph.models``, ``repgraph.recipes``), and do not
change when modules move. Stored values are in ``stored/``. After a deliberate change of behaviour, rewrite them with
``python tests/goldens/regenerate.py`` and review the difference in git.

Not pinned: prose (descriptions, notes below tables, messages), and options that were removed (``offset_view``,
``offset_unit``, ``learn_scale``, the spreads "rings" and "regions").
"""

from pathlib import Path

import pytest
from tests.goldens import drawings
from tests.goldens.harness import repgraph

SEGMENTATION = (
    *("scenes-rgnet", "--iterations", 30, "--batch", 4, "--set", "train.log_every=1", "train.period=5"),
    *("train.validate_every=3", "data.limit=16", "data.val_limit=8", "data.crop=48,64", "model.auxiliary=true"),
    "optim.lr=0.01",
)
# Sides of 23 to 32 pixels after resizing. torchvision infers the scales of its feature maps from the first batch, and
# with 33 to 45 or 65 to 67 pixels the result depends on which batch that is: a resumed run would differ.
DETECTION = (
    *("voc_instances-r50-repgraph", "--weights", "none", "--iterations", 5, "--batch", 2, "--precision", "fp32"),
    *("--workers", 0, "--set", "train.log_every=1", "train.period=2", "train.validate_every=0"),
    *("train.accelerator=cpu", "model.backbone=resnet18", "model.min_size=26", "model.max_size=32"),
    *("model.trainable_stages=1", "optim.lr=0.0005", "optim.warmup=2"),
)


@pytest.fixture(scope="session")
def bays(tmp_path_factory) -> list[Path]:
    """Two pictures to predict."""
    return drawings.save_bays(tmp_path_factory.mktemp("bays"))


@pytest.fixture(scope="session")
def objects(tmp_path_factory) -> Path:
    """The root of a data set in COCO's format."""
    return drawings.save_objects(tmp_path_factory.mktemp("objects") / "data")


@pytest.fixture(scope="session")
def segmentation_run(tmp_path_factory) -> Path:
    """The folder of a short training of RGNet on the scenes."""
    run = tmp_path_factory.mktemp("segmentation") / "run"
    repgraph("train", *SEGMENTATION, "--out", run)
    return run


@pytest.fixture(scope="session")
def detection_run(tmp_path_factory, objects) -> Path:
    """The folder of a short training of Mask R-CNN on the drawn objects."""
    run = tmp_path_factory.mktemp("detection") / "run"
    repgraph("train", *DETECTION, "--data", objects, "--out", run)
    return run
