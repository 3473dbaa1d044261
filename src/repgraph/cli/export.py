"""``repgraph export``."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.errors import UsageError

Format = Literal["torch", "onnx", "safetensors"]
SUFFIXES = {"torch": ".pt2", "onnx": ".onnx", "safetensors": ".safetensors"}


def export(
    model: options.Model,
    to: Annotated[Format, option("torch (a torch.export program), onnx, or safetensors (weights and config).")],
    out: Annotated[
        Path | None,
        option("Output file.", metavar="FILE", show_default="NAME.pt2, .onnx or .safetensors in the current folder"),
    ] = None,
    size_text: Annotated[str, option("Input size (--dynamic: of the example).", "--size", metavar="HxW")] = "512x512",
    dynamic: Annotated[bool, option("torch, onnx: Allow images of any size, and any batch size.", "--dynamic")] = False,
    int8: Annotated[bool, option("safetensors: Round the weights to 8 bits, a quarter of the size.", "--int8")] = False,
) -> int:
    """Export a network to torch.export, ONNX or safetensors.

    Examples:
      repgraph export runs/voc --to onnx --out voc.onnx --size 512x512
      repgraph export runs/voc --to torch --dynamic
      repgraph export runs/voc/checkpoints/best.ckpt --to safetensors --out best.safetensors
      repgraph export my-mask-rcnn --to safetensors --int8

    The outputs of exported programs are compared with those of the network. A Mask R-CNN can only be exported to
    safetensors. Exit codes: 0 success; 1 the outputs differ (nothing is written); 2 invalid options.
    """
    size, suffix = options.parse_size("--size", size_text), SUFFIXES[to]
    path = Path(os.path.expanduser(out or options.network_name(model) + "-int8" * int8 + suffix))
    if path.suffix != suffix:
        raise UsageError(f"--out is {out}; expected a file name that ends in {suffix} for --to {to}")
    if int8 and to != "safetensors":
        raise UsageError("--int8 is for --to safetensors")
    if dynamic and to == "safetensors":
        raise UsageError("--dynamic is for --to torch and --to onnx; weights do not depend on the size")

    from repgraph import export, files
    from repgraph.constants import MODEL
    from repgraph.inference.inputs import check_not_overwritten
    from repgraph.models import MaskRCNN, load
    from repgraph.models.hub import FILE

    network = load(model)
    if isinstance(network, MaskRCNN) and to != "safetensors":
        raise UsageError(f"a Mask R-CNN cannot be exported with --to {to}; use --to safetensors")
    files.check_writable(path)
    source = Path(os.path.expanduser(model))
    check_not_overwritten([source, source / FILE, source / MODEL / FILE], [path])
    start = time.perf_counter()
    description = f"{network.config['backbone']} with context {network.config['context']!r}"
    print(f"{model}: {description}; exporting ...", file=sys.stderr, flush=True)
    if isinstance(network, MaskRCNN) or to == "safetensors":
        content = network.to_bytes(int8=int8)
    else:
        content, difference = (export.to_onnx if to == "onnx" else export.to_torch)(network, size, dynamic)
        print(f"logits of the file and the network differ by {difference:.1e} of the largest logit", file=sys.stderr)
        if not difference <= export.TOLERANCE:
            print(f"repgraph export: this exceeds {export.TOLERANCE:g}: {path} is not written", file=sys.stderr)
            return 1
    files.write(path, content)
    print(f"{path} ({len(content) / 1e6:.1f} MB, {time.perf_counter() - start:.0f} s)")
    return 0
