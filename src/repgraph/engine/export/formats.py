"""A network as a file of another program's, checked against the network itself."""

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from repgraph.errors import UsageError
from repgraph.layers.repgraph import RepGraph
from repgraph.models import MaskRCNN, RGNet

INPUT, OUTPUT = "images", "logits"
_AXES = {0: "batch", 2: "height", 3: "width"}


@dataclass(frozen=True)
class Difference:
    """The largest difference between the logits of a file and of the network, and the largest logit."""

    absolute: float
    largest: float

    @property
    def relative(self) -> float:
        """The share of the largest logit.

        >>> Difference(0.001, 10.0).relative
        0.0001
        """
        return self.absolute / self.largest if self.largest else self.absolute


@dataclass(frozen=True)
class Exported:
    """The content of a file, and how far what it computes is from the network (None: it computes nothing)."""

    data: bytes
    difference: Difference | None


def to_safetensors(model: RGNet | MaskRCNN) -> Exported:
    """All weights, with the config in the metadata; :func:`repgraph.models.load` reads it.

    >>> len(to_safetensors(RGNet(5, "resnet18", channels=16)).data) > 40_000_000
    True
    """
    return Exported(model.to_bytes(), None)


def to_torch(model: RGNet, size: tuple[int, int], dynamic: bool = False, plain: bool = False) -> Exported:
    """A program of ``torch.export``, from normalised images (1, 3, H, W) to logits of their size.

    Args:
        model: in evaluation mode, on the CPU.
        size: H and W of the example; without ``dynamic`` those of all images.
        dynamic: any batch, height and width from a few pixels up.
        plain: the RepGraph layer in PyTorch's own operators: the program runs without repgraph, and slower.
    """
    axes = (dict.fromkeys(_AXES, Dim.DYNAMIC),) if dynamic else None
    file = io.BytesIO()
    with exporting("torch.export", model.backbone.name, dynamic):
        with _prepared(model, plain):
            program = torch.export.export(model, (_images(size, batch=2 if dynamic else 1),), dynamic_shapes=axes)
        torch.export.save(program, file, extra_files={"config.json": json.dumps(model.config)})
        file.seek(0)
        # In here: a program that is not for all sizes after all (PyTorch 2.11 cannot have max pooling for all) says so.
        difference = compare(torch.export.load(file).module(), model, size, dynamic)
    return Exported(file.getvalue(), difference)


def to_onnx(model: RGNet, size: tuple[int, int], dynamic: bool = False) -> Exported:
    """A file of ONNX with the input "images", normalised, and the output "logits"; run by onnxruntime to check it.

    Args:
        model: in evaluation mode, on the CPU.
        size: H and W of the example; without ``dynamic`` those of all images.
        dynamic: any batch, height and width.
    """
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    with exporting("ONNX", model.backbone.name, dynamic):
        program = torch.onnx.export(
            model,
            (_images(size, batch=2 if dynamic else 1),),
            dynamo=True,
            verbose=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=(_AXES,) if dynamic else None,
        )
        assert program is not None
        proto = program.model_proto
    onnx.helper.set_model_props(proto, {"config": json.dumps(model.config)})
    try:
        data = proto.SerializeToString()
    except ValueError as error:
        raise UsageError(f"the network does not fit into one file of ONNX: {error}") from error
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return Exported(data, compare(run, model, size, dynamic))


def compare(run: Callable[[Tensor], Any], model: RGNet, size: tuple[int, int], dynamic: bool) -> Difference:
    """How far ``run`` is from the network on random images of that size, and if it is dynamic of another too."""
    examples = [_images(size)]
    if dynamic:
        examples.append(_images((size[0] // 2 + 9, size[1] // 2 + 13), batch=3))
    absolute = largest = 0.0
    with torch.no_grad():
        for images in examples:
            want, got = model(images), run(images)
            if got.shape != want.shape or not got.isfinite().all():
                return Difference(float("inf"), float(want.abs().max()))
            absolute = max(absolute, float((got - want).abs().max()))
            largest = max(largest, float(want.abs().max()))
    return Difference(absolute, largest)


def _images(size: tuple[int, int], batch: int = 1) -> Tensor:
    """What normalised images are like: numbers around 0."""
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


@contextmanager
def _prepared(model: RGNet, plain: bool) -> Iterator[None]:
    """Without the auxiliary head, whose weights would go along; and with RepGraph layers in plain operators."""
    layers = [module for module in model.modules() if isinstance(module, RepGraph)] if plain else []
    backends, auxiliary = [layer.backend for layer in layers], model.auxiliary
    model.auxiliary = None
    for layer in layers:
        layer.backend = "reference"
    try:
        yield
    finally:
        model.auxiliary = auxiliary
        for layer, backend in zip(layers, backends, strict=True):
            layer.backend = backend


@contextmanager
def exporting(what: str, backbone: str, dynamic: bool) -> Iterator[None]:
    """Without the exporters' own warnings, and with their failures as an error of ours: backbones are not our code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # of any kind: they trace and rewrite code that they do not know
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        remedy = "leave out --dynamic, or export to another format" if dynamic else "export to another format"
        raise UsageError(f"{what} cannot do {backbone!r}: {reason[:200]}; {remedy}") from error
