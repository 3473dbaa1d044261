"""A training session: the data, the network, its optimizer, and the stream of batches."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from timm.layers import convert_sync_batchnorm
from torch.nn.modules.batchnorm import _BatchNorm

from repgraph.data.dataset import Cached
from repgraph.errors import UsageError
from repgraph.recipes import AnyRecipe
from repgraph.train import cuda_graphs, run_folder
from repgraph.train.devices import Devices
from repgraph.train.ema import Average
from repgraph.train.optimizer import load_state, make_optimizer
from repgraph.train.stream import Augmented, BatchSampler, batches, num_workers
from repgraph.train.task import Task, make_task


@dataclass
class Session:
    """The data, network and state of a session, prepared before anything is written."""

    recipe: AnyRecipe
    task: Task
    devices: Devices
    model: Any
    average: Average | None  # of the model's weights, with train.ema
    images: Any
    validation_images: Any
    identity: dict[str, Any]
    checkpoint: dict[str, Any] | None

    @property
    def start(self) -> int:
        return 0 if self.checkpoint is None else int(self.checkpoint["iteration"])

    @property
    def network(self) -> Any:
        """The network to validate and to save: the average if there is one."""
        return self.model if self.average is None else self.average.network


def prepare(recipe: AnyRecipe, where: Devices, checkpoint: dict[str, Any] | None) -> Session:
    """Open the data and build the network; nothing is written."""
    task, train = make_task(recipe), recipe.train
    cuda_graphs.check(train, where, task.fixed_size)
    if train.batch % where.world_size:
        raise UsageError(f"train.batch is {train.batch}; expected a multiple of the {where.world_size} devices")
    if (train.batch // where.world_size) % train.accumulate:
        raise UsageError(
            f"train.accumulate is {train.accumulate}; expected a divisor of the {train.batch // where.world_size} "
            "images of each device"
        )
    images, validation_images = task.splits()
    identity = run_folder.identity(training=images, testing=validation_images)
    if checkpoint is not None:
        run_folder.check_same_data(identity, checkpoint, recipe.data.root)
    model, average = task.network(images.labels, checkpoint), None
    if train.ema:
        start = copy.deepcopy(model) if checkpoint is None else task.trained_network(checkpoint)
        average = Average(start, train.ema)
    if len(images) == 0:
        raise UsageError(f"{images} has no images to train on")
    if recipe.data.limit:
        images = task.subset(images, range(min(recipe.data.limit, len(images))))
    if recipe.data.cache:
        images = Cached(images)
    return Session(recipe, task, where, model, average, images, validation_images, identity, checkpoint)


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
    if train.compile:
        model.compile(dynamic=False)
    optimizer = make_optimizer(session.recipe, model, fabric.device)
    if session.checkpoint is not None:
        load_state(optimizer, session.checkpoint["optimizer_states"][0]["state"])
        fabric.strategy.precision.load_state_dict(session.checkpoint.get("scaler", {}))
    return fabric.setup(model, optimizer)


def make_stream(session: Session) -> Any:
    """Return this process's batches from the session's first iteration to the last."""
    task, where, recipe = session.task, session.devices, session.recipe
    data = Augmented(session.images, task.transform(session.model), recipe.train.seed, task.image_hint)
    indices = task.batch_indices(session.images)
    sampler = BatchSampler(indices, session.start, recipe.train.iterations, where.rank, where.world_size)
    workers = num_workers(recipe.data.workers, where.local_size)
    return batches(data, sampler, task.collate, workers=workers, pin_memory=where.kind == "cuda")


def describe(session: Session) -> str:
    recipe, where, validation = session.recipe, session.devices, session.validation_images
    size = sum(parameter.numel() for parameter in session.model.parameters())
    count = 0 if validation is None else min(len(validation), recipe.data.val_limit or len(validation))
    tested = f", {count} to validate on" if count else ""
    network = f"{recipe.model.backbone} with context {session.model.config['context']!r}"
    return (
        f"{recipe.name}: {network}, {size / 1e6:.1f} M parameters; "
        f"{recipe.data.name}: {len(session.images)} images{tested}; {where.world_size} x {where.kind}; "
        f"iterations {session.start} to {recipe.train.iterations} of {recipe.train.batch} images"
    )
