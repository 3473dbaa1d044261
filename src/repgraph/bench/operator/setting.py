"""One point of a benchmark: sizes, dtype and device, and the random tensors that belong to it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from repgraph.bench.measure import require_memory
from repgraph.bench.setting import MapSetting
from repgraph.ops.geometry import cells, position_dtype


@dataclass(frozen=True)
class Setting(MapSetting):
    """What is computed: the operator's arguments apart from the data."""

    groups: int = 1
    grid: int = 1
    shared_kv: bool = False

    @property
    def bytes_made(self) -> int:
        """Main memory that making the inputs takes: the tensors that stay there, and the numbers as drawn."""
        feature = self.batch * self.channels * self.positions
        drawn = 2 * 4 * feature  # float32 numbers, and their multiple
        offsets = 4 * self.batch * 2 * self.nodes * cells(self.height, self.grid) * cells(self.width, self.grid)
        kept = (3 if self.shared_kv else 4) * feature * self.dtype.itemsize if self.device.type == "cpu" else 0
        return kept + max(drawn, 2 * offsets)


@dataclass(frozen=True)
class Inputs:
    """Random tensors of a setting; ``value`` is ``key`` where the two are shared."""

    query: Tensor
    key: Tensor
    value: Tensor
    offsets: Tensor
    cotangent: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value, self.offsets

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The tensors that get a gradient, each once."""
        return tuple({id(t): t for t in self.arguments}.values())

    def converted(self, dtype: torch.dtype) -> "Inputs":
        """The same numbers as fresh leaves of another dtype; a shared key and value stay shared."""
        key = _leaf(self.key.detach().to(dtype))
        value = key if self.value is self.key else _leaf(self.value.detach().to(dtype))
        query, offsets = _leaf(self.query.detach().to(dtype)), _leaf(self.offsets.detach().to(dtype))
        return Inputs(query, key, value, offsets, self.cotangent.to(dtype))


def make_inputs(setting: Setting) -> Inputs:
    """Normal features with logits of order one, normal offsets in float32, and a normal cotangent.

    >>> inputs = make_inputs(Setting(height=5, width=6, channels=8, grid=2, shared_kv=True))
    >>> inputs.key is inputs.value, tuple(inputs.offsets.shape)
    (True, (1, 18, 3, 3))

    Raises MemoryError before the system has to end somebody's process for it.
    """
    require_memory(setting.bytes_made, "the inputs")
    generator = torch.Generator().manual_seed(setting.seed)
    shape = (setting.batch, setting.channels, setting.height, setting.width)

    def feature(spread: float = 1.0) -> Tensor:
        values = torch.randn(shape, generator=generator) * spread
        layout = torch.channels_last if setting.channels_last else torch.contiguous_format
        return values.to(setting.device, setting.dtype).contiguous(memory_format=layout)

    query = _leaf(feature((setting.channels // setting.groups) ** -0.5))
    key = _leaf(feature())
    value = key if setting.shared_kv else _leaf(feature())
    rows, columns = cells(setting.height, setting.grid), cells(setting.width, setting.grid)
    offsets = torch.randn((setting.batch, 2 * setting.nodes, rows, columns), generator=generator) * setting.sigma
    return Inputs(query, key, value, _leaf(offsets.to(setting.device, position_dtype(setting.dtype))), feature())


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()
