"""One point of the layer benchmark: the layers' sizes, dtype and device, and the random maps that belong to it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from repgraph.bench.measure import require_memory
from repgraph.bench.setting import MapSetting
from repgraph.ops.geometry import cells


@dataclass(frozen=True)
class Setting(MapSetting):
    """What the layers are given: C channels, C' inside, S nodes."""

    channels: int = 2048
    mid_channels: int = 256

    @property
    def map_bytes(self) -> int:
        """Bytes of a map with C channels."""
        return self.batch * self.channels * self.positions * self.dtype.itemsize

    def cells(self, grid: int) -> int:
        """Cells of ``grid`` x ``grid`` positions in one map; the last ones of a row or column may be smaller.

        >>> Setting(5, 7).cells(2)
        12
        """
        return cells(self.height, grid) * cells(self.width, grid)

    def is_papers(self) -> bool:
        """Whether the paper's complexity table is about this setting."""
        given = (self.batch, self.channels, self.mid_channels, self.nodes, self.height, self.width)
        return given == (1, 2048, 256, 9, 128, 256)


def empty_input(setting: Setting) -> Tensor:
    """A map of a setting, without numbers in it."""
    shape = (setting.batch, setting.channels, setting.height, setting.width)
    layout = torch.channels_last if setting.channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=setting.dtype, device=setting.device, memory_format=layout)


def make_input(setting: Setting) -> Tensor:
    """A map of normal numbers, drawn where it is needed: at large sizes the host would take longest.

    >>> make_input(Setting(5, 6, channels=8)).shape
    torch.Size([1, 8, 5, 6])

    Raises MemoryError before the system has to end somebody's process for it.
    """
    require_memory(setting.map_bytes, "the inputs", setting.device)
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    return empty_input(setting).normal_(generator=generator).requires_grad_()
