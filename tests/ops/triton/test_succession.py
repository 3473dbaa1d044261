"""Kernels that follow each other without a gap: where that is possible, and that nothing is read too early."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.ops.problem import normal
from tests.ops.triton.gluon import has_hopper

pytest.importorskip("triton")
import repgraph
from repgraph.ops.product import residual_product
from repgraph.ops.triton import succession

COMPILE = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from repgraph.ops.triton import launch, succession

capability = int(sys.argv[1])
succession.possible = lambda device: capability == 90
strides = (8 * 12 * 64, 1, 12 * 64, 64)
plan = launch._forward_plan(
    torch.Size((1, 64, 8, 12)), 64, strides, strides, strides, strides, torch.Size((1, 18, 8, 12)),
    (18 * 96, 96, 12, 1), torch.bfloat16, torch.float32, 0, True, 1, 1, True, False, False,
)
types = dict.fromkeys(("query", "key", "value", "y"), "*bf16") | dict.fromkeys(("offsets", "lse", "logits"), "*fp32")
types |= {"scale": "fp32"} | dict.fromkeys(plan.constants, "constexpr")
signature = {name: types.get(name, "i32") for name in plan.function.arg_names}
source = ASTSource(plan.function, signature, plan.constants, {})
kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=plan.options)
print(kernel.asm["ptx"].count("griddepcontrol.launch_dependents"))
"""


@pytest.mark.parametrize(("capability", "times"), [(80, 0), (90, 1)])
def test_attention_releases_what_follows_on_hopper(capability: int, times: int, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(Path(repgraph.__file__).parents[1]), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(capability)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == times


def test_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"capability": (9, 0), "driver": 13000, "hip": None, "available": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: machine["available"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: machine["capability"])
    monkeypatch.setattr(succession, "_driver", lambda: machine["driver"])
    monkeypatch.setattr(torch.version, "hip", None)
    possible = succession.possible.__wrapped__
    assert possible(0) and possible(3) and not possible(-1)  # -1: interpreted
    for name, value in (("capability", (8, 0)), ("capability", (10, 0)), ("driver", 12030), ("available", False)):
        with monkeypatch.context() as patch:
            patch.setitem(machine, name, value)
            assert not possible(0)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not possible(0)


@pytest.fixture
def layer_and_map():
    if not has_hopper():
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)
    layer = repgraph.BottleneckRepGraph(512, 256, final_act=False, device="cuda", dtype=torch.bfloat16).eval()
    for norm in (layer.reduce_norm, layer.expand_norm):
        torch.nn.init.normal_(norm.running_mean)
        torch.nn.init.normal_(norm.bias)
    maps = normal(4, 512, 256, 256, dtype=torch.bfloat16)  # enough rows for the last product's own kernel
    return repgraph.fuse(layer), maps.contiguous(memory_format=torch.channels_last)


def one_by_one(layer, x):
    """The layer with nothing in flight when the last product begins."""
    feature, offsets, x = layer.regressed(x)
    response, *_ = layer.attend(feature, feature, feature, offsets, False)
    torch.cuda.synchronize()
    y = residual_product(x, response, layer.expand.weight.flatten(1), layer.expand.bias)
    torch.cuda.synchronize()
    return y


@torch.no_grad()
def test_the_same_as_one_by_one(layer_and_map) -> None:
    layer, maps = layer_and_map
    for x in maps.chunk(2) * 5:
        x = x * torch.rand((), device="cuda", dtype=x.dtype)
        want = one_by_one(layer, x)
        for _ in range(4):  # what is read too early is not so every time
            assert torch.equal(layer(x), want)


@torch.no_grad()
def test_weights_that_the_kernel_before_has_made(layer_and_map) -> None:
    """Attention on one map, then a product with weights and a bias that are made right before it."""
    layer, maps = layer_and_map
    feature, offsets, x = layer.regressed(maps)
    weight, bias = layer.expand.weight.flatten(1).clone(), layer.expand.bias.clone()
    for factor in range(1, 9):
        response, *_ = layer.attend(feature, feature, feature, offsets, False)
        new = weight * factor
        got = residual_product(x, response, new, bias * factor)
        torch.cuda.synchronize()
        assert torch.equal(got, residual_product(x, response, weight * factor, bias * factor))


@torch.no_grad()
def test_in_a_graph(layer_and_map) -> None:
    layer, maps = layer_and_map
    want = one_by_one(layer, maps)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer(maps)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(maps)
    for _ in range(8):
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, want)
