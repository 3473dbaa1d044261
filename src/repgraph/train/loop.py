"""Training: from a recipe to a run's folder with a trained network in it.

The whole control flow is in this file. :mod:`repgraph.train.session` builds what is trained, and ``Task.loss`` calls
the network.

Batch, augmentation and dropout of an iteration depend only on the seed and its number. So a run that was stopped or
killed resumes exactly, on the CPU bit for bit.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning_fabric import Fabric

from repgraph import distributed, files
from repgraph.constants import CHECKPOINTS, LAST, MODEL, RECIPE
from repgraph.errors import UsageError, out_of_memory
from repgraph.inference import NotFinite
from repgraph.layers import reach
from repgraph.layers.modes import evaluation_mode
from repgraph.layers.node_reach import NODE_LAYERS
from repgraph.progress import Clock, Progress, format_duration
from repgraph.recipes import RESUMABLE, AnyRecipe, load, to_json, with_settings, with_values
from repgraph.train import checkpoint as checkpoints
from repgraph.train import cuda_graphs, devices, run_folder
from repgraph.train.ema import Average
from repgraph.train.metrics import LossReport, MetricsLog, RunningLoss
from repgraph.train.session import Session, describe, make_stream, prepare, set_up
from repgraph.train.signals import StopSignals
from repgraph.train.stream import seed_from
from repgraph.train.task import Task, Validation

NOT_FINITE = 3  # exit code
SLOW = 3600  # seconds of training on a CPU above which a warning is printed
SMALL = "laptop-r50-pyramid"  # a recipe for computers without a GPU
MIN_LOSS_SCALE = 2.0**-10  # in fp16: reached when gradients have overflowed many times in a row


@dataclass(frozen=True)
class Stop:
    """Why training ended early: a signal, or (0) numbers that are not finite."""

    signal: int
    reason: str


@dataclass(frozen=True)
class Outcome:
    """The result of a session."""

    folder: Path
    iteration: int  # iterations done
    validation: Validation | None  # the last one
    best: dict[str, Any]  # the best score and its iteration
    stop: Stop | None  # why it ended early
    is_first: bool = True  # the first of several processes prints for all

    @property
    def exit_code(self) -> int:
        """0, 3 for numbers that are not finite, 130 and 143 for SIGINT and SIGTERM."""
        if self.stop is None:
            return 0
        return 128 + self.stop.signal if self.stop.signal else NOT_FINITE


def train(recipe: AnyRecipe, out: str | Path, *, show: TextIO | None = None) -> Outcome:
    """Train a network.

    Args:
        recipe: See :mod:`repgraph.recipes`.
        out: The run's folder, empty or new. It gets ``recipe.json``, ``versions.json`` (versions, seed, command),
            ``metrics.csv``, ``tensorboard/``, ``checkpoints/`` and at the end ``model/``, for ``from_pretrained`` and
            :func:`repgraph.models.load`.
        show: Where to show progress, such as ``sys.stderr``.
    """
    recipe, folder = _with_absolute_root(recipe), Path(out)
    where = devices.find(recipe.train)
    if where.is_first:
        run_folder.check_free(folder)
    session = prepare(recipe, where, None)
    if where.is_first:
        run_folder.create(folder, recipe)
    with _locked(folder, where):
        return _fit(session, folder, show)


def resume(run: str | Path, settings: Sequence[str] = (), *, show: TextIO | None = None) -> Outcome:
    """Resume a run that was stopped or killed, exactly from its last checkpoint.

    Args:
        run: Its folder, or one of its checkpoints.
        settings: Such as ``data.root=/elsewhere``; only those in :data:`repgraph.recipes.RESUMABLE`, and
            ``train.iterations``, which stretches the learning rate schedule and continues a finished run.
        show: Where to show progress.
    """
    folder, _ = run_folder.find(Path(run))
    for name in (setting.partition("=")[0].strip() for setting in settings):
        if name not in (*RESUMABLE, "train.iterations"):
            raise UsageError(
                f"{name} cannot change when a run is resumed: its recipe is {folder / RECIPE}; "
                f"only train.iterations, {', '.join(RESUMABLE)} can"
            )
    stored = load(folder / RECIPE)
    recipe = _with_absolute_root(with_settings(stored, settings))
    where = devices.find(recipe.train)
    with _locked(folder, where):
        _, path = run_folder.find(Path(run))
        checkpoint = None if path is None else checkpoints.read(path)
        if checkpoint is not None and path is not None:
            run_folder.check_same_recipe(recipe, checkpoint, path)
            total, done = recipe.train.iterations, int(checkpoint["iteration"])
            if total < done:
                raise UsageError(f"train.iterations is {total}, but {done} iterations are done; give a larger number")
            if show is not None and where.is_first:
                for line in _changes(stored, recipe, checkpoint):
                    print(line, file=show, flush=True)
        session = prepare(recipe, where, checkpoint)
        if where.is_first:
            if stored.train.iterations != recipe.train.iterations:
                stored = with_values(stored, {"train.iterations": recipe.train.iterations})
                files.write(folder / RECIPE, to_json(stored))
            run_folder.record_session(folder, recipe, session.start)
            if path is not None and path.name != LAST:
                checkpoints.link(path, path.with_name(LAST))
        return _fit(session, folder, show)


def _changes(stored: AnyRecipe, recipe: AnyRecipe, checkpoint: dict[str, Any]) -> Iterator[str]:
    """Describe the differences from the session that wrote a checkpoint."""
    done, before, total = int(checkpoint["iteration"]), stored.train.iterations, recipe.train.iterations
    if changed := run_folder.changed_versions(checkpoint):
        yield f"the environment changed ({changed}): resume will not be bit-exact"
    if total != before and total > done:
        rate = recipe.optim.lr * recipe.rate(done)
        yield f"{total} iterations instead of {before}: the schedule is stretched; the learning rate is now {rate:.3g}"
    if total == done:
        yield f"this run has finished; to continue it, give --iterations N, more than {total}"


def _fit(session: Session, folder: Path, show: TextIO | None) -> Outcome:
    """Train from the session's first iteration to the last, or until a stop signal or a problem."""
    recipe, task, where, model = session.recipe, session.task, session.devices, session.model
    train, last, start = recipe.train, recipe.train.iterations, session.start
    validation: Validation | None = None
    best = {task.best: -1.0, "iteration": 0, **(session.checkpoint["best"] if session.checkpoint else {})}
    stop: Stop | None = None
    now = finite_until = timed_until = start
    show = show if where.is_first else None
    log_folder = folder if where.is_first else None

    with contextlib.ExitStack() as stack:
        if where.is_first:
            stack.enter_context(_recorded_end(folder, lambda: stop))
        if start >= last:  # all iterations are done, but the model may not be written
            _write_model(session, folder)
            return Outcome(folder, start, None, best, None, where.is_first)
        fabric = devices.make_fabric(train, where)
        stack.enter_context(devices.backend_settings(train, where, task.fixed_size))
        fabric.launch()
        progress = stack.enter_context(Progress("training", last, show, unit="iterations", start=start))
        for line in (describe(session), *task.notes) if show else ():
            progress.print(line)
        stack.enter_context(
            devices.watched_processes(fabric, where, lambda reason: _report_lost_process(reason, folder, progress))
        )
        wrapped, optimizer = set_up(fabric, session)
        sums = session.checkpoint["sums"] if session.checkpoint else None
        losses = RunningLoss(task.losses, fabric.device, sums, where.rank)
        log = stack.enter_context(contextlib.closing(MetricsLog(log_folder, columns(task, model), start)))
        stream = stack.enter_context(contextlib.closing(make_stream(session)))
        stopping = "stopping after this iteration (Ctrl-C again: at once)"
        signals = stack.enter_context(StopSignals(lambda name: progress.print(f"{name}: {stopping}") if show else None))
        progress.update(start, line=True)
        clock = Clock()

        for batch in stream:
            batch = fabric.to_device(batch)
            if now == start and show and where.kind == "cpu":
                _warn_if_slow(session, fabric, batch, progress)
            step(fabric, task, wrapped, optimizer, batch, losses, session.average)
            now = batch.iteration + 1
            progress.update(now, line=now == start + 1)
            log_now = now % train.log_every == 0 or now == last
            period_ends = now % train.period == 0 or now == last
            if not (log_now or period_ends or (where.world_size == 1 and signals.received)):
                continue  # does not synchronize with the device

            report = losses.report(bool(signals.received), reset=log_now)
            problem = _problem(fabric, model, report, now, check_weights=period_ends or report.stop)
            if report.not_finite is None:
                finite_until = now
            if problem:
                stop = Stop(0, _explain(problem, finite_until, folder))
                break
            if log_now:
                speed = (now - timed_until) * train.batch / max(clock.lap(), 1e-9)
                timed_until = now
                log.log(now, _metrics(session, fabric.device, batch, report, now, speed))
                loss, left = report.losses[task.losses[0]], progress.remaining(now)
                note = f"{now}/{last}  loss {loss:.4f}  {speed:.3g} images/s  {left} left"
                progress.update(now, note, line=True)

            if period_ends:
                if not losses.had_labels() and where.is_first:
                    progress.print(f"warning: up to iteration {now}, {task.no_labels} with repgraph data check")
                every = train.validate_every * train.period
                if session.validation_images is not None and (now == last or (every and now % every == 0)):
                    with clock.paused():
                        try:
                            validation = _validate(session, folder, now, progress)
                        except NotFinite:
                            stop = Stop(0, _explain(f"the validation after iteration {now} is not finite", now, folder))
                            break
                    log.log(now, {f"val_{name}": value for name, value in validation.metrics.items()})
            log.flush()

            if period_ends or report.stop:
                score = -1.0 if validation is None else validation.metrics[task.best]
                is_best = period_ends and score > best[task.best]
                if is_best:
                    best |= {task.best: score, "iteration": now}
                with clock.paused():
                    _save(session, fabric, folder, optimizer, losses, now, best, is_best)
            if report.stop and now < last:
                number = int(fabric.broadcast(signals.received)) or int(signal.SIGTERM)
                stop = Stop(number, f"stopped by {signal.Signals(number).name} after iteration {now}")
                break

        cuda_graphs.discard(model)
        if stop is None:
            _write_model(session, folder)
    return Outcome(folder, now, validation, best, stop, where.is_first)


def step(
    fabric: Fabric,
    task: Task,
    model: Any,
    optimizer: Any,
    batch: Any,
    losses: RunningLoss | None = None,
    average: Average | None = None,
) -> None:
    """Do one iteration over all devices, with a model and optimizer of :func:`set_up`; add its losses to ``losses``."""
    recipe, parts = task.recipe, task.recipe.train.accumulate
    torch.manual_seed(seed_from(recipe.train.seed, "step", batch.iteration, fabric.global_rank))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * recipe.rate(batch.iteration)
    amount = task.amount(batch)
    logged = torch.zeros(len(task.losses), dtype=torch.float64, device=fabric.device)
    with _explain_errors(task):
        for number, part in enumerate(task.split_batch(batch, parts), 1):
            if recipe.train.graph:
                with fabric.autocast():
                    cuda_graphs.record(model.module, *task.inputs(model.module, part))
            synchronized = parts == 1 or number == parts
            with contextlib.nullcontext() if synchronized else fabric.no_backward_sync(model):
                loss, each = task.loss(model, part, amount, parts * fabric.world_size)
                fabric.backward(loss * fabric.world_size)  # gradients are averaged over the devices
            logged += torch.stack(each).detach()
        if recipe.optim.clip:
            fabric.clip_gradients(model, optimizer, max_norm=recipe.optim.clip, error_if_nonfinite=False)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if average is not None:
        average.update(model.module, batch.iteration)
    if losses is not None:
        losses.add(batch.iteration, logged, amount)


def _warn_if_slow(session: Session, fabric: Fabric, batch: Any, progress: Progress) -> None:
    """Estimate the time of training on a CPU from the forward pass of one image, and warn if it is long."""
    task, model, train = session.task, session.model, session.recipe.train
    inputs = task.inputs(model, task.split_batch(batch, len(batch.images))[0])
    with evaluation_mode(model), fabric.autocast():
        model(*inputs)  # the first call compiles kernels
        begin = time.perf_counter()
        model(*inputs)
    # A backward pass takes about twice as long as the forward pass.
    images = (train.iterations - session.start) * train.batch / fabric.world_size
    seconds = 3 * images * (time.perf_counter() - begin)
    if seconds > SLOW:
        advise = task.fixed_size and session.recipe.name != SMALL
        advice = f"; the recipe {SMALL} is for a few dozen photos without a GPU" if advise else ""
        progress.print(
            f"warning: there is no GPU; on this CPU, {train.iterations} iterations of {train.batch} images will take "
            f"about {format_duration(seconds)}; use fewer --iterations, a smaller --batch or backbone{advice}"
        )


def columns(task: Task, model: torch.nn.Module) -> list[str]:
    """Return the names of the values that are logged."""
    layers = [path for path, layer in model.named_modules() if isinstance(layer, NODE_LAYERS)]
    reaches = [f"reach_{kind}/{path}" for path in layers for kind in ("mean", "p95")]
    return [*task.losses, "rate", "images_per_second", "peak_memory_mib", *reaches, *(f"val_{n}" for n in task.scores)]


def _metrics(
    session: Session, device: torch.device, batch: Any, report: LossReport, now: int, speed: float
) -> dict[str, float]:
    recipe, model = session.recipe, session.model
    found = {
        **report.losses,
        "rate": recipe.optim.lr * recipe.rate(now - 1),
        "images_per_second": speed,
        "peak_memory_mib": _peak_memory(device) / 2**20,
    }
    if session.devices.is_first and any(isinstance(layer, NODE_LAYERS) for layer in model.modules()):
        inputs: tuple[Any, ...] = ()
        if recipe.train.compile:  # compiled code does not record offsets: run the network on one image
            inputs = session.task.inputs(model, session.task.split_batch(batch, len(batch.images))[0])
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


def _problem(fabric: Fabric, model: torch.nn.Module, report: LossReport, now: int, *, check_weights: bool) -> str:
    """Return why training cannot continue, or an empty string. All processes have to call it."""
    if report.not_finite is not None:
        return f"the loss of iteration {report.not_finite + 1} is not finite"
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and scaler.get_scale() < MIN_LOSS_SCALE:
        return f"gradients overflow fp16 at any loss scale (now {scaler.get_scale():g}) after iteration {now}"
    if check_weights:
        tensors = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
        with torch.no_grad():
            finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
        if distributed.all_reduce((~finite).double()) > 0:
            return f"the weights are not finite after iteration {now}"
    return ""


def _explain(reason: str, finite_until: int, folder: Path) -> str:
    """Add to the reason of a stop how far losses were finite, and the last checkpoint."""
    path = folder / CHECKPOINTS / LAST
    good = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint"
    return f"{reason} (losses were finite up to iteration {finite_until}); {good}"


def _report_lost_process(reason: str, folder: Path, progress: Progress) -> None:
    """Report and record that another process died."""
    path = folder / CHECKPOINTS / LAST
    advice = f"resume with: repgraph train --resume {folder}" if path.exists() else "there is no checkpoint"
    progress.print(f"repgraph train: {reason}; {advice}")
    run_folder.record_end(folder, reason)


def _validate(session: Session, folder: Path, now: int, progress: Progress) -> Validation:
    where, network = session.devices, session.network
    if where.world_size > 1:
        for buffer in network.buffers():  # batch-norm statistics of the first process
            torch.distributed.broadcast(buffer, 0)
    last = session.recipe.train.iterations
    validation = session.task.validate(
        network,
        session.validation_images,
        progress=lambda done, total: progress.update(now, f"validating {int(done)}/{total} images"),
    )
    if where.is_first:
        content = {"iteration": now, **validation.scores.to_dict()}
        files.write(folder / run_folder.SCORES, json.dumps(content, indent=2) + "\n")
    if progress.out is not None:
        progress.update(now, "")  # the bar shows the time left again
        progress.print(f"{now}/{last}  {validation.summary}")
    return validation


def _save(
    session: Session,
    fabric: Fabric,
    folder: Path,
    optimizer: Any,
    losses: RunningLoss,
    now: int,
    best: dict[str, Any],
    is_best: bool,
) -> None:
    """Write a checkpoint; if that fails, it fails in every process."""
    sums, error = losses.total(), ""
    if session.devices.is_first:
        scaler = fabric.strategy.precision.state_dict()
        content = checkpoints.content(session, optimizer.optimizer, scaler, now, best, sums)
        try:
            checkpoints.write(folder / CHECKPOINTS, content, best=is_best)
        except UsageError as problem:
            error = str(problem)
    if error := fabric.broadcast(error):
        raise UsageError(error)


def _write_model(session: Session, folder: Path) -> None:
    if session.devices.is_first:
        session.network.cpu().save_pretrained(folder / MODEL)


def _with_absolute_root(recipe: AnyRecipe) -> AnyRecipe:
    if not recipe.data.root:
        return recipe
    return with_values(recipe, {"data.root": os.path.abspath(os.path.expanduser(recipe.data.root))})


def _locked(folder: Path, where: devices.Devices) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a run's folder; the first of several processes holds it for all."""
    return run_folder.locked(folder) if where.is_first else contextlib.nullcontext()


@contextlib.contextmanager
def _recorded_end(folder: Path, stop: Callable[[], Stop | None]) -> Iterator[None]:
    """Record in the run's folder how the session ended."""
    reason = "finished"
    try:
        yield
        if ended_early := stop():
            reason = ended_early.reason
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        run_folder.record_end(folder, reason)


@contextlib.contextmanager
def _explain_errors(task: Task) -> Iterator[None]:
    """Raise a UsageError with a remedy if a batch is too large for memory, or too small for batch norm."""
    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        train = task.recipe.train
        given = f"train.batch={train.batch}, train.accumulate={train.accumulate}, {task.image_size}"
        if out_of_memory(error):
            hint = f"use fewer images, a larger train.accumulate, or {task.batch_hint}"
            raise UsageError(f"out of memory with {given}; {hint}") from error
        if "more than 1 value per channel" in str(error):
            raise UsageError(
                f"batch norm needs more than one value per channel, and {given} leaves one; use more images, a larger "
                "crop, or train.norm=frozen"
            ) from error
        raise
