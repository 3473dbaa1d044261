"""The benchmark of segmentation networks: parameters, images per second, time and memory of a training step."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.bench.table import FORWARD, Candidate, Function, Leaves, Row, Setting, Table, number
from repgraph.layers import fuse
from repgraph.models import RGNet

STEP = "training step"
CLASSES = 21


@dataclass(frozen=True, kw_only=True)
class NetworkSetting(Setting):
    """Sizes of the images, and the backbone of all networks."""

    backbone: str = "resnet50"

    def columns(self) -> dict[str, Any]:
        unused = ("channels", "nodes", "sigma")
        return {name: value for name, value in super().columns().items() if name not in unused}

    @property
    def title(self) -> str:
        return f"{self.batch} x {self.height} x {self.width}, {self.backbone}, {self.dtype_name}"


def _build(setting: NetworkSetting, **options: Any) -> RGNet:
    """Return a network with random weights in evaluation mode."""
    torch.manual_seed(0)
    model = RGNet(CLASSES, setting.backbone, **options).eval().to(setting.device)
    return model.to(memory_format=setting.memory_format)


class NetworkTable(Table):
    """Segmentation networks with one backbone.

    Forward: in evaluation mode, without gradients, parameters in the setting's dtype, RepGraph and non-local layers
    fused. Training step: losses of both heads and gradients, no optimizer, float32 parameters under autocast.
    """

    name = "networks"
    noun = "network"
    passes = FORWARD, STEP
    checked = (FORWARD,)
    candidates = (
        Candidate("baseline", partial(_build, context="none")),
        Candidate("nl", partial(_build, context="non_local")),
        Candidate("psp", partial(_build, context="psp")),
        Candidate("rgnet", _build),
        Candidate("fpn", partial(_build, context="none", decoder="pyramid")),
        Candidate("pyramid", partial(_build, decoder="pyramid")),
    )
    baselines: ClassVar = {"rgnet": ["rgnet"], "nl": ["nl"]}
    small_size = (97, 129)

    def inputs(self, setting: NetworkSetting) -> Leaves:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(setting.batch, 3, setting.height, setting.width, generator=generator)
        return {"images": images.to(setting.device, setting.dtype, memory_format=setting.memory_format)}

    def build(self, row: Row) -> nn.Module:
        model = row.candidate.build(row.setting)
        return fuse(model).to(row.setting.dtype) if row.pass_ == FORWARD else model.train()

    def bind(self, function: Any, inputs: Leaves, pass_: str) -> tuple[Function, Leaves]:
        if pass_ == FORWARD:
            return super().bind(function, inputs, pass_)
        (given,) = inputs.values()
        images, dtype = given.float(), given.dtype
        classes = torch.randint(CLASSES, (len(images), *images.shape[2:]), device=images.device)

        def loss() -> Tensor:
            with torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
                logits, auxiliary = function(images)
                return F.cross_entropy(logits, classes) + 0.4 * F.cross_entropy(auxiliary, classes)

        return loss, dict(function.named_parameters())

    def versions(self, candidate: Candidate, setting: NetworkSetting, pass_: str) -> tuple[nn.Module, ...]:
        fused, plain, exact = (candidate.build(setting) for _ in range(3))
        return fuse(fused).to(setting.dtype), plain.to(setting.dtype), exact.to(torch.float64)

    def small(self, setting: NetworkSetting) -> NetworkSetting:
        return replace(super().small(setting), batch=1)

    def facts(self, candidate: Candidate, setting: NetworkSetting) -> dict[str, Any]:
        with torch.device("meta"):
            model = candidate.build(replace(setting, device=torch.device("meta")))
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def cells(self, row: Row) -> dict[str, str]:
        times = row.graph or row.times
        rate = number(1e3 * row.setting.batch / times.median) if times else ""
        return {"images/s": rate, "M params": number(row.facts["parameters"] / 1e6)}
