"""What every layer has to be: at home in PyTorch. Each function tries one such thing on a layer and an input."""

import copy
import io
import pickle
import warnings

import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

CHANNELS_LAST = torch.channels_last
DYNAMIC = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}


class Calls(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def assert_copies_compute_the_same(layer: nn.Module, fresh: nn.Module, x: Tensor) -> None:
    """``fresh`` was made like ``layer``, with parameters of its own."""
    want = layer(x)
    assert not torch.equal(fresh(x), want)
    fresh.load_state_dict(layer.state_dict())
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for twin in (fresh, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert torch.equal(twin(x), want)


def assert_format_follows_input(layer: nn.Module, x: Tensor) -> None:
    contiguous, last = layer(x.contiguous()), layer(x.contiguous(memory_format=CHANNELS_LAST))
    assert contiguous.is_contiguous() and not contiguous.is_contiguous(memory_format=CHANNELS_LAST)
    assert last.is_contiguous(memory_format=CHANNELS_LAST) and not last.is_contiguous()
    torch.testing.assert_close(contiguous, last, rtol=1e-4, atol=1e-5)
    padded = torch.zeros(x.shape[0], x.shape[1] + 1, x.shape[2] + 2, x.shape[3] + 3)
    padded[:, 1:, 1:-1, 1:-2] = x
    torch.testing.assert_close(layer(padded[:, 1:, 1:-1, 1:-2]), contiguous, rtol=1e-4, atol=1e-5)


def assert_compiles_once_for_all_sizes(layer: nn.Module, channels: int) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (batch, height, width) in enumerate([(2, 5, 7), (3, 7, 4), (4, 2, 3)]):
        x = torch.randn(batch, channels, height, width).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
        with torch.compiler.set_stance("default" if index == 0 else "fail_on_recompile"):
            got = compiled(x)
        want = layer(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)
        inputs = (x, *layer.parameters())
        grads = [torch.autograd.grad(y.square().sum(), inputs, materialize_grads=True) for y in (got, want)]
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def assert_exports(layer: nn.Module, channels: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.export.export(layer, (torch.randn(2, channels, 5, 7),), dynamic_shapes=(DYNAMIC,))
    x = torch.randn(3, channels, 4, 9)
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


def assert_runs_in_onnxruntime(layer: nn.Module, channels: int, tmp_path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.randn(2, channels, 5, 7)
        program = torch.onnx.export(layer, (x,), dynamo=True, verbose=False, dynamic_shapes=(DYNAMIC,))
    path = str(tmp_path / "layer.onnx")
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for shape in [(2, channels, 5, 7), (3, channels, 4, 9)]:
        x = torch.randn(shape)
        (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), layer(x), rtol=1e-4, atol=1e-4)


def assert_starts_as_the_identity_and_learns(layer: nn.Module, first: set[str]) -> None:
    """Only the parameters ``first`` learn in the first step, all of them in the second."""
    x = torch.randn(2, 8, 5, 7)
    assert torch.equal(layer(x), x) and torch.equal(layer(x.contiguous(memory_format=CHANNELS_LAST)), x)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    alive = []
    for _ in range(2):
        optimizer.zero_grad()
        (layer(x) - x.roll(1, 3)).square().sum().backward()
        alive.append({name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()})
        optimizer.step()
    assert alive == [first, {name for name, _ in layer.named_parameters()}]
    assert not torch.equal(layer(x), x)
    assert torch.equal(layer.zero_()(x), x)
