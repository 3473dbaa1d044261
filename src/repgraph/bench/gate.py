"""The correctness gate: candidates with wrong results are not measured.

The result and the gradients of a candidate are compared with a plain PyTorch version in float64. The tolerance is twice
the error of the plain version in the candidate's dtype, plus a rounding term, up to a limit.
"""

from typing import NamedTuple

from torch import Tensor

FACTOR = 2.0  # on the error of the plain version
STEPS = 4  # additional rounding steps in the tolerance
# Gradients that are zero in theory are rounding errors, compared with at least this share of the usual gradient's norm.
MIN_NORM = 0.1
Results = dict[str, Tensor]


class Precision(NamedTuple):
    """The rounding step of products in a dtype, and limits of the errors of results and gradients."""

    step: float
    result: float
    gradient: float


# On the CPU, errors of correct layers were up to a tenth of the limit for results, and a quarter of it for gradients.
PRECISIONS = {
    "float32": Precision(2.0**-23, 1e-5, 1e-4),
    "tf32": Precision(2.0**-10, 0.01, 0.1),
    "float16": Precision(2.0**-10, 0.01, 0.1),
    "bfloat16": Precision(2.0**-7, 0.03, 0.15),
}


def mistake(precision: Precision, found: Results, plain: Results, exact: Results) -> str | None:
    """Return what is wrong with the results of a candidate, or None. Errors are relative, in the L2 norm.

    ``plain`` and ``exact`` are the results of the plain version, in the candidate's dtype and in float64.
    """
    gradients = [g for name, g in exact.items() if name != "result"]
    mean_square = sum(float(g.square().sum()) for g in gradients) / max(1, sum(g.numel() for g in gradients))
    for name, want in exact.items():
        norm = max(float(want.norm()), MIN_NORM * (mean_square * want.numel()) ** 0.5, 1e-30)
        error, plain_error = (float((r[name].double() - want).norm()) / norm for r in (found, plain))
        limit = precision.result if name == "result" else precision.gradient
        tolerance = min(FACTOR * plain_error + STEPS * precision.step, limit)
        if not error <= tolerance:  # also for NaN
            return f"the {name} differs from float64 by {error:.1e} (tolerance {tolerance:.1e})"
    return None
