"""The benchmark of segmentation networks: parameters, images per second, time and memory of a training step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.bench import gate
from repgraph.bench.layers import FORWARD
from repgraph.bench.measure import Call
from repgraph.bench.table import OK, Baseline, Candidate, Row, Setting, Table, number
from repgraph.layers import fuse
from repgraph.models import RGNet

STEP = "training step"
CLASSES = 21
OURS, OTHERS = "repgraph", "others"  # families


@dataclass(frozen=True, kw_only=True)
class NetworkSetting(Setting):
    """Sizes of the images, and the backbone of all networks."""

    backbone: str = "resnet50"

    def columns(self) -> dict[str, Any]:
        unused = ("channels", "nodes", "sigma")
        return {name: value for name, value in super().columns().items() if name not in unused}

    @property
    def title(self) -> str:
        return f"{self.batch} x {self.height} x {self.width}, {self.backbone}, {self.case}"


def _build(setting: NetworkSetting, **options: Any) -> RGNet:
    """Return a network with random weights in evaluation mode."""
    torch.manual_seed(setting.seed)
    model = RGNet(CLASSES, setting.backbone, **options).eval().to(setting.device)
    return model.to(memory_format=setting.memory_format)


class NetworkTable(Table):
    """Segmentation networks with one backbone, as :class:`~repgraph.models.RGNet` builds them.

    Forward: in evaluation mode, without gradients, parameters in the setting's dtype, RepGraph and non-local layers
    fused. Training step: forward and backward pass of the loss with the auxiliary head, float32 parameters under
    autocast, without the optimizer.
    """

    name = "networks"
    noun = "network"
    passes = FORWARD, STEP
    candidates = (
        Candidate("baseline", partial(_build, context="none"), OTHERS),
        Candidate("nl", partial(_build, context="non_local"), OTHERS),
        Candidate("psp", partial(_build, context="psp"), OTHERS),
        Candidate("rgnet", _build, OURS),
        Candidate("fpn", partial(_build, context="none", decoder="pyramid"), OTHERS),
        Candidate("pyramid", partial(_build, decoder="pyramid"), OURS),
    )
    baselines = (Baseline("rgnet", "rgnet", ["rgnet"]), Baseline("nl", "nl", ["nl"]))
    memory_note = "not counting parameters, images and the result"

    def inputs(self, setting: NetworkSetting) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(setting.seed)
        shape = setting.batch, 3, setting.height, setting.width
        images = torch.randn(shape, generator=generator).to(setting.device, memory_format=setting.memory_format)
        classes = torch.randint(CLASSES, (setting.batch, *shape[2:]), generator=generator)
        return images, classes.to(setting.device)

    def call(self, row: Row, inputs: tuple[Tensor, Tensor]) -> Call:
        setting, (images, classes) = row.setting, inputs
        model = row.candidate.build(setting)
        if row.pass_ == FORWARD:
            fuse(model).to(setting.dtype)
            return torch.no_grad()(partial(model, images.to(setting.dtype)))
        model.train()
        parameters = list(model.parameters())

        def step() -> object:
            with torch.autocast(setting.device.type, setting.dtype, enabled=setting.dtype != torch.float32):
                logits, auxiliary = model(images)
                loss = F.cross_entropy(logits, classes) + 0.4 * F.cross_entropy(auxiliary, classes)
            return torch.autograd.grad(loss, parameters)

        return step

    def check(self, candidate: Candidate, setting: NetworkSetting) -> str | None:
        """Compare the fused network with the one in float64."""
        images, found = self.inputs(setting)[0], []
        for fused, dtype in ((True, setting.dtype), (False, setting.dtype), (False, torch.float64)):
            model = candidate.build(setting)
            model = (fuse(model) if fused else model).to(dtype)
            with torch.no_grad():
                found.append({"result": model(images.to(dtype))})
        return gate.mistake(gate.PRECISIONS["tf32" if setting.tf32 else setting.dtype_name], *found)

    def small(self, setting: NetworkSetting) -> NetworkSetting:
        return replace(setting, height=97, width=129, batch=1)

    def facts(self, candidate: Candidate, setting: NetworkSetting) -> dict[str, Any]:
        with torch.device("meta"):
            model = candidate.build(replace(setting, device=torch.device("meta")))
        return {"parameters": sum(p.numel() for p in model.parameters())}

    def summary(self, rows: Sequence[Row]) -> tuple[str, list[dict[str, str]]] | None:
        """Return images per second, and time and memory of a training step, of each network and size."""
        lines: dict[tuple[str, Any], dict[str, str]] = {}
        for row in rows:
            if row.status != OK or row.times is None:
                continue
            setting, time = row.setting, row.graph or row.times
            size = f"{setting.batch}x{setting.size}, {setting.dtype_name}"
            line = lines.setdefault((row.candidate.name, setting), {"network": row.candidate.name, "images": size})
            line["M params"] = number(row.facts["parameters"] / 1e6)
            if row.pass_ == FORWARD:
                line["images/s"] = number(1e3 * setting.batch / time.median)
            else:
                line |= {"ms/step": number(time.median), "MiB/step": number((row.memory or 0) / 2**20)}
        return ("Segmentation networks", list(lines.values())) if lines else None
