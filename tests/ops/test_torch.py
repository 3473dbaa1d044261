"""At home in PyTorch: opcheck, compile, export, autocast; what is not supported says so."""

import warnings

import pytest
import torch
from tests.ops.problem import device_of, prepare, vary
from torch import Tensor

from repgraph.ops import representative_attention


def inputs(backend: str, dtype=torch.float32, memory_format=torch.contiguous_format, **changes):
    t = prepare(vary(**changes), dtype, device_of(backend), memory_format)
    return [t[name] for name in ("query", "key", "value", "offsets")]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks there
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_opcheck(kernel: str, shared: bool, memory_format: torch.memory_format) -> None:
    query, key, value, offsets = inputs(kernel, memory_format=memory_format, groups=2, values=4 if not shared else 8)
    arguments = [t.requires_grad_() for t in (query, key, value, offsets)]
    if shared:
        arguments[2] = None
    torch.library.opcheck(torch.ops.repgraph.attention.default, (*arguments, 2, 1, 0.5, kernel, True))
    arguments = [None if t is None else t.detach() for t in arguments]
    torch.library.opcheck(torch.ops.repgraph.attention.default, (*arguments, 2, 1, 0.5, kernel, False))
    y, lse, _ = torch.ops.repgraph.attention(*arguments, 2, 1, 0.5, kernel, False)
    torch.library.opcheck(
        torch.ops.repgraph.attention_backward.default,
        (torch.ones_like(y), None, *arguments, y, lse, 2, 1, 0.5, kernel),
    )


@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 8, 1, 1), (1, 1, 4, 4), (2, 3, 1, 5), (0, 4, 3, 3)], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_fakes_have_the_true_strides(kernel: str, shape: tuple, memory_format: torch.memory_format) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = device_of(kernel)
    query = torch.randn(shape, device=device).contiguous(memory_format=memory_format)
    value = torch.randn((shape[0], 6, *shape[2:]), device=device)
    offsets = torch.randn((shape[0], 4, *shape[2:]), device=device)
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(t) for t in (query, value, offsets)]
    forward, backward = torch.ops.repgraph.attention, torch.ops.repgraph.attention_backward
    real = forward(query, query, value, offsets, 1, 1, 1.0, kernel, True)
    with mode:
        fake = forward(fakes[0], fakes[0], fakes[1], fakes[2], 1, 1, 1.0, kernel, True)
        fake += backward(fake[0], None, fakes[0], fakes[0], *fakes[1:], *fake[:2], 1, 1, 1.0, kernel)
    real += backward(real[0], None, query, query, value, offsets, *real[:2], 1, 1, 1.0, kernel)
    for a, b in zip(fake, real, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@pytest.mark.parametrize(("memory_format", "grid"), [(torch.contiguous_format, 2), (torch.channels_last, 1)], ids=str)
def test_compiles_once_for_all_sizes(kernel: str, grid: int, memory_format: torch.memory_format) -> None:
    torch._dynamo.reset()

    def function(query, key, value, offsets):
        return representative_attention(query, key, value, offsets, grid=grid, backend=kernel)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (batch, height, width) in enumerate([(2, 5, 7), (3, 7, 4), (4, 2 * grid, 3), (2, 9, 9)]):
        arguments = inputs(kernel, batch=batch, height=height, width=width, grid=grid, memory_format=memory_format)
        arguments = [t.requires_grad_() for t in arguments]
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(*arguments)
        want = function(*arguments)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        grads = [torch.autograd.grad(y.square().sum(), arguments) for y in (got, want)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_compiles_with_inductor_and_a_shared_value(kernel: str) -> None:
    torch._dynamo.reset()
    query, key, _, offsets = inputs(kernel)

    @torch.compile(fullgraph=True)
    def function(query, key, offsets):
        key = key * 2
        return representative_attention(query + 1, key, key, offsets, backend=kernel).relu()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's own
        got = function(query, key, offsets)
    want = representative_attention(query + 1, key * 2, key * 2, offsets, backend=kernel).relu()
    torch.testing.assert_close(got, want)


class Module(torch.nn.Module):
    def __init__(self, backend: str, grid: int = 1):
        super().__init__()
        self.backend, self.grid = backend, grid

    def forward(self, query: Tensor, key: Tensor, offsets: Tensor) -> Tensor:
        return representative_attention(query, key, key, offsets, grid=self.grid, backend=self.backend)


@pytest.mark.parametrize("name", ["auto", "named"])
def test_export_keeps_the_operator(kernel: str, name: str) -> None:
    if name == "auto" and device_of(kernel).type == "cpu" and kernel == "triton":
        pytest.skip("on the CPU auto is the cpu backend")
    query, key, _, offsets = inputs(kernel)
    module = Module("auto" if name == "auto" else kernel)
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
            direct, _, _ = torch.ops.repgraph.attention(query, key, value, offsets, 1, 1, 1.0, backend, False)
    want = representative_attention(query.to(dtype), key.to(dtype), value.to(dtype), offsets, backend=backend)
    assert y.dtype == dtype
    torch.testing.assert_close(y, want, rtol=0, atol=0)
    if direct is not None:
        torch.testing.assert_close(direct, want, rtol=0, atol=0)
    grads = torch.autograd.grad(y.float().sum(), [query, key, value, offsets])
    assert [g.dtype for g in grads] == [torch.float32] * 4
    doubles = [t.detach().double() for t in (query, key, value, offsets)]
    with torch.autocast(device, dtype):  # as PyTorch does, autocast leaves float64 alone
        assert representative_attention(*doubles, backend="reference").dtype == torch.float64


def test_autocast_keeps_a_shared_value_shared(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from repgraph.ops import library

    query, key, _, offsets = inputs(kernel)
    seen = []
    kernels = library.kernels

    def spy(name):
        module = kernels(name)

        class Spy:
            @staticmethod
            def forward(query, key, value, *rest, **more):
                seen.append(value)
                return module.forward(query, key, value, *rest, **more)

        return Spy

    monkeypatch.setattr(library, "kernels", spy)
    with torch.autocast(query.device.type, torch.bfloat16):
        representative_attention(query, key, key, offsets, backend=kernel)
    assert seen == [None]


def test_second_order_is_a_clear_error(kernel: str) -> None:
    arguments = [t.requires_grad_() for t in inputs(kernel)]
    y = representative_attention(*arguments, backend=kernel)
    (grad,) = torch.autograd.grad(y.square().sum(), arguments[0], create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference' for second-order"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
@pytest.mark.parametrize("which", range(4))
def test_forward_mode_is_an_error(kernel: str, which: int) -> None:
    arguments = inputs(kernel)

    def function(t: Tensor) -> Tensor:
        return representative_attention(*arguments[:which], t, *arguments[which + 1 :], backend=kernel)

    tangent = torch.ones_like(arguments[which])
    with pytest.raises(RuntimeError, match="forward-mode"), torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(arguments[which], tangent))
    with pytest.raises(RuntimeError, match="forward-mode"):
        torch.func.jvp(function, (arguments[which],), (tangent,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")  # in jvp it traces constants
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_forward_mode_is_an_error_in_compiled_code_too(kernel: str, compiler: str) -> None:
    torch._dynamo.reset()
    query, key, value, offsets = inputs(kernel)

    def tangent(t: Tensor) -> Tensor:
        return torch.func.jvp(
            lambda q: representative_attention(q, key, value, offsets, backend=kernel), (t,), (torch.ones_like(t),)
        )[1]

    with pytest.raises(Exception, match=r"forward|functorch"):
        torch.compile(tangent, backend=compiler)(query)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(Exception, match="forward"):
            torch.ops.repgraph.attention(dual, key, value, offsets, 1, 1, 1.0, kernel, False)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_forward_mode_of_the_reference() -> None:
    query, *others = (t.double() for t in inputs("reference"))

    def function(t: Tensor) -> Tensor:
        return representative_attention(t, *others, backend="reference")

    tangent = torch.randn_like(query)
    _, got = torch.func.jvp(function, (query,), (tangent,))
    want = (function(query + 1e-6 * tangent) - function(query - 1e-6 * tangent)) / 2e-6
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


def test_vmap_fails_or_is_right(kernel: str) -> None:
    arguments = [torch.stack((t, t + 1)) for t in inputs(kernel)]

    def function(*arguments):
        return representative_attention(*arguments, backend=kernel)

    want = torch.stack([function(*(t[i] for t in arguments)) for i in range(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that its fallback is slow
        try:
            got = torch.vmap(function)(*arguments)
        except (RuntimeError, NotImplementedError):
            return
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_traced_call_checks_its_shapes(kernel: str) -> None:
    query, _, _, offsets = inputs(kernel)
    traced = torch.jit.trace(lambda q, o: representative_attention(q, q, q, o, backend=kernel), (query, offsets))
    torch.testing.assert_close(
        traced(query, offsets), representative_attention(query, query, query, offsets, backend=kernel)
    )
    with pytest.raises(Exception, match="offsets has shape"):
        traced(torch.cat((query, query), 3), offsets)


def test_the_result_may_be_changed_in_place(kernel: str) -> None:
    """Where the backward pass needs it this is PyTorch's own error, never a wrong gradient."""
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


def test_auto_is_the_fastest_that_can_run() -> None:
    from repgraph.ops.backends import choose

    assert choose("auto", torch.device("cpu"), torch.float32) == "cpu"
    assert choose("auto", torch.device("cpu"), torch.float16) == "reference"
    assert choose("auto", torch.device("meta"), torch.float32) == "reference"
    if torch.cuda.is_available():
        assert choose("auto", torch.device("cuda"), torch.bfloat16) == "triton"
        assert choose("auto", torch.device("cuda"), torch.float64) == "reference"
