"""The coordinate convention of ``repgraph.ops.geometry`` for the kernels of this package."""

import numpy as np

from repgraph.ops.cpu.jit import inline


@inline
def corner(position, low, high):
    """Left corner and fraction t of a position, limited to [low, high] = [-2, size + 1].

    The three share one float type. A NaN position has the left corner -2, so that it reads nothing, and
    t = NaN, so that it shows.
    """
    if position != position:
        return np.int32(-2), position
    limited = min(max(position, low), high)
    left = np.floor(limited)
    return np.int32(left), limited - left
