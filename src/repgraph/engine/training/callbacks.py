"""What is done between iterations: look, note, test, save, and stop when it has to be."""

import math
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch

from repgraph.engine.inference.network import NotFinite
from repgraph.engine.tasks import Task, Tested
from repgraph.engine.training.checkpoint import BEST, LAST, AtomicIO, SaveError, also_known_as
from repgraph.engine.training.module import Best, Report, Training
from repgraph.engine.training.progress import Clock, Display
from repgraph.engine.training.records import Records
from repgraph.layers import reach
from repgraph.layers.repgraph import RepGraph

LOWEST_SCALE = 2.0**-10  # of fp16's gradients: below it, nothing has come through for a long time


@dataclass
class Stop:
    """Why training ended before its last iteration: a signal, or (0) numbers that are not finite."""

    signal: int
    reason: str


def columns(task: Task, model: torch.nn.Module) -> list[str]:
    """What is noted in the course of a run."""
    found = [*task.losses, "rate", "images_per_second", "peak_memory_mib"]
    for path, layer in model.named_modules():
        if isinstance(layer, RepGraph):
            found += [f"reach_{kind}/{path}" for kind in ("mean", "p95")]
    return [*found, *(f"val_{name}" for name in task.scores)]


class Overseer(pl.Callback):
    """Looks every ``log_every`` iterations; at the end of a period tests the network and writes a checkpoint.

    Between two looks nothing waits for the device. No checkpoint is written once a loss or a test was not
    finite.
    """

    def __init__(
        self, folder: Path, io: AtomicIO, records: Records, display: Display, test: Callable[..., Tested] | None
    ) -> None:
        self.folder, self.io, self.records, self.display, self.test = folder, io, records, display, test
        self.stop: Stop | None = None
        self.tested: Tested | None = None
        self._clock = Clock()
        self._received = 0
        self._leaving = False
        self._looked = 0  # up to which iteration losses are known to be finite
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, Training)
        self._looked = module.iteration
        self.records.open()
        self._module = module
        if threading.current_thread() is threading.main_thread():  # others cannot hear signals
            for number in (signal.SIGINT, signal.SIGTERM):  # in place of Lightning's, which stop in mid-iteration
                self._previous[number] = signal.signal(number, self._asked)
        self._clock.read()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._release()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    def _release(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self._received == number == signal.SIGINT:  # (launchers pass a SIGTERM on that a process has had already)
            self._release()
            raise KeyboardInterrupt
        self._received = number
        self._module.stop_asked = True
        name = signal.Signals(number).name
        self.display.say(f"{name}: stopping after this iteration, and the test if one is due (Ctrl-C twice: at once)")

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, Training)
        train, now = module.recipe.train, module.iteration
        self.display.advance(now)
        noting = now % train.log_every == 0 or now == train.iterations
        alone = trainer.world_size == 1 and module.stop_asked
        if not (noting or alone or now % train.period == 0):
            return
        report = module.report(reset=noting)
        if report.bad is not None:
            self._halt(trainer, f"the loss of iteration {report.bad + 1} is not finite")
        elif _scale(trainer) < LOWEST_SCALE:
            self._halt(trainer, f"gradients overflow fp16 whatever their scale, now {_scale(trainer):g}")
        else:
            if noting:
                self._note(trainer, module, report, batch)
            self._looked = now
            if report.stop:
                self._interrupted(trainer, module)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """The end of a period."""
        assert isinstance(module, Training)
        train, now = module.recipe.train, module.iteration
        if self.stop is not None:
            return
        if not module.weights_are_finite():
            self._halt(trainer, f"the weights are not finite after iteration {now}")
            return
        if not module.had_labels():
            self.display.say(f"warning: up to iteration {now}, {module.task.unlearned} with repgraph data check")
        self._clock.pause()
        last, often = now == train.iterations, train.validate_every * train.period
        tested = None
        if self.test is not None and (last or (often and now % often == 0)):
            try:
                tested = self.tested = self._test(module, self.test)
            except NotFinite:
                self._halt(trainer, f"the logits in the test after iteration {now} are not finite")
                return
        self.records.save()
        self.save(trainer, module, tested)
        self._clock.resume()
        if self._leaving and not last:
            self._leave(trainer, now)

    def _note(self, trainer: pl.Trainer, module: Training, report: Report, batch: Any) -> None:
        seconds = self._clock.read()
        if not trainer.is_global_zero:
            return
        recipe = module.recipe
        row = {
            **report.losses,
            "rate": recipe.optim.lr * recipe.rate(module.iteration - 1),
            "images_per_second": report.iterations * recipe.train.batch / seconds,
            "peak_memory_mib": peak_memory(module.device) / 2**20,
            **reaches(module, batch),
        }
        self.records.log_metrics(row, module.iteration)
        if module.iteration % recipe.train.period and module.iteration != recipe.train.iterations:
            self.records.save()  # at the end of a period the scores go into the same row
        self.display.report(module.iteration, report, seconds)

    def _test(self, module: Training, test: Callable[..., Tested]) -> Tested:
        module.share_statistics()
        tested = test(module.iteration, progress=self.display.testing)
        noted = {f"val_{name}": value for name, value in tested.noted.items()}
        self.records.log_metrics(noted, module.iteration)
        self.display.say(f"{module.iteration}/{module.recipe.train.iterations}  {tested.told}")
        return tested

    def save(self, trainer: pl.Trainer, module: Training, tested: Tested | None = None) -> None:
        """A checkpoint, which is also the best one if the network has never scored as well."""
        score = None if tested is None else tested.best
        best = score is not None and score > module.best.score
        if score is not None and best:
            module.best = Best(score, module.iteration)
        path = self.folder / LAST
        trainer.save_checkpoint(path)
        error = trainer.strategy.broadcast(self.io.error)
        if error:
            raise SaveError(error)
        if best and trainer.is_global_zero:
            try:
                also_known_as(path, self.folder / BEST)
            except OSError as problem:
                raise SaveError(f"cannot write {self.folder / BEST}: {problem.strerror or problem}") from problem

    def _halt(self, trainer: pl.Trainer, reason: str) -> None:
        path = self.folder / LAST
        good = f"the last good checkpoint is {path}" if path.exists() else "there was no checkpoint before"
        self.stop = Stop(0, f"{reason} (up to iteration {self._looked} losses were); {good}")
        trainer.should_stop = True

    def _interrupted(self, trainer: pl.Trainer, module: Training) -> None:
        train, now = module.recipe.train, module.iteration
        if now % train.period == 0 or now == train.iterations:
            self._leaving = True  # the end of the period comes next, and saves
        elif not module.weights_are_finite():
            self._halt(trainer, f"the weights are not finite after iteration {now}")
        else:
            self.records.save()
            self.save(trainer, module)
            self._leave(trainer, now)

    def _leave(self, trainer: pl.Trainer, iteration: int) -> None:
        number = int(trainer.strategy.broadcast(self._received)) or int(signal.SIGTERM)
        self.stop = Stop(number, f"stopped by {signal.Signals(number).name} after iteration {iteration}")
        trainer.should_stop = True


def reaches(module: Training, batch: Any) -> dict[str, float]:
    """How far nodes reach, for each layer."""
    if not any(isinstance(layer, RepGraph) for layer in module.model.modules()):
        return {}
    found = reach(module.model, *module.task.probe(module.model, batch))
    return {f"reach_{kind}/{path}": getattr(each, kind) for path, each in found.items() for kind in ("mean", "p95")}


def peak_memory(device: torch.device) -> float:
    """Bytes: of the GPU's memory, or of this process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _scale(trainer: pl.Trainer) -> float:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())
