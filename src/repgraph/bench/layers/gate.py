"""The gate before every layer benchmark: what computes something wrong is not measured.

A block, at a small odd size and in the dtype that is measured, is compared with its plain version in float64 that has
the same numbers in it: the result of the forward form, and of the training form the result and all gradients. How far
it may be off is taken from the data: little more than the plain version is off in the block's own dtype.
"""

import copy

import torch
from torch import Tensor, nn

from repgraph.bench.layers import forms
from repgraph.bench.layers.blocks import Block, new
from repgraph.bench.layers.row import BOTH, FORWARD, PASSES
from repgraph.bench.layers.setting import Setting, make_input

# A small odd size that no tile divides, yet many cells of any usual grid.
SIZE = (13, 18)
TIMES = 2.0  # the plain version's error
STEPS = 8  # and so many of the dtype's rounding steps


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
    unsettle_(layer, setting.seed)
    plain = block.make(setting, True)
    plain.load_state_dict(layer.state_dict())
    exact = copy.deepcopy(plain).double()
    x = make_input(setting)
    found = results(forms.compiled(block, forms.form(layer, pass_)), pass_, x)
    usual = results(plain.train(pass_ == BOTH), pass_, x)
    wanted = results(exact.train(pass_ == BOTH), pass_, x.detach().double().requires_grad_())
    # Gradients that are zero in theory, of a bias in a softmax for example, are rounding: a hundredth of the usual
    # size of the gradients is what they are held against.
    gradients = [w for name, w in wanted.items() if name != "result"]
    usual_size = sum(float(g.square().sum()) for g in gradients) / max(1, sum(g.numel() for g in gradients))
    compared = {}
    for name, want in wanted.items():
        size = max(float(want.norm()), 0.01 * (usual_size * want.numel()) ** 0.5, 1e-30)
        error, plain_error = (float((r[name].double() - want).norm()) / size for r in (found, usual))
        compared[name] = error, TIMES * plain_error + STEPS * torch.finfo(setting.dtype).eps
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


def unsettle_(layer: nn.Module, seed: int) -> None:
    """Give batch normalisation statistics that a mistake in folding them would show."""
    generator = torch.Generator().manual_seed(seed)

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
