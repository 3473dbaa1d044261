"""The gate before every benchmark: what computes something wrong is not measured."""

from functools import partial

import torch
from torch import Tensor

from repgraph.bench.competitors import Attention, Candidate, non_local_oracle
from repgraph.bench.setting import Inputs, Setting, make_inputs
from repgraph.ops import representative_attention

# A small odd size that no tile divides, yet many cells of any usual grid.
SIZE = (13, 18)
# Relative error in the L2 norm that is let through, in units of the dtype's rounding step. Errors of right
# candidates are within about a third of it; nodes read half a pixel off are over it more than tenfold.
_STEPS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 4, torch.float16: 4}
# Non-local attention in float32 may use TensorFloat-32 on CUDA, which keeps 10 bits.
_TF32_STEP = 2.0**-10


def tolerance(candidate: Candidate, setting: Setting) -> float:
    if candidate.family == "non-local" and setting.device.type == "cuda" and setting.dtype == torch.float32:
        return 8 * _TF32_STEP
    return _STEPS[setting.dtype] * torch.finfo(setting.dtype).eps


def relative_errors(candidate: Candidate, setting: Setting) -> dict[str, float]:
    """Errors of the result and of each gradient against float64 for the same numbers, in relative L2 norm."""
    inputs = make_inputs(setting)
    exact = inputs.converted(torch.float64)
    oracle: Attention = non_local_oracle
    if candidate.family == "representative":
        oracle = partial(representative_attention, groups=setting.groups, grid=setting.grid, backend="reference")
    results = _results(candidate.build(setting), inputs)
    wanted = _results(oracle, exact)
    return {
        name: float((results[name].double() - want).norm() / want.norm().clamp_min(1e-30))
        for name, want in wanted.items()
    }


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
