"""The command line in general: help, mistakes, missing packages, interruption, and output that cannot be written."""

import os
import subprocess
import sys
import time
from typing import Annotated

import pytest
import typer

import repgraph
import repgraph.info
from repgraph import cli
from repgraph.cli.app import Command, app
from repgraph.errors import UsageError

HEAVY = ("torch", "numpy", "numba", "lightning_fabric", "timm", "matplotlib")


def commands(group, *words):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        elif isinstance(command, Command):
            yield (*words, name)


COMMANDS = list(commands(typer.main.get_command(app)))


def python(script, *arguments):
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_is_quick_and_imports_nothing_heavy(words):
    script = "import sys; from repgraph.cli import main; print(main(sys.argv[1:]), sorted(sys.modules))"
    begin = time.perf_counter()
    *text, modules = python(script, *words, "--help").stdout.splitlines()
    assert time.perf_counter() - begin < 2
    assert text[0].startswith(" ".join(["Usage: repgraph", *words])) and modules.startswith("0 ")
    assert [name for name in HEAVY if repr(name) in modules] == []


@pytest.mark.parametrize("words", [(), ("bench",)], ids=["repgraph", "repgraph bench"])
def test_group_without_a_command_shows_its_help(words, capsys):
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" ".join(["Usage: repgraph", *words])) and captured.err == ""
    assert ("operator" if words else "train") in captured.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("inof", "repgraph: No such command 'inof'. Did you mean 'info'?"),
        ("train --lst", "repgraph train: No such option: --lst (Possible options: --list"),
    ],
)
def test_mistakes_are_one_line(arguments, words, capsys):
    assert cli.main(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(words) and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("--size 'x' is not a size"), 2, "repgraph info: --size 'x' is not a size\n"),
        (UsageError("a\nb\x1b[2J.png: no image"), 2, "repgraph info: a\\nb\\x1b[2J.png: no image\n"),
        (
            ModuleNotFoundError(name="timm.models"),
            2,
            "repgraph info needs timm: pip install '.[train]' in a clone of repgraph\n",
        ),
        (ModuleNotFoundError("No module named 'lost'", name="lost"), None, ""),
        (OSError(28, "No space left on device"), None, ""),
        (PermissionError(13, "Permission denied", "a/b"), 2, "repgraph info: cannot use a/b: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_of_commands(monkeypatch, capsys, error, code, message):
    """User errors are one line; other errors are not hidden."""

    def fail():
        raise error

    monkeypatch.setattr(repgraph.info, "describe", fail)
    if code is None:
        with pytest.raises(type(error)):
            cli.main(["info"])
    else:
        assert cli.main(["info"]) == code
        assert capsys.readouterr().err == message


@pytest.mark.parametrize("place", ["during an import", "in a command", "in a callback"])
def test_interrupt_is_one_line(place):
    """What swallows KeyboardInterrupt, as imports of extension modules and callbacks of LLVM do, must not go on."""
    script = """
import contextlib, ctypes, os, signal, sys, time, types
from repgraph.cli import main

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def _raw_object_cache_notify():
    interrupt()

def in_a_callback():
    ctypes.CFUNCTYPE(None)(_raw_object_cache_notify)()
    time.sleep(60)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            with contextlib.suppress(KeyboardInterrupt):
                interrupt()

if sys.argv[1] == "during an import":
    sys.meta_path.insert(0, Finder())
describe = in_a_callback if sys.argv[1] == "in a callback" else interrupt
sys.modules["repgraph.info"] = types.SimpleNamespace(describe=describe)  # which imports torch
sys.exit(main(["info"]))
"""
    done = python(script, place)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "repgraph: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("file --set a=1 b=2 --other x", ("file", ["a=1", "b=2"], "x")),
        ("--set a=1 b=2 --set c=3 --other x -- file", ("file", ["a=1", "b=2", "c=3"], "x")),
        ("file --set=a=1 b=2", ("file", ["a=1", "b=2"], "")),
        ("--other x file", ("file", [], "x")),
        ("file --other x --set -1", ("file", ["-1"], "x")),
    ],
)
def test_repeatable_options_take_several_values(arguments, expected):
    found, group = [], typer.Typer()

    @group.command(cls=Command)
    def command(file: str, several: Annotated[list[str] | None, typer.Option("--set")] = None, other: str = "") -> None:
        found.append((file, several or [], other))

    group(arguments.split(), standalone_mode=False)
    assert found == [expected]


VERSION = f"repgraph {repgraph.__version__}\n"


@pytest.mark.parametrize(
    ("end", "output"), [("", VERSION), ("| true", ""), (">&-", ""), (">&- 2>&-", ""), ("2>&-", VERSION)]
)
def test_version_and_closed_streams(end, output):
    done = subprocess.run(f"{sys.executable} -m repgraph --version {end}", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_line(unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    arguments = [sys.executable, "-m", "repgraph", "train", "--list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "repgraph: cannot write the output (No space left on device)\n")
