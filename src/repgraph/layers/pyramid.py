"""Attention to representative nodes on the maps of a feature pyramid, from the coarsest map to the finest."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks
from repgraph.layers.offset import Offset
from repgraph.layers.pointwise import Fusible, Pointwise, add_conv_norm, norm_act
from repgraph.layers.spread import Spread
from repgraph.ops import representative_attention
from repgraph.ops.backends import NAMES, direct
from repgraph.ops.resize import resize


class PyramidRound(Fusible):
    """The update of one map: its positions attend to nodes on it and on coarser maps; a feed-forward part follows.

    Every map has its own ``values``, which are also the keys. Each channel group has its own nodes, ``nodes`` on every
    map, which ``offset`` regresses from the first map, and a learned ``bias`` on the logit of each. Nodes of group k
    start along the direction 2 pi k / groups, at 1, 2, ... pixels of their map.
    """

    grid = 1

    def __init__(
        self, channels: int, maps: int, nodes: int, groups: int, expansion: int, backend: str, **factory: Any
    ) -> None:
        super().__init__()
        self.channels, self.maps, self.nodes, self.groups, self.backend = channels, maps, nodes, groups, backend
        self.scale = (channels / groups) ** -0.5
        self.sizes: list[tuple[int, int]] = []  # of the maps in the last eager call, for repgraph.reach
        hidden = channels * expansion
        self.query = Pointwise(channels, channels, bias=False, **factory)
        self.values = nn.ModuleList(Pointwise(channels, channels, bias=False, **factory) for _ in range(maps))
        self.offset = Offset(channels, _rays(groups, maps, nodes), groups * maps * nodes, **factory)
        self.bias = nn.Parameter(torch.zeros(groups * maps * nodes, **factory))
        self.project = Pointwise(channels, channels, bias=False, **factory)
        self.project_norm = nn.BatchNorm2d(channels, **factory)
        self.widen = Pointwise(channels, hidden, bias=False, **factory)
        self.widen_norm = nn.BatchNorm2d(hidden, **factory)
        self.act = nn.ReLU()
        self.narrow = Pointwise(hidden, channels, bias=False, **factory)
        self.narrow_norm = nn.BatchNorm2d(channels, **factory)

    def forward(self, x: Tensor, coarser: Sequence[Tensor] = (), return_nodes: bool = False) -> Any:
        """Return ``x`` (B, C, H, W), the map of the queries, after the round; ``coarser`` are the other maps."""
        maps = (x, *coarser)
        if direct(x):
            self.sizes = [(each.shape[2], each.shape[3]) for each in maps]
        values = [value(each) for value, each in zip(self.values, maps, strict=True)]
        result = representative_attention(
            self.query(x),
            values,
            values,
            self.offset(x),
            groups=self.groups,
            own_nodes=True,
            scale=self.scale,
            bias=self.bias.view(1, -1, 1, 1),
            backend=self.backend,
            return_nodes=return_nodes,
        )
        response, *nodes = result if return_nodes else (result,)
        if nodes:  # without a dimension for the groups if there is one map and one group
            nodes[0] = nodes[0].view(x.shape[0], self.groups, self.maps * self.nodes, *nodes[0].shape[-3:])
        x = add_conv_norm(x, response, self.project, self.project_norm)
        x = add_conv_norm(x, norm_act(self.widen(x), self.widen_norm, self.act), self.narrow, self.narrow_norm)
        return (x, *nodes) if return_nodes else x

    def offsets(self) -> list[Offset]:
        return [self.offset]

    def in_query_pixels(self, offsets: Tensor) -> Tensor:
        """Convert offsets (B, 2 groups maps nodes, H, W) from pixels of their own maps to pixels of the first map."""
        height, width = self.sizes[0]
        units = offsets.new_tensor([[width / w, height / h] for h, w in self.sizes])  # [maps, 2]
        parts = offsets.unflatten(1, (self.groups, self.maps, self.nodes, 2))
        return (parts * units[:, None, :, None, None]).flatten(1, 4)

    def extra_repr(self) -> str:
        return f"{self.channels}, maps={self.maps}, nodes={self.nodes}, groups={self.groups}, backend={self.backend!r}"


class PyramidRepGraph(nn.Module):
    """RepGraph over several maps: positions of each map attend to nodes on that map and on all coarser ones.

    A round goes from the coarsest map to the finest, and each map is updated before the next finer one samples it. In
    the first round, each updated map is also upsampled and added to the next finer one, as in a feature pyramid. So
    long-range context is gathered on the coarse maps, where it is cheap, and passed to the finer ones.

    Args:
        channels: channels C of all maps.
        maps: number of maps; in the head of a network, these are the coarsest ones.
        rounds: number of rounds T over all maps, each with its own parameters.
        nodes: number S of nodes on each map, for each group.
        groups: number of channel groups, each with its own attention and nodes; a divisor of C.
        expansion: width of the feed-forward part as a multiple of C.
        backend: see :func:`repgraph.representative_attention`.

    Shape:
        - Input: ``maps`` tensors (B, C, H_l, W_l), the finest one first
        - Output: (B, C, H_0, W_0), the finest map. With ``return_nodes=True`` also its nodes in each round, (B, groups,
          maps * S, 2, H_0, W_0), [x, y] in pixels of their own map, and their weights (B, groups, maps * S, H_0, W_0).
    """

    def __init__(
        self,
        channels: int,
        maps: int = 2,
        *,
        rounds: int = 1,
        nodes: int = 4,
        groups: int = 8,
        expansion: int = 4,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.channels = self.out_channels = checks.check_int("channels", channels)
        self.maps = checks.check_int("maps", maps)
        self.nodes, self.groups = checks.check_int("nodes", nodes), checks.check_int("groups", groups)
        checks.check_choice("backend", backend, NAMES)
        if channels % groups:
            raise UsageError(f"groups is {groups}; expected a divisor of the {channels} channels")
        options = nodes, groups, checks.check_int("expansion", expansion), backend
        make = partial(PyramidRound, channels, device=device, dtype=dtype)
        counts = range(maps, 0, -1)  # of maps to attend to, the finest map first
        rounds = checks.check_int("rounds", rounds)
        self.rounds = nn.ModuleList(nn.ModuleList(make(n, *options) for n in counts) for _ in range(rounds))

    def forward(self, maps: Sequence[Tensor], return_nodes: bool = False) -> Any:
        updated = checks.check_maps(maps, [self.channels] * self.maps)
        found: list[tuple[Tensor, Tensor]] = []
        for number, each in enumerate(self.rounds):
            for level in reversed(range(self.maps)):
                if number == 0 and level + 1 < self.maps:
                    updated[level] = updated[level] + resize(updated[level + 1], updated[level].shape[2:])
                result = each[level](updated[level], updated[level + 1 :], return_nodes)  # type: ignore[index]
                updated[level], *nodes = result if return_nodes else (result,)
            found += [tuple(nodes)] if return_nodes else []
        return (updated[0], *zip(*found, strict=True)) if return_nodes else updated[0]


def to_pixels(nodes: Tensor, steps: Sequence[tuple[float, float]]) -> Tensor:
    """Convert nodes (..., maps * S, 2, h, w) from pixels of their maps, of strides ``steps``, to those of the image."""
    dtype = torch.promote_types(nodes.dtype, torch.float32)
    scale = torch.tensor(steps, dtype=dtype, device=nodes.device)  # [maps, 2]
    scale = scale.repeat_interleave(nodes.shape[-4] // len(steps), 0)[:, :, None, None]
    return (nodes.to(dtype) + 0.5) * scale - 0.5


def _rays(groups: int, maps: int, nodes: int) -> Spread:
    """Return initial offsets in the operator's order (group, map, node), along one direction per group."""
    points = []
    for group in range(groups):
        x, y = (round(turn(2 * math.pi * group / groups), 12) + 0.0 for turn in (math.cos, math.sin))
        points += [(step * x, step * y) for step in range(1, nodes + 1)] * maps
    return Spread("rays", tuple(points))
