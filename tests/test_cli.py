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


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_is_quick_and_imports_nothing_heavy(words):
    script = (
        "import sys; from repgraph.cli import main; code = main(sys.argv[1:]); print(sorted(sys.modules)); exit(code)"
    )
    begin = time.perf_counter()
    arguments = [sys.executable, "-c", script, *words, "--help"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    print(f"{seconds:.2f} s")
    assert done.returncode == 0, done.stderr
    *text, modules = done.stdout.splitlines()
    assert text[0].startswith(" ".join(["Usage: repgraph", *words]))
    assert [name for name in HEAVY if repr(name) in modules] == []
    assert seconds < 2


@pytest.mark.parametrize("words", [(), ("bench",)], ids=["repgraph", "repgraph bench"])
def test_group_without_a_command_shows_its_help(words, capsys):
    assert cli.main(words) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(" ".join(["Usage: repgraph", *words])) and captured.err == ""
    assert ("operator" if words else "train") in captured.out


def test_version_and_python_dash_m(capsys):
    assert cli.main(["--version"]) == 0
    expected = f"repgraph {repgraph.__version__}\n"
    assert capsys.readouterr().out == expected
    done = subprocess.run([sys.executable, "-m", "repgraph", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("inof", "repgraph: No such command 'inof'. Did you mean 'info'?"),
        ("info --jsn", "repgraph info: No such option: --jsn (Possible options: --json)"),
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
        (ModuleNotFoundError(name="timm.models"), 2, "repgraph info needs timm: pip install 'repgraph[train]'\n"),
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

    monkeypatch.setattr(repgraph.info, "gather", fail)
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
import ctypes, os, signal, sys, time, types
from repgraph.cli import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass

if sys.argv[1] == "during an import":
    sys.meta_path.insert(0, Interrupting())
else:
    interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
    if sys.argv[1] == "in a callback":
        def _raw_object_cache_notify():
            os.kill(os.getpid(), signal.SIGINT)
        interrupt = lambda: [ctypes.CFUNCTYPE(None)(_raw_object_cache_notify)(), time.sleep(60)]
    sys.modules["repgraph.info"] = types.SimpleNamespace(gather=interrupt, render=None)  # which imports torch
sys.exit(main(["info"]))
"""
    done = subprocess.run([sys.executable, "-c", script, place], capture_output=True, text=True)
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


@pytest.mark.parametrize(("end", "output"), [("| true", ""), (">&-", ""), (">&- 2>&-", ""), ("2>&-", "repgraph ")])
def test_closed_streams_are_quiet(end, output):
    line = f"{sys.executable} -m repgraph --version {end}"
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:9], done.stderr) == (0, output, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_one_line(unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    arguments = [sys.executable, "-m", "repgraph", "train", "--list"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "repgraph: cannot write the output (No space left on device)\n")
