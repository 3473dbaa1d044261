"""The ``repgraph`` command. Each sub-command is a function in a module of this package.

The modules import only Typer and the standard library, which keeps ``--help`` fast. A command imports the rest when it
runs.
"""

import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from repgraph.errors import UsageError, interrupted, one_line

# Packages that each extra installs, for the error if one of them is missing.
EXTRAS = {
    "bench": ("matplotlib", "rich"),
    "train": (
        *("PIL", "filelock", "huggingface_hub", "jinja2", "joblib", "lightning_fabric", "matplotlib", "pydantic"),
        *("pydantic_core", "safetensors", "scipy", "tensorboard", "timm", "torchvision"),
    ),
    "detection": ("pycocotools",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: part of the work failed, as the command reported. 2: wrong usage, or output that cannot be written.
    3: numbers that are not finite. 130, 141 and 143: interrupted, closed output, SIGTERM.

    >>> main(["--version"])
    repgraph ...
    0
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = " ".join(["repgraph", *words[: 1 + (words[:1] in (["bench"], ["data"]))]])
    try:
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # file names may have any bytes
        from repgraph.cli.app import app  # imported here to handle Ctrl-C during its imports

        code = int(app(words, prog_name="repgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except BaseException as error:
        known = _report(error, command)
        if known is None:
            raise
        return known
    finally:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; during an import, where extension modules may swallow it, exit at once."""
    os.write(2, b"repgraph: interrupted\n")
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _report(error: BaseException, command: str) -> int | None:
    """Print an error in one line and return the exit code; None if it is a bug."""
    if interrupted(error):
        return 130
    if format_message := getattr(error, "format_message", None):  # from Typer: wrong options and arguments
        if type(error).__name__ == "NoArgsIsHelpError":  # a command that only has sub-commands, without one
            print(format_message())
            return 0
        context = getattr(error, "ctx", None)
        path = context.command_path if context else command
        message = " ".join(format_message().split())  # it may have several lines
        print(one_line(f"{path}: {message} (see {path} --help)"), file=sys.stderr)
        return 2
    if isinstance(error, UsageError):
        print(one_line(f"{command}: {error}"), file=sys.stderr)
        return 2
    if isinstance(error, ImportError):
        package = (error.name or "").split(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            return None
        print(f"{command} needs {package}: pip install 'repgraph[{extra}]'", file=sys.stderr)
        return 2
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return 141
    if isinstance(error, OSError) and _output_fails():
        _discard_output()
        print(f"repgraph: cannot write the output ({error.strerror})", file=sys.stderr)
        return 2
    return None


def _output_fails() -> bool:
    """Return whether standard output cannot be written to, such as a file on a full disk."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Discard buffered output; otherwise Python writes it again at exit, and fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
