"""A training session: the data, the network, its optimizer, and the stream of batches."""

import os
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from timm.layers import convert_sync_batchnorm
from timm.utils import ModelEmaV3
from torch.nn.modules.batchnorm import _BatchNorm

from repgraph.data.dataset import Cached
from repgraph.errors import UsageError
from repgraph.models import param_groups
from repgraph.models.backbone import fuse_norm_relu
from repgraph.models.hub import from_checkpoint
from repgraph.models.weights import fits
from repgraph.recipes import AnyRecipe, Recipe, with_values
from repgraph.train import cuda_graphs, run_folder
from repgraph.train.detection import Detection
from repgraph.train.devices import Devices
from repgraph.train.segmentation import Segmentation
from repgraph.train.stream import Batches, load, num_workers
from repgraph.train.task import Task, with_items


class Average(ModelEmaV3):
    """The moving average of a network's weights and batch-norm statistics (``train.ema``), in ``module``."""

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


def make_task(recipe: AnyRecipe) -> Task:
    return Segmentation(recipe) if isinstance(recipe, Recipe) else Detection(recipe)


def prepare(recipe: AnyRecipe, where: Devices, checkpoint: dict[str, Any] | None = None) -> Session:
    """Open the data and build the network; nothing is written."""
    if recipe.data.root:
        recipe = with_values(recipe, {"data.root": os.path.abspath(os.path.expanduser(recipe.data.root))})
    task, train = make_task(recipe), recipe.train
    graph = cuda_graphs.use(train, where, task.fixed_size)
    if train.compile and not task.fixed_size:
        raise UsageError("train.compile needs images of one size, and in detection sizes vary; leave it out")
    if train.batch % (parts := where.world_size * train.accumulate):
        raise UsageError(f"train.batch is {train.batch}; expected a multiple of {parts} (devices x train.accumulate)")
    images, validation_images = task.splits()
    if len(images) == 0:
        raise UsageError(f"{images} has no images to train on")
    identity = run_folder.identity(training=images, testing=validation_images)
    if checkpoint is None:
        validated = model = task.network(images.labels)
    else:
        run_folder.check_same_data(identity, checkpoint, recipe.data.root)
        validated = model = from_checkpoint(checkpoint, None, "the checkpoint")
        if checkpoint["unaveraged"]:
            model = from_checkpoint(checkpoint | {"state_dict": checkpoint["unaveraged"]}, None, "the checkpoint")
    average = Average(validated, train.ema) if train.ema else None
    if recipe.data.limit:
        images = with_items(images, images.items[: recipe.data.limit])
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
        fabric.strategy.precision.load_state_dict(session.checkpoint["scaler"])
    return fabric.setup(model, optimizer)


def make_optimizer(recipe: AnyRecipe, model: Any, device: torch.device) -> torch.optim.Optimizer:
    """Return SGD or AdamW with the recipe's learning rates for the backbone, new layers and offsets."""
    optim = recipe.optim
    new, offset, decay = optim.lr * optim.head, optim.lr * optim.offset, optim.layer_decay
    groups = param_groups(model, optim.lr, new_lr=new, offset_lr=offset, no_decay=optim.no_decay, layer_decay=decay)
    for group in groups:
        group["initial_lr"] = group["lr"]
    # PyTorch's fused step may corrupt the momentum when gradients overflow, as in the first iterations in fp16.
    fused = True if device.type == "cuda" and recipe.train.precision != "fp16" else None
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(groups, optim.lr, optim.betas, weight_decay=optim.weight_decay, fused=fused)
    return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=fused)


def load_state(optimizer: torch.optim.Optimizer, states: dict[int, dict[str, Any]]) -> None:
    """Restore the moments in a checkpoint; learning rates and other options come from the recipe."""
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    for index, state in states.items():
        moments = [value for name, value in state.items() if name != "step"]
        if index not in parameters or not all(fits(moment, parameters[index]) for moment in moments):
            raise UsageError(f"the checkpoint has no momentum that fits parameter {index}; resume from another one")
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def make_stream(session: Session) -> Any:
    """Return this process's batches from the session's first iteration to the last."""
    where, recipe = session.devices, session.recipe
    transform = session.task.transform(session.model)
    batches = Batches(session.images, session.task, transform, where.rank, where.world_size)
    workers = num_workers(recipe.data.workers, where.local_size)
    return load(batches, session.start, recipe.train.iterations, workers=workers, pin_memory=where.kind == "cuda")


def describe(session: Session) -> str:
    """Return a line about the network, the data and the schedule."""
    recipe, where, validation = session.recipe, session.devices, session.validation_images
    size = sum(parameter.numel() for parameter in session.model.parameters())
    count = 0 if validation is None else min(len(validation), recipe.data.val_limit or len(validation))
    return (
        f"{recipe.name}: {recipe.model.backbone} with context {session.model.config['context']!r}, "
        f"{size / 1e6:.1f} M parameters; {recipe.data.name}: {len(session.images)} training and {count} validation "
        f"images; {where.world_size} x {where.kind}; "
        f"iterations {session.start} to {recipe.train.iterations}, batch size {recipe.train.batch}"
    )
