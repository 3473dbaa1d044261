"""1 x 1 convolutions, and batch normalization folded into them.

In evaluation the factors come from the running statistics, in training from the mean and covariance of the
convolution's input (:mod:`repgraph.ops.normalised`), which has fewer channels than its output.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from repgraph.errors import UsageError
from repgraph.ops.backends import direct, needs_grad, transformed
from repgraph.ops.checks import forward_mode
from repgraph.ops.formats import memory_format
from repgraph.ops.library import without_autocast
from repgraph.ops.normalised import (
    fold_running,
    moments,
    normalised_fits,
    normalised_product,
    normalised_relu,
    running_relu,
)
from repgraph.ops.product import fits, product, residual_product

Norm = Callable[[int], nn.Module]  # called with the number of channels
Activation = Callable[[], nn.Module]
Model = TypeVar("Model", bound=nn.Module)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Pointwise(nn.Conv2d):
    """A 1 x 1 ``nn.Conv2d``, computed as a matrix product for channels-last maps, which is faster."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True, **factory: Any) -> None:
        super().__init__(in_channels, out_channels, 1, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight.flatten(1), self.bias)

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise for ``torch.jit.script``, of this module or of a network with one."""
        raise UsageError("torch.jit.script is not supported; use torch.export, torch.compile, ONNX or torch.jit.trace")


class Fusible(nn.Module):
    """Base class of modules with convolutions ``name`` that are followed by normalizations ``name_norm``."""

    def normalized(self) -> Iterator[tuple[nn.Module, str, nn.Module, str]]:
        """Yield the owner and name of each convolution, and the owner and name of its normalization."""
        yield from ((self, name, self, f"{name}_norm") for name in self._modules if f"{name}_norm" in self._modules)


def fuse(model: Model) -> Model:
    """Fold batch normalization into the convolutions before it, for inference, in place.

    This is done in RepGraph and non-local layers and, in the networks of this package, in heads and ResNets, which have
    to be in evaluation mode. This cannot be undone. Load weights before, compile or export afterwards.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, Fusible)]
    for module in (model, *layers):  # check all of them before any is modified
        if module.training:
            name = type(module).__name__
            raise RuntimeError(f"fuse() is for inference, but this {name} is in training mode; call eval()")
    for layer in layers:
        for owner, name, norm_owner, norm_name in list(layer.normalized()):
            convolution, norm = fold(getattr(owner, name), getattr(norm_owner, norm_name))
            setattr(owner, name, convolution)
            setattr(norm_owner, norm_name, norm)
    return model


class NormAct(nn.Sequential):
    """Batch normalization and ReLU."""


def make_norm_act(enabled: bool, channels: int, **factory: Any) -> nn.Module:
    return NormAct(nn.BatchNorm2d(channels, **factory), nn.ReLU()) if enabled else nn.Identity()


def zero_(convolution: nn.Module, norm: nn.Module) -> None:
    """Zero the end of a residual branch: the norm if it has parameters, else the convolution.

    With both zero, as in the paper, neither the convolution nor the norm's weight would ever get a gradient.
    """
    end = norm if isinstance(getattr(norm, "weight", None), nn.Parameter) else convolution
    for parameter in end.parameters():
        nn.init.zeros_(parameter)


def fuse_input(
    x: Tensor, response: Tensor, convolution: nn.Module, norm: nn.Module, fusion: str, act: nn.Module | None = None
) -> Tensor:
    """Return ``x + norm(convolution(response))`` for "sum", or both concatenated for "concat", after the activation.

    The result is in the memory format of ``x``.
    """
    if act is not None and not (fusion == "sum" and type(act) is nn.ReLU and is_plain(act)):
        return act(fuse_input(x, response, convolution, norm, fusion))
    if fusion == "sum":
        return add_conv_norm(x, response, convolution, norm, relu=act is not None)
    update = norm(convolution(response))  # with C' = 1, the memory format is ambiguous
    return torch.cat((x, update.contiguous(memory_format=memory_format(x))), 1)


def add_conv_norm(x: Tensor, a: Tensor, convolution: Any, norm: Any, relu: bool = False) -> Tensor:
    """Return ``x + norm(convolution(a))`` (``relu``: followed by a ReLU), computed as one product where possible."""
    plain = type(convolution) is Pointwise and is_plain(convolution, norm) and not forward_mode()
    if plain and type(norm) is nn.Identity:
        return residual_product(x, a, convolution.weight.flatten(1), convolution.bias, relu)
    single = not torch.jit.is_tracing() and a.numel() <= a.shape[1]  # in a trace, the comparison would warn
    narrows = norm.training and convolution.in_channels > convolution.out_channels  # its moments would cost more
    if not plain or not is_standard(norm) or convolution.bias is not None or single or narrows:
        y = x + norm(convolution(a))
        return torch.relu(y) if relu else y
    weight = convolution.weight.flatten(1)
    with without_autocast(a.device.type):
        if not norm.training:
            running = norm.running_mean, norm.running_var
            if not needs_grad(x, a, weight, norm.weight) and normalised_fits(x, a, weight):
                folded = fold_running(weight, norm.weight, norm.bias, running, norm.eps)
            else:
                folded = _fold_weights(weight, norm, *running)
            return residual_product(x, a, *folded, relu)
        running = _count_batch(norm)
        if normalised_fits(x, a, weight):
            return normalised_product(x, a, weight, norm.weight, norm.bias, running, norm.eps, norm.momentum, relu)
        mean, covariance = moments(a)
        wide = weight.to(mean.dtype)
        mean, variance = wide @ mean, ((wide @ covariance) * wide).sum(1).clamp(min=0)
        count = a.numel() // a.shape[1]
        for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
            old.copy_(torch.lerp(old, new.detach().to(old.dtype), norm.momentum))
        return residual_product(x, a, *_fold_weights(weight, norm, mean, variance), relu)


def norm_act(x: Tensor, norm: Any, activation: nn.Module) -> Tensor:
    """Return ``activation(norm(x))``; batch norm and ReLU in one kernel where there is one."""
    standard = is_standard(norm) and type(activation) is nn.ReLU and is_plain(norm, activation)
    if not standard or not (direct(x) and fits(x)) or x.numel() <= x.shape[1]:
        return activation(norm(x))
    if not norm.training:
        if needs_grad(x, norm.weight):
            return activation(norm(x))
        return running_relu(x, norm.weight, norm.bias, (norm.running_mean, norm.running_var), norm.eps)
    return normalised_relu(x, norm.weight, norm.bias, _count_batch(norm), norm.eps, norm.momentum)


def is_standard(norm: Any) -> bool:
    """Return whether a module is batch normalization with parameters, running statistics and a momentum."""
    if type(norm) is not nn.BatchNorm2d or not norm.track_running_stats:
        return False
    tensors = norm._parameters.get("weight"), norm._parameters.get("bias"), norm._buffers.get("running_mean")
    return norm.momentum is not None and all(t is not None for t in tensors)


def _fold_weights(weight: Tensor, norm: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(wide) + norm.eps) * norm.weight
    return (weight * scale[:, None]).to(weight.dtype), norm.bias - mean * scale


def _count_batch(norm: Any) -> tuple[Tensor, Tensor]:
    """Increment a norm's number of batches, and return its running statistics."""
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return norm.running_mean, norm.running_var


def fold(convolution: Any, norm: Any) -> tuple[nn.Module, nn.Module]:
    """Fold batch normalization, also of :class:`NormAct`, into a copy of the convolution before it.

    Both are returned unchanged if ``norm`` is not a batch norm in evaluation mode with running statistics, if the
    weight of the convolution is computed from other parameters (as in spectral normalization), or if either has hooks.
    """
    if isinstance(norm, NormAct):
        convolution, norm[0] = fold(convolution, norm[0])
        return convolution, norm
    if type(convolution) not in (Pointwise, nn.Conv2d) or type(norm) not in (nn.BatchNorm2d, nn.SyncBatchNorm):
        return convolution, norm
    if not is_plain(convolution, norm) or norm.training or norm.running_mean is None or norm.running_var is None:
        return convolution, norm
    wide = torch.promote_types(norm.running_var.dtype, torch.float32)
    statistics = norm.running_mean.to(wide), norm.running_var.to(wide)
    folded = copy.deepcopy(convolution)
    folded.weight, folded.bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, *statistics, norm.eps, norm.weight, norm.bias
    )
    folded.bias.requires_grad_(convolution.weight.requires_grad)
    return folded, nn.Identity()


def is_plain(*modules: nn.Module) -> bool:
    """Return whether no module has hooks or a replaced ``forward``, and no ``torch.func`` transform is active."""
    if transformed() or (not torch.compiler.is_compiling() and torch.nn.modules.module._has_any_global_hook()):
        return False
    return not any("forward" in vars(module) or any(map(vars(module).get, _HOOKS)) for module in modules)
