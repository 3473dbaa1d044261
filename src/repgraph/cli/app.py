"""The Typer application: the commands and their groups."""

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from repgraph.cli import ablate, bench, data, demo, evaluate, export, info, predict, report, train, visualize
from repgraph.cli.options import option


class Command(TyperCommand):
    """A command whose repeatable options take several values at once: ``--set A B`` is ``--set A --set B``.

    An option whose metavar ends in "..." gets the values of each occurrence as one string, separated by spaces.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.help:
            self.help = self.help.replace("Examples:\n", "\b\nExamples:\n")  # \b: keep the line breaks below
        self.several: dict[str, Any] = {}
        parameters: list[Any] = self.params
        for each in parameters:
            if each.param_type_name == "argument":
                each.display_type_rich = lambda ctx: ""
            elif each.multiple:
                each.help = f"{(each.help or '').removesuffix('.')} (one or more)."
                self.several |= dict.fromkeys(each.opts, each)
            else:
                continue
            each.metavar = each.metavar or each.name.upper()  # in place of a Python type

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        current = ""
        for position, word in enumerate(args):
            if word == "--":
                spread += args[position:]
                break
            if word.startswith("-"):
                current = word.partition("=")[0]
            elif current in self.several and spread[-1] != current:
                if (self.several[current].metavar or "").endswith("..."):
                    spread[-1] += f" {word}"
                    continue
                spread.append(current)
            spread.append(word)
        return super().parse_args(ctx, spread)


def _group(name: str, text: str, *commands: Callable[..., Any], **more: Any) -> typer.Typer:
    group = typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None, **more)
    for command in commands:
        group.command(cls=Command)(command)
    return group


app = _group(
    "repgraph",
    "Representative graph attention for PyTorch: train, evaluate, predict, and explore what a layer attends to.",
    *(train.train, predict.predict, export.export, ablate.ablate, report.report, demo.demo, info.info),
    *(visualize.explore, visualize.nodes, visualize.affinity),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("eval", cls=Command)(evaluate.evaluate)
app.add_typer(_group("data", "Data sets.", data.check))
benchmarks = (bench.operator, bench.layers, bench.deformable, bench.networks)
app.add_typer(_group("bench", "Benchmarks of speed and memory.", *benchmarks))


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, option("Show the version and exit.", "--version")] = False,
    modules: Annotated[
        list[str] | None, option("Python module to import, e.g. with context layers.", "--import", metavar="MODULE")
    ] = None,
) -> None:
    if modules:  # read by repgraph.models.context, in processes that a command starts as well
        os.environ["REPGRAPH_IMPORT"] = ",".join(modules)
    if show:
        from repgraph import __version__

        print(f"repgraph {__version__}")
        raise typer.Exit
