"""The Typer application: the commands and their groups."""

import os
from typing import Any

import typer
from typer.core import TyperCommand

from repgraph.cli import ablate, bench, data, demo, evaluate, export, info, predict, report, train, visualize


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
    help="Representative graph attention for PyTorch: train, evaluate, predict, and explore what a layer attends to.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def version(
    show: bool = typer.Option(False, "--version", help="Show the version and exit."),
    modules: list[str] = typer.Option(  # noqa: B008
        [], "--import", help="Module that registers your own context layers; repeatable.", metavar="MODULE"
    ),
) -> None:
    if modules:  # read by repgraph.models.context, in processes that a command starts as well
        os.environ["REPGRAPH_IMPORT"] = ",".join(modules)
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
bench_app.command("deformable", cls=Command)(bench.deformable)
bench_app.command("networks", cls=Command)(bench.networks)
app.add_typer(bench_app, name="bench")
