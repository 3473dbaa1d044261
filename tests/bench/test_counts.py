"""Multiply-adds of layers."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from repgraph.bench.layers import BLOCKS, PAPER, LayerSetting, LayerTable, count_products
from repgraph.layers import BottleneckRepGraph
from repgraph.ops.geometry import cells

NAMED = {block.name: block for block in BLOCKS}
INPUT = LayerSetting(height=128, width=256)  # of the paper's complexity table
SMALL = LayerSetting(height=5, width=7, batch=2, channels=24, mid_channels=16, nodes=3)


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    ("name", "products"),  # of convolutions, attention, and sampling
    [
        ("nl-shared", 51.540 + 549.756),
        ("nl-plain", 68.719 + 549.756),
        ("nl-sdpa-cudnn", 68.719 + 549.756),
        ("bottleneck", 34.360 + 0.151 + 0.151 + 0.302),
        ("bottleneck-rounds-3", 4 * 17.180 + 3 * 0.151 + 3 * 0.151 + 3 * 0.302),
        ("simple", 68.719 + 1.208 + 0.151 + 0.604),
        ("danet-head", 784.788 + 635.655),
    ],
)
def test_products_of_the_papers_table(name, products, memory_format):
    setting = replace(INPUT, memory_format=memory_format, dtype=torch.float16, device=torch.device("cuda"))
    assert count_products(NAMED[name], setting) / 1e9 == pytest.approx(products, abs=0.0012)


@pytest.mark.parametrize("size", [(5, 7), (13, 3), (1, 1)])
@pytest.mark.parametrize(("grid", "groups"), [(1, 4), (3, 2), (8, 8), (50, 1)])
def test_grids_and_groups(grid, groups, size):
    setting = replace(SMALL, height=size[0], width=size[1])
    layer = partial(BottleneckRepGraph, 24, 16, nodes=3, grid=grid, groups=groups, final_act=False)
    block = replace(NAMED["bottleneck"], build=lambda setting, plain: layer())
    n, nodes = 2 * size[0] * size[1], 2 * 3 * cells(size[0], grid) * cells(size[1], grid)
    assert count_products(block, setting) == 2 * n * 24 * 16 + 2 * nodes * 16 + 2 * n * 3 * 16 + 4 * nodes * 16


@pytest.mark.parametrize(("name", "rounds"), [("bottleneck", 1), ("bottleneck-rounds-3", 3)])
def test_facts(name, rounds):
    facts = LayerTable().facts(NAMED[name], INPUT)
    assert facts["parameters"] == sum(p.numel() for p in BottleneckRepGraph(2048, 256, rounds=rounds).parameters())
    assert facts["paper_gmacs"] == PAPER.get(name)
    assert LayerTable().facts(NAMED["bottleneck"], SMALL)["paper_gmacs"] is None
