"""Training, from the first iteration to the last. :mod:`repgraph.train.session` builds what is trained.

Batch, augmentation and dropout of an iteration depend only on the seed and its number. So a run that was stopped or
killed resumes exactly, on the CPU bit for bit.
"""

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any, TextIO

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor

from repgraph import distributed, files
from repgraph.constants import CHECKPOINTS, LAST, MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.inference import NotFinite
from repgraph.progress import Progress, format_duration
from repgraph.recipes import AnyRecipe, from_dict, load, to_json, with_settings, with_values
from repgraph.train import checkpoint as checkpoints
from repgraph.train import cuda_graphs, devices, run_folder
from repgraph.train.metrics import MetricsLog, columns, current
from repgraph.train.session import Session, describe, make_stream, prepare, set_up
from repgraph.train.signals import stop_signals
from repgraph.train.stream import seed_from
from repgraph.train.task import Validation, explained_errors

NOT_FINITE = 3  # exit code
SLOW = 2 * 3600  # seconds of training on a CPU above which a warning is printed
FASTER = "use fewer --iterations, a smaller --batch, or the recipe laptop-r50-pyramid"
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
            ``metrics.csv``, ``tensorboard/``, ``checkpoints/``, and ``model/`` for :func:`repgraph.models.load`.
        show: Where to show progress, such as ``sys.stderr``.
    """
    folder, where = Path(out), devices.find(recipe.train)
    if where.is_first:
        run_folder.check_free(folder)
    session = prepare(recipe, where)
    if where.is_first:
        files.write(folder / RECIPE, to_json(session.recipe))
    with run_folder.locked(folder) if where.is_first else contextlib.nullcontext():
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
    stored = load(folder / RECIPE)
    recipe = with_settings(stored, settings)
    where, total = devices.find(recipe.train), recipe.train.iterations
    with run_folder.locked(folder) if where.is_first else contextlib.nullcontext():
        _, path = run_folder.find(Path(run))  # once more: a process that held the lock may have saved a checkpoint
        checkpoint = None if path is None else checkpoints.read(path)
        before = stored if checkpoint is None else from_dict(checkpoint["recipe"], str(path))
        run_folder.check_same_recipe(recipe, before, path or folder / RECIPE)
        session = prepare(recipe, where, checkpoint)
        if total < session.start:
            raise UsageError(f"train.iterations is {total}; expected at least {session.start}, which are already done")
        if where.is_first:
            if show and checkpoint:
                for line in run_folder.changes(stored, session.recipe, checkpoint):
                    print(line, file=show, flush=True)
            if total != stored.train.iterations:
                files.write(folder / RECIPE, to_json(with_values(stored, {"train.iterations": total})))
            if path is not None and path.name != LAST:
                checkpoints.link(path, path.with_name(LAST))
        return _fit(session, folder, show)


def _fit(session: Session, folder: Path, show: TextIO | None) -> Outcome:
    """Train from the session's first iteration to the last, or until a stop signal or a problem."""
    task, where, model = session.task, session.devices, session.model
    train, start, last = session.recipe.train, session.start, session.recipe.train.iterations
    stored = session.checkpoint or {}
    best = {task.best: -1.0, "iteration": 0, **stored.get("best", {})}
    validation: Validation | None = None
    stop: Stop | None = None
    now = start
    show = show if where.is_first else None

    with contextlib.ExitStack() as stack:
        if where.is_first:
            end = stack.enter_context(run_folder.recorded_session(folder, session.recipe, start))
        if start >= last:  # all iterations are done, but the model may not be written
            _write_model(session, folder)
            return Outcome(folder, start, None, best, None, where.is_first)
        stack.enter_context(devices.backend_settings(train, where, task.fixed_size))
        fabric = devices.make_fabric(train, where)
        fabric.launch()
        progress = stack.enter_context(Progress("training", last, show, unit="iterations", start=start))
        for line in [describe(session), *task.notes] if show else ():
            progress.print(line)
        again = f"resume with: repgraph train --resume {folder}"
        watched = devices.watched_processes(fabric, lambda reason: progress.print(f"repgraph train: {reason}; {again}"))
        stack.enter_context(watched)
        wrapped, optimizer = set_up(fabric, session)
        # The number of iterations and their losses since the last log, on the device: reading them synchronizes.
        sums = torch.zeros(1 + len(task.losses), dtype=torch.float64, device=fabric.device)
        if stored and where.is_first:
            sums += stored["sums"].to(fabric.device)  # the sum over all processes; the others start at 0
        last_finite = torch.tensor(float(start), device=fabric.device, dtype=sums.dtype)  # last finite iteration
        if where.is_first:
            log = stack.enter_context(contextlib.closing(MetricsLog(folder, columns(task, model), start)))
        stream = stack.enter_context(contextlib.closing(make_stream(session)))
        hint = "stopping after this iteration; press Ctrl-C again to stop at once"
        signals = stack.enter_context(stop_signals(lambda name: progress.print(f"{name}: {hint}") if show else None))
        progress.update(start, line=True)
        timed_from, begin = start, time.perf_counter()

        for batch in stream:
            batch = fabric.to_device(batch)
            sums[1:] += step(fabric, session, wrapped, optimizer, batch)
            sums[0] += where.is_first
            now = batch.iteration + 1
            last_finite = torch.where(sums.isfinite().all(), now, last_finite)
            progress.update(now, line=now == start + 1)
            if show and now == start + 1 and where.kind == "cpu":
                seconds = (last - now) * (time.perf_counter() - begin)
                if seconds > SLOW:
                    progress.print(f"warning: without a GPU, training takes about {format_duration(seconds)}; {FASTER}")
            log_now = now % train.log_every == 0 or now == last
            period_ends = now % train.period == 0 or now == last
            if not (log_now or period_ends or (where.world_size == 1 and signals)):  # several stop at the next log
                continue

            iterations, *losses = distributed.all_reduce(sums.clone()).tolist()
            means = {name: each / iterations for name, each in zip(task.losses, losses, strict=True)}
            if log_now:
                sums.zero_()
            received = int(distributed.all_reduce(torch.tensor(max(signals, default=0)), dist.ReduceOp.MAX))
            save = period_ends or received > 0
            problem, values = _problem(fabric, model, means, check_weights=save), {}
            loss = means[task.losses[0]]
            if log_now and not problem:
                speed = (now - timed_from) * train.batch / max(time.perf_counter() - begin, 1e-9)
                timed_from, begin = now, time.perf_counter()
                values = {**means, "images_per_second": speed, **current(session, fabric.device, batch)}
                left = progress.remaining(now)
                progress.update(now, f"{now}/{last}  loss {loss:.4f}  {speed:.3g} images/s  {left} left", line=True)
            if period_ends and not problem:
                if loss == 0 and where.is_first:
                    progress.print("warning: the loss is 0; run repgraph data check to see whether pixels are labeled")
                every = train.validate_every * train.period
                if session.validation_images is not None and (now == last or (every and now % every == 0)):
                    try:
                        validation = _validate(session, folder, now, progress)
                        values |= {f"val_{name}": value for name, value in validation.metrics.items()}
                    except NotFinite:
                        problem = "the network's outputs are not finite in validation"
            if where.is_first and values:
                log.log(now, values)
            if problem:
                path = folder / CHECKPOINTS / LAST
                good = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint"
                first = min(now, int(distributed.all_reduce(last_finite, dist.ReduceOp.MIN)) + 1)
                tries = ["a lower optim.lr", "optim.clip=1", *["train.precision=fp32"] * (train.precision != "fp32")]
                stop = Stop(0, f"{problem} after iteration {first}; {good}; try {' or '.join(tries)}")
                break
            if save:
                if validation is not None and validation.metrics[task.best] > best[task.best]:
                    best |= {task.best: validation.metrics[task.best], "iteration": now}
                checkpoints.save(session, fabric, optimizer, folder, now, best, distributed.all_reduce(sums.clone()))
                timed_from, begin = now, time.perf_counter()
            if received and now < last:
                stop = Stop(received, f"stopped by {Signals(received).name} after iteration {now}")
                break

        cuda_graphs.discard(model)
        if stop is None:
            _write_model(session, folder)
        elif where.is_first:
            end.reason = stop.reason
    return Outcome(folder, now, validation, best, stop, where.is_first)


def step(fabric: Fabric, session: Session, model: Any, optimizer: Any, batch: Any) -> Tensor:
    """Do one iteration over all devices, with a model and optimizer of :func:`set_up`, and return its losses."""
    recipe, task, parts = session.recipe, session.task, session.recipe.train.accumulate
    torch.manual_seed(seed_from(recipe.train.seed, "step", batch.iteration, fabric.global_rank))
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * recipe.rate(batch.iteration)
    amount = task.amount(batch)
    logged = torch.zeros(len(task.losses), dtype=torch.float64, device=fabric.device)
    with explained_errors():
        for number, part in enumerate(batch.split(parts), 1):
            if session.graph:
                with fabric.autocast():
                    cuda_graphs.record(model.module, *task.inputs(model.module, part))
            with fabric.no_backward_sync(model, enabled=number < parts):
                loss, each = task.loss(model, part, amount, parts * fabric.world_size)
                fabric.backward(loss * fabric.world_size)  # gradients are averaged over the devices
            logged += torch.stack(each).detach()
        if recipe.optim.clip:
            fabric.clip_gradients(model, optimizer, max_norm=recipe.optim.clip, error_if_nonfinite=False)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if session.average is not None:
        session.average.update(model.module, batch.iteration)
    return logged


def _problem(fabric: Fabric, model: torch.nn.Module, losses: Mapping[str, float], *, check_weights: bool) -> str:
    """Return why training cannot continue, or an empty string. All processes have to call it."""
    if not all(map(math.isfinite, losses.values())):
        return "the loss is not finite"
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    if scaler is not None and scaler.get_scale() < MIN_LOSS_SCALE:
        return f"gradients overflow fp16 at any loss scale (now {scaler.get_scale():g})"
    if check_weights:
        tensors = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
        finite = torch.stack([tensor.isfinite().all() for tensor in tensors]).all()
        if distributed.all_reduce((~finite).double()) > 0:
            return "the weights are not finite"
    return ""


def _validate(session: Session, folder: Path, now: int, progress: Progress) -> Validation:
    network = session.network
    if session.devices.world_size > 1:
        for buffer in network.buffers():  # batch-norm statistics of the first process
            torch.distributed.broadcast(buffer, 0)

    def show(done: int, total: int) -> None:
        progress.update(now, f"validating {done}/{total} images")

    validation = session.task.validate(network, session.validation_images, show)
    if session.devices.is_first:
        content = {"iteration": now, **validation.scores.to_dict()}
        files.write(folder / run_folder.SCORES, json.dumps(content, indent=2) + "\n")
    if progress.out is not None:
        progress.update(now, "")  # the bar shows the time left again
        progress.print(f"{now}/{progress.total}  {validation.summary}")
    return validation


def _write_model(session: Session, folder: Path) -> None:
    if session.devices.is_first:
        session.network.cpu().save_pretrained(folder / MODEL)
