"""The ``repgraph`` command. Each sub-command is a function in a module of this package.

The modules import Typer and the standard library only, so that ``--help`` answers at once; a command imports what it
needs when it runs.
"""

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from repgraph.cli import ablate, bench, data, demo, evaluate, export, info, predict, report, train, visualize
from repgraph.errors import UsageError

# Packages that an extra installs; named when one of them is missing.
EXTRAS = {
    "bench": ("matplotlib", "rich"),
    "train": (
        *("PIL", "filelock", "huggingface_hub", "jinja2", "joblib", "lightning_fabric", "matplotlib", "pydantic"),
        *("pydantic_core", "safetensors", "scipy", "tensorboard", "timm", "torchvision"),
    ),
    "detection": ("pycocotools",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
}
PARSE_ERROR: Any = typer.BadParameter.__base__  # click's UsageError; versions of Typer have it in different places


class Command(TyperCommand):
    """A command whose repeatable options take several values at once: ``--set A B`` is ``--set A --set B``.

    An option whose metavar ends in "..." gets the values of each occurrence as one string, separated by spaces.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.help:
            self.help = self.help.replace("Examples:\n", "\b\nExamples:\n")  # \b: keep the line breaks below

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        repeatable = {
            name: (option.metavar or "").endswith("...")
            for option in self.params
            if getattr(option, "multiple", False)
            for name in option.opts
        }
        spread: list[str] = []
        current = ""
        for position, word in enumerate(args):
            if word == "--":
                spread += args[position:]
                break
            name = word.partition("=")[0]
            if word.startswith("-"):
                current = name if name in repeatable else ""
            elif current and spread[-1] != current:
                if repeatable[current]:
                    spread[-1] += f" {word}"
                    continue
                spread.append(current)
            spread.append(word)
        return super().parse_args(ctx, spread)


app = typer.Typer(
    name="repgraph",
    help="Representative graph attention for PyTorch: train, evaluate, predict, and see what a layer attends to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if show:
        from repgraph import __version__

        print(f"repgraph {__version__}")
        raise typer.Exit


for command in (
    *(train.train, predict.predict, export.export, ablate.ablate, report.report, demo.demo, info.info),
    *(visualize.explore, visualize.nodes, visualize.affinity),
):
    app.command(cls=Command)(command)
app.command("eval", cls=Command)(evaluate.evaluate)
data_app = typer.Typer(help="Data sets.", no_args_is_help=True, rich_markup_mode=None)
data_app.command("check", cls=Command)(data.check)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="Benchmarks of speed and memory.", no_args_is_help=True, rich_markup_mode=None)
bench_app.command("operator", cls=Command)(bench.operator)
bench_app.command("layers", cls=Command)(bench.layers)
app.add_typer(bench_app, name="bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: part of the work failed, as the command reported. 2: wrong usage, or output that cannot be written.
    3: numbers that are not finite. 130, 141 and 143: interrupted, closed output, SIGTERM.

    >>> main(["--version"])
    repgraph ...
    0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(["repgraph", *words[: 1 + (words[:1] in (["bench"], ["data"]))]])
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may have any bytes
    try:
        code = int(app(words, prog_name="repgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except PARSE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a command that only has sub-commands, without one
            print(error.format_message())
            return 0
        context = getattr(error, "ctx", None)
        path = context.command_path if context else command
        message = " ".join(error.format_message().split())  # it may have several lines
        print(f"{path}: {message} (see {path} --help)", file=sys.stderr)
        return 2
    except UsageError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            raise
        print(f"{command} needs {package}: pip install 'repgraph[{extra}]'", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, typer.Abort):
        print("repgraph: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        if not _output_fails():
            raise
        _discard_output()
        print(f"repgraph: cannot write the output ({error.strerror})", file=sys.stderr)
        return 2


def _output_fails() -> bool:
    """Return whether standard output cannot be written to, such as a file on a full disk."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Send buffered output nowhere; otherwise Python tries to write it again at exit, and fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
