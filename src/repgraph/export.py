"""Export of networks to torch.export, ONNX and safetensors; exported programs are compared with the network."""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.export import Dim

from repgraph.errors import UsageError, first_line
from repgraph.models import MaskRCNN, RGNet

OBJECTS = ("boxes", "labels", "scores", "masks")  # outputs of a detector
DYNAMIC_AXES = {0: "batch", 2: "height", 3: "width"}
TOLERANCE = 1e-4  # relative difference between the outputs of the file and of the network
MASK_TOLERANCE = 0.01  # fraction of masks' pixels: a box that is rounded to the next pixel moves its mask


class Exported(NamedTuple):
    """The content of a file, the largest difference between its outputs and the network's, and a line about it.

    The difference is relative to the largest logit, or to the image's longer side and the highest score.
    """

    data: bytes
    difference: float
    comparison: str


def to_torch(model: RGNet, size: tuple[int, int], dynamic: bool = False) -> Exported:
    """Export with ``torch.export``: from normalised images (1, 3, H, W) to logits of the same size.

    Args:
        model: In evaluation mode, on the CPU.
        size: (H, W) of the images, or of an example if ``dynamic``.
        dynamic: Allow any batch size, height and width of which the smallest map has at least two rows and columns.
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
        compared = compare_logits(torch.export.load(file).module(), model, size, dynamic)
    return Exported(file.getvalue(), *compared)


def to_onnx(model: RGNet, size: tuple[int, int], dynamic: bool = False) -> Exported:
    """Export to ONNX, from "images" to "logits", like :func:`to_torch`; compared in onnxruntime."""
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
    data, run = _onnx_file(proto, model)
    return Exported(data, *compare_logits(lambda images: run(images)[0], model, size, dynamic))


def detector_to_onnx(model: MaskRCNN, size: tuple[int, int], image: Tensor | None = None) -> Exported:
    """Export a detector to ONNX for images of one size; compared in onnxruntime.

    Its input is "image" (3, H, W), floating point from 0 to 1; its outputs are "boxes" (N, 4), "labels" (N,), "scores"
    (N,) and "masks" (N, 1, H, W). torch.export cannot export it: the number of boxes depends on the image, and
    torchvision's code branches on it. The older exporter, which records the operations for one example, can.

    ``image`` is an example (3, h, w), uint8, to compare on in addition to noise, which has few detections.
    """
    import onnx

    network, file = _DetectorOutputs(model).eval(), io.BytesIO()
    examples = [torch.rand(3, *size, generator=torch.Generator().manual_seed(0))]
    if image is not None:
        resized = nn.functional.interpolate(image[None].float() / 255, size, mode="bilinear", antialias=True)
        examples.append(resized[0].clamp(0, 1))
    with _export_errors(model), torch.no_grad():
        torch.onnx.export(
            network,
            (examples[-1],),
            cast(Any, file),
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=list(OBJECTS),
            dynamic_axes={name: {0: "objects"} for name in OBJECTS},
        )
    proto = onnx.load_from_string(file.getvalue())
    _clear_mask_counts(proto.graph)
    data, run = _onnx_file(proto, model)
    return Exported(data, *compare_objects(run, network, examples))


class _DetectorOutputs(nn.Module):
    """A detector from one image (3, H, W) to four tensors."""

    def __init__(self, model: MaskRCNN) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        outputs: Any = self.model([image])
        return tuple(outputs[0][name] for name in OBJECTS)


def compare_logits(
    run: Callable[[Tensor], Tensor], model: RGNet, size: tuple[int, int], dynamic: bool
) -> tuple[float, str]:
    """Compare a program with the network on random images of one size, and on a second size if it is dynamic."""
    examples = [_noise(size)]
    if dynamic:
        least = 2 * model.backbone.output_stride + 1  # programs do not take maps of one row or column
        examples.append(_noise((max(least, size[0] // 2 + 9), max(least, size[1] // 2 + 13)), batch=3))
    absolute = largest = 0.0
    with torch.no_grad():
        for images in examples:
            expected, found = model(images), run(images)
            same = found.shape == expected.shape and bool(found.isfinite().all())
            absolute = max(absolute, float((found - expected).abs().max()) if same else torch.inf)
            largest = max(largest, float(expected.abs().max()))
    relative = absolute / largest if largest else absolute
    return relative, f"logits differ by at most {absolute:.2g} ({relative:.1e} of the largest, {largest:.3g})"


def compare_objects(
    run: Callable[[Tensor], Sequence[Tensor]], network: Callable[[Tensor], Sequence[Tensor]], examples: Sequence[Tensor]
) -> tuple[float, str]:
    """Compare a program with a detector.

    The difference is the larger of two: between boxes, as a fraction of the image's longer side, and between scores. It
    is infinite if objects are missing or have other classes or masks. The order of objects does not matter.
    """
    difference, count = 0.0, 0
    with torch.no_grad():
        for example in examples:
            expected = network(example)
            count += len(expected[0])
            difference = max(difference, _object_difference(expected, run(example), max(example.shape)))
    if not count:
        return difference, "there are no objects in the example, so little was compared; use --image"
    how = "boxes as fractions of the image's longer side, scores"
    return difference, f"{count} objects, which differ by at most {difference:.2g} ({how})"


def _object_difference(expected: Sequence[Tensor], found: Sequence[Tensor], side: int) -> float:
    if len(expected[0]) != len(found[0]) or not all(part.isfinite().all() for part in found):
        return torch.inf
    if not len(expected[0]):
        return 0.0
    (boxes, labels, scores, masks), (found_boxes, found_labels, found_scores, found_masks) = expected, found
    distance = (boxes[:, None] - found_boxes).abs().amax(-1) / side  # [expected, found]
    distance = distance.maximum((scores[:, None] - found_scores).abs())
    distance[labels[:, None] != found_labels] = torch.inf
    nearest = distance.argmin(1)
    pixels = masks > 0.5
    differing = (pixels != (found_masks[nearest] > 0.5)).sum() / pixels.sum().clamp(min=1)
    if differing > MASK_TOLERANCE or len(nearest.unique()) < len(nearest):
        return torch.inf
    return float(distance.amin(1).max())


def _onnx_file(proto: Any, model: RGNet | MaskRCNN) -> tuple[bytes, Callable[[Tensor], list[Tensor]]]:
    """Return the content of an ONNX file with the network's config, and a function that runs it in onnxruntime."""
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    onnx.helper.set_model_props(proto, {"config": json.dumps(model.config)})
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return data, lambda images: [torch.from_numpy(part) for part in session.run(None, {name: images.numpy()})]


def _clear_mask_counts(graph: Any) -> None:
    """Remove the number of masks from the loops of a graph: the exporter hard-codes the number in its example."""
    for node in graph.node:
        for inner in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            for value in (*inner.input, *inner.output, *inner.value_info) if node.op_type == "Loop" else ():
                if len(value.type.tensor_type.shape.dim) == 3:
                    value.type.tensor_type.shape.dim[0].Clear()
            _clear_mask_counts(inner)


def _noise(size: tuple[int, int], batch: int = 1) -> Tensor:
    """Return noise in the range of normalised images."""
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(0))


@contextmanager
def _export_errors(model: RGNet | MaskRCNN, dynamic: bool = False) -> Iterator[None]:
    """Silence the exporters' warnings, and turn their errors into a :class:`UsageError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # exporters raise all kinds of errors
        remedy = "leave out --dynamic, or use another format" if dynamic else "use another format"
        reason = first_line(error)[:200]
        raise UsageError(f"PyTorch cannot export {model.config['backbone']!r}: {reason}; {remedy}") from error
