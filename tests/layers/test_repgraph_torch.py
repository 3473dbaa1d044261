"""RepGraph layers at home in PyTorch: copies, compile, export, ONNX, autocast, half precision, threads, hooks."""

import copy
import functools
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import onnx
import onnxruntime
import pytest
import torch
import torch.utils.checkpoint
from tests.layers import mechanics
from tests.layers.equations import build
from tests.layers.mechanics import CHANNELS_LAST, DYNAMIC
from torch import nn
from torch.nn.utils import parametrizations

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph, fuse

# What the compiler of PyTorch 2.11 itself does with functions of autograd.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

KINDS = [BottleneckRepGraph, SimpleRepGraph]
VARIED = [
    (BottleneckRepGraph, dict(nodes=3, groups=2)),
    (BottleneckRepGraph, dict(nodes=4, spread="grid", fusion="concat", norm_layer=None)),
    (BottleneckRepGraph, dict(nodes=4, radius=8.0, fusion="concat", node_view=15, norm_expand=False)),
    (BottleneckRepGraph, dict(nodes=5, spread="regions")),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True, grid="map")),
]


@pytest.mark.parametrize(("kind", "options"), VARIED, ids=str)
class TestAtHomeInPyTorch:
    def test_copies(self, kind: type, options: dict) -> None:
        layer, x = build(kind, **options), torch.randn(1, 8, 3, 5)
        mechanics.assert_copies_compute_the_same(layer, build(kind, seed=1, **options), x)
        assert layer.offset.seen is not None
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert twin.offset.seen is None
        assert layer.offset.seen is not None

    def test_compile(self, kind: type, options: dict) -> None:
        mechanics.assert_compiles_once_for_all_sizes(build(kind, training=True, **options), 8)

    def test_export(self, kind: type, options: dict) -> None:
        mechanics.assert_exports(build(kind, **options), 8)


def test_compiles_in_evaluation() -> None:
    mechanics.assert_compiles_once_for_all_sizes(build(BottleneckRepGraph, nodes=3), 8)
    mechanics.assert_compiles_once_for_all_sizes(build(BottleneckRepGraph, nodes=3).fuse(), 8)
    wide = build(BottleneckRepGraph, nodes=3, offset_view=3, offset_unit="map", node_view=3, learn_scale=True)
    mechanics.assert_compiles_once_for_all_sizes(wide, 8)
    mechanics.assert_compiles_once_for_all_sizes(build(BottleneckRepGraph, nodes=3, offset_view="map"), 8)


def test_a_pickle_does_not_grow_with_what_was_seen() -> None:
    layer = build(BottleneckRepGraph)
    before = len(pickle.dumps(layer))
    layer(torch.randn(1, 8, 65, 65))
    assert len(pickle.dumps(layer)) == before


# In PyTorch 2.11 a last cell of one position makes another program of the pooling: none of these has one for grid 3.
SIZES = [(5, 6), (17, 23), (24, 9), (2, 8), (9, 5)]


@pytest.mark.parametrize(
    ("kind", "options", "first"),
    [
        (BottleneckRepGraph, dict(groups=2), (5, 7)),
        (BottleneckRepGraph, dict(grid=3), (17, 23)),
        (BottleneckRepGraph, dict(grid="map", norm_layer=None, fusion="concat"), (5, 7)),
        (SimpleRepGraph, dict(norm_qk=True), (17, 23)),
    ],
    ids=str,
)
def test_one_export_is_right_for_all_sizes(kind: type, options: dict, first: tuple[int, int], tmp_path) -> None:
    """Also where the spread begins to shrink, on either side of the size that was traced."""
    layer = build(kind, nodes=3, scale=0.2, **options)
    example, path = (torch.randn(2, 8, *first),), str(tmp_path / "layer.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.export.export(layer, example, dynamic_shapes=(DYNAMIC,)).module()
        torch.onnx.export(layer, example, dynamo=True, verbose=False, dynamic_shapes=(DYNAMIC,)).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for size in SIZES:
        x = torch.randn(3, 8, *size)
        want = layer(x)
        if options.get("grid") != 3 or min(size) > 3:  # PyTorch: one cell along a side is another program
            torch.testing.assert_close(program(x), want, rtol=1e-4, atol=1e-4)
        (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", [1, 3])
def test_fused_layers_export_too(grid: int, tmp_path) -> None:
    layer = build(BottleneckRepGraph, nodes=3, grid=grid)
    x = torch.randn(2, 8, 5, 7).contiguous(memory_format=CHANNELS_LAST)
    want = layer(x)
    torch.testing.assert_close(layer.fuse()(x), want, rtol=1e-4, atol=1e-4)
    mechanics.assert_runs_in_onnxruntime(layer, 8, tmp_path)
    model = onnx.load(str(tmp_path / "layer.onnx"))
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"} and not model.functions
    assert sum(node.op_type == "Conv" for node in model.graph.node) == 3  # reduce, offset, expand
    assert not any("Normalization" in node.op_type for node in model.graph.node)


def test_a_grid_compiles_once_for_all_sizes() -> None:
    torch._dynamo.reset()
    layer = build(BottleneckRepGraph, training=True, nodes=3, grid=3)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, size in enumerate([(17, 23), (9, 11), (24, 9)]):
        x = torch.randn(2 + index, 8, *size).contiguous(memory_format=CHANNELS_LAST)
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(x)
        torch.testing.assert_close(got, layer(x), rtol=1e-4, atol=1e-4)


def test_one_program_for_maps_small_and_large() -> None:
    """A spread that shrinks on small maps is no other program for them."""
    torch._dynamo.reset()
    layer = build(BottleneckRepGraph, nodes=3)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, size in enumerate([(17, 23), (5, 7), (9, 33), (8, 3)]):
        x = torch.randn(2, 8, *size)
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # what PyTorch itself uses
def test_compiles_with_inductor() -> None:
    torch._dynamo.reset()
    layer = build(BottleneckRepGraph, training=True, nodes=3)
    twin = copy.deepcopy(layer)
    x = torch.randn(2, 8, 5, 7).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    got, want = torch.compile(layer, fullgraph=True)(x), twin(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got.is_contiguous(memory_format=CHANNELS_LAST)
    grads = [torch.autograd.grad(y.square().sum(), (x, *m.parameters())) for y, m in ((got, layer), (want, twin))]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    for a, b in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def wide_spread(kind: type) -> nn.Module:
    """Nodes some 20 px away, where half precision has steps of 1/8 px and maps some of 1/4."""
    layer = build(kind, nodes=9, radius=20.3)
    with torch.no_grad():
        layer.offset.weight.mul_(0.1)
        layer.offset.bias.copy_(torch.tensor(layer.spread.points).flatten())
    return layer


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_stay_in_float32_under_autocast(kind: type) -> None:
    layer, x = wide_spread(kind), torch.randn(1, 8, 45, 67)
    _, want, _ = layer(x, return_nodes=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, nodes, weights = layer(x, return_nodes=True)
    assert (y.dtype, nodes.dtype, weights.dtype) == (torch.float32, torch.float32, torch.float32)
    assert (nodes - want).abs().max() < 0.02
    assert (want.bfloat16() - want).abs().max() > 0.1  # what they would be


@pytest.mark.parametrize("options", [dict(), dict(grid=3), dict(grid="map"), dict(spread="grid")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_offsets_stay_in_float32_in_half_precision(kind: type, options: dict) -> None:
    layer = build(kind, nodes=9, **options).bfloat16()
    y, nodes, _ = layer(torch.randn(2, 8, 45, 67).bfloat16(), return_nodes=True)
    assert (y.dtype, nodes.dtype) == (torch.bfloat16, torch.float32)
    feature = torch.randn(2, layer.offset.in_channels, 45, 67).bfloat16()
    got, want = layer.offset(feature), copy.deepcopy(layer.offset).float()(feature.float())
    assert got.dtype == torch.float32
    # with a grid, its input is the mean in half precision
    tolerance = 1e-5 if layer.grid == 1 else 0.01
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    (layer(torch.randn(1, 8, 5, 7).bfloat16()) ** 2).sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_a_layer(kind: type, fused: bool) -> None:
    layer = build(kind, grid=2)
    if fused:
        layer.fuse()
    inputs = [torch.randn(1 + i % 2, 8, 9 + i, 7) for i in range(12)]
    with torch.no_grad():
        want = [layer(x) for x in inputs]

    def run(x):
        with torch.no_grad():
            return layer(x)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, expected in zip(pool.map(run, inputs), want, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("training", "fused"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("kind", KINDS)
def test_hooks_of_all_modules_are_called(kind: type, training: bool, fused: bool) -> None:
    options = dict(norm_qk=True) if kind is SimpleRepGraph else {}
    layer = build(kind, nodes=3, training=training, **options)
    x = torch.randn(2, 8, 5, 7)
    want = copy.deepcopy(layer)(x)
    called: list[str] = []
    for path, module in layer.named_modules():
        module.register_forward_hook(lambda *_, path=path: called.append(path))
    if fused:
        layer.fuse()
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-4)
    assert sorted(called) == sorted(path for path, _ in layer.named_modules())


def test_other_hooks_are_called_too() -> None:
    layer, x = build(BottleneckRepGraph, training=True), torch.randn(2, 8, 5, 7, requires_grad=True)
    called: list[str] = []
    for path, module in layer.named_modules():
        if path in ("reduce", "reduce_norm", "expand", "expand_norm"):
            module.register_forward_pre_hook(lambda *_, path=path: called.append(f"before {path}"))
            module.register_full_backward_hook(lambda *_, path=path: called.append(f"back {path}"))
    layer(x).sum().backward()
    assert sorted(called) == sorted(
        f"{when} {path}" for when in ("back", "before") for path in ("expand", "expand_norm", "reduce", "reduce_norm")
    )


@pytest.mark.parametrize("path", ["reduce", "expand", "reduce_norm", "expand_norm"])
def test_a_replaced_forward_is_called(path: str) -> None:
    """What offloading libraries do with modules."""
    layer, x = build(BottleneckRepGraph), torch.randn(2, 8, 5, 7)
    want, module, calls = layer(x), layer.get_submodule(path), []
    forward = module.forward
    module.forward = lambda t: calls.append(t) or forward(t)
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-4)
    layer.fuse()
    torch.testing.assert_close(layer(x), want, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("path", ["reduce", "expand", "offset"])
def test_parametrised_convolutions(path: str, training: bool) -> None:
    layer, x = build(BottleneckRepGraph, training=training, nodes=3), torch.randn(2, 8, 5, 7)

    class Halved(nn.Module):
        def forward(self, weight):
            return weight / 2

    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.get_submodule(path).weight.mul_(0.5)
    torch.nn.utils.parametrize.register_parametrization(layer.get_submodule(path), "weight", Halved())
    torch.testing.assert_close(layer(x), twin(x), rtol=1e-4, atol=1e-4)
    if not training:
        torch.testing.assert_close(layer.fuse()(x), twin(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("old", [False, True])
def test_spectral_norm(old: bool) -> None:
    layer, x = build(BottleneckRepGraph, nodes=3), torch.randn(2, 8, 5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old form is deprecated
        (nn.utils.spectral_norm if old else parametrizations.spectral_norm)(layer.expand)
    want = layer.eval()(x)
    assert not torch.allclose(want, build(BottleneckRepGraph, nodes=3)(x), rtol=1e-3)
    for _ in range(2):
        torch.testing.assert_close(layer.fuse()(x), want, rtol=1e-4, atol=1e-4)


def test_transforms_of_torch_func() -> None:
    layer = build(BottleneckRepGraph, nodes=3, backend="reference").double()
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    got = torch.func.grad(loss)(parameters, x)
    for key, want in zip(parameters, torch.autograd.grad(layer(x).square().sum(), parameters.values()), strict=True):
        torch.testing.assert_close(got[key], want, rtol=1e-10, atol=1e-10)
    of_input = torch.func.grad(lambda x: layer(x).square().sum())(x)
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(layer(leaf).square().sum(), leaf)
    torch.testing.assert_close(of_input, want, rtol=1e-10, atol=1e-10)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:, None])
    torch.testing.assert_close(each["expand.weight"].sum(0), got["expand.weight"], rtol=1e-10, atol=1e-10)


def test_second_order_gradients_of_the_reference() -> None:
    options = dict(nodes=2, backend="reference", act_layer=nn.Tanh, norm_layer=None)
    layer = build(BottleneckRepGraph, 4, **options).double()
    nn.init.zeros_(layer.offset.weight)  # nodes that stand still
    x = torch.randn(1, 4, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)


@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_checkpointing(kind: type) -> None:
    layer, x = kind(8).eval(), torch.randn(2, 8, 5, 7, requires_grad=True)
    (want,) = torch.autograd.grad(layer(x).square().sum(), x)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(y.square().sum(), x)[0], want)


def test_tied_convolutions_are_folded_once() -> None:
    model = nn.Sequential(BottleneckRepGraph(8), BottleneckRepGraph(8))
    model[1].expand.weight = model[0].expand.weight
    model[1].reduce = model[0].reduce
    for _ in range(3):
        model(2 * torch.randn(2, 8, 9, 9) + 1)
    x = torch.randn(2, 8, 9, 9)
    want = model.eval()(x)
    torch.testing.assert_close(fuse(model)(x), want, rtol=1e-4, atol=1e-4)


def test_a_frozen_norm_does_not_make_a_dead_layer() -> None:
    frozen = pytest.importorskip("torchvision").ops.FrozenBatchNorm2d
    layer, x = BottleneckRepGraph(8, norm_layer=frozen, final_act=False, zero_init=True), torch.randn(2, 8, 5, 7)
    assert torch.equal(layer(x), x)
    layer(x).square().sum().backward()
    assert layer.expand.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="no weight and bias to start from zero"):
        BottleneckRepGraph(8, norm_layer=functools.partial(nn.BatchNorm2d, affine=False), zero_init=True)


def test_an_activation_with_parameters_goes_where_the_layer_is() -> None:
    layer = BottleneckRepGraph(8, act_layer=nn.PReLU, dtype=torch.float64)
    assert layer(torch.randn(1, 8, 5, 7).double()).dtype == torch.float64


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")  # PyTorch's own
def test_forward_mode_is_right() -> None:
    layer = BottleneckRepGraph(8, backend="reference").double().train().requires_grad_(False)
    x, v = torch.randn(2, 8, 5, 7).double(), torch.randn(2, 8, 5, 7).double()
    with torch.autograd.forward_ad.dual_level():
        got = torch.autograd.forward_ad.unpack_dual(layer(torch.autograd.forward_ad.make_dual(x, v))).tangent
    torch.testing.assert_close(got, (layer(x + 1e-6 * v) - layer(x - 1e-6 * v)) / 2e-6, rtol=1e-4, atol=1e-5)
