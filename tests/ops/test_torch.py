"""Integration with PyTorch: opcheck, compile, export, autocast, and errors for what is not supported."""

import warnings

import pytest
import torch
from tests.ops.problem import device_of, prepare, vary
from torch import Tensor

from repgraph.ops import representative_attention
from repgraph.ops.backends import choose

ATTENTION = torch.ops.repgraph.attention


def inputs(backend: str, dtype=torch.float32, memory_format=torch.contiguous_format, **changes):
    t = prepare(vary(**{"height": 2, **changes}), dtype, device_of(backend), memory_format)
    return [t[name] for name in ("query", "key", "value", "offsets")]


def arguments_of(backend: str, query, key, value, offsets, groups=1, scale=1.0, weights=False) -> tuple:
    """Return arguments of ``repgraph::attention`` for one map."""
    return query, key, value, offsets, None, [], [], groups, 1, 1, scale, backend, True, weights


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck reads it
@pytest.mark.parametrize("shape", [(2, 8, 2, 3), (1, 8, 1, 1), (1, 2, 4, 4), (0, 4, 3, 3)], ids=str)
@pytest.mark.parametrize(("shared", "memory_format"), [(False, torch.contiguous_format), (True, torch.channels_last)])
def test_opcheck(any_kernel: str, shape: tuple, shared: bool, memory_format: torch.memory_format) -> None:
    """Also compares shapes, dtypes and strides of fake and real results."""
    batch, channels, height, width = shape
    sizes = dict(batch=batch, channels=channels, values=channels if shared else 6, height=height, width=width)
    tensors = inputs(any_kernel, memory_format=memory_format, groups=2, **sizes)
    if shared:
        tensors[2] = None
    leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
    options = dict(groups=2, scale=0.5)
    torch.library.opcheck(ATTENTION.default, arguments_of(any_kernel, *leaves, **options, weights=True))
    arguments = arguments_of(any_kernel, *tensors, **options)
    y, lse, _, response = ATTENTION(*arguments)
    backward = (torch.ones_like(y), None, *arguments[:5], y if any_kernel == "triton" else response, lse)
    torch.library.opcheck(torch.ops.repgraph.attention_backward.default, (*backward, *arguments[5:-2]))


@pytest.mark.parametrize(("memory_format", "grid"), [(torch.contiguous_format, 2), (torch.channels_last, 1)], ids=str)
def test_compiles_once_for_all_sizes(any_kernel: str, grid: int, memory_format: torch.memory_format) -> None:
    torch._dynamo.reset()

    def function(query, key, value, offsets):
        return representative_attention(query, key, value, offsets, grid=grid, backend=any_kernel)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (batch, height, width) in enumerate([(2, 5, 7), (3, 7, 4), (4, 2 * grid, 3)]):
        sizes = dict(nodes=3, batch=batch, height=height, width=width, grid=grid)
        arguments = [t.requires_grad_() for t in inputs(any_kernel, memory_format=memory_format, **sizes)]
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(*arguments)
        want = function(*arguments)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y.square().sum(), arguments) for y in (got, want)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_compiles_with_inductor_and_a_shared_value(kernel: str) -> None:
    torch._dynamo.reset()
    query, key, _, offsets = inputs(kernel)

    @torch.compile(fullgraph=True)
    def function(query, key, offsets):
        key = key * 2
        return representative_attention(query + 1, key, key, offsets, backend=kernel).relu()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Inductor
        got = function(query, key, offsets)
    want = representative_attention(query + 1, key * 2, key * 2, offsets, backend=kernel).relu()
    torch.testing.assert_close(got, want)


class Module(torch.nn.Module):
    def __init__(self, backend: str, grid: int = 1):
        super().__init__()
        self.backend, self.grid = backend, grid

    def forward(self, query: Tensor, key: Tensor, offsets: Tensor) -> Tensor:
        return representative_attention(query, key, key, offsets, grid=self.grid, backend=self.backend)


def test_export_keeps_the_operator(kernel: str) -> None:
    query, key, _, offsets = inputs(kernel)
    module = Module(kernel)
    program = torch.export.export(module, (query, key, offsets))
    assert any("repgraph.attention" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(query, key, offsets), module(query, key, offsets))


def test_export_of_the_reference_is_plain_pytorch() -> None:
    query, key, _, offsets = inputs("reference", batch=2)
    module = Module("reference", grid=1)
    dimension = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    program = torch.export.export(module, (query, key, offsets), dynamic_shapes=(dimension,) * 3)
    assert all("repgraph" not in str(node.target) for node in program.graph.nodes)
    query, key, _, offsets = inputs("reference", batch=3, height=8, width=4)
    torch.testing.assert_close(program.module()(query, key, offsets), module(query, key, offsets))


def test_a_named_kernel_cannot_be_exported_to_onnx() -> None:
    """Layers and networks are exported with the reference, in their own tests."""
    pytest.importorskip("onnxscript")
    query, key, _, offsets = inputs("cpu")
    with warnings.catch_warnings(), pytest.raises(Exception, match=r"ONNX|ConversionError|export") as caught:
        warnings.simplefilter("ignore")  # of the exporter
        torch.onnx.export(Module("cpu"), (query, key, offsets), dynamo=True, verbose=False)
    chain, error = "", caught.value
    while error is not None:
        chain += str(error)
        error = error.__cause__ or error.__context__
    assert "export with backend='auto' or 'reference'" in chain


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(backend: str, dtype: torch.dtype) -> None:
    if backend == "cpu" and dtype == torch.float16:
        pytest.skip("the cpu backend does not take float16")
    query, key, value, offsets = (t.requires_grad_() for t in inputs(backend))
    device = query.device.type
    with torch.autocast(device, dtype):
        y = representative_attention(query, key.to(dtype), value, offsets, backend=backend)
        direct = None
        if backend != "reference":
            direct, *_ = ATTENTION(*arguments_of(backend, query, key, value, offsets))
    want = representative_attention(query.to(dtype), key.to(dtype), value.to(dtype), offsets, backend=backend)
    assert y.dtype == dtype
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    if direct is not None:
        torch.testing.assert_close(direct, want, rtol=0, atol=0)
    grads = torch.autograd.grad(y.float().sum(), [query, key, value, offsets])
    assert [g.dtype for g in grads] == [torch.float32] * 4
    doubles = [t.detach().double() for t in (query, key, value, offsets)]
    with torch.autocast(device, dtype):  # autocast does not change float64
        assert representative_attention(*doubles, backend="reference").dtype == torch.float64


def test_second_order_is_an_error(kernel: str) -> None:
    arguments = [t.requires_grad_() for t in inputs(kernel)]
    y = representative_attention(*arguments, backend=kernel)
    (grad,) = torch.autograd.grad(y.square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second-order gradients; use backend='reference'"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # of PyTorch
@pytest.mark.parametrize("which", range(4))
def test_forward_mode_is_an_error(any_kernel: str, which: int) -> None:
    arguments = inputs(any_kernel)

    def function(t: Tensor) -> Tensor:
        return representative_attention(*arguments[:which], t, *arguments[which + 1 :], backend=any_kernel)

    tangent = torch.ones_like(arguments[which])
    with pytest.raises(RuntimeError, match="forward-mode"), torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(arguments[which], tangent))
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(function, (arguments[which],), (tangent,))
    with pytest.raises(RuntimeError, match="forward"), torch.autograd.forward_ad.dual_level():
        arguments[which] = torch.autograd.forward_ad.make_dual(arguments[which], tangent)
        ATTENTION(*arguments_of(any_kernel, *arguments))


def test_the_operator_checks_shapes(any_kernel: str) -> None:
    """A traced call comes without the checks of the function."""
    query, key, value, offsets = inputs(any_kernel)
    with pytest.raises(ValueError, match="offsets has shape"):
        ATTENTION(*arguments_of(any_kernel, query, key, value, offsets[:, :, 1:]))


def test_vmap(any_kernel: str) -> None:
    arguments = [torch.stack((t, t + 1)) for t in inputs(any_kernel)]

    def function(*arguments):
        return representative_attention(*arguments, backend=any_kernel)

    want = torch.stack([function(*(t[i] for t in arguments)) for i in range(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fallback of PyTorch is slow
        got = torch.vmap(function)(*arguments)
    torch.testing.assert_close(got, want)


def test_the_result_may_be_modified_in_place(kernel: str) -> None:
    """If the backward pass needs it, this is PyTorch's own error, not a wrong gradient."""
    arguments = [t.requires_grad_() for t in inputs(kernel)]
    y = representative_attention(*arguments, backend=kernel)
    want = torch.autograd.grad((y.relu() ** 2).sum(), arguments)
    y = representative_attention(*arguments, backend=kernel).relu_()
    if kernel == "triton":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad((y**2).sum(), arguments)
    else:
        for a, b in zip(torch.autograd.grad((y**2).sum(), arguments), want, strict=True):
            torch.testing.assert_close(a, b)


def test_auto_is_the_fastest_backend_that_can_run() -> None:
    assert choose("auto", torch.device("cpu"), torch.float32) == "cpu"
    assert choose("auto", torch.device("cpu"), torch.float16) == "reference"
    assert choose("auto", torch.device("meta"), torch.float32) == "reference"
    if torch.cuda.is_available():
        assert choose("auto", torch.device("cuda"), torch.bfloat16) == "triton"
        assert choose("auto", torch.device("cuda"), torch.float64) == "reference"
