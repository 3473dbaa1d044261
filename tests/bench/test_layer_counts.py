"""Multiply-adds of the layers: by formula, in execution, and as the paper has them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from repgraph.bench.layers import blocks, forms, formulas
from repgraph.bench.layers.blocks import BLOCKS
from repgraph.bench.layers.count import RULES, Counter, Uncounted, count
from repgraph.bench.layers.formulas import Work
from repgraph.bench.layers.row import FORWARD
from repgraph.bench.layers.setting import Setting, make_input
from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.non_local import NonLocal
from repgraph.ops import backends

NAMED = {block.name: block for block in BLOCKS}
PAPER = Setting(128, 256)
SMALL = Setting(5, 7, 2, 24, nodes=3, mid_channels=16)
HERE = [block for block in BLOCKS if block.name not in ("nl-sdpa-efficient", "nl-sdpa-cudnn")]


def giga(value: int) -> float:
    return value / 1e9


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("nl-shared", 601.295),
        ("nl-plain", 618.475),
        ("bottleneck", 34.964),
        ("simple", 70.682),
        ("danet-head", 1420.443),
    ],
)
def test_the_papers_figures(name, products):
    assert giga(NAMED[name].formula(PAPER).products) == pytest.approx(products, abs=0.0006)


def test_the_parts_of_the_papers_figures():
    bottleneck, head = formulas.bottleneck(PAPER), formulas.danet_head(PAPER)
    assert giga(2 * PAPER.positions * 2048 * 256) == pytest.approx(34.360, abs=0.0005)
    assert giga(bottleneck.convolutions) == pytest.approx(34.360 + 0.151, abs=0.0006)
    assert giga(bottleneck.attention) == pytest.approx(0.151, abs=0.0005)
    assert giga(bottleneck.sampling) == pytest.approx(0.302, abs=0.0005)
    assert giga(formulas.non_local(PAPER, shared=True).convolutions) == pytest.approx(51.54, abs=0.005)
    assert giga(formulas.non_local(PAPER).attention) == pytest.approx(549.76, abs=0.005)
    n = PAPER.positions
    biases, norms, activations = n * (64 + 64 + 512 + 3 * 19), 2 * 4 * n * 512, 4 * n * 512
    assert giga(head.convolutions + biases + norms + activations) == pytest.approx(785.01, abs=0.005)


def test_everything_counts_more_than_products():
    n, c, mid, s = PAPER.positions, 2048, 256, 9
    elements = 2 * n * mid + 2 * n * c + n * 2 * s + 3 * n * s  # norms, activation, residual; offsets' bias; softmax
    assert formulas.bottleneck(PAPER).elements == elements
    for block in BLOCKS:
        found = block.formula(PAPER)
        assert found.all == found.products + found.elements > found.products


@pytest.mark.parametrize("block", HERE, ids=lambda block: block.name)
@pytest.mark.parametrize(
    "setting",
    [
        PAPER,
        SMALL,
        replace(SMALL, height=13, width=18, channels_last=False),
        replace(SMALL, height=9, width=2, dtype=torch.bfloat16, nodes=1),
        replace(SMALL, height=1, width=3, channels=8),
    ],
    ids=["paper", "small", "contiguous", "bfloat16", "line"],
)
def test_formula_and_execution_agree(block, setting):
    assert forms.counted(block, setting) == block.formula(setting).work


@pytest.mark.parametrize("block", HERE, ids=lambda block: block.name)
def test_what_runs_without_data_is_what_runs_with_it(block):
    layer = forms.form(blocks.new(block, SMALL), FORWARD)
    assert count(layer, make_input(SMALL).detach()) == forms.counted(block, SMALL)


@pytest.mark.parametrize("layer", [SimpleRepGraph, BottleneckRepGraph])
@pytest.mark.parametrize("size", [(5, 7), (8, 8), (13, 3), (1, 1)])
def test_grids_and_groups_agree_at_odd_sizes(layer, size):
    formula = formulas.simple if layer is SimpleRepGraph else formulas.bottleneck
    more = {} if layer is SimpleRepGraph else {"final_act": False}
    for grid, groups in ((1, 4), (2, 1), (3, 2), (4, 1), (8, 8), (50, 1)):
        setting = replace(SMALL, height=size[0], width=size[1])

        def make(setting, plain, grid=grid, groups=groups):
            return layer(24, 16, nodes=3, grid=grid, groups=groups, **more)

        block = replace(NAMED["simple"], make=make, formula=partial(formula, grid=grid, groups=groups))
        assert forms.counted(block, setting) == block.formula(setting).work


def test_nodes_of_several_positions_read_more():
    counts = [
        count(BottleneckRepGraph(16, nodes=3, node_view=side).eval(), torch.randn(1, 16, 7, 9)) for side in (1, 3, 5)
    ]
    assert counts[0].products == counts[1].products == counts[2].products
    assert [c.elements - counts[0].elements for c in counts] == [0, 2 * 3 * 8 * 63, 2 * 5 * 8 * 63]


def test_a_grid_samples_less():
    cells = [PAPER.cells(grid) for grid in (1, 2, 4, 8)]
    assert cells == [32768, 8192, 2048, 512]
    sampling = [formulas.bottleneck(PAPER, grid=grid).sampling for grid in (1, 2, 4, 8)]
    assert sampling == [4 * 9 * 256 * n for n in cells]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ways_of_a_gpu_count_the_same(dtype, channels_last, monkeypatch):
    """Without data the layers take the paths of a GPU anywhere, apart from SDPA, which asks the GPU itself."""
    pytest.importorskip("triton")
    monkeypatch.setattr(backends, "_capability", lambda index: (9, 0))
    setting = replace(PAPER, device=torch.device("cuda"), dtype=dtype, channels_last=channels_last)
    for block in BLOCKS:
        if not block.name.startswith(("nl-sdpa", "nl-conv2d")):
            assert forms.counted(block, setting) == block.formula(setting).work, block.name


def test_blocks_without_a_kernel_are_counted_too():
    assert backends.choose("auto", torch.device("cpu"), torch.float16) == "reference"
    setting = replace(SMALL, dtype=torch.float16)
    assert forms.counted(NAMED["bottleneck"], setting) == formulas.bottleneck(setting).work


@pytest.mark.parametrize("name", [name for name in RULES if "_scaled_dot_product" in name])
def test_all_kernels_of_sdpa_count_as_products_and_softmax(name):
    q, k, v = torch.empty(2, 3, 5, 4), torch.empty(2, 3, 7, 4), torch.empty(2, 3, 7, 6)
    weights = 2 * 3 * 5 * 7
    assert RULES[name]((q,), q, k, v, 0.0, False) == Work(weights * (4 + 6), 3 * weights)


def test_products_that_are_not_known_fail_loudly():
    x = torch.randn(1, 4, 3, 5)

    class Vector(nn.Module):
        def forward(self, x):
            return torch.mv(x[0, 0], torch.ones(5))

    with pytest.raises(Uncounted, match=r"aten::mv may do products.*add it to RULES of bench/layers/count.py"):
        count(Vector(), x)

    library = torch.library.Library("repgraph_test_count", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    library.impl("mystery", lambda x: x.clone(), "CPU")
    with Counter(x), pytest.raises(Uncounted, match="repgraph_test_count::mystery"):
        torch.ops.repgraph_test_count.mystery(x)
    with Counter(x) as counter:  # of a parameter it is nobody's business
        torch.ops.repgraph_test_count.mystery(torch.ones(3))
    assert counter.work == Work(0, 0)


def test_what_is_counted():
    x, parameter = torch.randn(2, 4, 3, 5), torch.randn(4, 4)
    with Counter(x) as counter:
        (parameter @ parameter).relu()  # no work on the input
        x.transpose(0, 1).flatten(1).contiguous()
        x * 0.5
    assert counter.work == Work(0, 0)
    for function, work in (
        (lambda: x + x, Work(0, x.numel())),
        (lambda: x * x, Work(0, x.numel())),
        (lambda: torch.sigmoid(x), Work(0, x.numel())),
        (lambda: x.softmax(1), Work(0, 3 * x.numel())),
        (lambda: x.mean((2, 3)), Work(0, x.numel())),
        (lambda: x.transpose(1, 3) @ parameter, Work(4 * x.numel(), 0)),
        (lambda: nn.functional.conv2d(x, torch.ones(6, 2, 3, 3), torch.ones(6), groups=2), Work(2 * 18 * 18, 2 * 18)),
    ):
        with Counter(x) as counter:
            function()
        assert counter.work == work


def test_parameters_are_those_that_are_trained():
    found = {name: forms.parameters(NAMED[name], PAPER) for name in ("nl-plain", "nl-shared", "bottleneck")}
    assert found["nl-plain"] - found["nl-shared"] == 2048 * 256
    assert found["bottleneck"] == sum(p.numel() for p in BottleneckRepGraph(2048, 256).parameters())
    assert found["nl-plain"] == sum(p.numel() for p in NonLocal(2048, 256).parameters())
