"""ONNX: the reference is exported to standard operators and runs in onnxruntime."""

import warnings

import pytest
import torch
from torch import Tensor

from repgraph.ops import representative_attention

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Module(torch.nn.Module):
    def __init__(self, backend: str, grid: int):
        super().__init__()
        self.backend, self.grid = backend, grid

    def forward(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
        return representative_attention(
            query, key, value, offsets, groups=2, grid=self.grid, scale=0.5, backend=self.backend
        )


def inputs(batch: int, height: int, width: int, grid: int) -> tuple[Tensor, ...]:
    cells = -(-height // grid), -(-width // grid)
    query, key = torch.randn(2, batch, 4, height, width)
    return query, key, torch.randn(batch, 6, height, width), 2 * torch.randn(batch, 6, *cells)


def export(module: Module, arguments: tuple[Tensor, ...], **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        return torch.onnx.export(module, arguments, dynamo=True, verbose=False, **options)


@pytest.mark.slow  # tests of the layers export the operator too
@pytest.mark.parametrize(("backend", "grid"), [("auto", 1), ("reference", 2)])
def test_runs_in_onnxruntime(backend: str, grid: int, tmp_path) -> None:
    torch.manual_seed(0)
    module, arguments = Module(backend, grid), inputs(2, 6, 8, grid)
    dynamic = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}
    program = export(module, arguments, dynamic_shapes=(dynamic,) * 4 if grid == 1 else None)
    path = str(tmp_path / "operator.onnx")
    program.save(path)
    model = onnx.load(path)
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert not model.functions
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    cases = [arguments, inputs(3, 5, 4, grid)] if grid == 1 else [arguments]
    for case in cases:
        feed = {node.name: t.numpy() for node, t in zip(session.get_inputs(), case, strict=True)}
        (got,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(got), module(*case), rtol=1e-4, atol=1e-5)


def test_a_named_kernel_cannot_be_exported() -> None:
    with pytest.raises(Exception, match=r"ONNX has no such operator|ConversionError|export") as caught:
        export(Module("cpu", 1), inputs(1, 4, 4, 1))
    chain, error = "", caught.value
    while error is not None:
        chain += str(error)
        error = error.__cause__ or error.__context__
    assert "export with backend='auto' or 'reference'" in chain
