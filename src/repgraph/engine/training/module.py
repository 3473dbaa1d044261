"""One iteration of training, as a LightningModule."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from repgraph.engine.tasks import Task
from repgraph.engine.together import several, summed
from repgraph.engine.training import graphs
from repgraph.engine.training.chance import seed_of
from repgraph.engine.training.folder import versions
from repgraph.errors import UsageError, out_of_memory
from repgraph.models import param_groups
from repgraph.recipes import to_dict

NEVER = 2**53  # an iteration that does not come; exact as float64


@dataclass
class Report:
    """What happened since the last look, over all devices; losses, by name, are means over ``iterations``."""

    iterations: int
    losses: dict[str, float]
    bad: int | None  # the first iteration whose loss was not finite
    stop: bool  # whether any process was asked to stop

    @property
    def loss(self) -> float:
        """The first of them, which stands for all."""
        return next(iter(self.losses.values()))


@dataclass
class Best:
    """The best score on the validation images so far, whichever the task compares, and after which iteration it was."""

    score: float = -1.0
    iteration: int = 0


class Training(pl.LightningModule):
    """A network in training: loss, gradients, a step; its state is ``iteration`` and what the optimiser holds.

    What the losses are is the task's business. Nothing is read back from the device in an iteration: losses are summed
    there until :meth:`report` looks.
    """

    def __init__(self, model: Any, task: Task, data: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.task = task
        self.recipe = task.recipe
        self.data = data or {}  # what tells them from others
        self.iteration = 0  # iterations done
        self.best = Best()
        self.stop_asked = False
        self._restored: dict[str, Any] | None = None
        self._sums = torch.zeros(1 + len(task.losses), dtype=torch.float64)  # iterations, losses
        self._learned = torch.zeros((), dtype=torch.float64)  # how much there was to learn from
        self._bad = torch.full((), float(NEVER), dtype=torch.float64)
        task.bind(model)

    def train(self, mode: bool = True) -> "Training":
        super().train(mode)
        if self.recipe.train.norm == "frozen":
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optim = self.recipe.optim
        groups = param_groups(
            self.model,
            optim.lr,
            new_lr=optim.lr * optim.head,
            offset_lr=optim.lr * optim.offset,
            no_decay=optim.no_decay,
        )
        for group in groups:
            group["initial_lr"] = group["lr"]
        # PyTorch's fused step may spoil the momentum where gradients overflow, as fp16's do in the beginning.
        fused = True if self.device.type == "cuda" and self.recipe.train.precision != "fp16" else None
        return torch.optim.SGD(groups, optim.lr, optim.momentum, weight_decay=optim.weight_decay, fused=fused)

    def on_fit_start(self) -> None:
        self._sums, self._bad = self._sums.to(self.device), self._bad.to(self.device)
        self._learned = self._learned.to(self.device)
        self.task.to(self.device)
        if self._restored is not None:
            optimiser = self.trainer.optimizers[0]
            fused = optimiser.param_groups[0]["fused"]
            optimiser.load_state_dict(self._restored["optimizer_states"][0])
            for group in optimiser.param_groups:
                group["fused"] = fused  # as this precision and device want it, not as the last ones did
            scaler = self._restored.get(type(self.trainer.precision_plugin).__qualname__)
            if scaler is not None:
                self.trainer.precision_plugin.load_state_dict(scaler)
            if self.global_rank > 0:  # the first process has the sums of all
                self._sums[1:] = 0
            self._restored = None

    def on_fit_end(self) -> None:
        graphs.forget(self.model)  # Lightning takes the network off the device now

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if batch.iteration != self.iteration:
            raise RuntimeError(f"batch of iteration {batch.iteration} in iteration {self.iteration}")
        recipe, world = self.recipe, self.trainer.world_size
        torch.manual_seed(seed_of(recipe.train.seed, "step", self.iteration, self.global_rank))
        optimiser = self.optimizers()
        assert isinstance(optimiser, torch.optim.Optimizer)
        for group in optimiser.param_groups:
            group["lr"] = group["initial_lr"] * recipe.rate(self.iteration)
        amount, parts = self.task.amount(batch), recipe.train.accumulate
        losses = torch.zeros(len(self.task.losses), dtype=torch.float64, device=self.device)
        for number, part in enumerate(self.task.parts(batch, parts), 1):
            with explained(self.task), nullcontext() if number == parts else self._unsynchronised():
                if recipe.train.graph:
                    graphs.record(self.model, *self.task.inputs(self.model, part))
                whole, shares = self.task.loss(self.model, part, amount, parts * world)
                with torch.autocast(self.device.type, enabled=False):
                    self.manual_backward(whole * world)  # what comes out is the mean over all devices
                losses += torch.stack(shares).detach()
        with explained(self.task), torch.autocast(self.device.type, enabled=False):
            self._clip(optimiser)
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        self._note(losses)
        self._learned += amount
        self.iteration += 1

    def _clip(self, optimiser: torch.optim.Optimizer) -> None:
        """Shorten gradients that are too long; those of fp16 are multiplied by the loss scale here."""
        if not self.recipe.optim.clip:
            return
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else scaler.get_scale()
        given = [parameter for group in optimiser.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(given, self.recipe.optim.clip * scale)

    def _note(self, losses: Tensor) -> None:
        self._sums[0] += 1
        self._sums[1:] += losses
        self._bad = torch.where(losses.isfinite().all(), self._bad, self._bad.clamp(max=float(self.iteration)))

    def report(self, reset: bool = True) -> Report:
        """What happened since the last report with ``reset``. All processes have to ask, after the same iteration."""
        sums = summed(self._sums.clone())
        least = torch.stack((self._bad, self._bad.new_full((), -float(self.stop_asked))))
        if several():
            dist.all_reduce(least, dist.ReduceOp.MIN)
        _, *losses = sums.tolist()
        count = int(self._sums[0])
        bad, asked = least.tolist()
        if reset:
            self._sums.zero_()
        means = {name: loss / max(count, 1) for name, loss in zip(self.task.losses, losses, strict=True)}
        return Report(count, means, None if bad == NEVER else int(bad), asked < 0)

    def had_labels(self) -> bool:
        """Whether there was anything to learn from in any process since this was last asked; all have to ask."""
        found = bool(summed(self._learned.clone()) > 0)
        self._learned.zero_()
        return found

    def share_statistics(self) -> None:
        """All processes take the first one's running statistics; those of other images are nobody's."""
        if several():
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    @torch.no_grad()
    def weights_are_finite(self) -> bool:
        """Whether parameters and running statistics are all finite: an iteration may spoil them without a bad loss."""
        tensors = [t for t in self.model.state_dict().values() if t.is_floating_point()]
        return bool(torch.stack([t.isfinite().all() for t in tensors]).all())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in ("loops", "callbacks", "lr_schedulers", "epoch", "global_step"):
            checkpoint.pop(name, None)  # Lightning's own counts: ours is the iteration
        checkpoint |= {"iteration": self.iteration, "seed": self.recipe.train.seed, "versions": versions()}
        checkpoint["recipe"] = to_dict(self.recipe)
        checkpoint["best"] = {self.task.best: self.best.score, "iteration": self.best.iteration}
        checkpoint["sums"] = torch.cat((self._sums[:1], summed(self._sums[1:].clone()))).cpu()
        checkpoint["config"] = self.model.config
        checkpoint["data"] = self.data

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go on from a checkpoint; the optimiser's part of it is taken when there is an optimiser."""
        self.load_state_dict(checkpoint["state_dict"])
        self.iteration = int(checkpoint["iteration"])
        self.best = Best(checkpoint["best"][self.task.best], checkpoint["best"]["iteration"])
        self._sums = checkpoint["sums"].clone()
        self._restored = checkpoint

    def _unsynchronised(self) -> AbstractContextManager[Any]:
        """Gradients stay on this device until the last part."""
        block = getattr(self.trainer.strategy, "block_backward_sync", None)
        return nullcontext() if block is None else block()


@contextmanager
def explained(task: Task) -> Iterator[None]:
    """Say what to change where a batch is too large for the memory, or too small for batch normalisation."""
    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        train = task.recipe.train
        given = f"train.batch={train.batch}, train.accumulate={train.accumulate}, {task.size}"
        if out_of_memory(error):
            raise UsageError(f"out of memory with {given}; give fewer images, more parts or {task.smaller}") from error
        if "more than 1 value per channel" in str(error):
            raise UsageError(
                f"batch normalisation cannot learn from a single value, which is all that is left of {given}; "
                "give more images or a larger crop, or train.norm=frozen"
            ) from error
        raise
