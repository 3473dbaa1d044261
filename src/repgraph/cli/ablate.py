"""``repgraph ablate``."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from repgraph.cli import options
from repgraph.cli.options import option

TABLES = "nodes, instantiations, stages, deeper, grid, group, offsets, forms, choose, 'all' or 'tune'"
NETWORKS = "baseline, control, nl, simple, rgnet, psp, fpn, pyramid"


def ablate(
    table: Annotated[str, typer.Argument(help=f"{TABLES}.")],
    data: Annotated[str, option("Folder of the data set.", metavar="ROOT")] = "",
    weights: Annotated[str, option("A file, 'pretrained', 'timm:NAME', or 'none'.", metavar="FILE")] = "",
    dataset: Annotated[str, option("Data set of the base recipe.", metavar="NAME")] = "voc",
    seeds: Annotated[list[int] | None, option("Seeds.", min=0, show_default="0 1 2; 0 for tune")] = None,
    out: Annotated[Path, option("Folder of the results.", metavar="DIR")] = Path("results"),
    settings: options.RecipeSettings = None,
    entries: Annotated[list[str] | None, option("Only these entries, and the reference.", metavar="NAME")] = None,
    reference: Annotated[str, option("Compare with this entry instead of the table's reference.", metavar="NAME")] = "",
    jobs: Annotated[int, option("Number of simultaneous runs; they share GPUs and cores.", min=1)] = 1,
    backend: Annotated[str, option("Backend of joblib: threading, loky or dask.", metavar="NAME")] = "threading",
    cluster: Annotated[str, option("Address of a Dask scheduler.", metavar="ADDRESS")] = "",
    of: Annotated[list[str] | None, option(f"For tune: networks among {NETWORKS}.", metavar="NAME")] = None,
    trials: Annotated[int, option("For tune: number of trials per network.", min=1)] = 8,
    tuned: Annotated[Path | None, option("Use the settings that tune chose (tuning.csv).", metavar="FILE")] = None,
    show: Annotated[bool, option("Print the table of the results so far and exit.", "--show")] = False,
    dry_run: Annotated[bool, option("List the runs and exit.", "--dry-run")] = False,
) -> int:
    """Train the networks of an ablation table with several seeds, and make the table.

    Examples:
      repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --dry-run    list the runs
      repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --jobs 4     four runs at a time
      repgraph ablate nodes --show                                                     the results so far
      repgraph ablate tune --of baseline nl control rgnet --data VOC2012 --weights resnet50.safetensors --seeds 0
      repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --tuned results/tuning.csv
      repgraph ablate group --dataset scenes --seeds 0 1 --set train.iterations=300    on the CPU, without data

    The table choose compares whole networks; after training, their speed is measured with repgraph bench networks on
    the CPU and, if there is one, on the GPU. Finished runs are never repeated; the same command resumes after an
    interruption. Exit codes: 0 success; 1 a run failed or diverged; 2 invalid options, data or results; 130 or 143
    stopped by SIGINT or SIGTERM. See docs/ablations.md.
    """
    seeds = seeds or ([0] if table == "tune" else [0, 1, 2])
    given: dict[str, Any] = {name: value for name, value in locals().items() if name not in ("show", "dry_run")}

    from repgraph import ablation

    lists = {name: tuple(given[name] or ()) for name in ("seeds", "settings", "entries", "of")}
    plan = ablation.Plan(**{**given, **lists})
    if dry_run:
        print(ablation.listing(plan))
        return 0
    report = ablation.show_tables(plan) if show else ablation.ablate(plan, sys.stderr)
    print("\n".join(report.tables), end="")
    for path in report.files:
        print(f"wrote {path}", file=sys.stderr)
    note = partial(print, "repgraph ablate:", file=sys.stderr)
    if report.left:
        names = ", ".join(map(str, report.left[:3]))
        more = f" and {len(report.left) - 3} more" if len(report.left) > 3 else ""
        how = "the command without --show trains them" if show else "repeat the command to continue"
        note(f"{len(report.left)} runs are left ({names}{more}); {how}")
    if report.failed:
        note(f"{len(report.failed)} run(s) failed or diverged; the reasons are below the table")
    if show or table != "choose" or report.left or report.code:
        return 0 if show else report.code
    from repgraph.cli.bench import Run, networks
    from repgraph.distributed import parse_device

    backbone = ablation.start_recipe(plan).model.backbone
    devices = dict.fromkeys((parse_device("auto").type, "cpu"))
    runs = [Run(out=out / f"speed-{device}", device=device) for device in devices]
    return max(networks(size=None, backbone=backbone, **vars(run)) for run in runs)
