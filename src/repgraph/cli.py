"""The ``repgraph`` command: finds the sub-command, imports its module, and turns mistakes into one line.

A command is one entry in :data:`COMMANDS` and a module with ``configure(parser)`` and
``run(arguments) -> exit code``. The module is imported when its command is called and not before; it must
import what its extra brings inside ``run`` or below, so that its ``--help`` works on the base install.
"""

import argparse
import difflib
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from repgraph.errors import UsageError


@dataclass(frozen=True)
class Command:
    """A sub-command: the module that runs it, and the extra that brings the packages it needs."""

    words: str  # as typed, such as "bench operator"
    module: str
    help: str
    needs: tuple[str, ...] = ()
    extra: str = ""


NETWORK = ("timm", "torchvision", "PIL", "rich", "huggingface_hub", "safetensors")  # to run one on images
TRAINING = ("lightning", "tensorboard", *NETWORK)

COMMANDS = (
    Command("info", "repgraph.info", "versions, devices, and which backends can run here"),
    Command(
        "bench operator",
        "repgraph.bench.operator.command",
        "time and memory of the operator's backends and of what could be used instead",
        needs=("rich", "matplotlib"),
        extra="bench",
    ),
    Command(
        "bench layers",
        "repgraph.bench.layers.command",
        "work, time and memory of the layers, and of non-local blocks and DANet: the paper's table",
        needs=("rich", "matplotlib"),
        extra="bench",
    ),
    Command(
        "data check",
        "repgraph.data.command",
        "read a whole data set; report missing pairs, damaged files, wrong sizes and labels, class frequencies",
        needs=("rich", "torchvision", "PIL"),
        extra="train",
    ),
    Command(
        "train",
        "repgraph.engine.training.command",
        "train a network by a recipe, or go on with a run",
        needs=TRAINING,
        extra="train",
    ),
    Command(
        "eval",
        "repgraph.engine.evaluation.command",
        "scores of a trained network on a data set: mIoU, IoU of each class, accuracies; for objects AP and AR",
        needs=NETWORK,
        extra="train",
    ),
    Command(
        "predict",
        "repgraph.engine.prediction.command",
        "labels of images, or objects in them, by a trained network: label files, COCO's JSON, pictures",
        needs=NETWORK,
        extra="train",
    ),
    Command(
        "affinity",
        "repgraph.engine.figures.affinity_command",
        "how few positions carry the weight in a non-local layer: the paper's first figure, with its numbers",
        needs=(*NETWORK, "matplotlib"),
        extra="train",
    ),
    Command(
        "ablate",
        "repgraph.engine.ablation.command",
        "train the entries of one of the paper's tables with several seeds, and make the table",
        needs=(*TRAINING, "joblib"),
        extra="train",
    ),
    Command(
        "nodes",
        "repgraph.engine.figures.nodes_command",
        "where positions of images look: the paper's appendix figure, for a paper",
        needs=(*NETWORK, "matplotlib"),
        extra="train",
    ),
    Command(
        "explore",
        "repgraph.engine.explore.command",
        "a page in which one points at images and sees the representative nodes of each position",
        needs=(*NETWORK, "matplotlib"),
        extra="train",
    ),
    Command(
        "demo",
        "repgraph.demo.command",
        "train a small RGNet and the same network without the layer on drawn scenes, and write a page about both",
        needs=TRAINING,
        extra="train",
    ),
    Command(
        "report",
        "repgraph.engine.report.command",
        "one page about one or several runs: curves, scores, best and worst images, recipes",
        needs=TRAINING,
        extra="train",
    ),
    Command(
        "export",
        "repgraph.engine.export.command",
        "write a trained network for torch.export, for ONNX (checked in onnxruntime), or as safetensors",
        needs=("timm", "huggingface_hub", "safetensors"),
        extra="train",
    ),
)

GROUPS = {"bench": "measure speed and memory", "data": "look at data sets"}

EXAMPLES = """\
examples:
  repgraph info                                   what can run here
  repgraph info --json                            the same for scripts
  repgraph bench operator --quick                 a first look at speed and memory
  repgraph bench operator --size 65x65 --only cpu composition
  repgraph bench layers --quick                   RepGraph layers against non-local blocks
  repgraph bench layers --paper                   the paper's complexity table, on any device
  repgraph demo                                   minutes on a CPU: what the layer does, on a page
  repgraph data check voc data/VOC2012            what is wrong with a data set, if anything
  repgraph train voc-r50-rgnet --data VOC2012 --weights resnet50.safetensors
  repgraph eval runs/voc-r50-rgnet --data VOC2012 --flip
  repgraph predict runs/voc-r50-rgnet photos --out predictions
  repgraph report runs/baseline runs/rgnet        curves, scores and images of runs, on a page
  repgraph explore photo.jpg --model runs/voc-r50-rgnet --out nodes.html
  repgraph nodes runs/voc-r50-rgnet dog.jpg --out nodes.pdf
  repgraph export runs/voc --to onnx              a trained network for other programs
  repgraph bench operator --help                  all options of a command
"""


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something, and examples below as they are written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default is False or action.default in (None, "", [])
        return action.help if silent else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line that names the nearest valid spelling."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            word = unknown.split()[0].split("=")[0]
            message = f"unknown argument {word!r}{_nearest(word, self._option_string_actions)}"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _nearest(word: str, among: Sequence[str] | dict[str, argparse.Action]) -> str:
    close = difflib.get_close_matches(word, list(among), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _top(prog: str = "repgraph", words: str = "") -> Parser:
    """The parser that only shows help: of everything, or of the group ``words``."""
    parser = Parser(
        prog=f"{prog} {words}".strip(),
        usage=f"{prog} {words}".strip() + " COMMAND ...",
        description=GROUPS.get(words, "Representative graph attention for PyTorch."),
        epilog=_listing(words) + ("" if words else "\n" + EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not words:
        parser.add_argument("--version", action="store_true", help="show the version and exit")
    return parser


def _listing(group: str) -> str:
    shown = [c for c in COMMANDS if not group or c.words.startswith(group + " ")]
    width = max(len(c.words) for c in shown)
    return "commands:\n" + "".join(f"  {c.words:<{width}}  {c.help}\n" for c in shown)


def _find(arguments: list[str]) -> tuple[Command | None, str, list[str]]:
    """The command that ``arguments`` call, or None and the group whose help is wanted, and what is left."""
    if not arguments or arguments[0].startswith("-"):
        return None, "", arguments
    table = {c.words: c for c in COMMANDS}
    first, rest = arguments[0], arguments[1:]
    if first in table:
        return table[first], "", rest
    if first not in GROUPS:
        names = sorted({c.words.split()[0] for c in COMMANDS})
        raise UsageError(f"repgraph: unknown command {first!r}{_or_choose(first, names)}")
    if not rest or rest[0].startswith("-"):
        return None, first, rest
    words = f"{first} {rest[0]}"
    if words not in table:
        names = [c.words.split()[1] for c in COMMANDS if c.words.startswith(first + " ")]
        raise UsageError(f"repgraph {first}: unknown command {rest[0]!r}{_or_choose(rest[0], names)}")
    return table[words], "", rest[1:]


def _or_choose(word: str, names: list[str]) -> str:
    return _nearest(word, names) or f"; choose one of {', '.join(names)}"


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _missing_extra(command: Command, missing: Sequence[str]) -> UsageError:
    return UsageError(
        f"repgraph {command.words} needs {' and '.join(missing)}: pip install 'repgraph[{command.extra}]'"
    )


def _call(command: Command, arguments: list[str]) -> int:
    parser = Parser(
        prog=f"repgraph {command.words}",
        description=command.help[0].upper() + command.help[1:] + ".",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    module = importlib.import_module(command.module)
    module.configure(parser)
    parsed = parser.parse_intermixed_args(arguments)  # options may come before, after and between
    missing = [name for name in command.needs if not _importable(name)]
    if missing:
        raise _missing_extra(command, missing)
    try:
        return int(module.run(parsed) or 0)
    except UsageError as error:
        raise UsageError(f"repgraph {command.words}: {error}") from error
    except ImportError as error:
        package = (error.name or "").split(".")[0]
        if package in command.needs:
            raise _missing_extra(command, [package]) from error
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code.

    0 if all is well, 2 for a mistake of the caller or an output that cannot be written, 130 when interrupted.

    >>> main(["--version"])
    repgraph ...
    0
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may have any bytes
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("repgraph: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe went away: nothing left to say
        _give_up_output()
        return 141
    except OSError as error:
        if not _output_fails():
            raise
        _give_up_output()
        print(f"repgraph: cannot write the output ({error.strerror})", file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    """Run the command, and bring all it printed to where it goes."""
    try:
        command, group, rest = _find(arguments)
        code = _help_or_version(group, rest) if command is None else _call(command, rest)
    except SystemExit:  # help was printed
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _output_fails() -> bool:
    """Whether nothing can be written to standard output, such as to a file on a full disk."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _give_up_output() -> None:
    """What is left to be written goes nowhere; else Python tries again at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help_or_version(group: str, rest: list[str]) -> int:
    parser = _top(words=group)
    if getattr(parser.parse_args(rest), "version", False):
        from repgraph import __version__

        print(f"repgraph {__version__}")
    else:
        parser.print_help()
    return 0
