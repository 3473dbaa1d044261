"""The command line: help, version, unknown words, missing extras, interruption."""

import os
import subprocess
import sys
import types

import pytest

import repgraph
from repgraph import cli
from repgraph.cli import COMMANDS, Command
from repgraph.errors import UsageError


def call(*arguments: str) -> int:
    try:
        return cli.main(list(arguments))
    except SystemExit as end:  # argparse ends this way
        return int(end.code or 0)


@pytest.fixture
def command(monkeypatch):
    """Registers ``repgraph try`` with a given run function."""

    def register(run, **more) -> None:
        module = types.ModuleType("repgraph_try")
        module.configure = lambda parser: parser.add_argument("--flag", action="store_true")
        module.run = run
        monkeypatch.setitem(sys.modules, "repgraph_try", module)
        monkeypatch.setattr(cli, "COMMANDS", (*COMMANDS, Command("try", "repgraph_try", "a trial", **more)))

    return register


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_commands_and_examples(arguments, capsys):
    assert call(*arguments) == 0
    out = capsys.readouterr().out
    assert all(c.words in out and c.help in out for c in COMMANDS)
    assert "examples:" in out and "repgraph bench operator --quick" in out


def test_a_group_alone_lists_its_commands(capsys):
    assert call("bench") == 0
    out = capsys.readouterr().out
    assert "bench operator" in out and "info" not in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.words)
def test_every_command_has_help(command, capsys):
    assert call(*command.words.split(), "--help") == 0
    out = capsys.readouterr().out
    assert f"usage: repgraph {command.words}" in out
    assert "(default: )" not in out and "(default: [])" not in out


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"repgraph {repgraph.__version__}\n"


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "repgraph", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"repgraph {repgraph.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof"], "repgraph: unknown command 'inof'; did you mean 'info'?"),
        (["zzz"], "repgraph: unknown command 'zzz'; choose one of ablate, "),
        (["bench", "operater"], "repgraph bench: unknown command 'operater'; did you mean 'operator'?"),
        (["bench", "--nothing"], "repgraph bench: unknown argument '--nothing'"),
        (["--verison"], "repgraph: unknown argument '--verison'; did you mean '--version'?"),
        (["info", "--jsn"], "repgraph info: unknown argument '--jsn'; did you mean '--json'?"),
        (["info", "extra"], "repgraph info: unknown argument 'extra'"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, message, capsys):
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(message) and captured.err.count("\n") == 1


def test_missing_extra_names_the_pip_line(command, capsys):
    command(lambda arguments: pytest.fail("ran"), needs=("no_such_a", "sys", "no_such_b"), extra="bench")
    assert call("try") == 2
    expected = "repgraph try needs no_such_a and no_such_b: pip install 'repgraph[bench]'\n"
    assert capsys.readouterr().err == expected


def test_missing_extra_found_late_names_the_pip_line(command, capsys):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'sys.part'", name="sys.part")

    command(run, needs=("sys",), extra="bench")
    assert call("try") == 2
    assert "pip install 'repgraph[bench]'" in capsys.readouterr().err


def test_other_import_errors_are_not_hidden(command):
    def run(arguments):
        raise ModuleNotFoundError("No module named 'lost'", name="lost")

    command(run)
    with pytest.raises(ModuleNotFoundError):
        call("try")


def test_usage_errors_carry_the_command(command, capsys):
    def run(arguments):
        raise UsageError("--size 'x' is not a size")

    command(run)
    assert call("try") == 2
    assert capsys.readouterr().err == "repgraph try: --size 'x' is not a size\n"


def test_interruption_is_130(command, capsys):
    def run(arguments):
        raise KeyboardInterrupt

    command(run)
    assert call("try") == 130
    assert capsys.readouterr().err == "repgraph: interrupted\n"


def test_exit_code_and_arguments_come_through(command):
    command(lambda arguments: 3 if arguments.flag else None)
    assert call("try", "--flag") == 3
    assert call("try") == 0


def test_a_closed_pipe_is_quiet():
    code = "import sys; from repgraph.cli import main; sys.exit(main(['info', '--json']))"
    done = subprocess.run(f'{sys.executable} -c "{code}" | true', shell=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["info", "--json"], ["--version"], ["train", "--list"]])
def test_output_that_cannot_be_written_is_one_line(arguments, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "repgraph", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "repgraph: cannot write the output (No space left on device)\n"


def test_other_errors_of_the_system_are_not_hidden(command):
    def run(arguments):
        raise OSError(28, "No space left on device")

    command(run)
    with pytest.raises(OSError, match="No space left"):
        call("try")


def test_options_may_stand_between_what_a_command_takes(capsys, tmp_path) -> None:
    assert cli.main(["predict", "network", "--out", str(tmp_path / "out"), str(tmp_path / "missing.jpg")]) == 2
    assert "missing.jpg is not there" in capsys.readouterr().err
