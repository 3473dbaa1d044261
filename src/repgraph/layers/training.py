"""What goes with training a network that has RepGraph layers, and with its use afterwards.

How far the nodes reach (:func:`reach`), rates and weight decay by kind of parameter (:func:`param_groups`), and batch
normalisation folded into convolutions for inference (:func:`fuse`).
"""

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # batch and instance normalisation
from torch.nn.parameter import is_lazy

from repgraph.layers.batch_norm import check_eval
from repgraph.layers.non_local import NonLocal
from repgraph.layers.offset import Offset
from repgraph.layers.repgraph import RepGraph

Model = TypeVar("Model", bound=nn.Module)

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Reach:
    """How far a layer's nodes lie from their query, or from the middle of its cell: the lengths of the offsets.

    ``mean`` and ``p95`` (the length that 95 % of the offsets do not exceed) are in pixels; the shares are of the
    diagonal ``hypot(height, width)`` of the map, from 0 to 1. Of a layer whose bias alone is known, ``height`` and
    ``width`` are 0, and there are no shares: they are NaN.

    >>> print(Reach(4.2, 7.9, 0.046, 0.086, 65, 65))
    4.2 px mean, 7.9 px p95 (4.6 %, 8.6 % of the 65 x 65 map's diagonal)
    """

    mean: float
    p95: float
    mean_share: float
    p95_share: float
    height: int
    width: int

    def __str__(self) -> str:
        shares = f"{_percent(self.mean_share)}, {_percent(self.p95_share)}"
        if self.height:
            of = f"the {self.height} x {self.width} map's diagonal"
            return f"{self.mean:.1f} px mean, {self.p95:.1f} px p95 ({shares} of {of})"
        if math.isnan(self.mean) and math.isnan(self.mean_share):
            return "not known before a call (regions of the map)"
        if math.isnan(self.mean_share):
            return f"{self.mean:.1f} px mean, {self.p95:.1f} px p95 (of the bias alone)"
        return f"{shares} of a square map's diagonal (of the bias alone)"


def reach(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, Reach]:
    """How far the nodes of each RepGraph layer in a model lie from their queries, over all positions and images.

    Offsets are counted from a cell's left-top position; for a grid, the reach is that from the middle of the cell.

    Args:
        model: that has RepGraph layers, or is one.
        inputs, kwargs: what to call the model with. It runs once, without gradients and in evaluation mode, and is
            left in the modes it was in; compiled models run uncompiled. Without inputs it does not run, and the reach
            is that of each layer's last call.

    Returns:
        A :class:`Reach` for the path of each layer; the path of the model itself is "". A layer that is called
        several times counts with its last call. Of a layer without a call to look at (it is new, a copy, ran in
        compiled code, or did not run for these inputs) it is the reach of the bias alone, with height and width 0: in
        pixels and without shares. The bias of a spread that grows with the map is no number of pixels: those are NaN,
        and the shares are of a large square map; that of regions says nothing, and all are NaN.

    Example:
        >>> from repgraph.layers import BottleneckRepGraph
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), BottleneckRepGraph(16, nodes=9, spread="ring", radius=4.0))
        >>> for path, found in reach(model, torch.randn(1, 3, 35, 67)).items():
        ...     print(path, found)
        1 3.6 px mean, 4.0 px p95 (4.9 %, 5.5 % of the 33 x 65 map's diagonal)
    """
    layers = {path: module for path, module in model.named_modules() if isinstance(module, RepGraph)}
    if not layers:
        raise ValueError(f"this {type(model).__name__} has no RepGraph layer, whose reach could be measured")
    if inputs or kwargs:
        for layer in layers.values():
            layer.offset.seen = None
        _run(model, inputs, kwargs)
    return {path: _reach(layer.offset) for path, layer in layers.items()}


def _run(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a model and leave no trace but what its offsets have seen."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {t.get_device() for t in model.parameters() if t.is_cuda}
    # Nothing is compiled as long as the compiler, which takes long to import, has not been imported.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    model.eval()
    try:
        with eager, torch.no_grad(), torch.random.fork_rng(sorted(devices)):
            model(*inputs, **kwargs)
    finally:
        for module, training in modes:
            module.training = training


def _reach(offset: Offset) -> Reach:
    if offset.seen is not None:
        offsets, height, width = offset.seen
        mean, p95 = _lengths(offsets, *_middle(offset.grid, height, width))
        diagonal = math.hypot(height, width)
        return Reach(mean, p95, mean / diagonal, p95 / diagonal, height, width)
    assert offset.bias is not None
    bias = offset.bias.detach().view(1, -1, 1, 1)
    if offset.spread.unit == "half maps":
        middle = 1.0 if offset.grid == "map" else 0.0
        mean, p95 = _lengths(bias, middle, middle)
        whole = 2 * math.sqrt(2)  # the diagonal, in half sides
        return Reach(math.nan, math.nan, mean / whole, p95 / whole, 0, 0)
    if offset.regions is not None:  # how far regions are depends on the position and the map
        return Reach(math.nan, math.nan, math.nan, math.nan, 0, 0)
    mean, p95 = _lengths(bias, *_middle(offset.grid))
    return Reach(mean, p95, math.nan, math.nan, 0, 0)


def _middle(grid: int | Literal["map"], height: float = math.inf, width: float = math.inf) -> tuple[float, float]:
    """The middle (x, y) of a whole cell on a map of that size, from its left-top position."""
    if grid == "map":
        return ((width - 1) / 2, (height - 1) / 2) if math.isfinite(width) else (0.0, 0.0)
    return (min(grid, width) - 1) / 2, (min(grid, height) - 1) / 2


def _lengths(offsets: Tensor, x: float, y: float) -> tuple[float, float]:
    """Mean and 95th percentile of the lengths of offsets (B, 2S, Hc, Wc) from a point (x, y)."""
    lengths = torch.hypot(offsets[:, 0::2].double() - x, offsets[:, 1::2].double() - y).flatten()
    if not len(lengths):
        return math.nan, math.nan
    # Sorted: torch.quantile takes no more than 16 million numbers, in older versions.
    return lengths.mean().item(), lengths.sort().values[math.ceil(0.95 * len(lengths)) - 1].item()


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.1 else 1}f} %"


def param_groups(
    model: nn.Module, lr: float, *, offset_lr: float | None = None, no_decay: bool = True
) -> list[dict[str, Any]]:
    """Groups of parameters for any optimiser of PyTorch: offsets, normalisations and biases, and the others.

    Args:
        model: any model; one without RepGraph layers has no offsets.
        lr: learning rate.
        offset_lr: that of the convolutions that regress the offsets; ``lr`` by default, 0 keeps them as they are.
        no_decay: no weight decay for biases, the weights of normalisations and other parameters with one dimension,
            such as the gammas of dual attention. (Decay of the offsets' bias would pull the nodes together.)

    Returns:
        Groups "offset weights", "offset biases", "norms and biases" and "weights", each a dict with "params", "lr",
        "name" and, where weights are not to decay, "weight_decay" 0. Each trainable parameter is in one of them, also
        if modules share it; frozen ones are in none, and groups without parameters are left out.

    Example:
        >>> from repgraph.layers import BottleneckRepGraph
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), BottleneckRepGraph(16))
        >>> groups = param_groups(model, 0.01, offset_lr=0.001)
        >>> optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
        >>> for group in optimiser.param_groups:
        ...     print(group["name"], len(group["params"]), group["lr"], group["weight_decay"])
        offset weights 1 0.001 0.0001
        offset biases 1 0.001 0.0
        norms and biases 5 0.01 0.0
        weights 3 0.01 0.0001
    """
    lr = _rate("lr", lr)
    offset_lr = lr if offset_lr is None else _rate("offset_lr", offset_lr, or_zero=True)
    kinds: dict[nn.Parameter, str] = {}  # the first module that is a reason for a kind decides for shared parameters
    for module in model.modules():
        if isinstance(module, Offset):
            for parameter in module.parameters():
                kinds.setdefault(parameter, "offset biases" if parameter.dim() <= 1 else "offset weights")
    for module in model.modules():
        if isinstance(module, _NORMS):
            for parameter in module.parameters():
                kinds.setdefault(parameter, "norms and biases")
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": offset_lr, "name": "offset weights"},
        {"params": [], "lr": offset_lr, "name": "offset biases"},
        {"params": [], "lr": lr, "name": "norms and biases"},
        {"params": [], "lr": lr, "name": "weights"},
    ]
    by_name = {group["name"]: group for group in groups}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet; call the model once, then make groups of its parameters")
        if parameter.requires_grad:
            kind = kinds.get(parameter, "norms and biases" if parameter.dim() <= 1 else "weights")
            by_name[kind]["params"].append(parameter)
    if no_decay:
        by_name["offset biases"]["weight_decay"] = by_name["norms and biases"]["weight_decay"] = 0.0
    return [group for group in groups if group["params"]]


def _rate(name: str, value: Any, or_zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; a number is needed")
    if not (0 <= value < math.inf) or (value == 0 and not or_zero):
        raise ValueError(f"{name} is {value!r}; a finite number {'of at least' if or_zero else 'above'} 0 is needed")
    return float(value)


def fuse(model: Model) -> Model:
    """Fold batch normalisation into the convolutions of every RepGraph and non-local layer in a model, for inference.

    Load weights before, not after: the layers have no other copy of them then. Compile or export after.

    Args:
        model: in evaluation mode, as all of these layers; it is changed.

    Returns:
        The same model. One without such layers is left as it is.

    Example:
        >>> from repgraph.layers import BottleneckRepGraph
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), BottleneckRepGraph(16)).eval()
        >>> fuse(model)[1].expand_norm
        Identity()
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, (RepGraph, NonLocal))]
    for module in (model, *layers):  # all of them before any is changed
        check_eval(module)
    for layer in layers:
        layer.fuse()
    return model
