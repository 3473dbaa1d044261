"""Maps whose channels do not lie together, copied to rows of channels [B, H, W, C]."""

from repgraph.ops.cpu.jit import jit
from repgraph.ops.cpu.memory import take
from repgraph.ops.cpu.tiles import read_tile

CHUNK = 64


@jit
def to_rows(counter, tasks, source, strides, height, width, channels, target):
    """A task is up to ``CHUNK`` positions of a row."""
    sb, _, sh, sw = strides
    chunks = (width + CHUNK - 1) // CHUNK
    while True:
        task = take(counter)
        if task >= tasks:
            return
        line, left = task // chunks, task % chunks * CHUNK
        b, row = line // height, line % height
        read_tile(
            source,
            b * sb + row * sh + left * sw,
            strides[1:],
            1,
            min(CHUNK, width - left),
            channels,
            target,
            (line * width + left) * channels,
            channels,
        )
