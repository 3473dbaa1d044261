"""Recipes from and to JSON, and settings such as ``optim.lr=0.02``."""

import contextlib
import copy
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

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
    given = files.read_json(path, remedy="pass the name of a recipe (repgraph train --list) or a JSON file")
    return from_dict({"name": path.stem} | given if isinstance(given, dict) else given, str(path))


def with_settings(recipe: R, settings: Iterable[str]) -> R:
    """Return the recipe with settings changed, each given as ``section.name=value``.

    Several values are separated by commas; one number for a crop is a square. Entries of a dictionary have a third
    part: ``model.context_options.nodes=27``. ``test.crop`` changes with ``data.crop`` if both were equal, and the name
    of a named recipe changes with its network.
    """
    from repgraph.recipes.named import renamed

    plain, values = recipe.model_dump(), {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"setting {setting!r} has no value; write NAME=VALUE, such as optim.lr=0.02")
        place, key = _find(plain, name)
        values[name] = text if name.count(".") == 1 and isinstance(place[key], str) else _parse(text)
    if isinstance(recipe, Recipe) and "data.crop" in values and recipe.test.crop == recipe.data.crop:
        values.setdefault("test.crop", values["data.crop"])
    return renamed(with_values(recipe, values))


def with_values(recipe: R, values: Mapping[str, Any]) -> R:
    """Return the recipe with values changed, by names such as ``"train.seed"``."""
    changed = recipe.model_dump()
    for name, value in values.items():
        place, key = _find(changed, name)
        place[key] = copy.copy(value)  # a later name may change an entry of it
    return _validated(type(recipe), changed)


def _validated(kind: Any, content: Mapping[str, Any], prefix: str = "") -> Any:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{prefix}{explain(error, kind)}") from None


def _find(plain: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary of a recipe that holds a setting, and its key; an error names the nearest setting."""
    section, _, rest = name.partition(".")
    field, _, key = rest.partition(".")
    sections = {each: inner for each, inner in plain.items() if isinstance(inner, dict)}
    known = sections.get(section, {})
    if field in known and not key:
        return known, field
    if isinstance(known.get(field), dict):
        return known[field], key
    wanted = SYNONYMS.get(field or section, field or section)
    same = [f"{each}.{inner}" for each in sections for inner in sections[each] if inner == wanted]
    close = same or [f"{section}.{each}" for each in difflib.get_close_matches(field, known, n=1)]
    hint = f"; did you mean {close[0]!r}?" if close else nearest(field if known else section, known or sections)
    raise UsageError(f"unknown setting {name!r}{hint}")


def _parse(text: str) -> Any:
    """Read a value from the command line: JSON, numbers separated by commas or "x", or the text itself."""
    parts = [part for part in re.split(r"[,x\s]+", text) if part]
    for candidate in (text, f"[{','.join(parts)}]" if len(parts) > 1 else text):
        with contextlib.suppress(UsageError):
            return files.parse_json(candidate, text)
    return text


def explain(error: ValidationError, kind: Any) -> str:
    """Return the first error in a recipe, or in one of its sections, in one line."""
    first = error.errors()[0]
    if first["type"] != "extra_forbidden":
        return files.explain(error)
    *section, name = map(str, first["loc"])
    known = kind.model_fields[section[0]].annotation if section else kind
    return f"unknown setting {'.'.join([*section, name])!r}{nearest(name, known.model_fields)}"
