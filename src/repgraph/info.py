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
from typing import Any

import torch

from repgraph.ops import backends

BACKENDS = ("reference", *backends.KERNELS)
DTYPES = ("float64", "float32", "bfloat16", "float16")
_TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-windows")


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
        "triton": installed(*_TRITON),
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


def devices() -> list[dict[str, Any]]:
    """Return the CPU and every CUDA device: name, memory in bytes, compute capability, multiprocessors."""
    cpu: dict[str, Any] = dict(device="cpu", name=device_name(torch.device("cpu")), cores=os.cpu_count())
    cpu["threads"] = torch.get_num_threads()
    if hasattr(os, "sysconf"):
        cpu["memory"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = [cpu]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        gpu = torch.cuda.get_device_properties(index)
        entry = dict(device=f"cuda:{index}", name=gpu.name, memory=gpu.total_memory)
        found.append(entry | dict(capability=f"{gpu.major}.{gpu.minor}", multiprocessors=gpu.multi_processor_count))
    return found


def gather() -> dict[str, Any]:
    """Return everything that ``repgraph info`` shows, as plain data."""
    with warnings.catch_warnings():  # from an old driver, or from imports in why_not
        warnings.simplefilter("ignore")
        found, table = devices(), []
        for device, backend, dtype in itertools.product([entry["device"] for entry in found], BACKENDS, DTYPES):
            reason = backends.why_not(backend, torch.device(device), getattr(torch, dtype))
            table.append(dict(device=device, backend=backend, dtype=dtype, runs=reason is None, reason=reason))
    return {"versions": versions(), "platform": platform.platform(), "devices": found, "backends": table}


def render(facts: dict[str, Any]) -> str:
    lines = [f"{name:<10} {version or 'not installed'}" for name, version in facts["versions"].items()]
    lines += [f"{'platform':<10} {facts['platform']}", "", "devices"]
    for entry in facts["devices"]:
        details = [f"{entry['memory'] / 2**30:.1f} GiB"] if "memory" in entry else []
        details += [f"{key} {value}" for key, value in entry.items() if key not in ("device", "name", "memory")]
        lines.append(f"  {entry['device']:<8} {entry['name']} ({', '.join(details)})")
    if len(facts["devices"]) == 1:
        lines.append("  cuda     none that this PyTorch can use")
    lines += ["", "backends"]
    verdicts: dict[tuple[str, str, str | None], list[str]] = {}  # dtypes by device, backend and reason
    for row in facts["backends"]:
        verdicts.setdefault((row["device"], row["backend"], row["reason"]), []).append(row["dtype"])
    for (device, backend, reason), dtypes in verdicts.items():
        verdict = f"no   {', '.join(dtypes)}: {reason}" if reason else f"yes  {', '.join(dtypes)}"
        lines.append(f"  {device:<8} {backend:<10} {verdict}")
    return "\n".join(lines)
