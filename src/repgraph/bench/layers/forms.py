"""The forms in which a block is measured.

Forward: in evaluation mode, without gradients, with everything folded that the layer's ``fuse`` can fold. Forward and
backward: in training mode, one call that gives the gradients of the input and of all parameters.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from repgraph.bench.layers.blocks import Block, new
from repgraph.bench.layers.count import without_data
from repgraph.bench.layers.formulas import Work
from repgraph.bench.layers.row import BOTH, FORWARD, REPGRAPH
from repgraph.bench.layers.setting import Setting, empty_input
from repgraph.bench.measure import CPU, Call
from repgraph.ops.backends import choose


def form(layer: nn.Module, pass_: str) -> nn.Module:
    """The layer in the form of a pass; it is changed in place."""
    if pass_ == BOTH:
        return layer.train()
    layer.eval()
    fuse: Callable[[], object] | None = getattr(layer, "fuse", None)
    if fuse is not None:
        fuse()
    return layer


def ready(block: Block, setting: Setting, pass_: str) -> nn.Module:
    """A new layer in the form of a pass."""
    return compiled(block, form(new(block, setting), pass_))


def compiled(block: Block, layer: nn.Module) -> nn.Module:
    """The layer, compiled if the block is."""
    if not block.compiled:
        return layer
    return torch.compile(layer, dynamic=False)  # type: ignore[return-value]


def call(layer: nn.Module, pass_: str, x: Tensor) -> Call:
    """A call of a pass; the cotangent is random, and made with the first result."""
    if pass_ == FORWARD:

        def forward() -> Tensor:
            with torch.no_grad():
                return layer(x)

        return forward

    leaves = [x, *layer.parameters()]
    cotangents: list[Tensor] = []

    def both() -> tuple[Tensor, ...]:
        y = layer(x)
        if not cotangents:
            cotangents.append(torch.randn_like(y))
        return torch.autograd.grad(y, leaves, cotangents)

    return both


def counted(block: Block, setting: Setting) -> Work:
    """The work of a block's forward pass, counted in the form that is measured, at that size, without data.

    Where representative attention has no kernel it is composed of operations that do not tell products from the rest;
    such blocks are counted as they would run on the CPU in float32.
    """
    if block.family == REPGRAPH and choose("auto", setting.device, setting.dtype) == "reference":
        setting = replace(setting, device=CPU, dtype=torch.float32)

    def make() -> tuple[nn.Module, Tensor]:
        return form(block.make(setting, False), FORWARD), empty_input(setting)

    return without_data(make)


def parameters(block: Block, setting: Setting) -> int:
    """The number of parameters that are trained."""
    with FakeTensorMode():
        layer = block.make(setting, False)
    return sum(p.numel() for p in layer.parameters())
