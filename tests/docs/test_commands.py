"""The shell blocks of all pages: bash runs them with stubs, and the commands that were called are parsed."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
import typer
from tests.docs.pages import PAGES, ROOT, blocks, name

from repgraph import recipes
from repgraph.ablation import TABLES
from repgraph.cli.app import app

STUBS = ("repgraph", "torchrun", "make", "pip", "python")
STUB = """{ printf '%s\\037' NAME "$@"; echo; } >> "$LOG" """
WITH_COMMANDS = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"), "sh")]


def called(text: str, folder: Path) -> list[list[str]]:
    """Run a page's shell blocks, in which only the stubs exist, and return the commands that were called."""
    script = ["set -eu"]
    for stub in STUBS:
        script.append(f"{stub}() {STUB.replace('NAME', stub)}")
        path = folder / ".venv" / "bin" / stub
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{STUB.replace('NAME', stub)}\n")
        path.chmod(0o755)
    script += blocks(text, "sh")
    log = folder / "log"
    environment = {"PATH": "", "LOG": str(log)}
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\37")[:-1] for line in log.read_text().splitlines()]


def check(words: list[str]) -> None:
    program, *arguments = words
    if program == "torchrun":
        arguments = arguments[arguments.index("-m") + 1 :]
        assert arguments.pop(0) == "repgraph"
    if program in ("repgraph", "torchrun"):
        check_repgraph(arguments)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{word}:", makefile, flags=re.MULTILINE) for word in arguments if "=" not in word)
    elif program == "pip":
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        extras = [extra for word in arguments if "[" in word for extra in re.findall(r"[a-z]+(?=[],])", word)]
        assert all(re.search(rf"^{extra} = \[", project, flags=re.MULTILINE) for extra in extras)


def check_repgraph(arguments: list[str]) -> None:
    while arguments[:1] == ["--import"]:
        arguments = arguments[2:]
    command, path = typer.main.get_command(app), "repgraph"
    while arguments and hasattr(command, "commands"):
        path, *arguments = arguments
        assert path in command.commands, path
        command = command.commands[path]
    if hasattr(command, "commands"):
        return  # prints help
    given = command.make_context(path, list(arguments)).params
    if path == "train" and given["recipe"] and not given["recipe"].endswith(".json"):
        recipes.with_settings(recipes.get(given["recipe"]), given["settings"] or [])
    if path == "ablate":
        assert given["table"] in (*TABLES, "all", "tune")


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_are_valid(page: Path, tmp_path: Path) -> None:
    commands = called(page.read_text(encoding="utf-8"), tmp_path)
    assert commands
    for words in commands:
        try:
            check(words)
        except Exception as error:
            raise AssertionError(f"{' '.join(words)}: {error}") from error


@pytest.mark.parametrize("wrong", ["repgraph trian x", "repgraph train voc-r50-rgnet --weight none", "make nothing"])
def test_mistakes_are_found(wrong: str, tmp_path: Path) -> None:
    (words,) = called(f"```sh\n{wrong}\n```", tmp_path)
    with pytest.raises(Exception):  # noqa: B017
        check(words)


def test_examples_in_help_are_valid(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("griffe", reason="griffe is not installed")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "scripts" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    commands = called(hooks.command_reference(), tmp_path)
    assert len(commands) > 40
    for words in commands:
        check(words)


def test_tables_of_ablations_are_documented() -> None:
    text = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    assert all(f"| `{table}` |" in text for table in TABLES)
