"""Kernels that follow each other without a gap: where that is possible, and that nothing is read too early."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.ops.problem import normal
from tests.ops.triton.gluon import compiled, has_hopper

pytest.importorskip("triton")
import repgraph
from repgraph.ops.product import residual_product
from repgraph.ops.triton import strips, succession

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
print(kernel.asm["ptx"])
"""


@pytest.mark.parametrize(("capability", "times"), [(80, 0), (90, 1)])
def test_attention_releases_what_follows_on_hopper(capability: int, times: int, tmp_path: Path) -> None:
    ptx = compiled(COMPILE, str(capability), tmp_path)
    assert ptx.count("griddepcontrol.launch_dependents") == times
    # bfloat16 becomes float32 by a product that ptxas cannot see through
    factor = re.search(r"add\.s32\s+(%r\d+), (%r\d+), 65536;", ptx)
    assert factor and re.search(rf"shr\.s32\s+{factor[2]}, %r\d+, 31;", ptx)
    assert re.search(rf"mul\.lo\.u32 %r\d+, %r\d+, {factor[1]};", ptx)


def test_where_it_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"capability": (9, 0), "driver": 13000}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: machine["capability"])
    monkeypatch.setattr(succession, "_driver", lambda: machine["driver"])
    monkeypatch.setattr(torch.version, "hip", None)
    possible = succession.possible.__wrapped__
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert possible(0) and possible(3) and not possible(-1)
    for name, value in (("capability", (8, 0)), ("capability", (10, 0)), ("driver", 12030)):
        with monkeypatch.context() as patch:
            patch.setitem(machine, name, value)
            assert not possible(0)
    with monkeypatch.context() as patch:
        patch.setattr(torch.version, "hip", "6.4")
        assert not possible(0)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # takes CUDA tensors too
    assert not possible(0)


def test_version_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(version) -> int:
        version._obj.value = 12080
        return 0

    asked = []
    library = SimpleNamespace(cuDriverGetVersion=get)
    monkeypatch.setattr(succession.ctypes, "CDLL", lambda name: asked.append(name) or library)
    assert succession._driver() == 12080 and asked == ["libcuda.so.1"]

    def none(name: str):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(succession.ctypes, "CDLL", none)
    assert succession._driver() == 0


@pytest.fixture
def layer_and_map():
    if not has_hopper():
        pytest.skip("needs a Hopper GPU")
    torch.manual_seed(0)
    layer = repgraph.BottleneckRepGraph(512, 256, final_act=False, device="cuda", dtype=torch.bfloat16).eval()
    for norm in (layer.reduce_norm, layer.expand_norm):
        torch.nn.init.normal_(norm.running_mean)
        torch.nn.init.normal_(norm.bias)
    maps = normal(3 * 4, 512, 256, 256, dtype=torch.bfloat16)  # enough rows for the last product's own kernel
    return repgraph.fuse(layer), maps.contiguous(memory_format=torch.channels_last).chunk(3)


def one_by_one(layer, x):
    """The layer with nothing in flight when the last product begins."""
    feature, offsets, x = layer.regressed(x)
    response, *_ = layer.attend(feature, feature, feature, offsets, False)
    torch.cuda.synchronize()
    y = residual_product(x, response, layer.expand.weight.flatten(1), layer.expand.bias)
    torch.cuda.synchronize()
    return y


def test_possible_here(layer_and_map) -> None:
    assert succession.possible(0) and strips.pay(torch.Size((4 * 256 * 256, 512)), 256, torch.bfloat16, 0)


@torch.no_grad()
def test_the_same_as_one_by_one(layer_and_map) -> None:
    """Maps take turns, so that a response that is read too early is another map's."""
    layer, maps = layer_and_map
    wants = [one_by_one(layer, x) for x in maps]
    for turn in range(30):
        x, want = maps[turn % len(maps)], wants[turn % len(maps)]
        assert torch.equal(layer(x), want)


@torch.no_grad()
def test_weights_that_come_before_attention(layer_and_map) -> None:
    layer, maps = layer_and_map
    feature, offsets, x = layer.regressed(maps[0])
    weight, bias = layer.expand.weight.flatten(1), layer.expand.bias
    for factor in range(1, 9):
        new, shift = weight * factor, bias * factor
        response, *_ = layer.attend(feature * factor, feature, feature, offsets, False)
        got = residual_product(x, response, new, shift)
        torch.cuda.synchronize()
        assert torch.equal(got, residual_product(x, response, new, shift))


@torch.no_grad()
def test_in_a_graph(layer_and_map) -> None:
    layer, maps = layer_and_map
    wants = [one_by_one(layer, x) for x in maps]
    x = maps[0].clone(memory_format=torch.preserve_format)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    for turn in range(30):
        x.copy_(maps[turn % len(maps)])
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, wants[turn % len(maps)])


@torch.no_grad()
def test_in_a_graph_behind_what_is_no_kernel(layer_and_map) -> None:
    """A copy of memory right before the product, and two streams that meet there."""
    layer, maps = layer_and_map
    feature, offsets, x = layer.regressed(maps[0])
    response, *_ = layer.attend(feature, feature, feature, offsets, False)
    weight, bias = layer.expand.weight.flatten(1), layer.expand.bias
    want = residual_product(x, response, weight, bias)
    copied, other = torch.empty_like(x), torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        copied.copy_(x)
        behind_copy = residual_product(copied, response, weight, bias)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            doubled = response * 2
        halved = x / 2
        torch.cuda.current_stream().wait_stream(other)
        behind_both = residual_product(halved, doubled, weight, bias)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(behind_copy, want)
    assert torch.equal(behind_both, residual_product(x / 2, response * 2, weight, bias))
