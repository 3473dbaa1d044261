"""A trained network, wherever it is on disk."""

import os
from collections.abc import Mapping
from pathlib import Path

from repgraph.errors import UsageError
from repgraph.models import weights
from repgraph.models.hub import CONFIG
from repgraph.models.rgnet import RGNet

FOLDER = "model"  # in a run's folder
_PREFIX = "model."  # of the network's weights in a checkpoint of training


def load(path: str | os.PathLike[str]) -> RGNet:
    """The network of a run, on the CPU and in evaluation mode. Only the disk is read, and no code in it is run.

    Args:
        path: the folder of a run, which has ``model/`` in it; such a folder ``model``, which
            :meth:`RGNet.save_pretrained` writes; a file that ``repgraph export --to safetensors`` writes; or a
            checkpoint ``.ckpt`` of training.

    Example:
        >>> import tempfile
        >>> run = tempfile.mkdtemp()
        >>> RGNet(21, "resnet18", channels=64).save_pretrained(f"{run}/model")
        >>> load(run).classes
        21
    """
    found = Path(path).expanduser()
    if found.suffix == ".safetensors" and not found.is_dir():
        return RGNet.from_file(found)
    if found.suffix == ".ckpt" and not found.is_dir():
        return _of_checkpoint(found)
    if found.is_file():
        raise UsageError(f"{found} is no network: a folder, a .safetensors or a .ckpt file is needed")
    if not found.is_dir():
        raise UsageError(f"{found} is not there; the folder of a run, or of a network, is needed")
    for folder in (found, found / FOLDER):
        if (folder / CONFIG).is_file():
            return RGNet.from_pretrained(folder)
    raise UsageError(f"{found} has no {CONFIG} and no {FOLDER}/{CONFIG}: no network was saved there (yet)")


def _of_checkpoint(path: Path) -> RGNet:
    content = weights.read_pickle(path)
    config = content.get("config") if isinstance(content, Mapping) else None
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(config, dict) or not isinstance(state, Mapping):
        raise UsageError(f"{path} is no checkpoint of repgraph's training: 'config' or 'state_dict' is missing in it")
    model = RGNet.build(config, str(path))
    own = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
    weights.fill(model, own, str(path))
    return model.eval()
