"""The table of deformable attention: the operator, its composition in transformers, and whole networks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.acceleration import accelerate
from repgraph.bench import gate
from repgraph.bench.operator import between_pixels, build_compiled, why_not_backend
from repgraph.bench.table import BOTH, FORWARD, Candidate, Function, Leaves, Row, Setting, Table
from repgraph.info import installed
from repgraph.ops import multi_scale_deformable_attention

HEADS = 8
PACKAGES = {"deform-conv2d": "torchvision", "mmcv": "mmcv", "hub-kernel": "kernels"}  # of other candidates
# Strides of the maps, and the number of queries (0: one for each position of the maps).
OPERATORS: dict[str, tuple[tuple[int, ...], int]] = {
    "detr-encoder": ((8, 16, 32, 64), 0),
    "detr-decoder": ((8, 16, 32, 64), 300),
    "pixel-decoder": ((32, 16, 8), 0),
    "single-map": ((8,), 0),
}
NETWORKS = ("deformable-detr", "mask2former")


@dataclass(frozen=True, kw_only=True)
class DeformableSetting(Setting):
    """A problem at the size of an image. Points of a query are normal around its own position, as after training."""

    problem: str
    nodes: int = 4  # points on each map
    memory_format: torch.memory_format = torch.contiguous_format

    @property
    def maps(self) -> list[tuple[int, int]]:
        strides = OPERATORS[self.problem][0]
        return [(math.ceil(self.height / stride), math.ceil(self.width / stride)) for stride in strides]

    @property
    def title(self) -> str:
        return f"{self.problem}, image {self.height} x {self.width}, {self.dtype_name}"


def composition(value: Tensor, sizes: Sequence[tuple[int, int]], locations: Tensor, weights: Tensor) -> Tensor:
    """Compute deformable attention with ``grid_sample``, at least in float32, as transformers does under autocast."""
    batch, queries, heads, _, points, _ = locations.shape
    channels = value.shape[3]
    dtype = torch.promote_types(torch.float32, value.dtype)
    grids = 2 * locations.to(dtype) - 1
    sampled = []
    for level, (height, width) in enumerate(sizes):
        start = sum(h * w for h, w in sizes[:level])
        rows = value[:, start : start + height * width].to(dtype)
        maps = rows.permute(0, 2, 3, 1).reshape(batch * heads, channels, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)  # [B M, Q, P, 2]
        sampled.append(F.grid_sample(maps, grid, align_corners=False))  # [B M, D, Q, P]
    flat = weights.to(dtype).transpose(1, 2).reshape(batch * heads, 1, queries, len(sizes) * points)
    y = (torch.stack(sampled, 3).flatten(3) * flat).sum(3)  # [B M, D, Q]
    return y.view(batch, heads * channels, queries).transpose(1, 2).contiguous().to(value.dtype)


def deform_conv(value: Tensor, sizes: Sequence[tuple[int, int]], locations: Tensor, weights: Tensor) -> Tensor:
    """Compute deformable attention to one map with a query for each position by torchvision's ``deform_conv2d``.

    Heads are its offset groups, points the elements of a kernel of ones for each channel, weights the modulation mask.
    """
    from torchvision.ops import deform_conv2d

    ((height, width),) = sizes
    batch, points = len(locations), locations.shape[4]
    index = torch.arange(height * width, device=locations.device)
    x, y = (t[:, None, None] for t in (index % width, index // width))
    steps = 2 * torch.arange(points, device=index.device) - (points - 1)  # positions of the kernel's elements
    across, down = locations[:, :, :, 0].unbind(-1)  # [B, Q, M, P]
    pixels = torch.stack((down * height - 0.5 - y, across * width - 0.5 - x - steps), 4)
    maps = value.flatten(2).mT.reshape(batch, -1, height, width)
    kernel = maps.new_ones(maps.shape[1], 1, 1, points)
    offsets, mask = (t.flatten(2).mT.reshape(batch, -1, height, width) for t in (pixels, weights))
    result = deform_conv2d(maps, offsets, kernel, padding=(0, points - 1), dilation=(1, 2), mask=mask)
    return result.flatten(2).mT.contiguous()


class Network(nn.Module):
    """A Hugging Face model with random weights, whose outputs are one tensor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        options: dict[str, Any] = dict(out_features=["stage2", "stage3", "stage4"])
        backbone: Any
        config: Any
        self.network: nn.Module
        if name == "deformable-detr":  # with ResNet-50
            backbone = transformers.ResNetConfig(**options)
            config = transformers.DeformableDetrConfig(backbone_config=backbone, dropout=0.0)
            self.network = transformers.DeformableDetrForObjectDetection(config)
            self.outputs = "logits", "pred_boxes"
        else:  # with Swin-T
            options["out_features"].insert(0, "stage1")
            options |= dict(depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], embed_dim=96, window_size=7)
            backbone = transformers.SwinConfig(**options, drop_path_rate=0.0)
            config = transformers.Mask2FormerConfig(backbone_config=backbone)
            self.network = transformers.Mask2FormerForUniversalSegmentation(config)
            self.outputs = "class_queries_logits", "masks_queries_logits"
        with torch.no_grad():
            for key, parameter in self.network.named_parameters():
                if "sampling_offsets" in key:  # initial offsets are whole pixels, where derivatives jump
                    parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.01)
        self.eval()

    def forward(self, pixel_values: Tensor) -> Tensor:
        found = self.network(pixel_values=pixel_values)
        return torch.cat([found[name].flatten(1) for name in self.outputs], 1)


def _function(setting: DeformableSetting, backend: str | None = None) -> Function:
    """Build the operator or a network, computed by a backend or, without one, as in transformers."""
    if setting.problem in NETWORKS:
        torch.manual_seed(0)
        network = Network(setting.problem).to(setting.device, setting.dtype)
        if backend is not None:
            accelerate(network, backend=backend)
        return network
    operator = partial(multi_scale_deformable_attention, backend=backend) if backend else composition
    return lambda value, *rest: operator(value, setting.maps, *rest)


def _others(setting: DeformableSetting, package: str) -> Function:
    """Build the operator from torchvision, mmcv, or the kernel of the hub that transformers uses (``use_kernels``)."""
    if package == "torchvision":
        return lambda value, *rest: deform_conv(value, setting.maps, *rest)
    shapes = torch.tensor(setting.maps, device=setting.device)
    areas = shapes.prod(1)
    starts = areas.cumsum(0) - areas
    if package == "mmcv":
        from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

        return lambda value, *rest: MultiScaleDeformableAttnFunction.apply(value, shapes, starts, *rest, 64)
    from kernels import get_kernel

    layer = get_kernel("kernels-community/deformable-detr", version=1).layers.MultiScaleDeformableAttention()
    return lambda value, *rest: layer(value, shapes, setting.maps, starts, *rest, 64)


def _why_not_compiled(setting: DeformableSetting) -> str | None:
    return "measures the operator only, not whole networks" if setting.problem in NETWORKS else None


def _why_not_others(package: str, setting: DeformableSetting) -> str | None:
    if reason := _why_not_compiled(setting):
        return reason
    if setting.dtype != torch.float32:
        return "stores sampling locations in the dtype of the values; needs float32"
    if package == "torchvision" and setting.problem != "single-map":
        return "supports only a single map with one query per position"
    if package != "torchvision" and setting.device.type == "cpu":
        return "needs a CUDA device"
    return None if find_spec(package) else f"{package} is not installed"


class DeformableTable(Table):
    """Deformable attention, and whole Hugging Face models, of which ``composition`` is the unchanged one.

    ``deform-conv2d`` is torchvision's, with the conversion of locations to its offsets; ``mmcv`` and ``hub-kernel`` are
    the CUDA kernels of mmcv and of the hub of transformers.
    """

    name = "deformable"
    passes = FORWARD, BOTH
    checked = (BOTH,)
    candidates = (
        *(Candidate(n, partial(_function, backend=n), why_not=partial(why_not_backend, n)) for n in ("cpu", "triton")),
        Candidate("composition", _function),
        Candidate("composition-compiled", partial(build_compiled, _function), why_not=_why_not_compiled),
        *(
            Candidate(name, partial(_others, package=package), why_not=partial(_why_not_others, package))
            for name, package in PACKAGES.items()
        ),
    )
    baselines: ClassVar = {"comp.": ["composition"]}
    memory_column = "extra_bytes"
    small_size = (149, 173)

    def inputs(self, setting: DeformableSetting) -> Leaves:
        """Return an image for networks; else values, locations and weights that sum to one."""
        random: Any = dict(generator=torch.Generator(setting.device).manual_seed(0), device=setting.device)
        if setting.problem in NETWORKS:
            return {"image": torch.randn(setting.batch, 3, setting.height, setting.width, **random).to(setting.dtype)}
        sizes, (_, queries) = setting.maps, OPERATORS[setting.problem]
        centers = torch.cat([_centers(*size) for size in sizes]).to(setting.device)  # [N, 2]
        if queries:
            centers = torch.rand(queries, 2, **random)
        shape = (setting.batch, len(centers), HEADS, len(sizes), setting.nodes)
        unit = torch.tensor([[[width, height]] for height, width in sizes], device=setting.device)  # [L, 1, 2]
        pixels = centers[:, None, None, None] * unit - 0.5 + torch.randn(*shape, 2, **random) * setting.sigma
        rows = (setting.batch, sum(h * w for h, w in sizes), HEADS, setting.channels // HEADS)
        leaves = {
            "value": torch.randn(rows, **random).to(setting.dtype),
            "locations": (between_pixels(pixels) + 0.5) / unit,
            "weights": torch.rand(shape, **random).flatten(3).softmax(3).view(shape).to(setting.dtype),
        }
        return {name: t.requires_grad_() for name, t in leaves.items()}

    def versions(self, candidate: Candidate, setting: DeformableSetting, pass_: str) -> tuple[Function, ...]:
        return candidate.build(setting), _function(setting), _function(replace(setting, dtype=torch.float64))

    def results(
        self, function: Function, setting: DeformableSetting, pass_: str, dtype: torch.dtype | None = None
    ) -> gate.Results:
        found = super().results(function, setting, pass_, dtype)
        if setting.problem in OPERATORS or pass_ == FORWARD:
            return found
        y = found.pop("result")
        return {"result": y, "gradient": torch.cat([g.flatten() for g in found.values()])}

    def precision(self, candidate: Candidate, setting: DeformableSetting) -> gate.Precision:
        precision = gate.PRECISIONS[setting.dtype_name]
        if setting.problem in OPERATORS:
            return precision
        # Rounding flips ReLUs and corners of points: the usual limit of gradients is added to the errors of the
        # unchanged network, and the gradients of all parameters are one vector.
        return gate.Precision(precision.gradient / gate.STEPS, math.inf, math.inf)

    def facts(self, candidate: Candidate, setting: DeformableSetting) -> dict[str, Any]:
        """Return the largest difference from the composition, relative to the largest result."""
        expected = _expected(self, setting)
        y = self.results(candidate.build(setting), setting, FORWARD)["result"].to(expected)
        difference = float((y - expected).abs().max() / expected.abs().max())
        return {"largest_difference": difference, "transformers": installed("transformers")}

    def cells(self, row: Row) -> dict[str, str]:
        return {"differs": f"{row.facts['largest_difference']:.0e}"}


@lru_cache(maxsize=1)
def _expected(table: DeformableTable, setting: DeformableSetting) -> Tensor:
    """Return the composition's result: in float64 for the operator, in the setting's dtype for networks."""
    dtype = torch.float64 if setting.problem in OPERATORS else None
    return table.results(_function(setting), setting, FORWARD, dtype)["result"].cpu()


def _centers(height: int, width: int) -> Tensor:
    """Return the centers [x, y] of the pixels of a map, from 0 to 1."""
    y, x = torch.cartesian_prod(torch.arange(height), torch.arange(width)).unbind(1)
    return torch.stack(((x + 0.5) / width, (y + 0.5) / height), 1)
