"""The exponential moving average of a network's weights (``train.ema``)."""

import torch
from torch import Tensor, nn


class Average:
    """A moving average of the weights of a network in training, in a second network.

    After iteration t (from 0), the average is ``d * average + (1 - d) * value`` with ``d = min(decay, (1 + t) /
    (10 + t))``. Batch-norm statistics are averaged like weights: copies would vary more, and would not match the
    averaged weights. Integer buffers are copied.

    Args:
        network: initial value of the average: a copy of the network, or the average in a checkpoint.
        decay: the final decay.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network = network.eval().requires_grad_(False)
        self.decay = decay
        self._numbers: tuple[list[Tensor], list[Tensor]] = [], []  # averages, and values of the model
        self._integers: list[tuple[Tensor, Tensor]] = []

    @torch.no_grad()
    def update(self, model: nn.Module, iteration: int) -> None:
        """Add the weights of a model; after the first call, neither it nor the average may change its device."""
        if not self._numbers[0]:
            self._find_tensors(model)
        share = 1 - min(self.decay, (1 + iteration) / (10 + iteration))
        torch._foreach_lerp_(*self._numbers, share)
        for average, value in self._integers:
            average.copy_(value)

    def _find_tensors(self, model: nn.Module) -> None:
        averages = self.network.state_dict()
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                self._numbers[0].append(averages[name])
                self._numbers[1].append(value)
            else:
                self._integers.append((averages[name], value))
