"""The table of the layers: RepGraph layers, non-local blocks and DANet, as in the paper's complexity table."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repgraph.bench import blocks, gate
from repgraph.bench.blocks import BLOCKS, BOTH, FORWARD, Block, LayerSetting, make_input, make_layer, prepare
from repgraph.bench.measure import Call
from repgraph.bench.table import Baseline, Row, Table, number
from repgraph.ops.backends import choose
from repgraph.ops.tf32 import tensor_float_32

# The paper's complexity table: G multiply-adds (it says GFLOPs), and ms on an RTX 2080 Ti in float32.
PAPER = {"nl-shared": (601.4, 146.65), "danet-head": (785.01, 279.56)}
PAPER |= {"simple": (45.31, 60.89), "bottleneck": (34.96, 25.96)}


class LayerTable(Table):
    """Multiply-adds, parameters, time and memory of layers.

    Forward: in evaluation mode, without gradients, with batch norm folded by the layer's ``fuse``. Forward and
    backward: in training mode, with the gradients of the input and of all parameters.
    """

    name = "layers"
    noun = "block"
    passes = FORWARD, BOTH
    candidates = BLOCKS
    baselines = (
        Baseline("best_sdpa", "SDPA", [block.name for block in BLOCKS if block.family == blocks.SDPA]),
        Baseline("plain", "plain", ["nl-plain"]),
    )
    memory_note = "not counting input, parameters and cotangent"

    def context(self) -> AbstractContextManager[None]:
        return tensor_float_32()

    def inputs(self, setting: LayerSetting) -> Tensor:
        return make_input(setting).requires_grad_()

    def call(self, row: Row, inputs: Tensor) -> Call:
        layer = prepare(make_layer(row.candidate, row.setting), row.pass_)
        if row.pass_ == FORWARD:
            return torch.no_grad()(partial(layer, inputs))
        leaves = [inputs, *layer.parameters()]
        with torch.no_grad():
            cotangent = torch.randn_like(layer(inputs))
        return lambda: torch.autograd.grad(layer(inputs), leaves, cotangent)

    def check(self, candidate: Block, setting: LayerSetting) -> str | None:
        precision = gate.PRECISIONS["tf32" if setting.tf32 else setting.dtype_name]
        if candidate.family == blocks.DANET:  # plain PyTorch, and its softmax of large logits amplifies rounding errors
            precision = precision._replace(result=float("inf"), gradient=float("inf"))
        for pass_ in self.passes:
            if mistake := gate.mistake(precision, *self.results(candidate, setting, pass_)):
                return f"{pass_}: {mistake}"
        return None

    def results(self, block: Block, setting: LayerSetting, pass_: str) -> list[gate.Results]:
        """Return the results of a layer, and those of its plain version in the same dtype and in float64."""
        layer = make_layer(block, setting, gate=True)
        plain, exact = block.build(setting, plain=True), block.build(replace(setting, dtype=torch.float64), plain=True)
        for module in (plain, exact):
            module.load_state_dict(layer.state_dict())
            module.train(pass_ == BOTH)
        x = make_input(setting)
        found = []
        for module in (prepare(layer, pass_), plain, exact):
            given = x.to(torch.float64 if module is exact else x.dtype).requires_grad_()
            if pass_ == FORWARD:
                with torch.no_grad():
                    found.append({"result": module(given)})
            else:
                leaves = {"input": given, **dict(module.named_parameters())}
                found.append(gate.results(partial(module, given), leaves, setting))
        return found

    def facts(self, candidate: Block, setting: LayerSetting) -> dict[str, Any]:
        products = blocks.count_products(candidate, setting)
        parameters = sum(p.numel() for p in candidate.build(setting).parameters())
        paper_gmacs, paper_ms = PAPER.get(candidate.name, (None, None)) if setting.is_paper() else (None, None)
        return {
            "backend": choose("auto", setting.device, setting.dtype) if candidate.family == blocks.REPGRAPH else "",
            "parameters": parameters,
            "macs_products": sum(products.values()),
            **{f"macs_{name}": count for name, count in products.items()},
            "macs_all": sum(products.values()) + setting.batch * candidate.elements(setting),
            "counted_in_execution": True,
            "paper_gmacs": paper_gmacs,
            "paper_ms": paper_ms,
        }

    def work(self, row: Row) -> float:
        return row.facts["macs_products"]

    def memory(self, row: Row) -> dict[str, int | None]:
        extra = None if row.memory is None or row.result is None else row.memory + row.result
        return {"extra_bytes": extra, "result_bytes": row.result}

    def summary(self, rows: Sequence[Row]) -> tuple[str, list[dict[str, str]]] | None:
        """Return multiply-adds, parameters and times beside the paper's, for its input or else the largest."""
        counted = [row for row in rows if row.facts and row.pass_ == FORWARD]
        if not counted:
            return None
        setting = max((row.setting for row in counted), key=lambda s: (s.is_paper(), s.positions))
        lines = [
            {
                "block": row.candidate.name,
                "products G": f"{row.facts['macs_products'] / 1e9:.3f}",
                "paper G": str(row.facts["paper_gmacs"] or ""),
                "all G": f"{row.facts['macs_all'] / 1e9:.3f}",
                "params M": f"{row.facts['parameters'] / 1e6:.3f}",
                "ms": number(times.median) if (times := row.graph or row.times) else "",
                "paper ms": str(row.facts["paper_ms"] or ""),
            }
            for row in counted
            if row.setting == setting
        ]
        return f"{setting.title}: multiply-adds", lines
