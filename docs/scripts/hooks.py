"""MkDocs hooks: generate the command reference, and render the Sphinx roles of docstrings."""

import re
from typing import Any

import griffe
import typer
from mkdocs.structure.files import File

from repgraph.cli.app import app

INTRODUCTION = """# Commands

Generated from the commands themselves; `repgraph COMMAND --help` prints the same. Options marked "several at once" take
several values: `--set optim.lr=0.02 data.crop=384`. `repgraph --import MODULE COMMAND ...` imports a module first, to
[register a context layer](context-layer.md).

Exit codes: 0 for success, 1 if part of the work failed, 2 for wrong usage or output that cannot be written, 3 if
numbers are not finite, 130 and 143 after SIGINT and SIGTERM.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add commands.md."""
    files.append(File.generated(config, "commands.md", content=command_reference()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keep figures and their spread on one line."""
    return markdown.replace(" ± ", "\u00a0±\u00a0")


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
            name = f"`{_placeholder(left)}`".replace("|", r"\|")
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


def _placeholder(text: str) -> str:
    """Replace types by shorter placeholders: ``--seed <int range>`` is ``--seed N``."""
    for types, placeholder in ((r"<(int|float)( range)?>", "N"), (r" ?<(str|path)>", ""), (r" ?<list\[str\]>", "...")):
        text = re.sub(types, placeholder, text)
    return re.sub(r"<(?:list\[)?(.+?)\]?>", r"\1", text)


def _escape(text: str) -> str:
    return re.sub(r"([*_<|])", r"\\\1", text)


class Docstrings(griffe.Extension):
    """Turn the Sphinx markup of docstrings into Markdown; roles become links to what has an entry in the reference."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r":\w+:`(~?)([\w.]+)`", lambda match: _link(match, obj), obj.docstring.value)
            text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
            text = re.sub(r"^ *::$", "", text, flags=re.MULTILINE)  # the indented lines below are a code block anyway
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _link(match: re.Match[str], obj: griffe.Object) -> str:
    shown = match[2].rpartition(".")[2] if match[1] else match[2]
    try:
        target = obj.resolve(match[2]) if not match[2].startswith("repgraph.") else match[2]
    except griffe.NameResolutionError:
        target = match[2]
    return f'<autoref identifier="{target}" optional><code>{shown}</code></autoref>'
