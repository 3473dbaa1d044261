"""The options of ``repgraph ablate``, and what it says."""

import argparse
import sys
from pathlib import Path

from repgraph.arguments import above_zero, positive, whole

EPILOG = """\
tables: nodes, instantiations, stages, deeper, grid, group, offsets, forms; all; and tune
examples:
  repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --dry-run       what it would train
  repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --jobs 4        4 runs at a time
  repgraph ablate nodes --show                                                        the table of what is done
  repgraph ablate nodes --show --reference nl                                         differences to the non-local block
  repgraph ablate tune --of baseline nl control rgnet --data VOC2012 --weights resnet50.safetensors --seeds 0
  repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --tuned results/tuning.csv
  repgraph ablate group --dataset scenes --seeds 0 1 --set train.iterations=300       on the CPU, no data needed
  repgraph ablate all --data VOC2012 --weights resnet50.safetensors --time-limit 1500
  repgraph ablate nodes --data VOC2012 --weights resnet50.safetensors --backend dask --cluster tcp://host:8786 --jobs 32

A finished run is never repeated; the same command goes on after a stop. The exit code is 0 if all is well, also when
time was over; 1 if a run failed or diverged; 2 for a mistake in the command, the data or the results; 130 or 143 if
stopped by SIGINT or SIGTERM. docs/ablations.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("table", metavar="TABLE", help="the table to make, 'all' of them, or 'tune'")
    add("--data", default="", metavar="ROOT", help="folder of the data set")
    add("--weights", default="", metavar="FILE",
        help="where the backbone starts: a file, 'pretrained', 'timm:NAME', or 'none'")  # fmt: skip
    add("--dataset", default="voc", metavar="NAME", help="whose recipe entries start from")
    add("--seeds", nargs="+", type=whole(0, 2**63 - 1), metavar="N",
        help="each entry is trained with each (default: 0 1 2, and 0 for tune)")  # fmt: skip
    add("--out", type=Path, default=Path("results"), metavar="DIR", help="folder of the results")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings of all entries")
    add("--entries", nargs="+", default=[], metavar="NAME", help="only these of the table, and its reference")
    add("--reference", metavar="NAME", help="take differences to this entry (default: the table's own)")
    add("--jobs", type=positive, default=1, metavar="N", help="runs at a time; they share the GPUs evenly")
    add("--backend", default="threading", metavar="NAME",
        help="joblib's: threading (a thread waits for the process of each run), loky, dask, ray")  # fmt: skip
    add("--cluster", default="", metavar="ADDRESS", help="of a running Dask or Ray cluster")
    add("--time-limit", type=above_zero, metavar="SECONDS",
        help="begin no run that would not fit; stop those that run then, with a checkpoint")  # fmt: skip
    add("--of", nargs="+", default=[], metavar="NAME", help="for tune: which of baseline, control, nl, simple, rgnet")
    add("--trials", type=positive, metavar="N", help="for tune: of each (default: 8)")
    add("--tuned", type=Path, metavar="FILE", help="take the settings that tune chose")
    add("--keep", action="store_true", help="keep checkpoints and networks of finished runs")
    add("--again", action="store_true", help="repeat runs that diverged")
    add("--show", action="store_true", help="print the table of what is done; train and write nothing")
    add("--dry-run", action="store_true", help="list the runs, and train nothing")


def run(arguments: argparse.Namespace) -> int:
    from repgraph.engine.ablation import Plan, ablate, listing, show_tables
    from repgraph.engine.ablation.ablate import left_over
    from repgraph.engine.ablation.plan import TUNE
    from repgraph.engine.ablation.tuning import TRIALS

    seeds = arguments.seeds or ([0] if arguments.table == TUNE else [0, 1, 2])
    plan = Plan(
        table=arguments.table,
        dataset=arguments.dataset,
        data=arguments.data,
        weights=arguments.weights,
        seeds=tuple(seeds),
        out=arguments.out,
        settings=tuple(arguments.set),
        entries=tuple(arguments.entries),
        jobs=arguments.jobs,
        backend=arguments.backend,
        cluster=arguments.cluster,
        tuned=arguments.tuned,
        of=tuple(arguments.of),
        trials=arguments.trials or TRIALS,
        keep=arguments.keep,
        again=arguments.again,
        time_limit=arguments.time_limit,
        reference=arguments.reference or "",
    )
    if arguments.dry_run:
        print(listing(plan))
        return 0
    report = show_tables(plan) if arguments.show else ablate(plan, sys.stderr)
    print("\n".join(report.tables), end="")
    for path in report.files:
        print(f"written: {path}", file=sys.stderr)
    for note in report.notes:
        print(f"repgraph ablate: {note}", file=sys.stderr)
    if left := left_over(report):
        print(f"repgraph ablate: {left}", file=sys.stderr)
    if report.failed:
        runs = "run" if len(report.failed) == 1 else "runs"
        print(f"repgraph ablate: {len(report.failed)} {runs} failed or diverged; the table says why", file=sys.stderr)
    return 0 if arguments.show else report.code
