"""Runs the command line, in this process or in one of its own, and stores and returns golden values."""

import contextlib
import csv
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from repgraph.cli import main

STORED = Path(__file__).with_name("stored")
NETWORK = STORED / "network.safetensors"  # an RGNet trained on the scenes, see regenerate.py
REWRITE = "REPGRAPH_REWRITE_GOLDENS"


def golden(file: str, key: str, value: Any, once: bool = False) -> Any:
    """Return the value that a file in ``stored/`` has under a key.

    While goldens are being rewritten, store ``value`` first; with ``once`` only if there is none yet: what is there
    stands for files of earlier versions.
    """
    path = STORED / file
    stored = json.loads(_read(path)) if path.exists() else {}
    if os.environ.get(REWRITE) and not (once and key in stored):
        stored[key] = json.loads(json.dumps(value))
        _write(path, json.dumps(stored, indent=None if path.suffix == ".gz" else 1) + "\n")
    return stored[key]


def _read(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _write(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def golden_file(name: str, path: Path) -> Path:
    """Return the path of the stored file of that name; while goldens are being rewritten, copy ``path`` to it first."""
    if os.environ.get(REWRITE):
        shutil.copyfile(path, STORED / name)
    return STORED / name


def rounded(tensor: torch.Tensor) -> list[float]:
    """Return the elements as numbers with seven significant digits, which keeps the stored files small."""
    return [float(f"{number:.7g}") for number in tensor.flatten().tolist()]


def repgraph(*arguments: object, code: int = 0) -> str:
    """Run ``repgraph ARGUMENTS`` in this process with one thread, check its exit code, and return what it printed."""
    printed, threads = io.StringIO(), torch.get_num_threads()
    torch.set_num_threads(1)  # how sums are split among threads decides their last bits
    with contextlib.redirect_stdout(printed):
        try:
            found = main([str(argument) for argument in arguments])
        except SystemExit as end:
            found = end.code
        finally:
            torch.set_num_threads(threads)
    assert (found or 0) == code
    return printed.getvalue()


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``repgraph ARGUMENTS`` in a process of its own, with one thread; it is killed at the end of the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "repgraph", *map(str, arguments)],
        env=environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 200) -> None:
    """Wait until a condition holds while the process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the process ended with exit code {process.returncode}"
        assert time.monotonic() < end, f"nothing happened for {seconds} s"
        time.sleep(0.005)


def metrics(run: Path) -> list[dict[str, str]]:
    """Return the rows of metrics.csv so far."""
    try:
        with open(run / "metrics.csv", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def assert_close(found: torch.Tensor, stored: Any, share: float = 1e-4) -> None:
    """Compare numbers, with a tolerance relative to the largest."""
    expected = torch.tensor(stored).reshape(found.shape)
    assert float((found - expected).abs().max()) <= share * float(expected.abs().max())


def assert_same_network(run: Path, other: Path) -> None:
    """Assert that the final networks of two runs are equal, bit for bit."""
    ours, theirs = (load_file(each / "model" / "model.safetensors") for each in (run, other))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
