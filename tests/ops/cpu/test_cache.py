"""The disk cache of compiled kernels; a cache that cannot be used is not an error."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest
from filelock import FileLock

import repgraph
from repgraph.ops.cpu.jit import jit

SOURCE = Path(repgraph.__file__).parent
SCRIPT = """
import torch
from repgraph.ops.cpu.maps import rows, workspace
from repgraph.ops.cpu.memory import copy_map

with workspace() as space:
    assert (rows(torch.arange(24.0).view(1, 2, 3, 4), space).data[:4] == [0, 12, 1, 13]).all()
stats = copy_map.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), type(copy_map._cache).__name__)
"""


def start(path: Path, cache: Path | None) -> str:
    """Copy a map to rows in a new process. Return hits and misses of the cache, and its class."""
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package that a test may change."""
    shutil.copytree(SOURCE, tmp_path / "src" / "repgraph", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "src"


@pytest.mark.slow
def test_a_second_process_compiles_nothing_until_a_helper_changes(copy: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert start(copy, cache) == "0 1 _Cache"
    assert start(copy, cache) == "1 0 _Cache"
    helper = copy / "repgraph" / "ops" / "cpu" / "nodes.py"  # not the file of the kernel
    helper.write_text(helper.read_text() + "\n")
    assert start(copy, cache) == "0 1 _Cache"


@pytest.mark.slow
def test_no_writable_cache_directory(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in place of directories, since permissions do not stop root."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    (copy / "repgraph" / "ops" / "cpu" / "__pycache__").write_text("not a directory")
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert start(copy, None) == "0 1 NullCache"


def triple(x):
    return 3 * x


def hits() -> int:
    """Call the function as a new process would. Return how often it came from the cache."""
    kernel = jit(triple)
    assert kernel(np.float32(5)) == 15
    return sum(kernel.stats.cache_hits.values())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the compiled function, loaded from there once."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert [hits(), hits()] == [0, 1]
    (found,) = tmp_path.iterdir()
    return found


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_a_damaged_file_is_replaced(folder: Path) -> None:
    whole = {file: file.read_bytes() for file in folder.glob("*.nbc")}
    for file, content in whole.items():
        places = range(0, len(content), len(content) // 12)  # in the machine code a wrong bit could crash the process
        damaged = [b"", b"no pickle", content[: len(content) // 2], *(flip(content, at) for at in places)]
        for each in damaged:
            file.write_bytes(each)
            assert [hits(), hits()] == [0, 1]


def test_a_file_of_another_signature_is_not_used(folder: Path) -> None:
    (of_float32,) = folder.glob("*.nbc")
    jit(triple)(np.float64(5))
    (of_float64,) = set(folder.glob("*.nbc")) - {of_float32}
    of_float64.replace(of_float32)
    assert [hits(), hits()] == [0, 1]


def test_a_folder_that_became_unusable(folder: Path) -> None:
    (file,) = folder.glob("*.nbc")
    file.unlink()
    file.mkdir()
    assert [hits(), hits()] == [0, 0]
    kernel = jit(triple)
    shutil.rmtree(folder)
    folder.write_text("not a directory")
    assert kernel(np.float32(5)) == 15


def test_a_process_waits_for_another_that_compiles(folder: Path) -> None:
    (file,) = folder.glob("*.nbc")
    content = file.read_bytes()
    file.unlink()
    lock = FileLock(file.with_suffix(".lock"))
    lock.acquire(timeout=0)  # it is free
    waiting = threading.Thread(target=lambda: found.append(hits()))
    found: list[int] = []
    waiting.start()
    time.sleep(0.3)
    assert not found
    file.write_bytes(content)
    lock.release()
    waiting.join(60)
    assert found == [1]
