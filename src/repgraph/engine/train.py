"""Training: from a recipe to a run's folder with a network in it."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import lightning.pytorch as pl
import torch
from timm.layers import convert_sync_batchnorm

from repgraph.engine import tasks
from repgraph.engine.tasks.task import Where
from repgraph.engine.training import checkpoint as checkpoints
from repgraph.engine.training import folder as folders
from repgraph.engine.training import graphs, places
from repgraph.engine.training.cache import Cached
from repgraph.engine.training.callbacks import Overseer, Stop, columns
from repgraph.engine.training.loader import Batches, Pairs, Stream, loader, workers_for
from repgraph.engine.training.module import Best, Training
from repgraph.engine.training.places import Place
from repgraph.engine.training.progress import Display
from repgraph.engine.training.records import Records
from repgraph.errors import UsageError
from repgraph.recipes import AnyRecipe, load, with_settings
from repgraph.recipes.settings import R

NOT_FINITE = 3  # the exit code


@dataclass(frozen=True)
class Outcome:
    """How a run ended: after how many iterations, with the scores of the last test, and why, if it stopped early."""

    folder: Path
    iteration: int
    scores: Any  # repgraph.engine.metrics.Scores, or repgraph.engine.detection.DetectionScores; None for none
    best: Best
    stop: Stop | None
    first: bool = True  # whether this is the first of several processes, which speaks for all
    told: str = ""  # the last test, in a line

    @property
    def code(self) -> int:
        """The exit code: 0, 3 for numbers that are not finite, 130 and 143 for SIGINT and SIGTERM."""
        if self.stop is None:
            return 0
        return 128 + self.stop.signal if self.stop.signal else NOT_FINITE


def train(recipe: AnyRecipe, out: str | Path, *, show: TextIO | None = None) -> Outcome:
    """Train a network by a recipe; all that comes of it goes into the folder ``out``.

    Args:
        recipe: see :mod:`repgraph.recipes`.
        out: a folder that is empty or not there yet. It gets ``recipe.json``, ``versions.json`` (versions, seed,
            command), ``metrics.csv``, ``tensorboard/``, ``checkpoints/`` and at the end ``model/``, which
            ``from_pretrained`` of the network and :func:`repgraph.models.load` take.
        show: where progress goes, such as ``sys.stderr``; None for nowhere.
    """
    recipe = _rooted(recipe)
    folder, place = Path(out), places.find(recipe.train)
    if place.first:
        folders.check_free(folder)
    module, images, tests = prepare(recipe, place, None)
    if place.first:
        folders.create(folder, recipe)
    with folders.locked(folder, place.first):
        return _noted(module, folder, place, images, tests, show)


def resume(run: str | Path, settings: Sequence[str] = (), *, show: TextIO | None = None) -> Outcome:
    """Go on with a run that was stopped or killed, exactly where its last checkpoint is.

    Args:
        run: its folder, or one of its checkpoints.
        settings: such as ``data.root=/elsewhere``; only those that do not change what is learned.
        show: as for :func:`train`.
    """
    folder, path = folders.find(Path(run))
    recipe = load(folder / folders.RECIPE)
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name not in folders.FREE:
            raise UsageError(
                f"{name} cannot change when a run goes on: its recipe is in {folder / folders.RECIPE}; "
                f"what can is {', '.join(folders.FREE)}"
            )
    recipe = _rooted(with_settings(recipe, settings))
    place = places.find(recipe.train)
    with folders.locked(folder, place.first):
        found = None if path is None else checkpoints.read(path)
        if found is not None and path is not None:
            folders.check_same(recipe, found, path)
            if show is not None and place.first and (changed := folders.changed(found)):
                print(f"not quite as before, and so not bit for bit: {changed}", file=show, flush=True)
            if show is not None and place.first and int(found["iteration"]) >= recipe.train.iterations:
                print("this run had finished: nothing is left to train", file=show, flush=True)
        module, images, tests = prepare(recipe, place, found)
        if place.first:
            folders.note_session(folder, recipe, 0 if found is None else int(found["iteration"]))
            if path is not None and path.name != checkpoints.LAST:
                checkpoints.also_known_as(path, path.with_name(checkpoints.LAST))
        return _noted(module, folder, place, images, tests, show)


def prepare(recipe: AnyRecipe, place: Place, found: dict[str, Any] | None) -> tuple[Training, Pairs, Any]:
    """The network in training, the images to learn from, and those to test on, if any; before anything is written."""
    task = tasks.of(recipe)
    graphs.check(recipe.train, place, task.fixed)
    images, tests = task.splits()
    known = folders.identity(training=images, testing=tests)
    if found is not None:
        folders.check_same_data(known, found, recipe.data.root)
    module = Training(task.network(images.labels, found), task, known)
    if found is not None:
        module.restore(found)
    Batches(len(images), recipe.train.batch, 0, 0, 0, place.rank, place.world)  # can the devices share a batch?
    if (recipe.train.batch // place.world) % recipe.train.accumulate:
        raise UsageError(
            f"train.accumulate is {recipe.train.accumulate}, and each of {place.world} devices has "
            f"{recipe.train.batch // place.world} images of a batch; give a divisor of that"
        )
    if recipe.data.limit:
        count = min(recipe.data.limit, len(images))
        images = task.pick(images, range(count), f"the first {count}")
    return module, Cached(images, codec=task.codec) if recipe.data.cache else images, tests


def _rooted(recipe: R) -> R:
    """The recipe with the data where they are, wherever one is later."""
    if not recipe.data.root:
        return recipe
    return with_settings(recipe, [f"data.root={os.path.abspath(os.path.expanduser(recipe.data.root))}"])


def _noted(module: Training, folder: Path, place: Place, images: Pairs, tests: Any, show: TextIO | None) -> Outcome:
    """Train, and note in the run's folder how it ended."""
    reason = ""
    try:
        outcome = _fit(module, folder, place, images, tests, show)
        reason = outcome.stop.reason if outcome.stop else "finished"
        return outcome
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        if place.first:
            folders.note_end(folder, reason)


def _fit(module: Training, folder: Path, place: Place, images: Pairs, tests: Any, show: TextIO | None) -> Outcome:
    recipe, model, start = module.recipe, module.model, module.iteration
    display = Display(start, recipe.train.iterations, recipe.train.batch, show if place.first else None)
    io = checkpoints.AtomicIO()

    def test(iteration: int, progress: Any = None) -> tasks.Tested:
        return module.task.test(model, tests, Where(place.rank, place.world, iteration, folder), progress)

    records = Records(folder, columns(module.task, model), start)
    overseer = Overseer(folder / folders.CHECKPOINTS, io, records, display, None if tests is None else test)
    if start < recipe.train.iterations:
        for line in (_announced(module, place, images, tests), *module.task.remarks()):
            display.say(line)
        batches = stream(module, place, images)
        with places.settled(recipe.train, place), display, contextlib.closing(batches):
            fit(module, place, batches, overseer, io)
    tested = overseer.tested or tasks.Tested(None, "")
    outcome = Outcome(folder, module.iteration, tested.scores, module.best, overseer.stop, place.first, tested.told)
    if outcome.stop is None and place.first:
        model.save_pretrained(folder / folders.MODEL)
    return outcome


def _announced(module: Training, place: Place, images: Pairs, tests: Any) -> str:
    """What is about to begin, in a line."""
    recipe, size = module.recipe, sum(parameter.numel() for parameter in module.model.parameters())
    count = 0 if tests is None else min(len(tests), recipe.data.val_limit or len(tests))
    tested = f", {count} to test on" if count else ""
    return (
        f"{recipe.name}: {recipe.model.backbone} with context {recipe.model.context!r}, {size / 1e6:.1f} M parameters; "
        f"{recipe.data.name}: {len(images)} images{tested}; {place.world} x {place.kind}; "
        f"iterations {module.iteration} to {recipe.train.iterations} of {recipe.train.batch} images"
    )


def stream(module: Training, place: Place, images: Pairs) -> Stream:
    """This process's batches from the module's iteration on."""
    task, train, start = module.task, module.recipe.train, module.iteration
    share = (place.rank, place.world, task.choice(images))
    batches = Batches(len(images), train.batch, train.seed, start, train.iterations, *share)
    workers, pin = workers_for(module.recipe.data.workers, place.local), place.kind == "cuda"
    transform, remedy = task.transform(module.model), task.remedy
    source = loader(images, transform, batches, task.collate, workers=workers, pin=pin, remedy=remedy)
    return Stream(source, train.period, start, train.iterations)


def fit(module: Training, place: Place, batches: Any, overseer: Any, io: checkpoints.AtomicIO | None = None) -> None:
    """Let Lightning run the iterations that are left, a period as an epoch."""
    train = module.recipe.train
    module.train()
    if train.norm == "sync" and place.kind == "cuda" and place.world > 1:
        convert_sync_batchnorm(module.model)
    if train.channels_last:
        module.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if train.compile:
        module.model.compile(dynamic=False)
    trainer = pl.Trainer(
        **places.trainer_options(train, place, module.task.fixed),
        logger=getattr(overseer, "records", False),
        callbacks=[overseer],
        max_epochs=-(-train.iterations // train.period) - module.iteration // train.period,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        plugins=[io or checkpoints.AtomicIO(), places.environment(place)],
    )
    if place.world > 1:  # Lightning would wait for the GPU in each iteration to hear of a signal; ours does not
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    try:
        trainer.fit(module, train_dataloaders=batches)
    except SystemExit as exit_:  # what Lightning makes of an interrupt
        if isinstance(exit_.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
