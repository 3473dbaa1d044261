"""Pretrained weights from files, timm and torchvision: read without running code, checked, loaded."""

import contextlib
import os
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from pydantic import BaseModel
from safetensors import safe_open
from torch import Tensor, nn

from repgraph import files
from repgraph.errors import UsageError, first_line, nearest
from repgraph.layers import inserted
from repgraph.models import int8
from repgraph.models.backbone import Backbone, check_timm_name, create_without_data

FILE = "model.safetensors"  # in the folder of a network
PICKLED = (".pth", ".pt", ".bin", ".ckpt")
_PREDICTORS = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")  # one output per class


class Weights(BaseModel, arbitrary_types_allowed=True, allow_inf_nan=False):
    """Tensors by name, and facts about them (None: unknown)."""

    source: str  # file or name, for messages
    tensors: dict[str, Tensor]
    caffe_style: bool | None = None  # where the strides of a ResNet are
    mean: tuple[float, float, float] | None = None  # normalization of the images
    std: tuple[float, float, float] | None = None
    norm_eps: float | None = None  # of batch norm
    heads: dict[str, Tensor] = {}  # the other tensors of a trained RGNet
    labels: dict[str, Any] | None = None  # its classes


def find_weights(weights: str | os.PathLike[str], backbone: str, *, detector: bool = False) -> Weights:
    """Read the weights of a backbone or, with ``detector``, of a backbone or detector under torchvision's names.

    ``weights`` are as for :func:`repgraph.models.rgnet` and :func:`repgraph.models.mask_rcnn`.
    """
    text = os.fspath(weights)
    if text == "pretrained" or text.startswith("timm:"):
        return _from_timm(backbone if text == "pretrained" else text.removeprefix("timm:"), backbone)
    if detector and text.startswith("torchvision:"):
        return _from_torchvision(text.removeprefix("torchvision:"), backbone)
    path = Path(os.path.expanduser(text))
    if os.path.isdir(path):  # of a network, or of a run
        path = path / FILE if (path / FILE).is_file() else path / "model" / FILE
    found = _from_file(path)
    whole = {name.removeprefix("detector."): value for name, value in found.tensors.items()}
    prefix = "backbone.body."  # in RGNet and in torchvision's detectors
    body = {name.removeprefix(prefix): value for name, value in whole.items() if name.startswith(prefix)}
    if detector and any(name.startswith("roi_heads.") for name in whole):
        body = whole
    heads = {name: value for name, value in whole.items() if name.startswith(("head.", "auxiliary."))}
    return found.model_copy(update={"tensors": body, "heads": heads}) if body else found


def complete(options: Mapping[str, Any], weights: Weights | None, *names: str) -> dict[str, Any]:
    """Return options of a network; options in ``names`` that are not given are taken from the weights."""
    known = {name: getattr(weights, name, None) for name in names}
    given = {name: value for name, value in options.items() if value is not None}
    style = known["caffe_style"]
    if weights is not None and style is not None and given.get("caffe_style", style) != style:
        raise UsageError(f"{weights.source} is in {'caffe' if style else 'timm'} style; pass caffe_style={style}")
    return {name: value for name, value in {**known, **given}.items() if value is not None}


def load_backbone(backbone: Backbone, weights: Weights) -> None:
    """Load weights into a backbone; classifiers are ignored, and inserted layers keep their weights."""
    own = backbone.body.state_dict()
    ignored = create_without_data(backbone.name).state_dict().keys() - own.keys()  # the classifier
    tensors = {}
    for name, value in weights.tensors.items():
        # timm's feature extractors flatten lists or wrap the network.
        candidates = (name, name.replace(".", "_", 1), f"model.{name}", f"body.{name}")
        new_name = next((candidate for candidate in candidates if candidate in own), name)
        if new_name not in ignored:
            tensors[new_name] = value
    load_strict(backbone.body, tensors, weights.source, optional=tuple(inserted(backbone.body)))


def load_heads(model: Any, weights: Weights) -> str:
    """Load the heads if these weights are from a trained RGNet; return a line on what was loaded and what is new.

    Classifiers are loaded if the class names match, other layers if their shapes match.
    """
    own = {name: value for name, value in model.state_dict().items() if not name.startswith("backbone.")}
    classes, others = ((labels or {}).get("names") for labels in (model.labels, weights.labels))
    same = classes is not None and classes == others
    given = {name: value for name, value in weights.heads.items() if same or ".classifier." not in name}
    fitting = {name: value for name, value in given.items() if name in own and fits(value, own[name])}
    model.load_state_dict(fitting, strict=False)
    new = dict.fromkeys(name.rpartition(".")[0] for name in own if name not in fitting)
    layers = ", ".join(new) if fitting else "all other layers"
    return f"{weights.source}: loaded the backbone{' and heads' * bool(fitting)}; new: {layers or 'nothing'}"


def load_detector(detector: Any, weights: Weights, new_predictors: bool = False) -> None:
    """Load weights into torchvision's detector or its backbone; inserted layers may keep theirs."""
    whole = any(name.startswith("roi_heads.") for name in weights.tensors)
    if new_predictors and not whole:
        raise UsageError(f"new_predictors needs the weights of a whole detector; {weights.source} has only a backbone")
    module: nn.Module = detector if whole else detector.backbone.body
    ignored = _PREDICTORS if new_predictors else () if whole else ("fc.",)
    own = module.state_dict()
    tensors = {
        name: value
        for name, value in weights.tensors.items()
        # Frozen norms have no num_batches_tracked.
        if not name.startswith(ignored) and (name in own or not name.endswith("num_batches_tracked"))
    }
    classes = tensors.get(f"{_PREDICTORS[0]}cls_score.bias")
    if classes is not None and len(classes) != len(own[f"{_PREDICTORS[0]}cls_score.bias"]):
        raise UsageError(f"{weights.source} has {len(classes) - 1} classes; for others, pass new_predictors=True")
    load_strict(module, tensors, weights.source, optional=(*inserted(module), *(ignored if whole else ())))


def load_strict(module: nn.Module, tensors: dict[str, Tensor], source: str, *, optional: tuple[str, ...] = ()) -> None:
    """Load tensors from a file (``source``); nothing is loaded if one is unexpected, missing or does not fit.

    Names with the prefixes ``optional`` may be missing, as may ``num_batches_tracked``, which some tools do not write.
    """
    own = module.state_dict()
    optional = (*optional, *(name for name in own if name.endswith("num_batches_tracked")))
    wrong = [name for name in own if name in tensors and not fits(tensors[name], own[name])]
    problems = {
        "unexpected": [name for name in tensors if name not in own],
        "missing": [name for name in own if name not in tensors and not name.startswith(optional)],
        "wrong shape or type": [f"{name} {_kind(tensors[name])} for {_kind(own[name])}" for name in wrong],
    }
    found = []
    for kind, names in problems.items():
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        found += [f"{kind}: {', '.join(names[:4])}{more}"] if names else []
    if found:
        raise UsageError(f"{source} does not fit; {'; '.join(found)}")
    module.load_state_dict(tensors, strict=False)


def _kind(t: Tensor) -> str:
    return f"{tuple(t.shape)} {t.dtype}".replace("torch.", "")


def fits(given: Any, own: Tensor) -> bool:
    """Return whether a value from a file can be copied to a dense tensor; integers are not weights."""
    if not isinstance(given, Tensor) or given.layout != torch.strided or given.is_meta or given.is_quantized:
        return False
    return given.shape == own.shape and (given.is_floating_point() or not own.is_floating_point())


def read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file by name, and its metadata. Nothing in the file is run.

    Checkpoints of training scripts may have the weights in "state_dict" or "model", and a prefix "module.".
    """
    if path.suffix == ".safetensors":
        with _explained(path), safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return int8.expand(tensors, str(path)), dict(file.metadata() or {})
    if path.suffix not in PICKLED:
        raise UsageError(f"{path} is not a file of weights; expected .safetensors, {', '.join(PICKLED)}")
    content = read_pickle(path)
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UsageError(f"{path} has no weights; expected a dict of tensors by name")
    return {str(name).removeprefix("module."): value for name, value in content.items()}, {}


def read_pickle(path: Path) -> Any:
    """Read tensors and plain values that ``torch.save`` wrote; a file that would run code is refused.

    Checksums are verified, which PyTorch does not.
    """
    with _explained(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other pickle protocols; unreadable data raises an error
        if zipfile.is_zipfile(path):  # the old format has no checksums
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile
        return torch.load(path, map_location="cpu", weights_only=True)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise errors in reading a file as one line."""
    try:
        files.check_regular(path)
        yield
    except (UsageError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        remedy = "if you trust it, load it with PyTorch and save only its state dict"
        raise UsageError(f"{path} is damaged, or has more than tensors and could run code; {remedy}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or str(error).removesuffix(f': {path}')}") from error
    except Exception as error:  # safetensors, zipfile, zlib and pickle raise many types for damaged data
        raise UsageError(f"{path} is damaged, truncated or not a file of weights") from error


def _from_file(path: Path) -> Weights:
    tensors, metadata = read_file(path)
    known: Any = {}
    if "config" in metadata:
        known = files.parse_json(metadata["config"], f"the config in {path}")
    elif "style" in metadata:
        known = {"caffe_style": metadata["style"].strip().lower().startswith("caffe")}
    content = {**known, "source": str(path), "tensors": tensors} if isinstance(known, dict) else known
    return files.validate(Weights, content, f"the config in {path}")


def _from_timm(name: str, backbone: str) -> Weights:
    source = f"timm's {check_timm_name(name)!r}"
    if name.partition(".")[0] != backbone.partition(".")[0]:
        raise UsageError(f"{source} has weights of another network than the backbone {backbone!r}")
    with _downloading(source):
        model: Any = timm.create_model(name, pretrained=True)
    mean, std = model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    return Weights(source=source, tensors=model.state_dict(), caffe_style=False, mean=mean, std=std)


def _from_torchvision(name: str, backbone: str) -> Weights:
    models = [backbone, *(["maskrcnn_resnet50_fpn"] if backbone == "resnet50" else [])]
    entries = {str(entry): entry for model in models for entry in torchvision.models.get_model_weights(model)}
    if name not in entries:
        version = torchvision.__version__
        raise UsageError(f"torchvision {version} has no weights {name!r} of {backbone!r}{nearest(name, entries)}")
    source = f"torchvision's {name!r}"
    eps = 0.0 if name == "MaskRCNN_ResNet50_FPN_Weights.COCO_V1" else None  # as in torchvision
    with _downloading(source):
        tensors = dict(entries[name].get_state_dict(progress=False, check_hash=True))
    return Weights(source=source, tensors=tensors, caffe_style=False, norm_eps=eps)


@contextlib.contextmanager
def _downloading(source: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # from the server, the connection or a proxy
        raise UsageError(f"cannot load {source}: {first_line(error)}; use a local file instead") from error
