"""Figures of docs/speed.md and the README are those of benchmarks/, whose files have the columns of the benchmarks."""

import re
from pathlib import Path

import pytest
from tests.bench.squares import read

from repgraph.bench import report
from repgraph.bench.layers import BLOCKS, LayerSetting, LayerTable
from repgraph.bench.operator import OperatorSetting, OperatorTable
from repgraph.bench.table import Row, Table

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SPEED = "docs/speed.md"
BLOCK_ROWS = {
    "**Bottleneck RepGraph**": "bottleneck",
    "Bottleneck, grid 4": "bottleneck-grid-4",
    "Bottleneck, 8 groups": "bottleneck-groups-8",
    "Simple RepGraph": "simple",
    "non-local, cuDNN attention, with `nn.Conv2d`": "nl-conv2d",
    "non-local, cuDNN attention, with our 1 x 1 products": "nl-sdpa-cudnn",
    "non-local, plain, with our 1 x 1 products": "nl-plain",
    "DANet head": "danet-head",
}
OPERATOR_ROWS = {
    "`representative_attention`": "own",
    "the same, composed from `grid_sample`": "composition",
    "composed": "composition",
    "`torch.compile` of the composition": "composition-compiled",
    "non-local, cuDNN attention": "sdpa-cudnn",
    "non-local, SDPA's flash kernel": "sdpa-flash",
}

# Bottleneck, measured again after a change; the other rows are those of layers.csv (docs/journal/kernels.md).
BOTTLENECK = {("bfloat16", "forward"): 0.197, ("bfloat16", "forward+backward"): 0.977, ("float32", "forward"): 0.438}
NETWORK_ROWS = {
    "FPN, stride 32": "fpn",
    "**RGNet with a pyramid, stride 32**": "pyramid",
    "backbone baseline, stride 8": "baseline",
    "pyramid pooling, stride 8": "psp",
    "RGNet, stride 8": "rgnet",
    "non-local head, stride 8": "nl",
}


def table_lines(page: str) -> list[list[str]]:
    """Return the cells of all lines of tables in a page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def assert_figures(cell: str, *values: float) -> None:
    """Check that the figures in a cell are these values, rounded to the digits in the cell."""
    for figure, value in zip(re.findall(r"[\d.]+", cell), values, strict=False):
        digits = len(figure.partition(".")[2])
        assert float(figure) == pytest.approx(value, abs=0.51 * 10**-digits), cell


def test_layers():
    rows = [row for row in read(BENCHMARKS / "h200/layers.csv") if row["height"] == "128" and row["width"] == "256"]
    stored = {(row["block"], row["dtype"], row["pass"]): row for row in rows}
    lines = ((line[0].removesuffix(" *"), *line[1:]) for line in table_lines(SPEED) if len(line) == 6)
    found = {BLOCK_ROWS[line[0]]: line for line in lines if line[0] in BLOCK_ROWS}
    assert len(found) == len(BLOCK_ROWS)
    for name, (_, macs, forward, both, float32, memory) in found.items():
        row = stored[name, "bfloat16", "forward"]
        assert_figures(macs, int(row["macs_products"]) / 1e9, float(row["paper_gmacs"] or 0))
        assert_figures(memory, int(row["extra_bytes"]) / 2**20)
        keys = ("bfloat16", "forward"), ("bfloat16", "forward+backward"), ("float32", "forward")
        for cell, key in zip((forward, both, float32), keys, strict=True):
            if cell:
                ours = BOTTLENECK[key]
                its = ours if name == "bottleneck" else float(stored[name, *key]["graph_median_ms"])
                assert_figures(cell, its, its / ours)


@pytest.mark.parametrize(("folder", "device", "own"), [("h200", "NVIDIA H200", "triton"), ("cpu", "CPU", "cpu")])
def test_operator(folder, device, own):
    stored = {
        (row["candidate"], row["pass"], row["shared_kv"]): row for row in read(BENCHMARKS / folder / "operator.csv")
    }
    seen, here, shared = 0, False, ""
    for line in table_lines(SPEED):
        if not line[0] or line[0].startswith("**"):  # a header
            here, shared = line[0].startswith(f"**{device}"), str("key is value" in line[0])
        elif here and (name := OPERATOR_ROWS.get(line[0].split(" (")[0])):
            seen += 1
            name = own if name == "own" else name
            for cell, extra, pass_ in zip(line[1:3], line[3].split("/"), ("forward", "backward"), strict=True):
                rows = (stored[candidate, pass_, shared] for candidate in (name, own))
                its, ours = (float(row["graph_median_ms"] or row["median_ms"]) for row in rows)
                assert_figures(extra, int(stored[name, pass_, shared]["memory_bytes"]) / 2**20)
                if name != "triton":  # measured again later: see benchmarks/README.md
                    assert_figures(cell, its, its / ours)
    assert seen == 6


def test_networks():
    """The table of one image on the CPU, and that of batches on the H200."""
    cpu, h200 = (
        {(row["network"], row["pass"], row["height"]): row for row in read(BENCHMARKS / f"{folder}/networks.csv")}
        for folder in ("cpu", "h200")
    )
    found = [(NETWORK_ROWS[line[0]], *line[1:]) for line in table_lines(SPEED) if line[0] in NETWORK_ROWS]
    # the rows of the pyramid on the H200 are of its earlier form
    assert [len(line) for line in found] == [3] * 6 + [4] * 5
    for name, forward, step, *memory in found:
        rows, trained_at = (h200, "320") if memory else (cpu, "512")
        row = rows[name, "forward", "512"]
        assert_figures(forward, float(row["graph_median_ms"] or row["median_ms"]))
        if not step:
            continue
        row = rows[name, "training step", trained_at]
        if memory:
            assert_figures(memory[0], int(row["memory_bytes"]) / 2**30)
        if not memory or row["graph_median_ms"]:  # without a CUDA graph, the cell links to another measurement
            assert_figures(step, float(row["graph_median_ms"] or row["median_ms"]))


# Rows of the README's tables: file, what selects the row of repgraph, and what selects the other.
ENCODER = {"problem": "detr-encoder", "pass": "forward", "dtype": "float32"}
DETR = {"problem": "deformable-detr", "pass": "forward", "dtype": "float32"}
FUSED = {"dtype": "bfloat16", "height": "128", "width": "256"}
README_ROWS = {
    "attention, 65 x 65": ("cpu/operator", {"pass": "forward", "shared_kv": "False"}, "cpu", "sdpa-flash"),
    "deformable attention, encoder": ("cpu/deformable", ENCODER, "cpu", "composition"),
    "Deformable DETR, 480 x 640": ("cpu/deformable", DETR, "cpu", "composition"),
    "RGNet with a feature": ("cpu/networks", {"pass": "forward"}, "pyramid", "rgnet"),
    "the same, forward + backward": ("h200/layers", FUSED | {"pass": "forward+backward"}, None, "nl-conv2d"),
    "block at": ("h200/layers", FUSED | {"pass": "forward"}, None, "nl-conv2d"),
    "deformable attention as above": ("h200/deformable", ENCODER | {"dtype": "bfloat16"}, "triton", "composition"),
    "Deformable DETR, 800 x 1066": ("h200/deformable", DETR | {"height": "800"}, "triton", "composition"),
}


@pytest.mark.parametrize("start", README_ROWS)
def test_readme(start):
    """Of the block on the H200, only the competitor's time is stored: ours was measured again after a change."""
    file, selected, *candidates = README_ROWS[start]
    (_, *cells, _) = next(line for line in table_lines("README.md") if line[0].startswith(start))
    rows = [
        row for row in read(BENCHMARKS / f"{file}.csv") if selected.items() <= row.items() and row["status"] == "ok"
    ]
    for cell, candidate in zip(cells, candidates, strict=True):
        if candidate:
            row = next(row for row in rows if candidate in (row.get("candidate"), row.get("network"), row.get("block")))
            unit = 1000 if cell.endswith(" s") else 1
            assert_figures(cell, float(row["graph_median_ms"] or row["median_ms"]) / unit)


@pytest.mark.parametrize(
    ("table", "setting", "stored"),
    [
        (OperatorTable(), OperatorSetting(height=5, width=6), "cpu/operator.csv"),
        (LayerTable(), LayerSetting(height=5, width=6, channels=16, mid_channels=8), "h200/layers.csv"),
    ],
    ids=["operator", "layers"],
)
def test_columns_are_those_of_the_stored_files(table: Table, setting, stored):
    candidate = table.candidates[0]
    row = Row(candidate, setting, table.passes[0], facts=table.facts(candidate, setting))
    removed = {
        "family",
        "seed",
        "repeat",
        "kept_bytes",
        "counted_in_execution",
        "macs_all",
        "groups",
        "grid",
        "tf32",
        "paper_ms",
    }
    removed |= {"macs_convolutions", "macs_attention", "macs_sampling"}
    expected = {name for name in read(BENCHMARKS / stored)[0] if "versus_" not in name} - removed
    assert set(report.record(table, row)) == expected - {"result_bytes", "seconds", "limit"}


def test_blocks_are_those_of_the_stored_file():
    unmeasured = {"bottleneck-rounds-3"}  # newer than the file
    stored = {row["block"] for row in read(BENCHMARKS / "h200/layers.csv")}
    assert (stored | unmeasured) - {"danet-block"} == {block.name for block in BLOCKS} and not stored & unmeasured
