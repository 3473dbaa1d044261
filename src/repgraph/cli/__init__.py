"""The ``repgraph`` command. Each sub-command is a function in a module of this package.

The modules import only Typer and the standard library, which keeps ``--help`` fast; commands import the rest.
"""

# Neither signal nor typing, which take longer than Python's start: until main has its handler, Ctrl-C is a traceback.
import _signal  # type: ignore[import-not-found]
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# Packages that each extra installs, for the error if one of them is missing.
EXTRAS = {
    "bench": "matplotlib rich",
    "train": "PIL filelock huggingface_hub jinja2 joblib lightning_fabric matplotlib pydantic pydantic_core "
    "safetensors scipy tensorboard timm torchvision",
    "detection": "pycocotools",
    "onnx": "onnx onnxruntime onnxscript",
}


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: part of the work failed, as the command reported. 2: wrong usage, or output that cannot be written.
    3: numbers that are not finite. 130, 141 and 143: interrupted, closed output, SIGTERM.

    >>> main(["--version"])
    repgraph ...
    0
    """
    handler, command = _signal.getsignal(_signal.SIGINT), "repgraph"
    try:
        if handler is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _interrupt)
        words = list(sys.argv[1:] if arguments is None else arguments)
        command = " ".join(["repgraph", *words[: 2 if words[:1] in (["bench"], ["data"]) else 1]])
        _prepare_streams()
        from repgraph.cli.app import app  # imported here to handle Ctrl-C during its imports

        code = int(app(words, prog_name="repgraph", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except BaseException as error:
        code, message = _explain(error, command)
        if message:
            print(message, file=sys.stderr)
        return code
    finally:
        if handler is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, handler)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt; where C code may swallow it, in imports and in LLVM's callbacks, exit at once."""
    os.write(2, b"repgraph: interrupted\n")
    while frame is not None:
        code = frame.f_code
        if code.co_filename == "<frozen importlib._bootstrap>" or code.co_name.startswith("_raw_object_cache_"):
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _prepare_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed (>&-): a file would get its number, and what is printed
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may have any bytes


def _explain(error: BaseException, command: str) -> tuple[int, str]:
    """Return the exit code of an error and its message in one line; raise it again if it is a bug."""
    from repgraph.errors import UsageError, interrupted, one_line

    if interrupted(error):
        return 130, ""
    if format_message := getattr(error, "format_message", None):  # from Typer: wrong options and arguments
        if type(error).__name__ == "NoArgsIsHelpError":  # a command that only has sub-commands, without one
            print(format_message())
            return 0, ""
        context = getattr(error, "ctx", None)
        path = context.command_path if context else command
        return 2, one_line(f"{path}: {' '.join(format_message().split())} (see {path} --help)")
    if isinstance(error, UsageError):
        return 2, one_line(f"{command}: {error}")
    if isinstance(error, ImportError):
        package = (error.name or "").partition(".")[0]
        for extra in (extra for extra, packages in EXTRAS.items() if package in packages.split()):
            return 2, f"{command} needs {package}: pip install '.[{extra}]' in a clone of repgraph"
    if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and _output_fails()):
        # Discard what is buffered; otherwise Python writes it again at exit, and fails again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141, ""
        return 2, f"repgraph: cannot write the output ({error.strerror})"
    if isinstance(error, OSError) and error.filename is not None:  # such as a folder without permission to search it
        return 2, one_line(f"{command}: cannot use {error.filename}: {error.strerror}")
    raise error


def _output_fails() -> bool:
    try:
        print(flush=True)  # fails on a full disk
    except OSError:
        return True
    return False
