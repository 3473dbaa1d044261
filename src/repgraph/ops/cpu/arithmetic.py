"""Arithmetic on rows of channels with LLVM vectors, and the softmax over the nodes of a query.

LLVM would not vectorize loops over several rows itself: it cannot know that the row written does not alias the rows
read, and it does not keep a piece of a row in registers over an outer loop.
"""

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from repgraph.ops.cpu.jit import inline
from repgraph.ops.cpu.memory import VECTOR, load, store

_FUSED = ("contract",)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def for_pieces(builder: Any, length: Any, widths: Sequence[int], emit: Any) -> None:
    """Emit ``emit(start, steps, lanes)`` for the pieces of a row: vectors of ``lanes`` elements at the ``steps``."""
    start = ir.Constant(length.type, 0)
    for width in widths:
        size, lanes = ir.Constant(length.type, width), min(width, VECTOR)
        count = builder.udiv(builder.sub(length, start), size)
        with cgutils.for_range(builder, count) as loop:
            emit(builder.add(start, builder.mul(loop.index, size)), range(0, width, lanes), lanes)
        start = builder.add(start, builder.mul(count, size))


def plus(builder: Any, index: Any, number: int) -> Any:
    return builder.add(index, ir.Constant(index.type, number))


@inline
def fill(target, at, length, number):
    """Set target[at + c] = number."""
    for c in range(length):
        store(target, at + c, number)


@inline
def softmax(logits, at, count):
    """Replace ``count`` logits by their softmax."""
    top = load(logits, at)
    for n in range(1, count):
        top = max(top, load(logits, at + n))
    total = logits.dtype.type(0)
    for n in range(count):
        e = math.exp(load(logits, at + n) - top)
        store(logits, at + n, e)
        total += e
    for n in range(count):
        store(logits, at + n, load(logits, at + n) / total)


@inline
def softmax_backward(p, b, at, count):
    """Replace the gradients b of the weights p by those of the logits."""
    delta = p.dtype.type(0)
    for n in range(count):
        delta += load(p, at + n) * load(b, at + n)
    for n in range(count):
        store(b, at + n, load(p, at + n) * (load(b, at + n) - delta))
