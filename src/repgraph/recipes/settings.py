"""Recipes from and to JSON, and settings such as ``optim.lr=0.02``: typed, and no name is guessed."""

import dataclasses
import difflib
import json
import math
import re
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from repgraph.errors import UsageError
from repgraph.recipes.detection import DetectionRecipe
from repgraph.recipes.recipe import Recipe

AnyRecipe = Recipe | DetectionRecipe
R = TypeVar("R", bound=AnyRecipe)
KINDS: dict[str, type[Recipe] | type[DetectionRecipe]] = {kind.task: kind for kind in (Recipe, DetectionRecipe)}

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ALSO = {"gpu": "cuda"}  # what others say for it


def nearest(word: str, names: Iterable[str]) -> str:
    """``; did you mean 'lr'?``, or all the names if none is near."""
    known = sorted(names)
    close = difflib.get_close_matches(_ALSO.get(word.lower(), word), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"


def with_settings(recipe: R, settings: Iterable[str]) -> R:
    """The recipe with some values changed, each given as ``section.name=value``.

    Several values are separated by commas; one number for a crop is a square. Options that are passed on have a third
    part to their name: ``model.context_options.nodes=27``. Where tests have windows of the crop's size, ``test.crop``
    follows ``data.crop`` unless it is given too.

    >>> from repgraph import recipes
    >>> with_settings(recipes.get("voc-r50-rgnet"), ["optim.lr=0.02", "data.crop=480"]).data.crop
    (480, 480)
    """
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"the setting {setting!r} has no value; write NAME=VALUE, such as optim.lr=0.02")
        given[name.strip()] = text.strip()
    if isinstance(recipe, Recipe) and "data.crop" in given and recipe.test.crop == recipe.data.crop:
        given.setdefault("test.crop", given["data.crop"])
    for name, text in given.items():
        recipe = _set(recipe, name, text)
    return recipe


def to_dict(recipe: AnyRecipe) -> dict[str, Any]:
    """As JSON has it; :func:`from_dict` takes it back."""
    return {"task": recipe.task, **dataclasses.asdict(recipe)}


def from_dict(given: Mapping[str, Any], origin: str = "the recipe") -> AnyRecipe:
    """The recipe that :func:`to_dict` wrote; what is left out has its default.

    ``"task"`` is "segmentation" where it is left out. ``"base": NAME`` starts from the recipe of that name instead.
    ``origin`` is what errors call it.
    """
    given = dict(given)
    base: dict[str, Any] = {}
    if (name := given.pop("base", None)) is not None:
        from repgraph.recipes.table import get

        base = to_dict(get(str(name)))
        base["description"] = ""
    try:
        task = given.pop("task", base.pop("task", Recipe.task))
        if task not in KINDS:
            raise UsageError(f"task is {task!r}{nearest(str(task), KINDS)}")
        return _section(KINDS[task], _merge(base, given), "")
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from None


@overload
def load(path: str | Path) -> AnyRecipe: ...
@overload
def load(path: str | Path, kind: type[R]) -> R: ...
def load(path: str | Path, kind: Any = None) -> Any:
    """The recipe in a JSON file; with a ``kind``, such as :class:`~repgraph.recipes.Recipe`, no other will do."""
    path = Path(path)
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a recipe's name (repgraph train --list) or file") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"{path} holds no recipe: a JSON object is needed")
    return only(from_dict({"name": path.stem} | given, str(path)), kind, str(path))


def only(recipe: AnyRecipe, kind: type[R] | None, origin: str) -> Any:
    """The recipe, if it is of the kind that is asked for, if any is."""
    if kind is not None and not isinstance(recipe, kind):
        raise UsageError(f"{origin} is a recipe for {recipe.task}; one for {kind.task} is needed")
    return recipe


def to_json(recipe: AnyRecipe) -> str:
    return json.dumps(to_dict(recipe), indent=2) + "\n"


def _merge(base: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in given.items():
        inner = merged.get(name)
        merged[name] = inner | value if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


@cache
def _types(section: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(section)
    return {field.name: hints[field.name] for field in dataclasses.fields(section)}


def _sections(recipe: AnyRecipe) -> dict[str, type]:
    whole: Any = type(recipe)
    return {name: kind for name, kind in _types(whole).items() if isinstance(kind, type) and kind is not str}


def _set(recipe: R, name: str, text: str) -> R:
    section, _, rest = name.partition(".")
    field, _, key = rest.partition(".")
    sections = _sections(recipe)
    kinds = _types(sections[section]) if section in sections else {}
    kind = kinds.get(field)
    if kind is None or (key and typing.get_origin(kind) is not dict):
        raise UsageError(f"there is no setting {name!r}{_near_setting(name, sections)}")
    old = getattr(recipe, section)
    if key:
        value = getattr(old, field) | {key: _convert(typing.get_args(kind)[1], _parse(text), name)}
    else:
        value = _convert(kind, text if kind is str else _parse(text), name)
    changes: dict[str, Any] = {section: dataclasses.replace(old, **{field: value})}
    return dataclasses.replace(recipe, **changes)


def _near_setting(name: str, sections: Mapping[str, type]) -> str:
    """The nearest setting; also for one whose section is wrong or left out."""
    names = [f"{section}.{field}" for section, kind in sections.items() for field in _types(kind)]
    last, section = name.rpartition(".")[2], name.partition(".")[0]
    same = [known for known in names if known.rpartition(".")[2] == last]
    if same:
        return f"; did you mean {same[0]!r}?"
    if section in sections:
        field = name.split(".")[1] if "." in name else ""
        fields = list(_types(sections[section]))
        close = difflib.get_close_matches(field, fields, n=1)
        return f"; did you mean '{section}.{close[0]}'?" if close else f"; {section} has {', '.join(fields)}"
    close = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; the sections are {', '.join(sections)}"


def _section(kind: type, given: Mapping[str, Any], prefix: str) -> Any:
    hints = _types(kind)
    for name in given:
        if name not in hints:
            raise UsageError(
                f"there is no {'setting' if prefix else 'section'} {prefix + name!r}{nearest(name, hints)}"
            )
    values = {name: _convert(hints[name], value, prefix + name) for name, value in given.items()}
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise UsageError(f"{prefix}{field.name} is not given, and has no default")
    return kind(**values)


def _parse(text: str) -> Any:
    """A value as JSON, or the text itself where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _convert(kind: Any, value: Any, name: str) -> Any:
    """The value as that type; nothing is rounded or guessed."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, Mapping):
            return _section(typing.cast(type, kind), value, name + ".")
        raise UsageError(f"{name} is {value!r}; a section with its settings is needed")
    if kind is Any:
        return value
    if origin is Literal:
        if value in arguments:
            return value
        raise UsageError(f"{name} is {value!r}{nearest(str(value), arguments)}")
    if origin is tuple:
        return _tuple(arguments, value, name)
    if origin is dict:
        if isinstance(value, Mapping):
            return {str(key): _convert(arguments[1], inner, f"{name}.{key}") for key, inner in value.items()}
        raise UsageError(f'{name} is {value!r}; options as JSON are needed, such as {{"nodes": 9}}')
    return _scalar(kind, value, name)


def _scalar(kind: type, value: Any, name: str) -> Any:
    if kind is bool and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    right = isinstance(value, kind) and not (kind is not bool and isinstance(value, bool))
    if not right or (kind is float and not math.isfinite(value)):
        needed = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
        raise UsageError(f"{name} is {value!r}; {needed} is needed")
    return value


def _tuple(arguments: tuple[Any, ...], value: Any, name: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [_parse(part) for part in re.split(r"[,x\s]+", value.strip()) if part]
    several = arguments[-1] is Ellipsis
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value] if several else [value] * len(arguments)
    if not isinstance(value, (list, tuple)) or (not several and len(value) != len(arguments)):
        needed = "numbers" if several else f"{len(arguments)} numbers, such as 320,480,"
        raise UsageError(f"{name} is {value!r}; {needed} are needed")
    kinds = [arguments[0]] * len(value) if several else arguments
    return tuple(_scalar(kind, inner, name) for kind, inner in zip(kinds, value, strict=True))
