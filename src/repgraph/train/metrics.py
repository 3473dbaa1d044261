"""The metrics of a run: ``metrics.csv``, and events for TensorBoard."""

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from repgraph.errors import UsageError
from repgraph.files import check_regular, check_writable, explained, replacing
from repgraph.layers import reach
from repgraph.layers.node_reach import NODE_LAYERS
from repgraph.train.session import Session
from repgraph.train.stream import Batch
from repgraph.train.task import Task

METRICS, EVENTS = "metrics.csv", "tensorboard"


def columns(task: Task, model: nn.Module) -> list[str]:
    """Return the names of the values that are logged."""
    layers = [path for path, layer in model.named_modules() if isinstance(layer, NODE_LAYERS)]
    reaches = [f"reach_{kind}/{path}" for path in layers for kind in ("mean", "p95")]
    return [*task.losses, "rate", "images_per_second", "peak_memory_mib", *reaches, *(f"val_{n}" for n in task.scores)]


def current(session: Session, device: torch.device, batch: Batch) -> dict[str, float]:
    """Return the learning rate, the peak memory, and the reach of the nodes in the iteration of ``batch``."""
    recipe, task, model = session.recipe, session.task, session.model
    found = {"rate": recipe.optim.lr * recipe.rate(batch.iteration), "peak_memory_mib": _peak_memory(device) / 2**20}
    if session.devices.is_first and any(isinstance(layer, NODE_LAYERS) for layer in model.modules()):
        # Compiled code does not record offsets: run the network on one image.
        inputs = task.inputs(model, batch.split(len(batch.images))[0]) if recipe.train.compile else ()
        for path, each in reach(model, *inputs).items():
            found |= {f"reach_{kind}/{path}": getattr(each, kind) for kind in ("mean", "p95")}
    return found


def _peak_memory(device: torch.device) -> float:
    """Return the peak memory in bytes: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class MetricsLog:
    """``metrics.csv`` and TensorBoard events; a run that is resumed after ``start`` drops later rows, and appends."""

    def __init__(self, folder: Path, columns: Sequence[str], start: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path, header = folder / METRICS, ["iteration", *columns]
        check_writable(folder / EVENTS / "events")  # TensorBoard would fail in a thread of its own
        with explained(self._path):
            rows = _read_rows(self._path, header, start)
            with replacing(self._path) as part, part.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([header, *rows])
            self._file = self._path.open("a", newline="", encoding="utf-8")
            self._rows = csv.DictWriter(self._file, header)
            self._events = SummaryWriter(str(folder / EVENTS), purge_step=start + 1 if start else None)

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Append a row of values by column."""
        with explained(self._path):
            self._rows.writerow({"iteration": iteration, **{name: f"{value:.6g}" for name, value in values.items()}})
            self._file.flush()
            os.fsync(self._file.fileno())
            for name, value in values.items():
                self._events.add_scalar(name, value, iteration)
            self._events.flush()

    def close(self) -> None:
        self._file.close()
        self._events.close()


def _read_rows(path: Path, header: list[str], stop: int) -> list[list[str]]:
    """Return the complete rows up to iteration ``stop``; a last line that was cut short is dropped."""
    if not path.exists() or not stop:
        return []
    check_regular(path)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    found, *rows = [line.split(",") for line in lines]
    if found != header:
        raise UsageError(f"{path} has different columns from this run: {lines[0]:.200}; move the file away to resume")
    return [row for row in rows if len(row) == len(header) and row[0].isdecimal() and float(row[0]) <= stop]
