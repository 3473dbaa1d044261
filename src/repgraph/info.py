"""``repgraph info``: what is installed, what it runs on, and which backends can run here.

Nothing here needs numba, triton or a GPU: what is missing is what the command is there to report.
"""

import argparse
import importlib
import json
import os
import platform
import warnings
from functools import cache
from importlib import metadata
from typing import Any

import torch

from repgraph.ops import backends

BACKENDS = tuple(name for name in backends.NAMES if name != "auto")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# What a backend imports when it first runs.
_IMPORTS = {"cpu": "numba", "triton": "triton"}
# Names under which Triton is distributed.
_TRITON = ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-windows")


def versions() -> dict[str, str | None]:
    """Versions by name; None for what is not there.

    >>> sorted(versions())
    ['cuda', 'cudnn', 'hip', 'numba', 'numpy', 'python', 'repgraph', 'torch', 'triton']
    """
    from repgraph import __version__

    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    return {
        "repgraph": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numba": _installed("numba"),
        "numpy": _installed("numpy"),
        "triton": _installed(*_TRITON),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "hip": torch.version.hip,
    }


def _installed(*names: str) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def device_name(device: torch.device) -> str:
    """What the device is sold as."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


@cache
def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def devices() -> list[dict[str, Any]]:
    """The CPU and every CUDA device: name, memory in bytes, compute capability, multiprocessors."""
    found: list[dict[str, Any]] = [
        {
            "device": "cpu",
            "name": _cpu_name(),
            "memory": _cpu_memory(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
    ]
    for index in range(torch.cuda.device_count() if _cuda_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "device": f"cuda:{index}",
                "name": properties.name,
                "memory": properties.total_memory,
                "capability": f"{properties.major}.{properties.minor}",
                "multiprocessors": properties.multi_processor_count,
            }
        )
    return found


def _cuda_available() -> bool:
    with warnings.catch_warnings():  # a driver that is too old warns; the table says that there is no device
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def _cpu_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def why_not(backend: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """As :func:`repgraph.ops.backends.why_not`; it also tries to import what the backend needs."""
    reason = backends.why_not(backend, device, dtype)
    if reason is None and backend in _IMPORTS:
        reason = _import_error(_IMPORTS[backend])
    return reason


@cache
def _import_error(module: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:
        return f"{module} is installed but importing it fails: {type(error).__name__}: {error}"
    return None


def gather() -> dict[str, Any]:
    """Everything the command shows, as plain data."""
    found = devices()
    places = [torch.device(entry["device"]) for entry in found]
    if len(places) == 1:
        places.append(torch.device("cuda"))  # to say why there is none
    table = []
    for device in places:
        for backend in BACKENDS:
            if device.type == "cuda" and (backend == "cpu" or (backend == "reference" and len(found) == 1)):
                continue
            for dtype in DTYPES:
                reason = why_not(backend, device, dtype)
                entry: dict[str, Any] = {
                    "device": str(device),
                    "backend": backend,
                    "dtype": str(dtype).removeprefix("torch."),
                }
                table.append(entry | {"runs": reason is None, "reason": reason})
    return {
        "versions": versions(),
        "platform": platform.platform(),
        "triton_interpreter": backends.interpreting(),
        "devices": found,
        "backends": table,
    }


def render(facts: dict[str, Any]) -> str:
    """The facts of :func:`gather` as text."""
    lines = [f"{name:<10} {version or 'not installed'}" for name, version in facts["versions"].items()]
    lines = [line for line in lines if not line.startswith(("hip ", "cudnn ")) or "not installed" not in line]
    lines += [f"{'platform':<10} {facts['platform']}", "", "devices"]
    for entry in facts["devices"]:
        extra = [
            f"{key} {entry[key]}" for key in ("capability", "multiprocessors", "cores", "threads") if entry.get(key)
        ]
        if entry.get("memory"):
            extra.insert(0, f"{entry['memory'] / 2**30:.1f} GiB")
        lines.append(f"  {entry['device']:<8} {entry['name']} ({', '.join(extra)})")
    if len(facts["devices"]) == 1:
        lines.append("  cuda     none that this PyTorch can use")
    lines += ["", "backends"]
    for device in dict.fromkeys(entry["device"] for entry in facts["backends"]):
        for backend in BACKENDS:
            rows = [e for e in facts["backends"] if e["device"] == device and e["backend"] == backend]
            lines += _backend_lines(device, backend, rows)
    if facts["triton_interpreter"]:
        lines += ["", "TRITON_INTERPRET is set: Triton kernels are interpreted, for tests and not for speed"]
    return "\n".join(lines)


def _backend_lines(device: str, backend: str, rows: list[dict[str, Any]]) -> list[str]:
    """One line for the dtypes that run, and one for each reason why others do not."""
    reasons = dict.fromkeys(row["reason"] for row in rows)
    lines = []
    for reason in sorted(reasons, key=lambda reason: reason is not None):
        names = ", ".join(row["dtype"] for row in rows if row["reason"] == reason)
        verdict = f"yes  {names}" if reason is None else f"no   {names}: {reason}"
        lines.append(f"  {device:<8} {backend:<10} {verdict}")
    return lines


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, for scripts")


def run(arguments: argparse.Namespace) -> int:
    facts = gather()
    print(json.dumps(facts, indent=2) if arguments.json else render(facts))
    return 0
