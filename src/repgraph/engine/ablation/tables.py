"""The paper's tables: what each entry changes in a recipe, and what the paper scored.

An entry is a competitor (:data:`KINDS`), settings of its own, and the paper's figures: mIoU and pixel accuracy in per
cent, on ADE20K's val with ResNet-50. Settings are those of recipes; None takes an option out. Stages go by the paper's
names, res2 to res5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repgraph.errors import UsageError
from repgraph.recipes.settings import nearest

# What stands between backbone and classifier. The layers with nodes keep the options that the recipe has.
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {"model.context": "none", "model.context_options": {}},
    "control": {"model.context": "control", "model.context_options": {}},
    "nl": {"model.context": "non_local", "model.context_options": {}},
    "simple": {"model.context": "simple", "model.context_options.norm_expand": None},  # has no such normalisation
    "rgnet": {"model.context": "repgraph"},
}
TITLES = {
    "baseline": "backbone baseline",
    "control": "control: the layer's convolutions, no sampling",
    "nl": "non-local (NL) baseline",
    "simple": "Simple RepGraph",
    "rgnet": "RGNet (Bottleneck RepGraph)",
}
PAPER_DATA = "ADE20K, ResNet-50"


@dataclass(frozen=True)
class Entry:
    """A line of a table; ``settings`` come after those of its ``kind``, and after tuned ones."""

    name: str
    label: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[float, float] | None = None


@dataclass(frozen=True)
class Table:
    """Entries, and the one that differences are taken to."""

    name: str
    title: str
    entries: tuple[Entry, ...]
    reference: str

    def entry(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise UsageError(f"table {self.name} has no entry {name!r}{nearest(name, [e.name for e in self.entries])}")


def _options(**options: Any) -> dict[str, Any]:
    return {f"model.context_options.{name}": value for name, value in options.items()}


def _nodes(count: int, paper: tuple[float, float]) -> Entry:
    return Entry(f"s{count}", f"S = {count}", "rgnet", _options(nodes=count), paper)


def _fused(kind: str, label: str, fusion: str, paper: tuple[float, float] | None) -> Entry:
    nodes = _options(nodes=9) if kind in ("simple", "rgnet") else {}
    return Entry(f"{kind}-{fusion}", f"{label}, {fusion}", kind, {"model.fusion": fusion, **nodes}, paper)


def _inserted(name: str, label: str, stages: dict[str, int], paper: tuple[float, float]) -> Entry:
    return Entry(name, label, "baseline", {"model.inserted": stages}, paper)


def _offsets(spread: str, radius: float | None, multiple: float) -> Entry:
    """Nodes that start so, with offsets that learn at so many times the rate; 0: they stay where they start."""
    start = spread if radius is None else f"{spread}-{radius:g}"
    learns = "fixed" if multiple == 0 else f"rate x {multiple:g}"
    options = _options(nodes=9, spread=spread, radius=radius)
    return Entry(
        f"{start}-x{multiple:g}",
        f"{start.replace('-', ' ')}, {learns}",
        "rgnet",
        {**options, "optim.offset": float(multiple)},
    )


def _form(**options: Any) -> dict[str, Any]:
    """The usual form but for these options; None is what suits a head."""
    usual = dict(nodes=9, scale=None, learn_scale=False, offset_view=1, offset_unit="pixels", node_view=None)
    return _options(**{**usual, "norm_expand": None, **options})


_PAPER = _form(scale=1.0, spread="default", radius=None, node_view=1, norm_expand=True)
BASELINE = Entry("baseline", TITLES["baseline"], "baseline", {}, (36.48, 77.57))
CONTROL = Entry("control", TITLES["control"], "control", {"model.fusion": "concat"})

_TABLES = (
    Table(
        "nodes",
        "Representative nodes",
        (
            BASELINE,
            Entry("nl", TITLES["nl"], "nl", {"model.fusion": "concat"}, (40.97, 79.96)),
            CONTROL,
            _nodes(1, (42.53, 80.08)),
            _nodes(9, (43.12, 80.27)),
            _nodes(12, (42.60, 80.43)),
            _nodes(15, (42.99, 80.45)),
            _nodes(18, (42.85, 80.44)),
            _nodes(27, (43.06, 80.64)),
        ),
        "baseline",
    ),
    Table(
        "instantiations",
        "Instantiations",
        (
            BASELINE,
            _fused("nl", "NL", "sum", (40.3, 79.96)),
            _fused("nl", "NL", "concat", (40.97, 80.01)),
            _fused("control", "control", "sum", None),
            _fused("control", "control", "concat", None),
            _fused("simple", "Simple", "sum", (42.61, 80.191)),
            _fused("simple", "Simple", "concat", (42.98, 80.41)),
            _fused("rgnet", "Bottleneck", "sum", (42.67, 80.46)),
            _fused("rgnet", "Bottleneck", "concat", (43.12, 80.27)),
        ),
        "baseline",
    ),
    Table(
        "stages",
        "Stages: one layer in the backbone, plain head",
        (
            BASELINE,
            _inserted("res2", "res2", {"res2": 1}, (41.52, 79.67)),
            _inserted("res3", "res3", {"res3": 1}, (41.59, 79.97)),
            _inserted("res4", "res4", {"res4": 1}, (41.25, 79.69)),
            _inserted("res5", "res5", {"res5": 1}, (41.34, 79.89)),
        ),
        "baseline",
    ),
    Table(
        "deeper",
        "Deeper: several layers in the backbone, plain head",
        (
            BASELINE,
            _inserted("1-layer", "1 layer (res3)", {"res3": 1}, (41.59, 79.97)),
            _inserted("3-layer", "3 layers (res3, res4, res5)", {"res3": 1, "res4": 1, "res5": 1}, (41.86, 79.85)),
            _inserted("5-layer", "5 layers (res3, 2 res4, 2 res5)", {"res3": 1, "res4": 2, "res5": 2}, (41.76, 79.89)),
        ),
        "baseline",
    ),
    Table(
        "grid",
        "Spatial group: nodes shared by cells of g_s x g_s positions",
        (
            BASELINE,
            Entry("g1", "g_s = 1", "rgnet", _options(nodes=9), (43.12, 80.27)),
            Entry("g5", "g_s = 5", "rgnet", _options(nodes=9, grid=5), (42.40, 80.17)),
            Entry("g13", "g_s = 13", "rgnet", _options(nodes=9, grid=13), (41.82, 80.01)),
            # The paper's 65 is the whole map of its crops; a spread over the map knows no radius.
            Entry("map", "the whole map", "rgnet", _options(nodes=9, grid="map", radius=None), (41.23, 79.73)),
        ),
        "g1",
    ),
    Table(
        "group",
        "Channel group: g_c groups that attend on their own",
        (
            BASELINE,
            Entry("g1", "g_c = 1", "rgnet", _options(nodes=9), (43.12, 80.27)),
            Entry("g4", "g_c = 4", "rgnet", _options(nodes=9, groups=4), (42.78, 80.20)),
            Entry("g8", "g_c = 8", "rgnet", _options(nodes=9, groups=8), (43.01, 80.32)),
            Entry("g16", "g_c = 16", "rgnet", _options(nodes=9, groups=16), (42.96, 80.19)),
            Entry("g32", "g_c = 32", "rgnet", _options(nodes=9, groups=32), (42.38, 80.18)),
        ),
        "g1",
    ),
    Table(
        "offsets",
        "Offsets: where nodes start, and how fast they learn (not in the paper)",
        (
            CONTROL,
            _offsets("default", None, 1),
            _offsets("ring", 4.0, 10),
            *(_offsets("ring", 8.0, multiple) for multiple in (0, 1, 10)),
            _offsets("rings", 4.0, 10),
            *(_offsets(spread, None, multiple) for spread in ("grid", "regions") for multiple in (0, 10)),
        ),
        "ring-8-x10",
    ),
    Table(
        "forms",
        "Forms of the layer: what a node is, scale of the logits, what offsets are regressed from (not in the paper)",
        (
            Entry("usual", "RGNet's: scale 1/C', nodes of 15 x 15 positions, no last normalisation", "rgnet", _form()),
            Entry("paper", "the paper's: scale 1, points, offsets as PyTorch initialises them", "rgnet", _PAPER),
            Entry("norm", "normalisation after expand, as in the paper", "rgnet", _form(norm_expand=True)),
            Entry("points", "nodes of one position, as in the paper", "rgnet", _form(node_view=1)),
            Entry("nodes-5", "nodes of 5 x 5 positions", "rgnet", _form(node_view=5)),
            Entry("nodes-9", "nodes of 9 x 9 positions", "rgnet", _form(node_view=9)),
            Entry("nodes-25", "nodes of 25 x 25 positions", "rgnet", _form(node_view=25)),
            Entry(
                "nodes-79",
                "nodes of 79 x 79 positions: on VOC the mean of the map, or zero for nodes off it",
                "rgnet",
                _form(node_view=79),
            ),
            Entry("scale-1", "scale 1, as in the paper", "rgnet", _form(scale=1.0)),
            Entry("scale-16", "scale 1/16", "rgnet", _form(scale=1 / 16)),
            Entry("learned", "learned temperature", "rgnet", _form(learn_scale=True)),
            Entry("view-3", "offsets from 3 x 3 positions", "rgnet", _form(offset_view=3)),
            Entry("view-map", "offsets from the position and the map's mean", "rgnet", _form(offset_view="map")),
            Entry("unit-map", "offsets in units of the map", "rgnet", _form(offset_unit="map")),
        ),
        "usual",
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _TABLES}


def get(name: str) -> Table:
    """The table of that name.

    >>> get("grid").reference
    'g1'
    """
    if name not in TABLES:
        raise UsageError(f"there is no table {name!r}{nearest(name, [*TABLES, 'all', 'tune'])}")
    return TABLES[name]
