"""The gate before every layer benchmark: what computes something wrong is not measured.

A block, at a small odd size and in the dtype that is measured, is compared with its plain version in float64 that has
the same numbers in it: the result of the forward form, and of the training form the result and all gradients. How far
it may be off is taken from the data: little more than the plain version is off in the block's own dtype. That one may
share a wrong product with the block, so there is a limit to it.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from repgraph.bench.layers import forms
from repgraph.bench.layers.blocks import Block, new
from repgraph.bench.layers.row import BOTH, DANET, FORWARD, PASSES
from repgraph.bench.layers.setting import Setting, make_input
from repgraph.layers.offset import Offset

# A small odd size that no tile divides, yet several cells of any usual grid, and room for the usual spread of nodes.
SIZE = (19, 22)
TIMES = 2.0  # the plain version's error
MOVES = 0.03  # standard deviation with which nodes move with the input, in pixels
STEPS = 4  # and so many of the dtype's rounding steps
FLOOR = 0.1  # of the usual size of gradients: what those are held against that are zero in theory, and all rounding


@dataclass(frozen=True)
class Precision:
    """The step from one number to the next in what products are computed with, and the most that errors may be."""

    step: float
    result: float
    gradient: float


# On the CPU, right blocks were measured at up to a tenth of the limits on results and a quarter of those on gradients.
PRECISIONS = {
    "float32": Precision(2.0**-23, 1e-5, 1e-4),
    "tf32": Precision(2.0**-10, 0.01, 0.1),
    "float16": Precision(2.0**-10, 0.01, 0.1),
    "bfloat16": Precision(2.0**-7, 0.03, 0.15),
}


def precision(setting: Setting) -> Precision:
    tf32 = setting.device.type == "cuda" and setting.dtype == torch.float32
    return PRECISIONS["tf32" if tf32 else setting.dtype_name]


def check(block: Block, setting: Setting) -> str | None:
    """What is wrong with a block, or None; its own exceptions pass through."""
    for pass_ in PASSES:
        for name, (error, allowed) in errors(block, setting.resized(*SIZE), pass_).items():
            if not error <= allowed:  # NaN is wrong too
                return f"{pass_}: the {name} differs from float64 by {error:.1e} (allowed: {allowed:.1e})"
    return None


def errors(block: Block, setting: Setting, pass_: str) -> dict[str, tuple[float, float]]:
    """Errors of the result and of each gradient in relative L2 norm, and how large each may be."""
    layer = new(block, setting)
    unsettle_(layer, setting)
    plain = block.make(setting, True)
    plain.load_state_dict(layer.state_dict())
    exact = copy.deepcopy(plain).double()
    x = make_input(setting)
    found = results(forms.compiled(block, forms.form(layer, pass_)), pass_, x)
    usual = results(plain.train(pass_ == BOTH), pass_, x)
    wanted = results(exact.train(pass_ == BOTH), pass_, x.detach().double().requires_grad_())
    gradients = [w for name, w in wanted.items() if name != "result"]
    usual_size = sum(float(g.square().sum()) for g in gradients) / max(1, sum(g.numel() for g in gradients))
    limits = precision(setting)
    compared = {}
    for name, want in wanted.items():
        size = max(float(want.norm()), FLOOR * (usual_size * want.numel()) ** 0.5, 1e-30)
        error, plain_error = (float((r[name].double() - want).norm()) / size for r in (found, usual))
        most = limits.result if name == "result" else limits.gradient
        if block.family == DANET:  # PyTorch throughout; its softmax over large energies makes much of any rounding
            most = float("inf")
        compared[name] = error, min(TIMES * plain_error + STEPS * limits.step, most)
    return compared


def results(layer: nn.Module, pass_: str, x: Tensor) -> dict[str, Tensor]:
    if pass_ == FORWARD:
        with torch.no_grad():
            return {"result": layer(x)}
    y = layer(x)
    named = {"input": x, **dict(layer.named_parameters())}
    generator = torch.Generator().manual_seed(0)
    cotangent = torch.randn(y.shape, generator=generator).to(y)
    gradients = torch.autograd.grad(y, list(named.values()), cotangent)
    return {"result": y.detach()} | {
        f"gradient of {name.replace('_orig_mod.', '')}": g for name, g in zip(named, gradients, strict=True)
    }


def unsettle_(layer: nn.Module, setting: Setting) -> None:
    """Give batch normalisation statistics that a mistake in folding them would show, and nodes that keep to a pixel.

    Where a node crosses a line between pixels its gradient jumps, and on which side of it a right layer is hangs on its
    last bit: so nodes lie around the middle between two lines, and move with the input by a little only.
    """
    generator = torch.Generator().manual_seed(setting.seed)

    def numbers(like: Tensor, low: float, high: float) -> Tensor:
        return (torch.rand(like.shape, generator=generator) * (high - low) + low).to(like)

    with torch.no_grad():
        for module in layer.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                assert module.running_var is not None
                module.running_mean.copy_(numbers(module.running_mean, -0.2, 0.2))
                module.running_var.copy_(numbers(module.running_var, 0.8, 1.2))
                module.weight.copy_(numbers(module.weight, 0.8, 1.2))
                module.bias.copy_(numbers(module.bias, -0.2, 0.2))
            elif isinstance(module, Offset):
                assert module.bias is not None
                pixels = torch.randn(module.bias.shape, generator=generator) * setting.sigma
                module.bias.copy_(pixels.floor().to(module.bias) + numbers(module.bias, 0.4, 0.6))
                module.weight.mul_(MOVES / setting.sigma if setting.sigma else 0)
