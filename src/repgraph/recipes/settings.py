"""Recipes from and to JSON, and settings such as ``optim.lr=0.02``."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from repgraph import files
from repgraph.errors import SYNONYMS, UsageError, nearest
from repgraph.recipes.schema import AnyRecipe, DetectionRecipe, Recipe

R = TypeVar("R", bound=AnyRecipe)
KINDS: dict[str, type[Recipe] | type[DetectionRecipe]] = {kind.task: kind for kind in (Recipe, DetectionRecipe)}


def to_dict(recipe: AnyRecipe) -> dict[str, Any]:
    """Return the recipe as plain data; :func:`from_dict` reads it."""
    return {"task": recipe.task, **recipe.model_dump(mode="json")}


def to_json(recipe: AnyRecipe) -> str:
    return json.dumps(to_dict(recipe), indent=2) + "\n"


def from_dict(given: Mapping[str, Any], origin: str = "the recipe") -> AnyRecipe:
    """Build a recipe from plain data; missing settings have their defaults, or the values of the recipe ``"base"``."""
    from repgraph.recipes.named import NAMES, get

    if not isinstance(given, Mapping):
        raise UsageError(f"{origin} is not a recipe: expected a JSON object")
    given = dict(given)
    base: dict[str, Any] = {}
    if (name := given.pop("base", None)) is not None:
        if name not in NAMES:
            raise UsageError(f"{origin}: base is {name!r}{nearest(name, NAMES, '; repgraph train --list shows all')}")
        base = to_dict(get(name)) | {"description": ""}
    task = given.pop("task", base.pop("task", Recipe.task))
    if str(task) not in KINDS:
        raise UsageError(f"{origin}: task is {task!r}{nearest(task, KINDS)}")
    for key, value in given.items():
        inner = base.get(key)
        base[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return _validated(KINDS[task], base, f"{origin}: ")


def load(path: str | Path) -> AnyRecipe:
    path = Path(path)
    given = files.read_json(path, remedy="give the name of a recipe (repgraph train --list) or a JSON file")
    return from_dict({"name": path.stem} | given if isinstance(given, dict) else given, str(path))


def with_settings(recipe: R, settings: Iterable[str]) -> R:
    """Return the recipe with settings changed, each given as ``section.name=value``.

    Several values are separated by commas; one number for a crop is a square. Entries of a dictionary have a third
    part: ``model.context_options.nodes=27``. ``test.crop`` changes with ``data.crop`` if both were equal, and the name
    of a named recipe changes with its network.
    """
    from repgraph.recipes.named import renamed

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"setting {setting!r} has no value; write NAME=VALUE, such as optim.lr=0.02")
        values[name] = _parse(text, _field(type(recipe), name))
    if isinstance(recipe, Recipe) and "data.crop" in values and recipe.test.crop == recipe.data.crop:
        values.setdefault("test.crop", values["data.crop"])
    return renamed(with_values(recipe, values))


def with_values(recipe: R, values: Mapping[str, Any]) -> R:
    """Return the recipe with values changed, by names such as ``"train.seed"``."""
    changed = recipe.model_dump()
    for name, value in values.items():
        _field(type(recipe), name)
        section, field, *key = name.split(".", 2)
        if key:
            changed[section][field] = changed[section][field] | {key[0]: value}
        else:
            changed[section][field] = value
    return _validated(type(recipe), changed)


def _validated(kind: Any, content: Mapping[str, Any], prefix: str = "") -> Any:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{prefix}{explain(error, kind)}") from None


def _field(kind: type[BaseModel], name: str) -> Any:
    """Return the annotation of a setting, or raise an error that names the nearest one."""
    sections = _sections(kind)
    section, field, *key = name.split(".", 2) if "." in name else (name, "")
    known = sections[section].model_fields if section in sections else {}
    annotation = known[field].annotation if field in known else None
    if annotation is not None and (not key or annotation in (dict[str, Any], dict[str, int])):
        return Any if key else annotation
    names = [f"{each}.{inner}" for each, fields in sections.items() for inner in fields.model_fields]
    wanted = SYNONYMS.get(field or section, field or section)
    same = [each for each in names if each.partition(".")[2] == wanted]
    close = same or [f"{section}.{each}" for each in difflib.get_close_matches(field, known, n=1)]
    hint = f"; did you mean {close[0]!r}?" if close else nearest(field if known else section, known or sections)
    raise UsageError(f"unknown setting {name!r}{hint}")


def _sections(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    return {
        name: field.annotation
        for name, field in kind.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _parse(text: str, annotation: Any) -> Any:
    """Read a value from the command line: JSON, numbers separated by commas or "x", or the text itself."""
    if annotation is str:
        return text
    parts = [part for part in re.split(r"[,x\s]+", text) if part]
    for candidate in (text, f"[{','.join(parts)}]" if len(parts) > 1 else text):
        with contextlib.suppress(UsageError):
            return files.parse_json(candidate, text)
    return text


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return the first error of a validation in one line."""
    first = error.errors()[0]
    *outer, last = first["loc"] or ("",)
    name, given = ".".join(part for part in first["loc"] if isinstance(part, str)), first["input"]
    match first["type"]:
        case "extra_forbidden":
            known = (_sections(kind)[str(outer[0])] if outer else kind).model_fields
            return f"unknown {'setting' if outer else 'section'} {name!r}{nearest(last, known)}"
        case "missing":
            return f"{name} is required"
        case "literal_error":
            field = (_sections(kind)[str(outer[0])] if outer else kind).model_fields[str(last)]
            return f"{name} is {given!r:.100}{nearest(given, get_args(field.annotation))}"
        case "value_error":
            return str(first["ctx"]["error"])
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{name} is {given!r:.100}: {message}"
