"""The layer benchmark's rows as tables, notes and records."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from rich.table import Table

from repgraph.bench import output
from repgraph.bench.layers import published
from repgraph.bench.layers.benchmark import Options
from repgraph.bench.layers.row import BOTH, COMPILED, FORWARD, PASSES, SDPA, Row
from repgraph.bench.layers.setting import Setting
from repgraph.bench.output import SHORT, number
from repgraph.bench.row import CANNOT, fastest, timing_record

HEADS = ("ms", "graph", "x SDPA", "x plain", "MiB", "m SDPA", "m plain")


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    grouped: dict[Setting, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.setting, []).append(row)
    return grouped


def shown(rows: Iterable[Row]) -> list[Row]:
    """The rows of one setting and pass that a table has: of SDPA's kernels the fastest, of the others all."""
    found = list(rows)
    sdpa = [row for row in found if row.family == SDPA]
    best = fastest(sdpa) or next((row for row in sdpa if row.status != CANNOT), None)
    return [row for row in found if row not in sdpa or row is best]


def conditions(row: Row) -> str:
    """What a row was measured under, apart from the size: written under tables and plots."""
    s = row.setting
    parts = [
        f"B {s.batch}, C {s.channels}, C' {s.mid_channels}, S {s.nodes}, sum fusion",
        f"offsets normal, sigma {s.sigma:g} px",
        s.dtype_name + (" with TF32" if s.device.type == "cuda" and s.dtype == torch.float32 else ""),
        "channels last" if s.channels_last else "contiguous",
        output.conditions(s.device, row.threads),
    ]
    return "; ".join(parts)


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """What the blocks are worth on paper, at one size, and for each dtype and size what they take."""
    grouped = by_setting(rows)
    if grouped:
        yield complexity(_foremost(grouped))
    for setting, found in grouped.items():
        cells = {id(row): dict(zip(HEADS, _cells(row), strict=True)) for row in found}
        heads = [head for head in HEADS if any(cells[id(row)][head] for row in found)]
        for pass_ in PASSES:
            title = f"{setting.height} x {setting.width} (N = {setting.positions}), {setting.dtype_name}: {pass_}"
            caption = conditions(found[0]) if pass_ == BOTH else None
            # So wide that both tables of a setting line up, on a console's 80 columns.
            table = output.new_table(title, caption, "block", heads, widths=(21, 6))
            for row in shown(row for row in found if row.pass_ == pass_):
                if row.status != CANNOT:
                    table.add_row(row.label, *(cells[id(row)][head] for head in heads))
            yield table


def _foremost(grouped: dict[Setting, list[Row]]) -> list[Row]:
    """The rows of the setting whose work is shown: the paper's if it is there, else the largest; the first dtype's."""
    settings = sorted(grouped, key=lambda s: (s.is_papers(), s.positions), reverse=True)
    return grouped[settings[0]]


def complexity(rows: list[Row]) -> Table:
    """Multiply-adds and parameters beside the paper's, and the time of the forward pass."""
    setting = rows[0].setting
    heads = ["products G", "all G", "params M", "ms"]
    if papers := setting.is_papers():
        heads = ["products G", "paper G", "all G", "params M", "ms", "paper ms"]
    title = f"{setting.height} x {setting.width} (N = {setting.positions}): multiply-adds of the forward pass"
    caption = (
        "products: convolutions without bias, products of attention, sampling at 4 for each sampled channel; all: also "
        "biases, norms, activations, residuals and pooling at 1 for each element, softmax at 3 for each weight; "
        f"ms: {setting.dtype_name}, forward"
    )
    if papers:
        caption += "; paper: as printed, ms of an RTX 2080 Ti in float32"
    table = output.new_table(title, caption, "block", heads, widths=(21, 6))
    for row in shown(row for row in rows if row.pass_ == FORWARD):
        if row.count is None or row.family == COMPILED:
            continue
        paper = published.PAPER.get(row.candidate)
        times = row.graph or row.times
        cells = {
            "products G": _giga(row.count.products),
            "paper G": f"{paper.gmacs:g}" if paper else "",
            "all G": _giga(row.count.all),
            "params M": f"{row.parameters / 1e6:.3f}",
            "ms": number(times.median) if times else SHORT.get(row.status, row.status),
            "paper ms": f"{paper.ms:.2f}" if paper else "",
        }
        table.add_row(row.label, *(cells[head] for head in heads))
    return table


def _giga(value: int) -> str:
    """Billions to three decimals, and small ones to three digits."""
    return f"{value / 1e9:.3f}" if value >= 1e9 else number(value / 1e9)


def _cells(row: Row) -> list[str]:
    """What stands under each head."""
    if row.times is None:
        return [SHORT.get(row.status, row.status), *[""] * (len(HEADS) - 1)]
    graph = row.graph.median if row.graph else None
    extra = None if row.extra is None else row.extra / 2**20
    ratios = row.versus_sdpa, row.versus_plain, extra, row.memory_versus_sdpa, row.memory_versus_plain
    return [number(value) for value in (row.times.median, graph, *ratios)]


def notes(rows: list[Row]) -> list[str]:
    """Who could not be measured and why, what the columns mean, and what the paper's figures are."""
    found = output.reasons(rows)
    timed = [row for row in rows if row.times]
    if timed:
        cuda = timed[0].setting.device.type == "cuda"
        basis = "ratio of wall-clock medians"
        if cuda:
            basis = "ratio of CUDA graph medians (GPU time alone) where both have one, else of event medians"
        found += [
            "forward: evaluation mode, without gradients, batch norm folded where the layer can (fuse); "
            "forward+backward: training mode, gradients of the input and all parameters",
            "x SDPA, x plain: how many times faster than the fastest SDPA non-local block and than the plain one "
            f"(with a phi of its own); {basis}",
            _memory_note(timed, cuda),
        ]
        if cuda:
            slowest = f"{1e3 * Options.slowest_graph:g} ms"
            found.append(f"ms: events around plain calls; graph: replay of one call as a CUDA graph, below {slowest}")
    if any(row.setting.is_papers() for row in rows):
        found += published.notes(dict.fromkeys(row.candidate for row in rows))
    return found


def _memory_note(timed: list[Row], cuda: bool) -> str:
    what = "highest allocation" if cuda else "growth of the process's resident memory at its highest,"
    if all(row.extra is None for row in timed):
        return "MiB: left out, this system does not tell a process its resident peak"
    return (
        f"MiB: {what} beyond what was there before (input, parameters, cotangent), with the result in it; "
        "m SDPA, m plain: how many times less than those blocks"
    )


def as_record(row: Row) -> dict[str, Any]:
    """A row as flat, named values, with all that is needed to read it alone."""
    s, count = row.setting, row.count
    paper = published.PAPER.get(row.candidate) if s.is_papers() else None
    record: dict[str, Any] = {
        "block": row.candidate,
        "family": row.family,
        "pass": row.pass_,
        "status": row.status,
        "reason": row.reason,
        "batch": s.batch,
        "channels": s.channels,
        "mid_channels": s.mid_channels,
        "height": s.height,
        "width": s.width,
        "positions": s.positions,
        "nodes": s.nodes,
        "sigma": s.sigma,
        "dtype": s.dtype_name,
        "tf32": s.device.type == "cuda" and s.dtype == torch.float32,
        "memory_format": "channels_last" if s.channels_last else "contiguous",
        "seed": s.seed,
        "backend": row.backend,
        "parameters": row.parameters if count else None,
        "macs_products": count.products if count else None,
        "macs_convolutions": count.convolutions if count else None,
        "macs_attention": count.attention if count else None,
        "macs_sampling": count.sampling if count else None,
        "macs_all": count.all if count else None,
        "counted_in_execution": row.counted,
        "paper_gmacs": paper.gmacs if paper else None,
        "paper_ms": paper.ms if paper else None,
    }
    record |= timing_record(row)
    record |= {
        "extra_bytes": row.extra,
        "result_bytes": row.result,
        "versus_best_sdpa": row.versus_sdpa,
        "versus_best_sdpa_basis": row.versus_sdpa_basis,
        "versus_plain": row.versus_plain,
        "versus_plain_basis": row.versus_plain_basis,
        "memory_versus_best_sdpa": row.memory_versus_sdpa,
        "memory_versus_plain": row.memory_versus_plain,
    }
    return record | output.machine_record(s.device, row.threads)
