"""Who takes part: the operator's backends, the same thing composed from PyTorch, and non-local attention."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from repgraph.bench import sdpa
from repgraph.bench.operator.setting import Setting
from repgraph.errors import UsageError
from repgraph.info import why_not
from repgraph.ops import representative_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # query, key, value, offsets -> y


def composition(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int = 1, grid: int = 1) -> Tensor:
    """Representative attention as a user would compose it from ``grid_sample``.

    A shared key and value is sampled once. For 16-bit features the sampling is in float32, because
    ``grid_sample`` wants features and positions of one dtype and 16-bit positions are wrong by pixels; what
    follows is in the features' dtype with float32 sums and softmax, as under autocast.

    Shapes as in :func:`repgraph.representative_attention`; H and W of at least 2.

    >>> x, offsets = torch.randn(1, 4, 5, 6), torch.randn(1, 18, 5, 6)
    >>> y = composition(x, x, x, offsets)
    >>> torch.allclose(y, representative_attention(x, x, x, offsets, backend="reference"), atol=1e-4)
    True
    """
    batch, channels, height, width = query.shape
    _, twice_nodes, rows, columns = offsets.shape
    nodes = twice_nodes // 2
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    ys, xs = torch.meshgrid(
        torch.arange(rows, dtype=wide, device=query.device) * grid,
        torch.arange(columns, dtype=wide, device=query.device) * grid,
        indexing="ij",
    )
    o = offsets.to(wide).view(batch, nodes, 2, rows, columns)
    where = torch.stack(
        ((xs + o[:, :, 0]) * 2 / (width - 1) - 1, (ys + o[:, :, 1]) * 2 / (height - 1) - 1), -1
    ).flatten(1, 2)  # [B, S Hc, Wc, 2]

    def sample(feature: Tensor) -> Tensor:  # [B, G, C/G, S, Hc, 1, Wc, 1]
        read = F.grid_sample(feature.to(wide), where, align_corners=True).to(feature.dtype)
        return read.view(batch, groups, feature.shape[1] // groups, nodes, rows, 1, columns, 1)

    keys = sample(key)
    values = keys if value is key else sample(value)
    if (rows * grid, columns * grid) != (height, width):
        query = F.pad(query, (0, columns * grid - width, 0, rows * grid - height))
    q = query.unflatten(3, (columns, grid)).unflatten(2, (rows, grid))
    q = q.unflatten(1, (groups, channels // groups))[:, :, :, None]  # [B, G, C/G, 1, Hc, g, Wc, g]
    weights = torch.softmax((q * keys).sum(2, dtype=wide), 2).to(query.dtype)  # [B, G, S, Hc, g, Wc, g]
    y = (weights[:, :, None] * values).sum(3, dtype=wide).to(query.dtype)  # [B, G, Cv/G, Hc, g, Wc, g]
    return y.flatten(5, 6).flatten(3, 4).flatten(1, 2)[:, :, :height, :width]


def non_local(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, kernel: SDPBackend) -> Tensor:
    """Non-local attention over all positions, softmax(q k^T) v, with one head, by one kernel of SDPA."""
    height, width = query.shape[2:]
    q, k, v = (t.flatten(2).transpose(1, 2).contiguous()[:, None] for t in (query, key, value))  # [B, 1, N, C]
    with sdpa_kernel(kernel):
        y = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return y[:, 0].transpose(1, 2).unflatten(2, (height, width))


def non_local_oracle(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """The same, as the formula is written."""
    q, k, v = (t.flatten(2) for t in (query, key, value))  # [B, C, N]
    return (v @ torch.softmax(q.transpose(1, 2) @ k, 2).transpose(1, 2)).view(value.shape)


@dataclass(frozen=True)
class Candidate:
    """Something to measure.

    ``build`` makes the function for a setting (anew each time: a compiled one is compiled for one size), and
    ``why_not`` says why it cannot run there, or gives None. ``bytes_needed`` estimates what forward and
    backward hold in main memory, so that the CPU does not run out of it. ``compiles`` names what is compiled
    anew for every size, if anything: it takes tens of seconds, and progress says so.
    """

    name: str
    build: Callable[[Setting], Attention]
    why_not: Callable[[Setting], str | None] = lambda setting: None
    bytes_needed: Callable[[Setting], float] = lambda setting: 0.0
    family: str = "representative"  # or "non-local"
    compiles: str = ""


def _backend(name: str) -> Candidate:
    def build(setting: Setting) -> Attention:
        return partial(representative_attention, groups=setting.groups, grid=setting.grid, backend=name)

    def reason(setting: Setting) -> str | None:
        if name == "triton" and setting.device.type == "cpu":
            return "it takes CUDA tensors (interpreted on the CPU its time would mean nothing)"
        return why_not(name, setting.device, setting.dtype)

    return Candidate(
        name,
        build,
        reason,
        bytes_needed=(lambda s: 16 * _samples(s)) if name == "reference" else (lambda s: 0.0),
    )


def _composition(compiled: bool) -> Candidate:
    def build(setting: Setting) -> Attention:
        function = partial(composition, groups=setting.groups, grid=setting.grid)
        if not compiled:
            return function
        torch._dynamo.reset()  # else the ninth size would quietly run uncompiled
        return torch.compile(function, fullgraph=True, dynamic=False)

    def reason(setting: Setting) -> str | None:
        return "it needs maps of at least 2 x 2" if min(setting.height, setting.width) < 2 else None

    name = "composition-compiled" if compiled else "composition"
    compiles = "composition" if compiled else ""
    return Candidate(name, build, reason, bytes_needed=lambda s: 8 * _samples(s), compiles=compiles)


def _sdpa(name: str) -> Candidate:
    kernel = sdpa.KERNELS[name]

    def reason(setting: Setting) -> str | None:
        return sdpa.why_not(kernel, setting.channels, setting.dtype, setting.device)

    def needed(setting: Setting) -> float:
        # The mathematical kernel writes out the N x N affinities, the others do not.
        return 4.0 * setting.batch * setting.positions**2 * 4 if kernel == SDPBackend.MATH else 0.0

    return Candidate(f"sdpa-{name}", lambda s: partial(non_local, kernel=kernel), reason, needed, "non-local")


def _samples(setting: Setting) -> float:
    """Bytes of the S N C samples in float32."""
    return 4.0 * setting.batch * setting.nodes * setting.positions * setting.channels


CANDIDATES = (
    _backend("reference"),
    _backend("cpu"),
    _backend("triton"),
    _composition(compiled=False),
    _composition(compiled=True),
    *map(_sdpa, sdpa.KERNELS),
)


def select(names: list[str] | None) -> tuple[Candidate, ...]:
    """The candidates with these names, all of them for None; in the order of :data:`CANDIDATES`."""
    known = [candidate.name for candidate in CANDIDATES]
    for name in names or ():
        if name not in known:
            raise UsageError(f"unknown candidate {name!r}; choose from {', '.join(known)}")
    return tuple(c for c in CANDIDATES if names is None or c.name in names)
