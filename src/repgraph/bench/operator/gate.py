"""The gate before every benchmark: what computes something wrong is not measured."""

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from repgraph.bench.operator.competitors import Attention, Candidate, non_local_oracle
from repgraph.bench.operator.setting import Inputs, Setting, make_inputs
from repgraph.ops import representative_attention

# A small odd size that no tile divides, yet many cells of any usual grid.
SIZE = (13, 18)
# Relative error in the L2 norm that is let through, in units of the dtype's rounding step. Errors of right
# candidates are within about a third of it; nodes read half a pixel off are over it more than tenfold.
_STEPS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 4, torch.float16: 4}
# Non-local attention in float32 may use TensorFloat-32 on CUDA, which keeps 10 bits.
_TF32_STEP = 2.0**-10
# How near the gate lets a node come to a line between pixels, in pixels. The gradient of offsets jumps there, and
# which side a right candidate is on hangs on its last bit.
_CLEAR = 2.0**-6


def tolerance(candidate: Candidate, setting: Setting) -> float:
    if candidate.family == "non-local" and setting.device.type == "cuda" and setting.dtype == torch.float32:
        return 8 * _TF32_STEP
    return _STEPS[setting.dtype] * torch.finfo(setting.dtype).eps


def relative_errors(candidate: Candidate, setting: Setting) -> dict[str, float]:
    """Errors of the result and of each gradient against float64 for the same numbers, in relative L2 norm.

    Relative to the float64 norm or to :func:`floor`, whichever is larger.
    """
    inputs = make_inputs(setting)
    inputs = replace(inputs, offsets=_off_the_lines(inputs.offsets))
    exact = inputs.converted(torch.float64)
    oracle: Attention = non_local_oracle
    if candidate.family == "representative":
        oracle = partial(representative_attention, groups=setting.groups, grid=setting.grid, backend="reference")
    results = _results(candidate.build(setting), inputs)
    wanted = _results(oracle, exact)
    return {
        name: float(
            (results[name].double() - want).norm() / want.norm().clamp_min(floor(name, want, candidate, setting))
        )
        for name, want in wanted.items()
    }


def floor(name: str, want: Tensor, candidate: Candidate, setting: Setting) -> float:
    """The least norm that an error is held against.

    What passes the softmax backwards is a difference: for nodes that read the same (``--sigma 0``) nothing of it
    is left but rounding, which is relative to what was subtracted. That has the size of the gradient for nodes
    apart, of which this is about half: S weights of 1 / S, times logits' gradients of order (C / G) ** 0.5 for
    the query, and times queries of order (C / G) ** -0.5 for the key.
    """
    if candidate.family != "representative" or name not in ("gradient of query", "gradient of key"):
        return 1e-30
    spread = (setting.channels / setting.groups) ** 0.5 if name == "gradient of query" else 1.0
    return spread * math.sqrt(want.numel() / setting.nodes) / 4


def _off_the_lines(offsets: Tensor) -> Tensor:
    """Offsets whose nodes keep clear of the lines between pixels; anchors are whole pixels."""
    whole = offsets.detach().floor()
    return (whole + (offsets.detach() - whole).clamp(_CLEAR, 1 - _CLEAR)).requires_grad_()


def _results(function: Attention, inputs: Inputs) -> dict[str, Tensor]:
    y = function(*inputs.arguments)
    names = ["query", "key", "offsets"] if inputs.key is inputs.value else ["query", "key", "value", "offsets"]
    grads = torch.autograd.grad(y, inputs.leaves, inputs.cotangent, allow_unused=True)
    found = {f"gradient of {n}": g for n, g in zip(names, grads, strict=True) if g is not None}
    return {"result": y.detach(), **found}


def check(candidate: Candidate, setting: Setting) -> str | None:
    """What is wrong with a candidate, or None; its own exceptions pass through."""
    small = setting.resized(*SIZE)
    allowed = tolerance(candidate, small)
    for name, error in relative_errors(candidate, small).items():
        if not error <= allowed:  # NaN is wrong too
            return f"the {name} differs from float64 by {error:.1e} (allowed: {allowed:.1e})"
    return None
