"""Mask R-CNN as a file of ONNX, run by onnxruntime to check it.

How many boxes there are depends on the image, and torch.export cannot have that in torchvision's network ("Could not
guard on data-dependent expression", in ``batched_nms``). The older exporter, which records what is done for one image,
can: torchvision has its parts written for it.
"""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from repgraph.engine.export.formats import Difference, Exported, exporting
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN

INPUT, OUTPUTS = "image", ("boxes", "labels", "scores", "masks")
OPSET = 17
MASKS = 0.01  # the share of masks' pixels that may differ: a box that is rounded to the next pixel moves its mask
NO_PROGRAM = (
    "torch.export cannot do a Mask R-CNN: how many boxes there are depends on the image; "
    "--to onnx and --to safetensors can"
)


class _Plain(nn.Module):
    """The network from one image (3, H, W), floating point from 0 to 1, to four tensors."""

    def __init__(self, model: MaskRCNN) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        found: Any = self.model([image])
        return tuple(found[0][name] for name in OUTPUTS)


def to_onnx(model: MaskRCNN, size: tuple[int, int], image: Tensor | None = None) -> tuple[Exported, int]:
    """A file of ONNX for images of one size, and the number of objects that were compared to check it.

    Its input is "image" (3, H, W), floating point from 0 to 1; its outputs are "boxes" (N, 4), "labels" (N,), "scores"
    (N,) and "masks" (N, 1, H, W).

    Args:
        model: in evaluation mode, on the CPU.
        size: H and W of all images.
        image: uint8 (3, h, w), an example to compare on; noise, in which there is little to find, is another.
    """
    import onnx
    import onnxruntime  # type: ignore[import-untyped]

    network, file = _Plain(model).eval(), io.BytesIO()
    examples = _examples(size, image)
    with exporting("ONNX", model.config["backbone"], dynamic=False), torch.no_grad():
        torch.onnx.export(
            network,
            (examples[-1],),
            cast(Any, file),  # which it takes
            dynamo=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_axes={name: {0: "objects"} for name in OUTPUTS},
        )
    proto = onnx.load_from_string(file.getvalue())
    _any_number(proto.graph)
    onnx.helper.set_model_props(proto, {"config": json.dumps(model.config)})
    data = proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(example: Tensor) -> list[Tensor]:
        return [torch.from_numpy(part) for part in session.run(list(OUTPUTS), {INPUT: example.numpy()})]

    difference, count = compare(run, network, examples)
    return Exported(data, difference), count


def compare(
    run: Callable[[Tensor], Sequence[Tensor]], network: Callable[[Tensor], Sequence[Tensor]], examples: Sequence[Tensor]
) -> tuple[Difference, int]:
    """How far what ``run`` finds is from what the network finds, in shares of the image's longer side and of a score.

    Objects are compared with those of their class that are nearest to them, in whatever order they come. Infinity
    stands for another number of objects, other classes, or masks that differ.
    """
    absolute, count = 0.0, 0
    for example in examples:
        with torch.no_grad():
            want, got = network(example), run(example)
        count += len(want[0])
        absolute = max(absolute, _difference(want, got, max(example.shape)))
    return Difference(absolute, 1.0), count


def _difference(want: Sequence[Tensor], got: Sequence[Tensor], side: int) -> float:
    if len(want[0]) != len(got[0]) or not all(part.isfinite().all() for part in got):
        return float("inf")
    if not len(want[0]):
        return 0.0
    apart = (want[0][:, None] - got[0][None]).abs().amax(-1) / side  # [wanted, got]
    apart = apart.maximum((want[2][:, None] - got[2][None]).abs())
    apart[want[1][:, None] != got[1][None]] = torch.inf
    nearest = apart.argmin(1)
    differs = ((want[3] > 0.5) != (got[3][nearest] > 0.5)).sum() / (want[3] > 0.5).sum().clamp(min=1)
    if float(differs) > MASKS or len(nearest.unique()) < len(nearest):
        return float("inf")
    return float(apart.amin(1).max())


def _examples(size: tuple[int, int], image: Tensor | None) -> list[Tensor]:
    """Noise, and the image in that size."""
    found = [torch.rand(3, *size, generator=torch.Generator().manual_seed(0))]
    if image is not None:
        scaled = functional.interpolate(image[None].float() / 255, size, mode="bilinear", antialias=True)
        found.append(scaled[0].clamp(0, 1))
    return found


def _any_number(graph: Any) -> None:
    """Say in the loops of a graph that there can be any number of masks: the exporter notes those of its example."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                if node.op_type == "Loop":
                    for value in (*attribute.g.input, *attribute.g.output, *attribute.g.value_info):
                        shape = value.type.tensor_type.shape
                        if len(shape.dim) == 3:
                            shape.dim[0].Clear()
                _any_number(attribute.g)


def refuse(kind: str, dynamic: bool) -> None:
    """Errors for what a detector cannot be exported to."""
    if kind == "torch":
        raise UsageError(NO_PROGRAM)
    if dynamic:
        raise UsageError("--dynamic is not for a Mask R-CNN: its file of ONNX is for images of one --size")
