"""Real images, labels and weights, which are not in the repository: tests that use them skip where they are absent."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("REPGRAPH_SHARED", Path(__file__).resolve().parent.parent.parent / "shared"))


def shared(path: str) -> Path:
    """A file or folder of the real data, such as ``data/VOC2012``; skips the test where there is none."""
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"real data is absent: {found} (REPGRAPH_SHARED names its folder)")
    return found
