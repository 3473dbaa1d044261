"""Networks on disk and on the Hugging Face Hub: ``config.json`` and ``model.safetensors`` in a folder."""

import difflib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Self

import safetensors.torch
from huggingface_hub import PyTorchModelHubMixin, constants, hf_hub_download
from torch import nn

from repgraph.errors import UsageError, out_of_memory
from repgraph.layers import inserted
from repgraph.models import weights
from repgraph.models.context import of_a_file

CONFIG, FILE = constants.CONFIG_NAME, constants.SAFETENSORS_SINGLE_FILE
NETWORK = "network"  # the entry of a config that has the name of its class; without it, that is RGNet
USUAL = "RGNet"


def card(about: str, name: str) -> str:
    """The template of a model card."""
    return f"""---
{{{{ card_data }}}}
---

{about}

```python
from repgraph.models import {name}

model = {name}.from_pretrained("path/of/this/folder")
```
"""


class Hub(nn.Module, PyTorchModelHubMixin, library_name="repgraph", tags=["repgraph"]):
    """What our networks have in common: a config, and a part that was pre-trained.

    ``save_pretrained`` and ``from_pretrained`` are those of :class:`huggingface_hub.PyTorchModelHubMixin`, made strict:
    what does not fit is an error that names it, and a folder is replaced only when all is written.
    """

    classes: int
    config: dict[str, Any]
    built: frozenset[str]

    @property
    def labels(self) -> dict[str, Any] | None:
        """What the classes are, as it was given."""
        return self.config["labels"]

    @property
    def pretrained(self) -> nn.Module:
        """The part that pre-trained weights are loaded into."""
        raise NotImplementedError

    def pretrained_parameters(self) -> list[nn.Parameter]:
        """The parameters of that part, less those of inserted layers."""
        new = {id(p) for layer in inserted(self.pretrained).values() for p in layer.parameters()}
        return [parameter for parameter in self.pretrained.parameters() if id(parameter) not in new]

    def extra_repr(self) -> str:
        count = sum(parameter.numel() for parameter in self.parameters())
        return f"{self.classes} classes, {count / 1e6:.1f} M parameters"

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        config: None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write ``config.json``, ``model.safetensors`` and a model card into a folder; on demand, push it to the Hub.

        Whatever goes wrong, a network that was in the folder before is still there.

        Args:
            save_directory: the folder; it is made if need be.
            repo_id: on the Hub; the folder's name by default.
            push_to_hub: whether to push.
            model_card_kwargs: for the card's template.
            config: not used: the network knows its own.
            push_to_hub_kwargs: of :meth:`push_to_hub`.
        """
        folder = Path(save_directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as part:
                super().save_pretrained(part, config=self.config, model_card_kwargs=model_card_kwargs)
                for name in (FILE, CONFIG, "README.md"):
                    if name != "README.md" or not (folder / name).exists():
                        os.replace(Path(part) / name, folder / name)
        except OSError as error:
            raise UsageError(f"cannot write {folder}: {error.strerror or error}") from error
        if not push_to_hub:
            return None
        more = dict(push_to_hub_kwargs, model_card_kwargs=model_card_kwargs)
        return self.push_to_hub(repo_id=repo_id or folder.name, **more)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, pretrained_model_name_or_path: str | os.PathLike[str], **more: Any
    ) -> Self:
        """The network in a folder, in evaluation mode; or the one of that name on the Hub.

        What is, or looks like, a folder is read from disk and nowhere else.

        Args:
            pretrained_model_name_or_path: a folder that :meth:`save_pretrained` wrote, or "owner/name" on the Hub.
            more: as for the mixin (``revision``, ``cache_dir``, ``token``, ``local_files_only``, ``map_location`` ...),
                and arguments of the network that are to replace the config's, such as ``dropout``; of
                ``context_options`` and ``inserted_options`` those that are given, unless the layer is another.
        """
        name = os.fspath(pretrained_model_name_or_path)
        if os.path.isdir(name):
            _check_folder(Path(name))
            return super().from_pretrained(name, **more)
        if not isinstance(pretrained_model_name_or_path, str) or not _is_repository(name):
            raise UsageError(f"there is no folder {name}")
        try:
            return super().from_pretrained(name, **more)
        except UsageError:
            raise
        except Exception as error:  # whatever the network, its proxy or the other side comes up with
            reason = weights.first_line(error)
            raise UsageError(f"{name} is no folder here, and could not be had from the Hub: {reason}") from error

    @classmethod
    def _from_pretrained(  # type: ignore[override]
        cls,
        *,
        model_id: str,
        config: dict[str, Any] | None = None,
        map_location: str = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        proxies: Any = None,  # these two are of huggingface_hub before 1.0
        resume_download: Any = None,
        **model_kwargs: Any,
    ) -> Self:
        file = Path(model_id) / FILE
        if not os.path.isdir(model_id):
            download: dict[str, Any] = dict(revision=revision, cache_dir=cache_dir, token=token)
            download |= dict(force_download=force_download, local_files_only=local_files_only)
            file = Path(hf_hub_download(model_id, FILE, **download))
        written = config or {}
        given = {key: value for key, value in model_kwargs.items() if key not in written or value != written[key]}
        model = cls.build(written, str(Path(model_id) / CONFIG), **given)
        weights.fill(model, weights.read(file)[0], str(file))
        return model.to(map_location).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        (save_directory / FILE).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The network as a safetensors file, whose metadata have its config."""
        state = self.state_dict()
        changed = sorted(self.built ^ state.keys())
        if changed:
            raise UsageError(
                f"the network is no longer what its config says: {changed[0]} and {len(changed) - 1} more parameters "
                "have come or gone, as fuse(), insert() and remove() do; save it before"
            )
        # Copies: channels-last weights are not contiguous, and shared ones cannot be saved.
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}
        # One entry: several would come in another order each time, and the same network make other files.
        return safetensors.torch.save(tensors, metadata={"config": json.dumps(self.config, sort_keys=True)})

    @classmethod
    def build(cls, config: dict[str, Any], source: str, **more: Any) -> Self:
        """A network as a config says, but for the arguments that are given; errors name the config's file."""
        config = dict(config)
        network = config.pop(NETWORK, USUAL)
        if network != cls.__name__:
            raise UsageError(
                f"{source} is of a {network}, and not of a {cls.__name__}; repgraph.models.load reads both"
            )
        known = [name for name in cls._hub_mixin_init_parameters if name != "self"]
        for name in (*config, *more):
            if name not in known:
                close = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise UsageError(f"{source}: unknown setting {name!r}{hint}")
        if "classes" not in config and "classes" not in more:
            raise UsageError(f"{source}: 'classes' is missing")
        if "context" in config:
            config["context_options"] = of_a_file(config["context"], config.get("context_options"))
        if config.get("inserted"):
            given = config.get("inserted_options") or {}
            layer = given.get("layer", "repgraph") if isinstance(given, dict) else None
            config["inserted_options"] = of_a_file(layer, given)
        try:
            return cls(**_replaced(config, more))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{source}: {error}") from error
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise UsageError(f"{source}: a network of this size does not fit into memory") from error

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """The network in a single safetensors file with a config in its metadata, in evaluation mode.

        Such a file is ``model.safetensors`` of a folder, and what ``repgraph export --to safetensors`` writes.
        """
        tensors, metadata = weights.read(Path(path))
        model = cls.build(_config_in(metadata, path), str(path))
        weights.fill(model, tensors, str(path))
        return model.eval()


def config_of(path: Path) -> dict[str, Any]:
    """The config of the network in a folder that ``save_pretrained`` wrote, or in a safetensors file."""
    return _check_folder(path) if path.is_dir() else _config_in(weights.read_metadata(path), path)


def _config_in(metadata: dict[str, str], path: str | os.PathLike[str]) -> dict[str, Any]:
    if "config" not in metadata:
        raise UsageError(f"{path} has no config of a network in its metadata: it may be weights of a backbone")
    return _parsed(metadata["config"], f"the config in {path}")


def _check_folder(folder: Path) -> dict[str, Any]:
    """The config in a folder that has all that is needed."""
    for name in (CONFIG, FILE):
        if not (folder / name).is_file():
            raise UsageError(f"{folder} has no {name}: it is not a folder that save_pretrained wrote")
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {folder / CONFIG}: {error}") from error
    return _parsed(text, str(folder / CONFIG))


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{source} is a {type(config).__name__}; a dict of settings is needed")
    return config


def _is_repository(name: str) -> bool:
    """Whether a name can be one on the Hub and is not plainly a path."""
    return name.count("/") == 1 and "\\" not in name and not name.startswith((".", "/", "~")) and not name.endswith("/")


def _replaced(config: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The config with other arguments: of the options of the same layer those that are given."""
    found = {**config, **more}
    for name in ("context_options", "inserted_options"):
        old, new = config.get(name), more.get(name)
        if not isinstance(old, dict) or not isinstance(new, dict):
            continue
        another = (
            "context" in more if name == "context_options" else new.get("layer", old.get("layer")) != old.get("layer")
        )
        if not another:
            found[name] = {**old, **new}
    return found
