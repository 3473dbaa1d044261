"""Weights from files and from timm: read without running code, renamed where they have to be, checked, loaded."""

import json
import os
import pickle
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import inserted
from repgraph.models.backbone import Backbone, known

PICKLED = (".pth", ".pt", ".bin", ".ckpt")
_BODIES = ("backbone.body.", "detector.backbone.body.")  # the backbone's weights in networks of ours
_INSIDE = ("state_dict", "model")  # where training scripts put the weights in their checkpoints


@dataclass(frozen=True)
class Weights:
    """Weights of an image network by their names, and what is known of them."""

    source: str  # for messages
    tensors: dict[str, Tensor]
    caffe_style: bool | None = None  # None where nothing says
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    norm_eps: float | None = None


def get(weights: str | os.PathLike[str], backbone: str) -> Weights:
    """Weights for a backbone, from a file or from timm.

    Args:
        weights: the path of a ``.safetensors`` file (also of a whole network of ours, whose backbone is taken) or of a
            checkpoint of PyTorch; or "pretrained" or "timm:NAME" for those of timm, which are downloaded if timm has
            not got them yet.
        backbone: the name of the backbone in timm.
    """
    text = os.fspath(weights)
    if text == "pretrained" or text.startswith("timm:"):
        return _of_timm(backbone if text == "pretrained" else text.removeprefix("timm:"), backbone)
    found = of_file(Path(os.path.expanduser(text)))
    inside = [body for body in _BODIES if any(name.startswith(body) for name in found.tensors)]
    if not inside:
        return found
    parts = {name: value for name, value in found.tensors.items() if name.startswith(inside[0])}
    return replace(found, tensors={name.removeprefix(inside[0]): value for name, value in parts.items()})


def of_file(path: Path) -> Weights:
    """All weights of a file, and what its metadata say of them."""
    tensors, metadata = read(path)
    style = metadata.get("style")
    caffe = None if style is None else style.strip().lower().startswith("caffe")
    if "config" not in metadata:
        return Weights(str(path), tensors, caffe)
    config = json.loads(metadata["config"])
    colours = tuple(config["mean"]), tuple(config["std"])
    return Weights(str(path), tensors, config["caffe_style"], *colours, config.get("norm_eps"))


def load(backbone: Backbone, weights: Weights) -> None:
    """Load weights into a backbone: all of them, or an error that names what is too much, missing or misshapen.

    The names are those of timm's network (for ResNets torchvision has the same); classifiers are left out. Layers
    inserted into the backbone stay as they are.
    """
    check_style(weights, backbone.caffe_style)
    own = backbone.body.state_dict()
    tensors = _renamed(weights.tensors, own)
    spare = [name for name in tensors if name not in own]
    dropped = set(spare) if _only_classifier(spare, backbone.name) else _names_of_whole(backbone.name) - own.keys()
    kept = {name: value for name, value in tensors.items() if name not in dropped}
    fill(backbone.body, kept, weights.source, optional=tuple(f"{path}." for path in inserted(backbone.body)))


def check_style(weights: Weights, caffe_style: bool) -> None:
    """Refuse weights that are known to be of another style than the backbone."""
    if weights.caffe_style is not None and weights.caffe_style != caffe_style:
        theirs, ours = ("caffe", "timm") if weights.caffe_style else ("timm", "caffe")
        raise UsageError(
            f"{weights.source} is in {theirs} style and the backbone in {ours} style, which would compute something "
            f"else with it; give caffe_style={weights.caffe_style}"
        )


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    optional: tuple[str, ...] = (),
) -> None:
    """Load tensors into a module, cast to its dtypes; nothing is loaded if one is missing, too much or misshapen.

    Args:
        module: whose parameters and buffers are meant.
        tensors: by their names in the module.
        source: the file, for messages.
        optional: beginnings of names that may be missing.
    """
    own = module.state_dict()
    spare = [name for name in tensors if name not in own]
    # Files made by other tools than PyTorch lack the count of batches, which only statistics without momentum need.
    missing = [
        name
        for name in own
        if name not in tensors and not name.startswith(optional) and not name.endswith("num_batches_tracked")
    ]
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    found = {"not known here": spare, "missing": missing, "of another shape": misshapen}
    wrong = [f"{_some(names)} {what}" for what, names in found.items() if names]
    if wrong:
        raise UsageError(f"{source} does not fit: {'; '.join(wrong)}")
    module.load_state_dict(dict(tensors), strict=False)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by their names, and its metadata. Nothing in the file is run.

    Checkpoints of training scripts may have the weights in "state_dict" or "model", and a prefix "module.".
    """
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix not in PICKLED:
        raise UsageError(f"{path} is no file of weights: the name has to end in .safetensors, {', '.join(PICKLED)}")
    content = read_pickle(path)
    for key in _INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UsageError(f"{path} holds no weights: a dict of tensors by their names is needed")
    return {str(name).removeprefix("module."): value for name, value in content.items()}, {}


def read_pickle(path: Path) -> Any:
    """What ``torch.save`` wrote, if that is tensors and plain values; anything that would run code is refused.

    PyTorch itself takes a file with damaged numbers as it is; here the check sums have to fit.
    """
    _check_file(path)
    if not _whole(path):
        raise UsageError(f"{path} is damaged or cut short, or not a file of PyTorch")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other pickle protocols: what cannot be read is an error below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} holds more than tensors, which could run code when it is read, and is refused; if you trust it, "
            "load it with PyTorch and save its state dict alone, best as .safetensors"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is damaged or cut short, or not a file of PyTorch") from error


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, whose tensors are not read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    _check_file(path)
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise UsageError(f"{path} is damaged or cut short: {first_line(error)}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; a file of weights is needed")


def _whole(path: Path) -> bool:
    """Whether a file is a pickle, or a zip file, as ``torch.save`` writes, that has all its parts undamaged."""
    try:
        with path.open("rb") as file:
            first = file.read(1)
        if first != b"P":
            return first == b"\x80"  # the old format, which has no check sums
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):
        return False


def _of_timm(name: str, backbone: str) -> Weights:
    source = f"timm's {known(name)!r}"
    if name.partition(".")[0] != backbone.partition(".")[0]:
        raise UsageError(f"{source} are weights of another network than the backbone {backbone!r}")
    try:
        model: Any = timm.create_model(name, pretrained=True)
    except Exception as error:  # whatever the network, its proxy or the other side comes up with
        raise UsageError(
            f"the weights of {source} could not be had: {first_line(error)}; give a local file instead"
        ) from error
    cfg = model.pretrained_cfg
    return Weights(source, model.state_dict(), False, tuple(cfg["mean"]), tuple(cfg["std"]))


def _renamed(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by their names in timm's extractors of features, which flatten lists or put the network inside."""

    def fitting(name: str) -> str:
        ways = (name, name.replace(".", "_", 1), f"model.{name}", f"body.{name}")
        return next((way for way in ways if way in own), name)

    return {fitting(name): value for name, value in tensors.items()}


def _only_classifier(names: Iterable[str], backbone: str) -> bool:
    cfg = timm.get_pretrained_cfg(backbone)
    given: Any = cfg.classifier if cfg is not None and cfg.classifier else "fc"
    heads = tuple(f"{head}." for head in ([given] if isinstance(given, str) else given))
    return all(name.startswith(heads) for name in names)


def _names_of_whole(backbone: str) -> set[str]:
    """The names in the whole network of timm, whose last layers the backbone may lack."""
    with torch.random.fork_rng([]):
        return set(timm.create_model(backbone).state_dict())


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
