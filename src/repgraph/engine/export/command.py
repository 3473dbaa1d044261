"""The command ``repgraph export``."""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.engine.export.formats import Exported
    from repgraph.models import MaskRCNN

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}
ONNX = ("onnx", "onnxruntime", "onnxscript")
EXAMPLES = """\
examples:
  repgraph export runs/voc --to onnx --out voc.onnx --size 512x512
  repgraph export runs/voc --to torch --dynamic
  repgraph export runs/voc/checkpoints/best.ckpt --to safetensors --out best.safetensors
  repgraph export my-mask-rcnn --to onnx --size 480x640 --image photo.jpg
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.epilog = EXAMPLES
    add("model", metavar="MODEL", help="folder of a run, folder of a network, or a .safetensors or .ckpt file of one")
    add("--to", required=True, choices=SUFFIXES, help="torch: a program of torch.export; onnx; safetensors: weights")
    add("--out", metavar="FILE", help="where to write (default: the model's name and .pt2, .onnx or .safetensors)")
    add("--size", default="512x512", metavar="HxW", help="of the images, in pixels; of an example with --dynamic")
    add("--dynamic", action="store_true", help="torch, onnx: images of any size, and any number of them at once")
    add("--image", metavar="FILE", help="onnx of a Mask R-CNN: a photograph with objects, to compare on as well")
    add("--plain", action="store_true", help="torch: PyTorch's own operators only: runs without repgraph, slower")
    add(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="SHARE",
        help="torch, onnx: nothing is written if logits differ by more than this share of the largest (objects: if "
        "boxes differ by more than this share of the image's longer side, or scores by more)",
    )


def run(arguments: argparse.Namespace) -> int:
    kind = arguments.to
    size = _size(arguments.size)
    out = _out(arguments)
    if arguments.plain and kind != "torch":
        raise UsageError("--plain is for --to torch; onnx always has plain operators")
    if arguments.dynamic and kind == "safetensors":
        raise UsageError("--dynamic is for --to torch and onnx; weights are for any size")
    if not 0 < arguments.tolerance < 1:
        raise UsageError(
            f"--tolerance {arguments.tolerance} is not a share; give a number between 0 and 1, such as 1e-4"
        )
    missing = [name for name in ONNX if kind == "onnx" and importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"--to onnx needs {' and '.join(missing)}: pip install 'repgraph[onnx]'")

    from repgraph import files
    from repgraph.engine.export import detector, formats
    from repgraph.models import MaskRCNN, load

    model = load(arguments.model)
    if isinstance(model, MaskRCNN):
        detector.refuse(kind, arguments.dynamic)
    if arguments.image is not None and not (isinstance(model, MaskRCNN) and kind == "onnx"):
        raise UsageError("--image is for --to onnx of a Mask R-CNN")
    files.check_writable(out)
    _say(f"{arguments.model}: {model.config['backbone']}, {model.extra_repr()}")
    start = time.perf_counter()
    if kind == "safetensors":
        exported = formats.to_safetensors(model)
    elif isinstance(model, MaskRCNN):
        _say(f"exporting to ONNX, {_described(size, False)} ...")
        exported = _detector(model, size, arguments.image)
    elif kind == "onnx":
        _say(f"exporting to ONNX, {_described(size, arguments.dynamic)} ...")
        exported = formats.to_onnx(model, size, arguments.dynamic)
    else:
        _say(f"exporting with torch.export, {_described(size, arguments.dynamic)} ...")
        exported = formats.to_torch(model, size, arguments.dynamic, arguments.plain)
    difference = exported.difference
    if difference is not None:
        runner = "onnxruntime" if kind == "onnx" else "the program"
        if not isinstance(model, MaskRCNN):
            _say(
                f"{runner} against the network: logits differ by at most {difference.absolute:.2g} "
                f"({difference.relative:.1e} of the largest, {difference.largest:.3g})"
            )
        if not difference.relative <= arguments.tolerance:
            print(
                f"repgraph export: that is more than --tolerance {arguments.tolerance:g} allows: {out} is not written",
                file=sys.stderr,
            )
            return 1
    files.write(out, exported.data)
    print(f"{out} ({len(exported.data) / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s)")
    return 0


def _detector(model: "MaskRCNN", size: tuple[int, int], image: str | None) -> "Exported":
    from repgraph.engine.export import detector
    from repgraph.engine.prediction.reading import read_upright

    example = None if image is None else read_upright(Path(os.path.expanduser(image)))
    exported, count = detector.to_onnx(model, size, example)
    assert exported.difference is not None
    _say(
        f"onnxruntime against the network: {count} objects, which differ by at most {exported.difference.absolute:.2g} "
        "(boxes as shares of the image's longer side, scores)"
    )
    if not count:
        _say("note: no object was found in the example, so that little was compared; --image gives another")
    return exported


def _out(arguments: argparse.Namespace) -> Path:
    suffix = SUFFIXES[arguments.to]
    if arguments.out is None:
        path = Path(arguments.model).resolve()
        name = path.parent.name if path.name == "model" else path.stem if path.suffix == ".ckpt" else path.name
        return Path((name.removesuffix(suffix) or "model") + suffix)
    out = Path(os.path.expanduser(arguments.out))
    if out.suffix != suffix:
        raise UsageError(f"--out {arguments.out} has to end in {suffix} for --to {arguments.to}")
    return out


def _size(text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--size {text!r} is not a size; give height and width in pixels, such as 512x512")
    return int(parts[0]), int(parts[1])


def _described(size: tuple[int, int], dynamic: bool) -> str:
    return "images of any size" if dynamic else f"images of {size[0]} x {size[1]} pixels"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
