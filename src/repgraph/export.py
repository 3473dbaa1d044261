"""Export of networks to torch.export and ONNX; the exported program is compared with the network."""

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from repgraph.errors import UsageError, first_line
from repgraph.models import RGNet

DYNAMIC_AXES = {0: "batch", 2: "height", 3: "width"}
TOLERANCE = 1e-4  # on the difference between the logits of the file and of the network


def to_torch(model: RGNet, size: tuple[int, int], dynamic: bool = False) -> tuple[bytes, float]:
    """Export with ``torch.export``: from normalized images (1, 3, H, W) to logits of the same size.

    With ``dynamic``, batch size, height and width can be any for which the smallest map has two rows and columns.
    Returns the content of the file, and the difference of its logits to the network's, relative to the largest logit.
    """
    axes = (dict.fromkeys(DYNAMIC_AXES, Dim.DYNAMIC),) if dynamic else None
    file = io.BytesIO()
    with _export_errors(model, dynamic):
        auxiliary, model.auxiliary = model.auxiliary, None  # its weights would be exported too
        try:
            program = torch.export.export(model, (_noise(size, batch=2 if dynamic else 1),), dynamic_shapes=axes)
        finally:
            model.auxiliary = auxiliary
        torch.export.save(program, file, extra_files={"config.json": json.dumps(model.config)})
        file.seek(0)
        # A program that does not work for all sizes (max pooling in PyTorch 2.11) raises an error here.
        difference = compare(torch.export.load(file).module(), model, size, dynamic)
    return file.getvalue(), difference


def to_onnx(model: RGNet, size: tuple[int, int], dynamic: bool = False) -> tuple[bytes, float]:
    """Export to ONNX, from "images" to "logits", like :func:`to_torch`; compared in onnxruntime."""
    import onnx
    import onnxruntime  # type: ignore[import-untyped]
    import onnxscript  # noqa: F401  # PyTorch's exporter needs it

    with _export_errors(model, dynamic):
        program: Any = torch.onnx.export(
            model,
            (_noise(size, batch=2 if dynamic else 1),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=(DYNAMIC_AXES,) if dynamic else None,
        )
        proto = program.model_proto
    onnx.helper.set_model_props(proto, {"config": json.dumps(model.config)})
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return data, compare(run, model, size, dynamic)


def compare(run: Callable[[Tensor], Tensor], model: RGNet, size: tuple[int, int], dynamic: bool) -> float:
    """Compare a program with the network on random images of one size, and on a second size if it is dynamic."""
    examples = [_noise(size)]
    if dynamic:
        least = 2 * model.backbone.output_stride + 1  # programs do not take maps of one row or column
        examples.append(_noise((max(least, size[0] // 2 + 9), max(least, size[1] // 2 + 13)), batch=3))
    difference = 0.0
    with torch.no_grad():
        for images in examples:
            expected, found = model(images), run(images)
            if found.shape != expected.shape or not found.isfinite().all():
                return torch.inf
            difference = max(difference, float((found - expected).abs().max() / expected.abs().max()))
    return difference


def _noise(size: tuple[int, int], batch: int = 1) -> Tensor:
    """Return noise in the range of normalized images."""
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


@contextmanager
def _export_errors(model: RGNet, dynamic: bool) -> Iterator[None]:
    """Silence the exporters' warnings, and turn their errors into a :class:`UsageError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # exporters raise all kinds of errors
        reason = f"PyTorch cannot export {model.config['backbone']!r}: {first_line(error)[:200]}"
        raise UsageError(f"{reason}; use another format{', or leave out --dynamic' * dynamic}") from error
