"""The table of deformable attention: the operator, its composition in transformers, and whole networks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.acceleration import accelerate
from repgraph.bench import gate
from repgraph.bench.layers import BOTH, FORWARD
from repgraph.bench.measure import Call
from repgraph.bench.operator import CLEARANCE
from repgraph.bench.table import Baseline, Candidate, Row, Setting, Table
from repgraph.info import installed
from repgraph.ops import backends, multi_scale_deformable_attention

OURS, COMPOSED, OTHERS = "repgraph", "composed", "others"  # families
HEADS = 8
# Strides of the maps, and the number of queries (0: one for each position of the maps).
OPERATORS: dict[str, tuple[tuple[int, ...], int]] = {
    "detr-encoder": ((8, 16, 32, 64), 0),
    "detr-decoder": ((8, 16, 32, 64), 300),
    "pixel-decoder": ((32, 16, 8), 0),
    "single-map": ((8,), 0),
}
NETWORKS = ("deformable-detr", "mask2former")
PROBLEMS = (*OPERATORS, *NETWORKS)
SMALL_IMAGE = (149, 173)  # for the gate
Leaves = dict[str, Tensor]  # value, locations, weights


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
    def case(self) -> str:
        return f"{self.problem}-{self.dtype_name}"

    @property
    def title(self) -> str:
        return f"{self.problem}, image {self.height} x {self.width}, {self.dtype_name}"


def composition(
    value: Tensor, sizes: Sequence[tuple[int, int]], locations: Tensor, weights: Tensor, *, dtype: torch.dtype
) -> Tensor:
    """Compute deformable attention with ``grid_sample`` in ``dtype``, as transformers does."""
    batch, queries, heads, _, points, _ = locations.shape
    channels = value.shape[3]
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
    """A network of transformers with random weights, whose outputs are one tensor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import transformers

        config: Any
        torch.manual_seed(0)
        self.network: nn.Module
        stages: Any = dict(out_features=["stage2", "stage3", "stage4"])
        if name == "deformable-detr":  # with ResNet-50
            config = transformers.DeformableDetrConfig(backbone_config=transformers.ResNetConfig(**stages), dropout=0.0)
            self.network = transformers.DeformableDetrForObjectDetection(config)
        else:  # with Swin-T
            stages["out_features"].insert(0, "stage1")
            swin: Any = dict(depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], embed_dim=96, window_size=7, **stages)
            config = transformers.Mask2FormerConfig(backbone_config=transformers.SwinConfig(**swin, drop_path_rate=0.0))
            self.network = transformers.Mask2FormerForUniversalSegmentation(config)
        with torch.no_grad():
            for key, parameter in self.network.named_parameters():
                if "sampling_offsets" in key:  # initial offsets are whole pixels, where derivatives jump
                    parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.01)
        self.outputs = (
            ("logits", "pred_boxes") if name == "deformable-detr" else ("class_queries_logits", "masks_queries_logits")
        )
        self.eval()

    def forward(self, pixel_values: Tensor) -> Tensor:
        found = self.network(pixel_values=pixel_values)
        return torch.cat([found[name].flatten(1) for name in self.outputs], 1)


def _network(setting: DeformableSetting, backend: str | None, dtype: torch.dtype | None = None) -> Network:
    """Build a network, accelerated if a backend is given."""
    with torch.random.fork_rng([setting.device] if setting.device.type == "cuda" else []):
        network = Network(setting.problem).to(setting.device, dtype or setting.dtype)
    if backend is not None:
        accelerate(network, backend=backend)
    return network


def _ours(setting: DeformableSetting, backend: str) -> Callable[..., Tensor]:
    if setting.problem in NETWORKS:
        return _network(setting, backend)
    return lambda value, locations, weights: multi_scale_deformable_attention(
        value, setting.maps, locations, weights, backend=backend
    )


def _composition(setting: DeformableSetting, narrow: bool = False) -> Callable[..., Tensor]:
    if setting.problem in NETWORKS:
        return _network(setting, None)
    sizes, dtype = setting.maps, setting.dtype if narrow else torch.float32
    return lambda value, locations, weights: composition(
        value, sizes, locations, weights, dtype=torch.promote_types(dtype, value.dtype)
    )


def _compiled(setting: DeformableSetting) -> Callable[..., Tensor]:
    torch.compiler.reset()
    return torch.compile(_composition(setting), fullgraph=True, dynamic=False)


def _deform_conv(setting: DeformableSetting) -> Callable[..., Tensor]:
    return lambda value, locations, weights: deform_conv(value, setting.maps, locations, weights)


def _mmcv(setting: DeformableSetting) -> Callable[..., Tensor]:
    from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

    shapes, starts = _levels(setting)
    return lambda value, *rest: MultiScaleDeformableAttnFunction.apply(value, shapes, starts, *rest, 64)


def _hub(setting: DeformableSetting) -> Callable[..., Tensor]:
    """The kernel that transformers loads from the hub with ``use_kernels=True``."""
    from kernels import get_kernel

    layer = get_kernel("kernels-community/deformable-detr", version=1).layers.MultiScaleDeformableAttention()
    shapes, starts = _levels(setting)
    return lambda value, *rest: layer(value, shapes, setting.maps, starts, *rest, 64)


def _levels(setting: DeformableSetting) -> tuple[Tensor, Tensor]:
    """Return the sizes of the maps and their first positions."""
    shapes = torch.tensor(setting.maps, device=setting.device)
    areas = shapes.prod(1)
    return shapes, areas.cumsum(0) - areas


def _why_not_others(package: str, setting: DeformableSetting) -> str | None:
    if setting.problem in NETWORKS:
        return "is for the operator alone"
    if setting.dtype != torch.float32:
        return "has positions in the dtype of the values"
    if package == "torchvision":
        if setting.problem != "single-map":
            return "is for one map with a query for each position"
    elif setting.device.type == "cpu":
        return "needs a CUDA device"
    return None if find_spec(package) else f"{package} is not installed"


def _why_not_backend(name: str, setting: DeformableSetting) -> str | None:
    if name == "triton" and setting.device.type == "cpu":
        return "needs a CUDA device; interpreted on the CPU, its time would be meaningless"
    return _why_not(setting) or backends.why_not(name, setting.device, setting.dtype)


def _why_not(setting: DeformableSetting, *, networks: bool = True, half: bool = False) -> str | None:
    if setting.problem in NETWORKS:
        if not networks:
            return "is for the operator alone"
        return None if find_spec("transformers") else "transformers is not installed"
    return "is for half precision" if half and setting.dtype == torch.float32 else None


class DeformableTable(Table):
    """Deformable attention in detectors and segmenters, and whole networks of transformers before and after.

    ``composition`` samples in float32, as transformers does under autocast; for networks it is the unchanged network.
    ``composition-16bit`` has values and positions in half precision, as transformers does in networks of that dtype.
    Its positions are off by fractions of a pixel, so it is measured without the gate. ``deform-conv2d`` is
    torchvision's, with the conversion of locations to its offsets; ``mmcv`` and ``hub-kernel`` are the CUDA kernels of
    mmcv and of the hub of transformers.
    """

    name = "deformable"
    passes = FORWARD, BOTH
    candidates = (
        *(Candidate(n, partial(_ours, backend=n), OURS, partial(_why_not_backend, n)) for n in ("cpu", "triton")),
        Candidate("composition", _composition, COMPOSED, _why_not),
        Candidate(
            "composition-16bit",
            partial(_composition, narrow=True),
            COMPOSED,
            partial(_why_not, networks=False, half=True),
        ),
        Candidate("composition-compiled", _compiled, COMPOSED, partial(_why_not, networks=False)),
        Candidate("deform-conv2d", _deform_conv, OTHERS, partial(_why_not_others, "torchvision")),
        Candidate("mmcv", _mmcv, OTHERS, partial(_why_not_others, "mmcv")),
        Candidate("hub-kernel", _hub, OTHERS, partial(_why_not_others, "kernels")),
    )
    baselines = (Baseline("composition", "comp.", ["composition", "composition-16bit"]),)
    memory_note = "not counting inputs and parameters"
    sized = "images"

    def inputs(self, setting: DeformableSetting) -> Leaves:
        """Return an image for networks; else values, locations and weights that sum to one."""
        generator = torch.Generator(setting.device).manual_seed(setting.seed)
        random: Any = dict(generator=generator, device=setting.device)
        if setting.problem in NETWORKS:
            return {"image": torch.randn(setting.batch, 3, setting.height, setting.width, **random).to(setting.dtype)}
        sizes, (_, queries) = setting.maps, OPERATORS[setting.problem]
        centres = torch.cat([_centres(*size, setting.device) for size in sizes])  # [N, 2]
        if queries:
            centres = torch.rand(queries, 2, **random)
        shape = (setting.batch, len(centres), HEADS, len(sizes), setting.nodes)
        unit = torch.tensor([[width, height] for height, width in sizes], device=setting.device)
        offsets = torch.randn(*shape, 2, **random) * setting.sigma
        rows = (setting.batch, sum(h * w for h, w in sizes), HEADS, setting.channels // HEADS)
        leaves = {
            "value": torch.randn(rows, **random).to(setting.dtype),
            "locations": centres[:, None, None, None] + offsets / unit[:, None],
            "weights": torch.rand(shape, **random).flatten(3).softmax(3).view(shape).to(setting.dtype),
        }
        return {name: t.requires_grad_() for name, t in leaves.items()}

    def call(self, row: Row, inputs: Leaves) -> Call:
        function = row.candidate.build(row.setting)
        given = list(inputs.values())
        if row.pass_ == FORWARD:
            return torch.no_grad()(partial(function, *given))
        leaves = _trained(function).values() if isinstance(function, nn.Module) else given
        with torch.no_grad():
            cotangent = torch.randn_like(function(*given))
        return lambda: torch.autograd.grad(function(*given), list(leaves), cotangent, allow_unused=True)

    def check(self, candidate: Candidate, setting: DeformableSetting) -> str | None:
        if candidate.name == "composition-16bit":
            return None
        precision = gate.PRECISIONS[setting.dtype_name]
        leaves = {name: t.detach() for name, t in self.inputs(setting).items()}
        found = []
        if setting.problem in NETWORKS:
            # Rounding flips ReLUs and corners of points: the usual limit of gradients is added to the errors of the
            # unchanged network, and the gradients of all parameters are one vector.
            step = precision.gradient / gate.STEPS
            precision = precision._replace(step=step, result=math.inf, gradient=math.inf)
            modules = (candidate.build(setting), _network(setting, None), _network(setting, None, torch.float64))
            for module in modules:
                assert isinstance(module, Network)
                image = leaves["image"].to(next(module.parameters()).dtype)
                results = gate.results(partial(module, image), _trained(module), setting)
                y = results.pop("result")
                found.append({"result": y, "gradient": torch.cat([g.flatten() for g in results.values()])})
            return gate.mistake(precision, *found)
        sizes = torch.tensor([[width, height] for height, width in setting.maps], device=setting.device)[:, None]
        pixels = leaves["locations"].double() * sizes - 0.5
        pixels = pixels.floor() + (pixels - pixels.floor()).clamp(CLEARANCE, 1 - CLEARANCE)
        leaves["locations"] = ((pixels + 0.5) / sizes).float()
        plain = _composition(setting)
        for function, dtype in ((candidate.build(setting), None), (plain, None), (plain, torch.float64)):
            given = {name: t.to(dtype or t.dtype, copy=True).requires_grad_() for name, t in leaves.items()}
            found.append(gate.results(partial(function, *given.values()), given, setting))
        return gate.mistake(precision, *found)

    def small(self, setting: DeformableSetting) -> DeformableSetting:
        return replace(setting, height=SMALL_IMAGE[0], width=SMALL_IMAGE[1])

    def facts(self, candidate: Candidate, setting: DeformableSetting) -> dict[str, Any]:
        """Return the largest difference from the composition, relative to the largest result."""
        version = {"transformers": installed("transformers")}
        if candidate.name == "composition-compiled":
            return version
        expected, inputs = _expected(self, setting), self.inputs(setting)
        with torch.no_grad():
            y = candidate.build(setting)(*inputs.values())
        return {"largest_difference": float((y.to(expected) - expected).abs().max() / expected.abs().max()), **version}

    def work(self, row: Row) -> float:
        return row.setting.height * row.setting.width

    def memory(self, row: Row) -> dict[str, int | None]:
        return {"extra_bytes": row.memory, "result_bytes": row.result}


def _trained(module: nn.Module) -> Leaves:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


@lru_cache(maxsize=1)
def _expected(table: DeformableTable, setting: DeformableSetting) -> Tensor:
    """Return the composition's result: in float64 for the operator, in the setting's dtype for networks."""
    inputs = table.inputs(setting)
    with torch.no_grad():
        if setting.problem in NETWORKS:
            return _network(setting, None)(*inputs.values()).cpu()
        value, locations, weights = inputs.values()
        return composition(value.double(), setting.maps, locations, weights, dtype=torch.float64).cpu()


def _centres(height: int, width: int, device: torch.device) -> Tensor:
    """Return the centres [x, y] of the pixels of a map, from 0 to 1."""
    y = (torch.arange(height, device=device) + 0.5) / height
    x = (torch.arange(width, device=device) + 0.5) / width
    return torch.stack((x.expand(height, width), y[:, None].expand(height, width)), 2).flatten(0, 1)
