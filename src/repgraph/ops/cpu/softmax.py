"""Softmax over the nodes of one query, and its derivative."""

import math

from repgraph.ops.cpu.jit import inline
from repgraph.ops.cpu.memory import load, store


@inline
def softmax(logits, at, count):
    """Turn ``count`` logits into weights, in place; gives their log-sum-exp."""
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
    return top + math.log(total)


@inline
def differentiate(p, b, at, count, scale):
    """From weights p and their gradients b to the gradients of the unscaled logits, in place of b."""
    delta = p.dtype.type(0)
    for n in range(count):
        delta += load(p, at + n) * load(b, at + n)
    for n in range(count):
        store(b, at + n, load(p, at + n) * (load(b, at + n) - delta) * scale)
