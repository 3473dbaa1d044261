"""A training session: the data, the network, its optimizer, and the stream of batches."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from timm.layers import convert_sync_batchnorm
from timm.utils import ModelEmaV3
from torch.nn.modules.batchnorm import _BatchNorm

from repgraph.data.dataset import Cached
from repgraph.errors import UsageError
from repgraph.layers.modes import evaluation_mode
from repgraph.models import param_groups
from repgraph.models.backbone import fuse_norm_relu
from repgraph.models.hub import from_checkpoint
from repgraph.models.weights import fits
from repgraph.progress import format_duration
from repgraph.recipes import AnyRecipe, with_values
from repgraph.train import cuda_graphs, run_folder
from repgraph.train.devices import Devices
from repgraph.train.stream import Batch, Batches, load, num_workers
from repgraph.train.task import Task, make_task

SLOW = 3600  # seconds of training on a CPU above which a warning is printed


class Average(ModelEmaV3):
    """The moving average of a network's weights (``train.ema``), in ``module``.

    Batch-norm statistics are averaged like weights: copies would vary more, and would not match the averaged weights.
    """

    def get_decay(self, step: int) -> float:  # type: ignore[override]
        return min(self.decay, (1 + step) / (10 + step))


@dataclass
class Session:
    """The data, network and state of a session, prepared before anything is written."""

    recipe: AnyRecipe
    task: Task
    devices: Devices
    model: Any
    average: Average | None
    images: Any
    validation_images: Any
    identity: dict[str, str]
    checkpoint: dict[str, Any] | None
    graph: bool  # replay the network as a CUDA graph

    @property
    def start(self) -> int:
        return 0 if self.checkpoint is None else int(self.checkpoint["iteration"])

    @property
    def network(self) -> Any:
        """The network to validate and to save: the average if there is one."""
        return self.model if self.average is None else self.average.module


def prepare(recipe: AnyRecipe, where: Devices, checkpoint: dict[str, Any] | None = None) -> Session:
    """Open the data and build the network; nothing is written."""
    if recipe.data.root:
        recipe = with_values(recipe, {"data.root": os.path.abspath(os.path.expanduser(recipe.data.root))})
    task, train = make_task(recipe), recipe.train
    graph = cuda_graphs.use(train, where, task.fixed_size)
    if train.batch % (parts := where.world_size * train.accumulate):
        raise UsageError(f"train.batch is {train.batch}; expected a multiple of {parts} (devices x train.accumulate)")
    images, validation_images = task.splits()
    identity = run_folder.identity(training=images, testing=validation_images)
    if checkpoint is not None:
        run_folder.check_same_data(identity, checkpoint, recipe.data.root)
    if checkpoint is None:
        validated = model = task.network(images.labels)
    else:
        validated = model = from_checkpoint(checkpoint, None, "the checkpoint")
        if checkpoint.get("unaveraged"):
            model = from_checkpoint(checkpoint | {"state_dict": checkpoint["unaveraged"]}, None, "the checkpoint")
    average = Average(validated, train.ema) if train.ema else None
    if len(images) == 0:
        raise UsageError(f"{images} has no images to train on")
    if recipe.data.limit:
        images = task.subset(images, range(min(recipe.data.limit, len(images))))
    if recipe.data.cache:
        images = Cached(images)
    return Session(recipe, task, where, model, average, images, validation_images, identity, checkpoint, graph)


def set_up(fabric: Fabric, session: Session) -> tuple[Any, Any]:
    """Put the network into training mode on its device, and return it and its optimizer as Fabric wraps them."""
    train, model = session.recipe.train, session.model
    model.train()
    if train.norm == "frozen":
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
    if train.norm == "sync" and fabric.device.type == "cuda" and fabric.world_size > 1:
        convert_sync_batchnorm(model)
    for network in (model, session.network):
        network.to(fabric.device)
        if train.channels_last:
            network.to(memory_format=torch.channels_last)
    if session.graph:
        fuse_norm_relu(model)  # kernels that are slow to launch, and fast in a graph
    if train.compile:
        model.compile(dynamic=False)
    optimizer = make_optimizer(session.recipe, model, fabric.device)
    if session.checkpoint is not None:
        load_state(optimizer, session.checkpoint["optimizer_states"][0]["state"])
        fabric.strategy.precision.load_state_dict(session.checkpoint.get("scaler", {}))
    return fabric.setup(model, optimizer)


def make_optimizer(recipe: AnyRecipe, model: Any, device: torch.device) -> torch.optim.Optimizer:
    """Return SGD or AdamW with the recipe's learning rates for the backbone, new layers and offsets."""
    optim = recipe.optim
    groups = param_groups(
        model,
        optim.lr,
        new_lr=optim.lr * optim.head,
        offset_lr=optim.lr * optim.offset,
        no_decay=optim.no_decay,
        layer_decay=optim.layer_decay,
    )
    for group in groups:
        group["initial_lr"] = group["lr"]
    # PyTorch's fused step may corrupt the momentum when gradients overflow, as in the first iterations in fp16.
    fused = True if device.type == "cuda" and recipe.train.precision != "fp16" else None
    if optim.optimizer == "adamw":
        first, second = optim.betas
        return torch.optim.AdamW(groups, optim.lr, (first, second), weight_decay=optim.weight_decay, fused=fused)
    return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=fused)


def load_state(optimizer: torch.optim.Optimizer, states: dict[int, dict[str, Any]]) -> None:
    """Restore the moments in a checkpoint; learning rates and other options come from the recipe."""
    adam = isinstance(optimizer, torch.optim.AdamW)
    names: tuple[str, ...] = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",)
    if not adam and not optimizer.defaults["momentum"]:
        names = ()
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    for index, state in states.items():
        counted = not adam or fits(state.get("step"), torch.tensor(0.0))
        if not (counted and index in parameters and all(fits(state.get(name), parameters[index]) for name in names)):
            raise UsageError(f"the checkpoint has no momentum that fits parameter {index}; resume from another one")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def make_stream(session: Session) -> Any:
    """Return this process's batches from the session's first iteration to the last."""
    where, recipe = session.devices, session.recipe
    transform = session.task.transform(session.model)
    batches = Batches(session.images, session.task, transform, where.rank, where.world_size)
    workers = num_workers(recipe.data.workers, where.local_size)
    return load(batches, session.start, recipe.train.iterations, workers=workers, pin_memory=where.kind == "cuda")


def describe(session: Session) -> Iterator[str]:
    """Yield lines about the network, the data and the schedule."""
    recipe, where, validation = session.recipe, session.devices, session.validation_images
    size = sum(parameter.numel() for parameter in session.model.parameters())
    count = 0 if validation is None else min(len(validation), recipe.data.val_limit or len(validation))
    tested = f", {count} to validate on" if count else ""
    network = f"{recipe.model.backbone} with context {session.model.config['context']!r}"
    yield (
        f"{recipe.name}: {network}, {size / 1e6:.1f} M parameters; "
        f"{recipe.data.name}: {len(session.images)} images{tested}; {where.world_size} x {where.kind}; "
        f"iterations {session.start} to {recipe.train.iterations} of {recipe.train.batch} images"
    )
    yield from session.task.notes


def slow_warning(session: Session, fabric: Fabric, batch: Batch) -> str:
    """Return a warning if training on this CPU takes long, estimated from the forward pass of one image."""
    recipe, model = session.recipe, session.model
    inputs = session.task.inputs(model, batch.split(len(batch.images))[0])
    with evaluation_mode(model), fabric.autocast():
        model(*inputs)  # the first call compiles kernels
        begin = time.perf_counter()
        model(*inputs)
        forward = time.perf_counter() - begin
    images = (recipe.train.iterations - session.start) * recipe.train.batch / fabric.world_size
    seconds = 3 * forward * images  # a backward pass takes about twice as long as the forward pass
    if seconds <= SLOW:
        return ""
    return (
        f"warning: without a GPU, training will take about {format_duration(seconds)}; use fewer --iterations, "
        "a smaller --batch, or the recipe laptop-r50-pyramid (semantic segmentation of a few dozen photos)"
    )
