"""The operator benchmark's rows as tables, notes and records."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich.table import Table

from repgraph.bench import output
from repgraph.bench.operator.row import PASSES, Row
from repgraph.bench.operator.setting import Setting
from repgraph.bench.output import SHORT, mebibytes, number
from repgraph.bench.row import timing_record

HEADS = {"ms": "ms", "graph": "graph ms", "comp": "x comp.", "sdpa": "x SDPA", "memory": "extra MiB"}


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    grouped: dict[Setting, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.setting, []).append(row)
    return grouped


def conditions(row: Row) -> str:
    """What a row was measured under, apart from the size: written under tables and plots."""
    setting = row.setting
    parts = [
        f"B {setting.batch}, C {setting.channels}, S {setting.nodes}",
        f"groups {setting.groups}, grid {setting.grid}",
        f"offsets normal, sigma {setting.sigma:g} px",
        str(setting.dtype).removeprefix("torch."),
        "channels last" if setting.channels_last else "contiguous",
        "value is key" if setting.shared_kv else "value is not key",
        output.conditions(setting.device, row.threads),
    ]
    return "; ".join(parts)


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """For each setting a table of forward and one of backward, a line for each candidate that was measured."""
    for setting, found in by_setting(rows).items():
        heads = [head for name, head in HEADS.items() if name != "graph" or any(row.graph for row in found)]
        value = "value is key" if setting.shared_kv else "value is not key"
        names = {row.candidate for row in found if row.times}
        for pass_ in PASSES:
            title = f"{setting.height} x {setting.width} (N = {setting.positions}), {value}: {pass_}"
            caption = conditions(found[0]) if pass_ == PASSES[-1] else None
            # So wide that both tables of a setting line up: 75 columns with graphs, of a console's 80.
            table = output.new_table(title, caption, "candidate", heads, widths=(20, 9))
            for row in found:
                if row.pass_ == pass_ and row.candidate in names:
                    cells = _cells(row)
                    table.add_row(row.candidate, *(cells[head] for head in heads))
            yield table


def _cells(row: Row) -> dict[str, str]:
    """What stands under each head."""
    if row.times is None:
        return dict.fromkeys(HEADS.values(), "") | {HEADS["ms"]: SHORT.get(row.status, row.status)}
    graph = row.graph.median if row.graph else None
    values = (row.times.median, graph, row.versus_composition, row.versus_sdpa)
    return dict(zip(HEADS.values(), [*map(number, values), mebibytes(row.memory)], strict=True))


def notes(rows: list[Row]) -> list[str]:
    """Who could not be measured and why, and what the columns mean."""
    found = output.reasons(rows)
    timed = [row for row in rows if row.times]
    if timed:
        basis = "ratio of wall-clock medians"
        if timed[0].setting.device.type == "cuda":
            basis = "ratio of CUDA graph medians (GPU time alone) where both have one, else of event medians"
        found.append(
            f"x comp., x SDPA: how many times faster than composition and than the fastest SDPA kernel here; {basis}"
        )
    if timed and timed[0].setting.device.type == "cuda":
        found.append("extra MiB: highest allocation beyond what was there before and beyond the result")
    elif any(row.memory is not None for row in timed):
        found.append("extra MiB: growth of the process's resident memory at its highest, beyond the result")
    elif timed:
        found.append("extra MiB: left out, this system does not tell a process its resident peak")
    return found


def as_record(row: Row) -> dict[str, Any]:
    """A row as flat, named values, with all that is needed to read it alone."""
    s = row.setting
    record: dict[str, Any] = {
        "candidate": row.candidate,
        "family": row.family,
        "pass": row.pass_,
        "status": row.status,
        "reason": row.reason,
        "shared_kv": s.shared_kv,
        "batch": s.batch,
        "channels": s.channels,
        "height": s.height,
        "width": s.width,
        "positions": s.positions,
        "nodes": s.nodes,
        "groups": s.groups,
        "grid": s.grid,
        "sigma": s.sigma,
        "dtype": str(s.dtype).removeprefix("torch."),
        "memory_format": "channels_last" if s.channels_last else "contiguous",
        "seed": s.seed,
    }
    record |= timing_record(row)
    record |= {
        "memory_bytes": row.memory,
        "kept_bytes": row.kept,
        "versus_composition": row.versus_composition,
        "versus_composition_basis": row.versus_composition_basis,
        "versus_best_sdpa": row.versus_sdpa,
        "versus_best_sdpa_basis": row.versus_sdpa_basis,
    }
    return record | output.machine_record(s.device, row.threads)
