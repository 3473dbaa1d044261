"""MkDocs hooks: generate the references of commands and settings, and render the Sphinx markup of docstrings."""

import ast
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import griffe
import typer
from mkdocs.structure.files import File

from repgraph.cli.app import app
from repgraph.constants import SCALES

INTRODUCTION = """# Commands

Generated from the commands themselves; `repgraph COMMAND --help` prints the same. Options marked "one or more" take
several values: `--set optim.lr=0.02 data.crop=384`. `repgraph --import MODULE COMMAND ...` imports a module first, to
[register a context layer](context-layer.md).

Exit codes: 0 for success, 1 if part of the work failed, 2 for wrong usage or output that cannot be written, 3 if
numbers are not finite, 130 and 143 after SIGINT and SIGTERM.
"""

SCHEMA = Path(__file__).resolve().parents[2] / "src" / "repgraph" / "recipes" / "schema.py"
SETTINGS = """# Settings of recipes

Generated from the schema, `src/repgraph/recipes/schema.py`. Recipes change the defaults; `repgraph train NAME --print`
prints the resolved values. `--set SECTION.NAME=VALUE` changes a setting, for example
`--set optim.lr=0.02 data.crop=384`. Several values are separated by commas. Entries of a dictionary have a third part:
`model.context_options.nodes=27`. [Train](training.md#settings) explains the most important settings.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add commands.md and settings.md."""
    files.append(File.generated(config, "commands.md", content=command_reference()))
    files.append(File.generated(config, "settings.md", content=settings_reference()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keep figures and their spread on one line."""
    return markdown.replace(" ± ", "\u00a0±\u00a0")


def settings_reference() -> str:
    """Return the page of the settings of recipes, in Markdown."""
    source = SCHEMA.read_text(encoding="utf-8")
    classes = {each.name: each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    parts, shown = [SETTINGS], set()
    for title, recipe in (("Segmentation", "Recipe"), ("Detection", "DetectionRecipe")):
        parts.append(f"## {title}\n")
        for section, kind, _, _ in _fields(classes[recipe], classes, source):
            if kind in classes and kind not in shown:
                shown.add(kind)
                lines = [
                    f"| `{section}.{name}` | {_escape(text)} | {f'`{default}`' if default else ''} |"
                    for name, _, default, text in _fields(classes[kind], classes, source)
                ]
                parts += [f"### {section}\n", "| setting | | default |", "|---|---|---|", *lines, ""]
    return "\n".join([*parts, "`train` is the same as for segmentation.\n"])


def _fields(section: ast.ClassDef, classes: dict[str, ast.ClassDef], source: str) -> list[tuple[str, str, str, str]]:
    """Return name, type, default and comment of the fields of a section, inherited ones first."""
    found: dict[str, tuple[str, str, str, str]] = {}
    for base in section.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found |= {field[0]: field for field in _fields(classes[base.id], classes, source)}
    lines = source.splitlines()
    for node in section.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "ClassVar" not in ast.unparse(node)
        ):
            value = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
                value = value.args[0]
            default = ast.unparse(value).replace("SCALES", str(SCALES)) if value else ""
            before = lines[node.lineno - 2].strip()
            within = [line.partition("  # ")[2] for line in lines[node.lineno - 1 : node.end_lineno]]
            text = before.removeprefix("# ") if before.startswith("# ") else " ".join(filter(None, within))
            text = text or found.get(node.target.id, ("", "", "", ""))[3]
            kind = ast.unparse(node.annotation)
            if kind.startswith("Literal["):
                choices = kind.removeprefix("Literal").strip("[]").replace("'", "`")
                text = f"{choices}: {text}" if text else choices
            found[node.target.id] = (node.target.id, kind, default, text)
    return list(found.values())


def command_reference() -> str:
    """Return the page of all commands, in Markdown."""
    return "\n".join([INTRODUCTION, *_sections(typer.main.get_command(app), None, "repgraph")])


def _sections(command: Any, parent: Any, path: str) -> list[str]:
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=parent)
    if hasattr(command, "commands"):
        return [text for name, each in command.commands.items() for text in _sections(each, context, f"{path} {name}")]
    parts = [f"## {path}\n", "```text", context.get_usage().removeprefix("Usage: "), "```\n", _prose(command.help)]
    rows: dict[str, list[str]] = {"argument": [], "option": []}
    for parameter in command.params:
        if record := parameter.get_help_record(context):
            left, right = (" ".join(each.split()) for each in record)
            limits = re.search(r"\s*\[([^\[\]]*)\]$", right)
            text = right[: limits.start()] if limits else right
            details = [_limit(each) for each in limits[1].split("; ")] if limits else []
            name = f"`{re.sub('[<>]', '', left)}`".replace("|", r"\|")
            rows[parameter.param_type_name].append(f"| {name} | {_escape(text)} | {', '.join(details)} |")
    for kind, lines in rows.items():
        if lines:
            parts += [f"| {kind} | | default, range |", "|---|---|---|", *lines, ""]
    return parts


def _prose(text: str) -> str:
    """Return the help text with its examples as a code block and links to pages."""
    before, _, rest = text.replace("\b\n", "").partition("Examples:\n")
    examples, _, after = rest.partition("\n\n")
    lines = [re.sub(r"(\S) {2,}(?=\S)", r"\1  # ", line[2:]) for line in examples.splitlines()]
    prose = [re.sub(r"\bdocs/(\w+)\.md", r"[\1](\1.md)", _escape(each)) for each in (before, after)]
    return "\n".join([prose[0].strip(), "", *(["```sh", *lines, "```", ""] if lines else []), prose[1].strip(), ""])


def _limit(text: str) -> str:
    text = re.sub(r"^default: \(?(.*?)\)?$", r"\1", text)
    text = text.replace("<=x<=", " to ").replace(" to 9223372036854775807", " or more")
    return _escape(text.replace("x>=", "at least ").replace(" to 2147483647", " or more"))


def _escape(text: str) -> str:
    return re.sub(r"([*_<|])", r"\\\1", text)


class Docstrings(griffe.Extension):
    """Turn the Sphinx markup of docstrings into Markdown; roles become links to what has an entry in the reference."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r":\w+:`(~?)([\w.]+)`", lambda match: _link(match, obj), obj.docstring.value)
            text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
            text = re.sub(
                r"^>>> .+(?:\n.+)*", lambda found: f"Examples:\n{indent(found[0], '    ')}", text, flags=re.MULTILINE
            )
            text = re.sub(r"^ *::$", "", text, flags=re.MULTILINE)  # the indented lines below are a code block anyway
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _link(match: re.Match[str], obj: griffe.Object) -> str:
    shown = match[2].rpartition(".")[2] if match[1] else match[2]
    try:
        target = obj.resolve(match[2]) if not match[2].startswith("repgraph.") else match[2]
    except griffe.NameResolutionError:
        target = match[2]
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'
