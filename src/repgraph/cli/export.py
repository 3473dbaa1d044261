"""``repgraph export``."""

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from repgraph.cli import EXTRAS, options
from repgraph.cli.options import option
from repgraph.errors import UsageError

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}


def export(
    model: options.Model,
    to: Annotated[
        Literal["torch", "onnx", "safetensors"],
        option("torch: a program of torch.export; onnx; safetensors: weights and config."),
    ],
    out: Annotated[
        Path | None, option("Output file.", metavar="FILE", show_default="the model's name and a suffix")
    ] = None,
    size_text: Annotated[
        str, option("Size of the images in pixels; with --dynamic, of an example.", "--size", metavar="HxW")
    ] = "512x512",
    dynamic: Annotated[bool, option("torch, onnx: Allow images of any size, and any batch size.", "--dynamic")] = False,
    int8: Annotated[bool, option("safetensors: Round the weights to 8 bits, a quarter of the size.", "--int8")] = False,
    image: Annotated[Path | None, option("onnx of a Mask R-CNN: Also compare on this photo.", metavar="FILE")] = None,
) -> int:
    """Export a network to torch.export, ONNX or safetensors; outputs of programs are compared with the network's.

    Examples:
      repgraph export runs/voc --to onnx --out voc.onnx --size 512x512
      repgraph export runs/voc --to torch --dynamic
      repgraph export runs/voc/checkpoints/best.ckpt --to safetensors --out best.safetensors
      repgraph export runs/voc --to safetensors --int8 --out voc-int8.safetensors
      repgraph export my-mask-rcnn --to onnx --size 480x640 --image photo.jpg

    The exit code is 0, 1 if the outputs differ (nothing is written), or 2 for a mistake in the command.
    """
    size, suffix = options.parse_size("--size", size_text), SUFFIXES[to]
    path = Path(os.path.expanduser(out or options.network_name(model) + "-int8" * int8 + suffix))
    if path.suffix != suffix:
        raise UsageError(f"--out is {out}; expected a file name that ends in {suffix} for --to {to}")
    if int8 and to != "safetensors":
        raise UsageError("--int8 is for --to safetensors")
    if dynamic and to == "safetensors":
        raise UsageError("--dynamic is for --to torch and --to onnx; weights do not depend on the size")
    missing = [name for name in EXTRAS["onnx"] if to == "onnx" and find_spec(name) is None]
    if missing:
        raise UsageError(f"--to onnx needs {' and '.join(missing)}: pip install 'repgraph[onnx]'")

    from repgraph import export, files
    from repgraph.constants import MODEL
    from repgraph.data.files import read_image
    from repgraph.inference.inputs import check_not_overwritten
    from repgraph.models import MaskRCNN, load
    from repgraph.models.hub import FILE

    network = load(model)
    is_detector = isinstance(network, MaskRCNN)
    if is_detector and to == "torch":
        raise UsageError(
            "torch.export cannot export a Mask R-CNN: the number of boxes depends on the image; "
            "use --to onnx or --to safetensors"
        )
    if is_detector and dynamic:
        raise UsageError("--dynamic does not support Mask R-CNN: its ONNX file is for images of one --size")
    if image is not None and not (is_detector and to == "onnx"):
        raise UsageError("--image is for --to onnx of a Mask R-CNN")
    files.check_writable(path)
    source, photo = Path(os.path.expanduser(model)), image and Path(os.path.expanduser(image))
    check_not_overwritten([source, source / FILE, source / MODEL / FILE, *([photo] if photo else [])], [path])
    start = time.perf_counter()
    print(f"{model}: {network.config['backbone']}, {network.extra_repr()}; exporting ...", file=sys.stderr, flush=True)
    if to == "safetensors":
        content = network.to_bytes(int8=int8)
    else:
        if isinstance(network, MaskRCNN):
            exported = export.detector_to_onnx(network, size, read_image(photo, upright=True) if photo else None)
        else:
            exported = (export.to_onnx if to == "onnx" else export.to_torch)(network, size, dynamic)
        print(f"the file and the network: {exported.comparison}", file=sys.stderr)
        if not exported.difference <= export.TOLERANCE:
            print(f"repgraph export: this exceeds {export.TOLERANCE:g}: {path} is not written", file=sys.stderr)
            return 1
        content = exported.data
    files.write(path, content)
    print(f"{path} ({len(content) / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s)")
    return 0
