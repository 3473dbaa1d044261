"""RepGraph layers and PyTorch: copies, compile, export, ONNX, threads, hooks, parametrizations, torch.func."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
import torch
from tests.layers import mechanics
from tests.layers.equations import build
from torch import nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph, fuse

# A warning from the compiler of PyTorch 2.11 about autograd functions.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

KINDS = [BottleneckRepGraph, SimpleRepGraph]
VARIED = [
    (BottleneckRepGraph, dict(nodes=3, groups=2)),
    (BottleneckRepGraph, dict(nodes=4, spread="grid", fusion="concat", norm_layer=None)),
    (BottleneckRepGraph, dict(nodes=4, radius=8.0, fusion="concat", node_view=15, norm_expand=False)),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True, grid="map")),
    (SimpleRepGraph, dict(nodes=3, rounds=3)),
    (BottleneckRepGraph, dict(nodes=3, rounds=2)),
]
CLOSE = dict(rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "options"), VARIED, ids=str)
@pytest.mark.slow
def test_copies_and_compile(kind: type, options: dict) -> None:
    layer, x = build(kind, **options), torch.randn(1, 8, 3, 5)
    mechanics.assert_copies_compute_the_same(layer, build(kind, seed=1, **options), x)
    mechanics.assert_compiles_once(layer.train(), 8)


def test_recorded_offsets_are_not_copied() -> None:
    layer = build(BottleneckRepGraph)
    before = len(pickle.dumps(layer))
    layer(torch.randn(1, 8, 65, 65))
    assert len(pickle.dumps(layer)) == before


# In PyTorch 2.11 a last cell of one position makes another program of the pooling: none of these has one for grid 3.
SIZES = [(5, 6), (17, 23), (24, 9), (2, 8), (9, 5)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "first"),
    [
        (BottleneckRepGraph, dict(groups=2), (5, 7)),
        (BottleneckRepGraph, dict(grid=3, rounds=2), (17, 23)),
        (BottleneckRepGraph, dict(spread="grid", fusion="concat", norm_layer=None), (5, 7)),
        (BottleneckRepGraph, dict(radius=8.0, fusion="concat", node_view=15, norm_expand=False), (5, 7)),
        (SimpleRepGraph, dict(norm_qk=True, grid="map"), (17, 23)),
        (SimpleRepGraph, dict(rounds=2), (5, 7)),
    ],
    ids=str,
)
def test_one_export_is_right_for_all_sizes(kind: type, options: dict, first: tuple[int, int], tmp_path) -> None:
    """Also where the spread begins to shrink, on either side of the traced size."""
    layer = build(kind, nodes=3, scale=0.2, **options)
    program, in_onnx = mechanics.exported(layer, torch.randn(2, 8, *first), str(tmp_path / "layer.onnx"))
    for size in SIZES:
        x = torch.randn(3, 8, *size)
        want = layer(x)
        if options.get("grid") != 3 or min(size) > 3:  # PyTorch: one cell along a side is another program
            torch.testing.assert_close(program(x), want, **CLOSE)
        torch.testing.assert_close(in_onnx(x), want, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [1, 3])
def test_fused_layers_in_onnx(grid: int, tmp_path) -> None:
    layer, path = fuse(build(BottleneckRepGraph, nodes=3, grid=grid)), str(tmp_path / "layer.onnx")
    mechanics.assert_exports(layer, 8, path)
    model = onnx.load(path)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"} and not model.functions
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 3  # reduce, offset, expand
    assert not any("Normalization" in node.op_type for node in model.graph.node)


def test_threads_share_a_layer() -> None:
    layer = build(BottleneckRepGraph, grid=2).requires_grad_(False)
    inputs = [torch.randn(1 + i % 2, 8, 9 + i, 7) for i in range(12)]
    want = [layer(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, expected in zip(pool.map(layer, inputs), want, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("training", "fused"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_all_modules_are_called(kind: type, training: bool, fused: bool) -> None:
    layer = build(kind, nodes=3, training=training, **(dict(norm_qk=True) if kind is SimpleRepGraph else {}))
    x = torch.randn(2, 8, 5, 7, requires_grad=True)
    want = copy.deepcopy(layer)(x)
    called: list[tuple[str, str]] = []
    for path, module in layer.named_modules():
        module.register_forward_hook(lambda *_, path=path: called.append(("after", path)))
        module.register_forward_pre_hook(lambda *_, path=path: called.append(("before", path)))
        if not isinstance(module, nn.ReLU):  # an in-place one does not allow it
            module.register_full_backward_hook(lambda *_, path=path: called.append(("backward", path)))
    y = (fuse(layer) if fused else layer)(x)
    torch.testing.assert_close(y, want, **CLOSE)
    y.sum().backward()
    paths = [path for path, _ in layer.named_modules()]
    for when in ("before", "after"):
        assert sorted(path for at, path in called if at == when) == sorted(paths)
    assert {path for at, path in called if at == "backward"} >= {p for p, m in layer.named_modules() if m._parameters}


@pytest.mark.parametrize("path", ["reduce", "expand", "reduce_norm", "expand_norm"])
def test_a_replaced_forward_is_called(path: str) -> None:
    """As offloading libraries do."""
    layer, x = build(BottleneckRepGraph), torch.randn(2, 8, 5, 7)
    want, module, calls = layer(x), layer.get_submodule(path), []
    forward = module.forward
    module.forward = lambda t: calls.append(t) or forward(t)
    torch.testing.assert_close(layer(x), want, **CLOSE)
    torch.testing.assert_close(fuse(layer)(x), want, **CLOSE)
    assert len(calls) == 2


class Halved(nn.Module):
    def forward(self, weight):
        return weight / 2


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("path", ["reduce", "expand", "offset"])
def test_parametrised_convolutions(path: str, training: bool) -> None:
    layer, x = build(BottleneckRepGraph, training=training, nodes=3), torch.randn(2, 8, 5, 7)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.get_submodule(path).weight.mul_(0.5)
    torch.nn.utils.parametrize.register_parametrization(layer.get_submodule(path), "weight", Halved())
    torch.testing.assert_close(layer(x), twin(x), **CLOSE)
    if not training:
        torch.testing.assert_close(fuse(layer)(x), twin(x), **CLOSE)


def test_torch_func() -> None:
    layer = build(BottleneckRepGraph, nodes=3, backend="reference").double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    got = torch.func.grad(loss)(parameters, x)
    for key, want in zip(parameters, torch.autograd.grad(layer(x).square().sum(), parameters.values()), strict=True):
        torch.testing.assert_close(got[key], want, rtol=1e-10, atol=1e-10)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:, None])
    torch.testing.assert_close(each["expand.weight"].sum(0), got["expand.weight"], rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # PyTorch's own
def test_forward_mode_and_second_order() -> None:
    layer = BottleneckRepGraph(8, backend="reference").double().train().requires_grad_(False)
    x, v = torch.randn(2, 8, 5, 7).double(), torch.randn(2, 8, 5, 7).double()
    with torch.autograd.forward_ad.dual_level():
        got = torch.autograd.forward_ad.unpack_dual(layer(torch.autograd.forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(got, (layer(x + 1e-6 * v) - layer(x - 1e-6 * v)) / 2e-6, **CLOSE)
    layer = build(BottleneckRepGraph, 4, nodes=2, backend="reference", act_layer=nn.Tanh, norm_layer=None).double()
    nn.init.zeros_(layer.offset.weight)  # nodes do not move
    assert torch.autograd.gradgradcheck(layer, torch.randn(1, 4, 2, 2, dtype=torch.float64, requires_grad=True))
