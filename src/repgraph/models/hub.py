"""Networks on disk and on the Hugging Face Hub: ``config.json`` and ``model.safetensors`` in a folder."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import safetensors.torch
from huggingface_hub import PyTorchModelHubMixin, constants, hf_hub_download
from torch import Tensor, nn

from repgraph import files
from repgraph.constants import CHECKPOINTS, LAST, MODEL
from repgraph.errors import UsageError, first_line, out_of_memory
from repgraph.layers.checks import check_int, check_number
from repgraph.models.context import stored_options
from repgraph.models.int8 import compress
from repgraph.models.weights import load_strict, read_file, read_pickle

CONFIG, FILE = constants.CONFIG_NAME, constants.SAFETENSORS_SINGLE_FILE
CARD = "---\n{{ card_data }}\n---\n\nA network of repgraph. Load it with `repgraph.models.load(FOLDER)`.\n"
NETWORK = "network"  # the key of a config with the name of the class; RGNet if it is missing


class Hub(nn.Module, PyTorchModelHubMixin, library_name="repgraph", tags=["repgraph"], model_card_template=CARD):
    """Base class of the networks, which can be saved to a folder and loaded from it.

    ``save_pretrained`` and ``from_pretrained`` are stricter than in :class:`huggingface_hub.PyTorchModelHubMixin`:
    mismatches are errors, and a folder is replaced only at the end. ``config`` is the content of ``config.json``.
    """

    PRETRAINED: ClassVar[str]  # path of the part that pretrained weights are loaded into
    built: frozenset[str]  # state-dict keys at construction; fuse(), insert() and remove() change them

    def __init__(self, arguments: Mapping[str, Any]) -> None:  # of the network's constructor
        super().__init__()
        self.config: dict[str, Any] = {name: _to_json(name, value) for name, value in arguments.items()}
        self.classes = check_int("classes", arguments["classes"])
        self.mean = _check_color("mean", self.config["mean"])
        self.std = _check_color("std", self.config["std"])
        self.labels: dict[str, Any] | None = self.config["labels"]
        if not isinstance(self.labels, dict | None):
            raise UsageError(f"labels is {self.labels!r}; expected a dict, such as from Labels.to_dict()")
        names = (self.labels or {}).get("names")
        if names is not None and (not isinstance(names, list) or len(names) != self.classes):
            raise UsageError(f"labels has the names {names!r:.60}; expected one for each of {self.classes} classes")

    @property
    def pretrained(self) -> nn.Module:
        """The part that pretrained weights are loaded into."""
        return self.get_submodule(self.PRETRAINED)

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write ``config.json``, ``model.safetensors`` and a model card to a folder, and optionally push it to the Hub.

        Arguments are as in the mixin. If writing fails, a network that was in the folder before is kept.
        """
        folder = Path(save_directory)
        with files.explained(folder / FILE):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
                super().save_pretrained(part, config=self.config, model_card_kwargs=model_card_kwargs)
                for name in (FILE, CONFIG, "README.md"):
                    if name != "README.md" or not (folder / name).exists():
                        os.replace(Path(part) / name, folder / name)
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id or folder.name, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)

    def _save_pretrained(self, save_directory: Path) -> None:
        (save_directory / FILE).write_bytes(self.to_bytes())

    def to_bytes(self, *, int8: bool = False) -> bytes:
        """Return the network as a safetensors file with its config in the metadata.

        With ``int8``, large matrices and convolution kernels are rounded to 8 bits, with a scale for each output
        channel. The auxiliary head, which only training uses, is left out. The file is about a quarter of the size.
        """
        state = self.state_dict()
        changed = sorted(self.built ^ state.keys())
        if changed:
            what = f"{changed[0]} and {len(changed) - 1} more tensors were" if len(changed) > 1 else f"{changed[0]} was"
            how = "added or removed (for example by fuse() or insert()), which the config does not describe"
            raise UsageError(f"cannot save: {what} {how}; save the network before")
        # Copies: safetensors takes neither channels-last nor shared tensors.
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
        config = self.config
        if int8:
            tensors = compress({name: value for name, value in tensors.items() if not name.startswith("auxiliary.")})
            config = config | {"auxiliary": False} if "auxiliary" in config else config
        # A single entry: the order of several is random, and files would differ.
        return safetensors.torch.save(tensors, metadata={"config": json.dumps(config, sort_keys=True)})

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **download: Any
    ) -> Self:
        """Load a network on the CPU and in evaluation mode.

        The path is a folder written by :meth:`save_pretrained`, or "owner/name" on the Hub; ``download`` are then
        arguments of :func:`huggingface_hub.hf_hub_download`, such as ``revision`` or ``token``.
        """
        name = os.fspath(pretrained_model_name_or_path)
        if os.path.isdir(name):
            if download:
                raise UsageError(f"{name} is a folder; only networks on the Hub take {', '.join(download)}")
            return load(name, cls)
        if isinstance(pretrained_model_name_or_path, Path) or name.count("/") != 1:
            raise UsageError(f'{name} is not a folder; expected a folder, or "owner/name" on the Hub')
        try:
            config, file = (Path(hf_hub_download(name, each, **download)) for each in (CONFIG, FILE))
        except Exception as error:  # from the Hub, the connection or a proxy
            raise UsageError(f"{name} is not a folder, and loading from the Hub failed: {first_line(error)}") from error
        return _restore(cls, files.read_json(config), read_file(file)[0], config, file)


@contextlib.contextmanager
def building(source: str) -> Iterator[None]:
    """Raise errors of a network's constructor as one line that begins with ``source``."""
    try:
        yield
    except (TypeError, ValueError, OverflowError, RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not out_of_memory(error):
            raise
        raise UsageError(f"{source}: {first_line(error)}") from error


def load(path: str | os.PathLike[str], kind: type[Any] | None = None) -> Any:
    """Load a trained network from disk, on the CPU and in evaluation mode. No code in the files is run.

    Args:
        path: the folder of a run, which contains ``model/``; a folder written by :meth:`RGNet.save_pretrained`; a file
            written by ``repgraph export --to safetensors``; or a checkpoint ``.ckpt`` of training.
        kind: the required class, :class:`RGNet` or :class:`MaskRCNN`. Default: either.
    """
    path = Path(os.path.expanduser(path))
    if os.path.isdir(path):  # Path.is_dir raises an error for names that are too long
        for folder in (path, path / MODEL):
            if (folder / CONFIG).is_file():
                config, tensors = files.read_json(folder / CONFIG), read_file(folder / FILE)[0]
                return _restore(kind, config, tensors, folder / CONFIG, folder / FILE)
        last = path / CHECKPOINTS / LAST
        hint = f"; use its last checkpoint, {last}" if last.is_file() else ""
        raise UsageError(f"{path} contains no saved network (no {CONFIG}){hint}")
    if path.suffix == ".ckpt":
        return from_checkpoint(read_pickle(path), kind, path)
    if path.suffix == ".safetensors":
        tensors, metadata = read_file(path)
        if "config" in metadata:
            return _restore(kind, files.parse_json(metadata["config"], f"the config in {path}"), tensors, path, path)
        raise UsageError(f"{path} has no config of a network in its metadata; it may contain the weights of a backbone")
    problem = "is not a network" if os.path.exists(path) else "does not exist"
    raise UsageError(f"{path} {problem}; expected the folder of a run or of a network, a .safetensors or a .ckpt file")


def from_checkpoint(content: Any, kind: type[Any] | None, source: object) -> Any:
    """Return the network in the content of a training checkpoint, in evaluation mode."""
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UsageError(f"{source} is not a checkpoint of repgraph's training: it has no tensors in 'state_dict'")
    return _restore(kind, content.get("config"), {str(name): value for name, value in state.items()}, source, source)


def _restore(kind: type[Any] | None, config: Any, tensors: dict[str, Tensor], source: object, file: object) -> Any:
    """Build the network that a config describes, and load its weights; ``source`` and ``file`` are for messages."""
    if not isinstance(config, Mapping):
        raise UsageError(f"{source}: the config is a {type(config).__name__}; expected a dict of settings")
    name = str(config.get(NETWORK, "RGNet"))
    classes: dict[str, type[Hub]] = {each.__name__: each for each in Hub.__subclasses__()}
    expected = list(classes) if kind is None else [kind.__name__]
    if name not in expected:
        raise UsageError(f"{source} has a network of class {name}; expected {' or '.join(expected)}")
    arguments = {key: value for key, value in config.items() if key != NETWORK}
    for key in ("context_options", "inserted_options"):
        if isinstance(arguments.get(key), Mapping):
            arguments[key] = stored_options(arguments[key])
    with building(str(source)):
        model = classes[name](**arguments)
    load_strict(model, tensors, str(file))
    return model.eval()


def _to_json(name: str, value: Any) -> Any:
    """Return a copy of a value after a round trip through JSON: tuples become lists."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be written to config.json: {error}") from error


def _check_color(name: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != 3:
        raise UsageError(f"{name} is {value!r}; expected three numbers, for red, green and blue")
    return tuple(check_number(name, number, 1e-6 if name == "std" else float("-inf")) for number in value)
