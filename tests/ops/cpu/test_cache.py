"""Compiled kernels survive the process; a cache that cannot be kept is no error."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import repgraph

SOURCE = Path(repgraph.__file__).parent
SCRIPT = """
import torch
from repgraph.ops.cpu.nodes import place
from repgraph.ops.cpu.transpose import to_rows
from repgraph.ops.cpu.maps import rows, flat
from repgraph.ops.cpu.workspace import Workspace
from repgraph.ops.cpu.forward import place_nodes
import numpy as np
with Workspace() as space:
    assert (rows(torch.arange(24.0).view(1, 2, 3, 4), space).data[:4] == [0, 12, 1, 13]).all()
place_nodes(torch.zeros(1, 2, 3, 4), 1, 3, 4, np.float32)
for f in (place, to_rows):
    print(sum(f.stats.cache_hits.values()), sum(f.stats.cache_misses.values()), type(f._cache).__name__)
"""


def _start(path: Path, cache: Path | None) -> list[list[str]]:
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


@pytest.fixture
def copy(tmp_path):
    """A copy of the package, to be changed."""
    shutil.copytree(SOURCE, tmp_path / "src" / "repgraph", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


def test_a_second_process_compiles_nothing_until_a_helper_changes(copy, tmp_path):
    cache = tmp_path / "cache"
    assert _start(copy, cache) == [["0", "1", "_Cache"]] * 2
    assert _start(copy, cache) == [["1", "0", "_Cache"]] * 2
    helper = copy / "repgraph" / "ops" / "cpu" / "geometry.py"  # not the file of the kernels that use it
    helper.write_text(helper.read_text() + "\n")
    assert _start(copy, cache) == [["0", "1", "_Cache"]] * 2


def test_a_damaged_cache_is_replaced(copy, tmp_path):
    cache = tmp_path / "cache"
    _start(copy, cache)
    for file in cache.rglob("*.nb*"):
        file.write_bytes(b"no pickle")
    assert _start(copy, cache) == [["0", "1", "_Cache"]] * 2
    assert _start(copy, cache) == [["1", "0", "_Cache"]] * 2


def test_no_folder_for_a_cache(copy, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder is needed")
    # Folders in a file cannot be made by anyone, not even by root, for whom permissions are no bar.
    (copy / "repgraph" / "ops" / "cpu" / "__pycache__").write_text("not a folder either")
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert _start(copy, None) == [["0", "1", "NullCache"]] * 2


def test_a_cache_that_cannot_be_saved(monkeypatch):
    import numpy as np
    from numba.core.caching import IndexDataCacheFile

    from repgraph.ops.cpu.jit import jit

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", full)

    @jit
    def double(x):
        return 2 * x

    assert double(np.float32(3)) == 6
