"""A trained network, wherever it is on disk."""

import os
from pathlib import Path

from repgraph.errors import UsageError
from repgraph.models.hub import CONFIG
from repgraph.models.rgnet import RGNet

FOLDER = "model"  # in a run's folder


def load(path: str | os.PathLike[str]) -> RGNet:
    """The network of a run, on the CPU and in evaluation mode. Only the disk is read.

    Args:
        path: the folder of a run, which has ``model/`` in it; such a folder ``model``, which
            :meth:`RGNet.save_pretrained` writes; or the file that ``repgraph export --to safetensors`` writes.

    Example:
        >>> import tempfile
        >>> run = tempfile.mkdtemp()
        >>> RGNet(21, "resnet18", channels=64).save_pretrained(f"{run}/model")
        >>> load(run).classes
        21
    """
    found = Path(path).expanduser()
    if found.is_file():
        if found.suffix != ".safetensors":
            raise UsageError(f"{found} is no network: a folder or a .safetensors file is needed")
        return RGNet.from_file(found)
    if not found.is_dir():
        raise UsageError(f"{found} is not there; the folder of a run, or of a network, is needed")
    for folder in (found, found / FOLDER):
        if (folder / CONFIG).is_file():
            return RGNet.from_pretrained(folder)
    raise UsageError(f"{found} has no {CONFIG} and no {FOLDER}/{CONFIG}: no network was saved there (yet)")
