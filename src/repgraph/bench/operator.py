"""The benchmark of the operator: representative attention and its alternatives."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from repgraph.bench import gate
from repgraph.bench.table import BACKWARD, FORWARD, Candidate, Function, Leaves, Setting, Table
from repgraph.ops import backends, representative_attention
from repgraph.ops.geometry import position_dtype

NON_LOCAL = "non-local"  # family
CLEARANCE = 2.0**-6  # distance of nodes from pixel centers
SDPA_KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True, kw_only=True)
class OperatorSetting(Setting):
    shared_kv: bool = False  # the value is the key

    @property
    def title(self) -> str:
        return f"{super().title}, {'value is key' if self.shared_kv else 'key and value'}"


def composition(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
    """Compute representative attention with ``grid_sample``, as users would write it, for H and W of at least 2.

    If key and value are one tensor, it is sampled once. 16-bit features are sampled in float32, because ``grid_sample``
    expects features and positions in one dtype, and 16-bit positions are off by pixels. The rest is in the dtype of the
    features, with sums and softmax in float32, as under autocast.
    """
    batch, nodes, (height, width) = len(query), offsets.shape[1] // 2, query.shape[2:]
    wide = position_dtype(query.dtype)
    o = offsets.to(wide).view(batch, nodes, 2, height, width)
    x = (torch.arange(width, dtype=wide, device=query.device) + o[:, :, 0]) * 2 / (width - 1) - 1
    y = (torch.arange(height, dtype=wide, device=query.device)[:, None] + o[:, :, 1]) * 2 / (height - 1) - 1
    where = torch.stack((x, y), -1).flatten(1, 2)  # [B, S H, W, 2]

    def sample(feature: Tensor) -> Tensor:  # [B, C, S, H, W]
        read = F.grid_sample(feature.to(wide), where, align_corners=True).to(feature.dtype)
        return read.unflatten(2, (nodes, height))

    keys = sample(key)
    values = keys if value is key else sample(value)
    weights = torch.softmax((query[:, :, None] * keys).sum(1, dtype=wide), 1).to(query.dtype)  # [B, S, H, W]
    return (weights[:, None] * values).sum(2, dtype=wide).to(query.dtype)


def non_local(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, kernel: SDPBackend | None = None) -> Tensor:
    """Compute softmax(q k^T) v over all positions with one head, by a kernel of SDPA or by the formula."""
    q, k, v = (t.flatten(2).transpose(1, 2).contiguous()[:, None] for t in (query, key, value))  # [B, 1, N, C]
    if kernel is None:
        y = torch.softmax(q @ k.transpose(2, 3), 3) @ v
    else:
        with sdpa_kernel(kernel):
            y = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return y[:, 0].transpose(1, 2).unflatten(2, query.shape[2:])


def why_not_sdpa(kernel: str, setting: Setting) -> str | None:
    if setting.device.type == "cpu":
        return None if kernel in ("math", "flash") else "PyTorch has this kernel for CUDA only"
    needs_half = kernel in ("flash", "cudnn") and setting.dtype == torch.float32
    return "PyTorch has this kernel for half precision only" if needs_half else None


def why_not_backend(name: str, setting: Setting) -> str | None:
    """Return why a backend of the operators cannot be measured, or None."""
    if name == "triton" and setting.device.type == "cpu":
        return "needs a CUDA device; its time in the interpreter would be meaningless"
    return backends.why_not(name, setting.device, setting.dtype)


def between_pixels(positions: Tensor) -> Tensor:
    """Move positions away from pixel centers, where their gradient jumps, for the gate."""
    whole = positions.floor()
    return whole + (positions - whole).clamp(CLEARANCE, 1 - CLEARANCE)


def build_compiled(build: Callable[[Any], Function], setting: Any) -> Function:
    torch.compiler.reset()  # code for other sizes would slow down the lookup
    return torch.compile(build(setting), fullgraph=True, dynamic=False)


class OperatorTable(Table):
    """Forward and backward passes of the operator's backends, of its composition, and of non-local attention."""

    name = "operator"
    passes = FORWARD, BACKWARD
    checked = (BACKWARD,)
    candidates = (
        *(
            Candidate(
                n, lambda s, n=n: partial(representative_attention, backend=n), why_not=partial(why_not_backend, n)
            )
            for n in ("reference", "cpu", "triton")
        ),
        Candidate("composition", lambda s: composition),
        Candidate("composition-compiled", partial(build_compiled, lambda s: composition)),
        *(
            Candidate(f"sdpa-{n}", lambda s, k=k: partial(non_local, kernel=k), NON_LOCAL, partial(why_not_sdpa, n))
            for n, k in SDPA_KERNELS.items()
        ),
    )
    # A compiled backward pass may otherwise overwrite saved tensors, but here it runs many times.
    context = partial(torch._functorch.config.patch, donated_buffer=False)
    baselines: ClassVar = {"comp.": ["composition"], "SDPA": [f"sdpa-{name}" for name in SDPA_KERNELS]}

    def inputs(self, setting: OperatorSetting) -> Leaves:
        """Return normal features with logits of order one, and normal offsets in float32."""
        generator = torch.Generator(setting.device).manual_seed(0)

        def normal(channels: int, factor: float = 1.0) -> Tensor:
            shape = (setting.batch, channels, setting.height, setting.width)
            return torch.randn(shape, generator=generator, device=setting.device).mul_(factor)

        def feature(factor: float = 1.0) -> Tensor:
            values = normal(setting.channels, factor).to(setting.dtype)
            return values.contiguous(memory_format=setting.memory_format)

        leaves = {"query": feature(setting.channels**-0.5), "key": feature()}
        if not setting.shared_kv:
            leaves["value"] = feature()
        leaves["offsets"] = between_pixels(normal(2 * setting.nodes, setting.sigma))
        return {name: t.requires_grad_() for name, t in leaves.items()}

    def bind(self, function: Function, inputs: Leaves, pass_: str) -> tuple[Function, Leaves]:
        given = [inputs.get(name, inputs["key"]) for name in ("query", "key", "value", "offsets")]
        return partial(function, *given), inputs

    def versions(self, candidate: Candidate, setting: OperatorSetting, pass_: str) -> tuple[Function, ...]:
        reference = partial(representative_attention, backend="reference")
        plain = non_local if candidate.family == NON_LOCAL else reference
        return candidate.build(setting), plain, plain

    def precision(self, candidate: Candidate, setting: OperatorSetting) -> gate.Precision:
        is_tf32 = setting.tf32 and candidate.family == NON_LOCAL  # PyTorch may use it there
        return gate.PRECISIONS["tf32" if is_tf32 else setting.dtype_name]
