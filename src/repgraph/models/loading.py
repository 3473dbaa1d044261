"""A trained network, wherever it is on disk."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from repgraph.errors import UsageError
from repgraph.models import weights
from repgraph.models.hub import CONFIG, NETWORK, USUAL, Hub, config_of
from repgraph.models.mask_rcnn import MaskRCNN
from repgraph.models.rgnet import RGNet

FOLDER, LAST = "model", "checkpoints/last.ckpt"  # in a run's folder
_PREFIX = "model."  # of the network's weights in a checkpoint of training
_NETWORKS: dict[str, type[RGNet] | type[MaskRCNN]] = {"RGNet": RGNet, "MaskRCNN": MaskRCNN}

Network = TypeVar("Network", bound=Hub)


@overload
def load(path: str | os.PathLike[str]) -> RGNet | MaskRCNN: ...


@overload
def load(path: str | os.PathLike[str], kind: type[Network]) -> Network: ...


def load(path: str | os.PathLike[str], kind: type[Any] | None = None) -> Any:
    """The network of a run, on the CPU and in evaluation mode. Only the disk is read, and no code in it is run.

    Args:
        path: the folder of a run, which has ``model/`` in it; such a folder ``model``, which
            :meth:`RGNet.save_pretrained` writes; a file that ``repgraph export --to safetensors`` writes; or a
            checkpoint ``.ckpt`` of training.
        kind: the class that it has to be, :class:`RGNet` or :class:`MaskRCNN`; another is an error. Default: any.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = folder.name
        >>> RGNet(21, "resnet18", channels=64).save_pretrained(f"{run}/model")
        >>> load(run).classes
        21
        >>> load(run, MaskRCNN)
        Traceback (most recent call last):
        repgraph.errors.UsageError: .../model has a network of the kind RGNet; one of the kind MaskRCNN is needed
        >>> folder.cleanup()
    """
    found = Path(os.path.expanduser(path))  # which leaves a user who is not known alone
    if found.suffix == ".safetensors" and not found.is_dir():
        return _class(config_of(found), found, kind).from_file(found)
    if found.suffix == ".ckpt" and not found.is_dir():
        return _of_checkpoint(found, kind)
    if found.is_file():
        raise UsageError(f"{found} is no network: a folder, a .safetensors or a .ckpt file is needed")
    if not found.is_dir():
        raise UsageError(f"{found} is not there; the folder of a run, or of a network, is needed")
    for folder in (found, found / FOLDER):
        if (folder / CONFIG).is_file():
            return _class(config_of(folder), folder, kind).from_pretrained(folder)
    instead = f"; give its last checkpoint instead: {found / LAST}" if (found / LAST).is_file() else ""
    raise UsageError(f"{found} has no {CONFIG} and no {FOLDER}/{CONFIG}: no network was saved there (yet){instead}")


def _class(config: Mapping[str, Any], path: Path, kind: type[Any] | None) -> type[RGNet] | type[MaskRCNN]:
    name = config.get(NETWORK, USUAL)
    if name not in _NETWORKS:
        raise UsageError(f"{path} has a network of the kind {name!r}; known are {', '.join(_NETWORKS)}")
    if kind is not None and _NETWORKS[name] is not kind:
        raise UsageError(f"{path} has a network of the kind {name}; one of the kind {kind.__name__} is needed")
    return _NETWORKS[name]


def _of_checkpoint(path: Path, kind: type[Any] | None) -> RGNet | MaskRCNN:
    content = weights.read_pickle(path)
    config = content.get("config") if isinstance(content, Mapping) else None
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(config, dict) or not isinstance(state, Mapping):
        raise UsageError(f"{path} is no checkpoint of repgraph's training: 'config' or 'state_dict' is missing in it")
    model = _class(config, path, kind).build(config, str(path))
    own = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
    weights.fill(model, own, str(path))
    return model.eval()
