"""Rewrite the stored values of the golden tests, after a deliberate change of behaviour. Review the difference in git.

    python tests/goldens/regenerate.py                  all values (a minute or two)
    python tests/goldens/regenerate.py -k recipes       those of some tests; arguments are pytest's
    python tests/goldens/regenerate.py --network        train the small network again first (a minute on two idle cores)

The trained network and the stored configs stand for files that users have. They stay as they are unless --network is
given, or a config is deleted first.
"""

import os
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def train_network() -> None:
    """Train an RGNet of few channels on the scenes, and store it as one file with its config."""
    from repgraph.cli import main

    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        assert main(["train", "scenes-rgnet", "--out", run, "--set", "model.channels=48"]) == 0
        out = str(HERE / "stored" / "network.safetensors")
        assert main(["export", run, "--to", "safetensors", "--out", out]) == 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--network" in arguments:
        arguments.remove("--network")
        train_network()
    os.environ["REPGRAPH_REWRITE_GOLDENS"] = "1"
    os.chdir(HERE.parents[1])
    sys.exit(pytest.main([str(HERE), "-q", "-m", "not slow", *arguments]))
