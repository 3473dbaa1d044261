"""Checks for every layer: copies, memory formats, compilation and export."""

import copy
import io
import itertools
import pickle
import warnings
from collections.abc import Callable

import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CHANNELS_LAST = torch.channels_last
FORMATS = (torch.contiguous_format, CHANNELS_LAST)
DYNAMIC = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}


class Calls(TorchDispatchMode):
    """Records the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def assert_equal_to(layer: nn.Module, equations: Callable[[nn.Module, Tensor], Tensor], *shapes: tuple) -> None:
    """Output in float64 and float32 and gradients in float64 match equations, in both memory formats."""
    exact = copy.deepcopy(layer).double()
    for shape, memory_format in itertools.product(shapes, FORMATS):
        x = torch.randn(shape).contiguous(memory_format=memory_format)
        leaf = x.double().requires_grad_()
        got, want = exact(leaf), equations(exact, leaf)
        assert want.shape[1] == layer.out_channels
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(layer(x).double(), want, rtol=1e-4, atol=1e-4)
        grads = [torch.autograd.grad(y.pow(3).sum(), (leaf, *exact.parameters())) for y in (got, want)]
        for a, b in zip(*grads, strict=True):
            assert b.abs().max() > 1e-6 or b.dim() == 1 or shape[2:] == (1, 1)  # where logits have no effect
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def save_and_load(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assert_copies_compute_the_same(layer: nn.Module, fresh: nn.Module, x: Tensor) -> None:
    """``fresh`` has the same options and other parameters."""
    want = layer(x)
    assert not torch.equal(fresh(x), want)
    fresh.load_state_dict(layer.state_dict())
    for twin in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), save_and_load(layer)):
        assert torch.equal(twin(x), want)


def assert_format_follows_input(layer: nn.Module, x: Tensor) -> None:
    contiguous, last = layer(x.contiguous()), layer(x.contiguous(memory_format=CHANNELS_LAST))
    assert contiguous.is_contiguous() and not contiguous.is_contiguous(memory_format=CHANNELS_LAST)
    assert last.is_contiguous(memory_format=CHANNELS_LAST) and not last.is_contiguous()
    torch.testing.assert_close(contiguous, last, rtol=1e-4, atol=1e-5)
    padded = torch.zeros(x.shape[0], x.shape[1] + 1, x.shape[2] + 2, x.shape[3] + 3)
    padded[:, 1:, 1:-1, 1:-2] = x
    torch.testing.assert_close(layer(padded[:, 1:, 1:-1, 1:-2]), contiguous, rtol=1e-4, atol=1e-5)


def assert_compiles_once(layer: nn.Module, channels: int) -> None:
    """One compiled program is right for all batch and map sizes."""
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, size in enumerate(((17, 23), (7, 5), (2, 3))):
        x = torch.randn(2 + index, channels, *size).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(x)
        want = layer(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        inputs = (x, *layer.parameters())
        found = [torch.autograd.grad(y.square().sum(), inputs, materialize_grads=True) for y in (got, want)]
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def exported(layer: nn.Module, example: Tensor, path: str) -> list[Callable[[Tensor], Tensor]]:
    """Return the layer exported with dynamic sizes, by torch.export and to an ONNX file, as two functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        program = torch.export.export(layer, (example,), dynamic_shapes=(DYNAMIC,))
        torch.onnx.export(layer, (example,), dynamo=True, verbose=False, dynamic_shapes=(DYNAMIC,)).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return [program.module(), lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])]


def assert_exports(layer: nn.Module, channels: int, path: str) -> None:
    functions = exported(layer, torch.randn(2, channels, 5, 7), path)
    for shape in [(2, channels, 5, 7), (3, channels, 4, 9)]:
        x = torch.randn(shape)
        for function, atol in zip(functions, (1e-5, 1e-4), strict=True):
            torch.testing.assert_close(function(x), layer(x), rtol=1e-4, atol=atol)


def assert_works_with_pytorch(make: Callable[..., nn.Module], channels: int, path: str) -> None:
    """``make`` takes a seed; ``path`` is for an ONNX file."""
    assert_format_follows_input(make(), torch.randn(2, channels, 5, 7))
    assert_copies_compute_the_same(make(), make(seed=1), torch.randn(1, channels, 3, 5))
    assert_compiles_once(make(), channels)
    assert_exports(make(), channels, path)
