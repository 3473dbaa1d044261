"""Installed versions, devices, and the backends that can run here. Needs no numba, Triton or GPU."""

import contextlib
import itertools
import os
import platform
import shlex
import sys
import warnings
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from repgraph.ops import backends

BACKENDS = ("reference", *backends.KERNELS)
DTYPES = ("float64", "float32", "bfloat16", "float16")


def versions() -> dict[str, str | None]:
    """Return versions by package; None if it is not installed."""
    from repgraph import __version__

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    return {
        "repgraph": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numba": installed("numba"),
        "numpy": installed("numpy"),
        "triton": installed("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-windows"),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "hip": torch.version.hip,
    }


def installed(*names: str) -> str | None:
    """Return the version of the first of these packages that is installed, or None."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def command_line() -> str:
    """Return the command line of this process; ``python -m repgraph`` is shown as ``repgraph``."""
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name
    return shlex.join([name, *sys.argv[1:]]).encode(errors="replace").decode()


@cache
def device_name(device: torch.device) -> str:
    """Return the product name of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def devices() -> dict[str, str]:
    """Return the name and properties of the CPU and of every CUDA device."""
    properties = f"cores {os.cpu_count()}, threads {torch.get_num_threads()}"
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        properties = f"{memory / 2**30:.1f} GiB, {properties}"
    found = {"cpu": f"{device_name(torch.device('cpu'))} ({properties})"}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(index)
        about = f"{gpu.total_memory / 2**30:.1f} GiB, capability {gpu.major}.{gpu.minor}"
        found[f"cuda:{index}"] = f"{gpu.name} ({about}, multiprocessors {gpu.multi_processor_count})"
    return found


def describe() -> str:
    """Return what ``repgraph info`` prints."""
    lines = [f"{name:<10} {version or 'not installed'}" for name, version in versions().items()]
    with warnings.catch_warnings():  # from an old driver, or from imports in why_not
        warnings.simplefilter("ignore")
        found = devices()
        lines += [f"{'platform':<10} {platform.platform()}", "", "devices"]
        lines += [f"  {device:<8} {about}" for device, about in found.items()]
        if len(found) == 1:
            lines.append("  cuda     none that this PyTorch can use")
        lines += ["", "backends"]
        for device, backend in itertools.product(found, BACKENDS):
            verdicts: dict[str | None, list[str]] = {}  # dtypes by the reason why they cannot run
            for dtype in DTYPES:
                reason = backends.why_not(backend, torch.device(device), getattr(torch, dtype))
                verdicts.setdefault(reason, []).append(dtype)
            for reason, dtypes in verdicts.items():
                verdict = f"no   {', '.join(dtypes)}: {reason}" if reason else f"yes  {', '.join(dtypes)}"
                lines.append(f"  {device:<8} {backend:<10} {verdict}")
    return "\n".join(lines)
