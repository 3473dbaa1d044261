"""The paper's tables: the settings of each entry, and the paper's scores.

An entry is a competitor (:data:`KINDS`), its own settings, and the paper's mIoU and pixel accuracy in percent, on
ADE20K val with ResNet-50. Settings are those of recipes; None removes an option. Stages are named as in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from repgraph.constants import DECODERS
from repgraph.errors import UsageError, nearest
from repgraph.recipes import PYRAMID_OPTIMIZER, Recipe, with_values


class Kind(NamedTuple):
    """A competitor: the network between backbone and classifier."""

    title: str
    settings: dict[str, Any]


_PYRAMID: dict[str, Any] = {"model.decoder": "pyramid", "model.context_options": {}}
_PYRAMID |= {f"optim.{name}": value for name, value in PYRAMID_OPTIMIZER.items()}
# Layers with nodes keep the options of the recipe; Simple RepGraph has no norm after expand.
KINDS = {
    "baseline": Kind("backbone baseline", {"model.context": "none", "model.context_options": {}}),
    "control": Kind(
        "control: the layer's convolutions, no sampling", {"model.context": "control", "model.context_options": {}}
    ),
    "nl": Kind("non-local (NL) baseline", {"model.context": "non_local", "model.context_options": {}}),
    "simple": Kind("Simple RepGraph", {"model.context": "simple", "model.context_options.norm_expand": None}),
    "rgnet": Kind("RGNet (Bottleneck RepGraph)", {"model.context": "repgraph"}),
    "psp": Kind("pyramid pooling (PSP)", {"model.context": "psp", "model.context_options": {}}),
    "fpn": Kind("feature pyramid (FPN), output stride 32", {**_PYRAMID, "model.context": "none"}),
    "pyramid": Kind("RGNet with a feature pyramid, output stride 32", {**_PYRAMID, "model.context": "repgraph"}),
}
STAGES = {"res2": "layer1", "res3": "layer2", "res4": "layer3", "res5": "layer4"}  # the paper's and timm's names

# One round whose nodes are means of 15 x 15 positions; for recipes that give no options.
MEANS = {f"model.context_options.{name}": value for name, value in dict(rounds=1, radius=8.0, node_view=15).items()}

Paper = tuple[float, float] | None


@dataclass(frozen=True)
class TableEntry:
    """A row of a table; its ``settings`` override the settings of its ``kind`` and tuned settings.

    ``means``: RGNet in the form in which the paper's tables were measured (:data:`MEANS`).
    """

    name: str
    label: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Paper = None
    means: bool = False


class Table:
    """Entries, and the ``reference`` that they are compared with."""

    def __init__(self, name: str, title: str, reference: str, *entries: TableEntry) -> None:
        self.name, self.title, self.reference, self.entries = name, title, reference, entries

    def entry(self, name: str) -> TableEntry:
        known = {entry.name: entry for entry in self.entries}
        if name not in known:
            raise UsageError(f"table {self.name} has no entry {name!r}{nearest(name, known)}")
        return known[name]


@dataclass(frozen=True)
class PlannedRun:
    """One run. ``key`` names its folder; ``settings`` are the differences from the base recipe."""

    label: str
    recipe: Recipe
    key: str
    settings: str

    @property
    def seed(self) -> int:
        return self.recipe.train.seed

    def __str__(self) -> str:
        return f"{self.label}, seed {self.seed}"


@dataclass(frozen=True)
class EntryRuns:
    """An entry with its runs, one for each seed, or the reason why it does not fit the network (``misfit``)."""

    entry: TableEntry
    runs: tuple[PlannedRun, ...]
    misfit: str = ""


def _rgnet(name: str, label: str, paper: Paper = None, rate: float | None = None, **options: Any) -> TableEntry:
    """RGNet with nine nodes, options of its layer, and a multiple of the learning rate for offsets."""
    settings = {f"model.context_options.{option}": value for option, value in {"nodes": 9, **options}.items()}
    settings = settings if rate is None else {**settings, "optim.offset": rate}
    return TableEntry(name, label, "rgnet", settings, paper, means=True)


def _form(name: str, label: str, **options: Any) -> TableEntry:
    """RGNet with these options, and the usual form otherwise."""
    return _rgnet(name, label, **{"scale": None, "node_view": 15, "norm_expand": False, **options})


def _fused(kind: str, label: str, fusion: str, paper: Paper) -> TableEntry:
    nodes = {"model.context_options.nodes": 9} if kind in ("simple", "rgnet") else {}
    settings = {"model.fusion": fusion, **nodes}
    return TableEntry(f"{kind}-{fusion}", f"{label}, {fusion}", kind, settings, paper, means=kind == "rgnet")


def _inserted(name: str, label: str, paper: Paper, **stages: int) -> TableEntry:
    return TableEntry(name, label, "baseline", {"model.inserted": stages}, paper)


BASELINE = TableEntry("baseline", KINDS["baseline"].title, "baseline", {}, (36.48, 77.57))
CONTROL = TableEntry("control", KINDS["control"].title, "control", {"model.fusion": "concat"})

_TABLES = (
    Table(
        "nodes",
        "Representative nodes",
        "baseline",
        BASELINE,
        TableEntry("nl", KINDS["nl"].title, "nl", {"model.fusion": "concat"}, (40.97, 79.96)),
        CONTROL,
        _rgnet("s1", "S = 1", (42.53, 80.08), nodes=1),
        _rgnet("s9", "S = 9", (43.12, 80.27), nodes=9),
        _rgnet("s12", "S = 12", (42.60, 80.43), nodes=12),
        _rgnet("s15", "S = 15", (42.99, 80.45), nodes=15),
        _rgnet("s18", "S = 18", (42.85, 80.44), nodes=18),
        _rgnet("s27", "S = 27", (43.06, 80.64), nodes=27),
    ),
    Table(
        "instantiations",
        "Instantiations",
        "baseline",
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
    Table(
        "stages",
        "Stages: one layer in the backbone, plain head",
        "baseline",
        BASELINE,
        _inserted("res2", "res2", (41.52, 79.67), res2=1),
        _inserted("res3", "res3", (41.59, 79.97), res3=1),
        _inserted("res4", "res4", (41.25, 79.69), res4=1),
        _inserted("res5", "res5", (41.34, 79.89), res5=1),
    ),
    Table(
        "deeper",
        "Deeper: several layers in the backbone, plain head",
        "baseline",
        BASELINE,
        _inserted("1-layer", "1 layer (res3)", (41.59, 79.97), res3=1),
        _inserted("3-layer", "3 layers (res3, res4, res5)", (41.86, 79.85), res3=1, res4=1, res5=1),
        _inserted("5-layer", "5 layers (res3, 2 res4, 2 res5)", (41.76, 79.89), res3=1, res4=2, res5=2),
    ),
    Table(
        "grid",
        "Spatial group: nodes shared by cells of g_s x g_s positions",
        "g1",
        BASELINE,
        _rgnet("g1", "g_s = 1", (43.12, 80.27)),
        _rgnet("g5", "g_s = 5", (42.40, 80.17), grid=5),
        _rgnet("g13", "g_s = 13", (41.82, 80.01), grid=13),
        # The paper's 65 is the whole map of its crops; a spread over the map has no radius.
        _rgnet("map", "the whole map", (41.23, 79.73), grid="map", radius=None),
    ),
    Table(
        "group",
        "Channel group: g_c groups that attend on their own",
        "g1",
        BASELINE,
        _rgnet("g1", "g_c = 1", (43.12, 80.27)),
        _rgnet("g4", "g_c = 4", (42.78, 80.20), groups=4),
        _rgnet("g8", "g_c = 8", (43.01, 80.32), groups=8),
        _rgnet("g16", "g_c = 16", (42.96, 80.19), groups=16),
        _rgnet("g32", "g_c = 32", (42.38, 80.18), groups=32),
    ),
    Table(
        "offsets",
        "Offsets: where nodes start, and how fast they learn (not in the paper)",
        "ring-8-x10",
        CONTROL,
        _rgnet("default-x1", "default, rate x 1", rate=1.0, spread="default", radius=None),
        _rgnet("ring-4-x10", "ring 4, rate x 10", rate=10.0, spread="ring", radius=4.0),
        _rgnet("ring-8-x0", "ring 8, fixed", rate=0.0, spread="ring", radius=8.0),
        _rgnet("ring-8-x1", "ring 8, rate x 1", rate=1.0, spread="ring", radius=8.0),
        _rgnet("ring-8-x10", "ring 8, rate x 10", rate=10.0, spread="ring", radius=8.0),
        _rgnet("grid-x0", "grid, fixed", rate=0.0, spread="grid", radius=None),
        _rgnet("grid-x10", "grid, rate x 10", rate=10.0, spread="grid", radius=None),
    ),
    Table(
        "forms",
        "Forms of the layer: what a node is, scale of the logits, the last normalization (not in the paper)",
        "usual",
        _form("usual", "reference: scale 1/C', nodes averaged over 15 x 15 positions, one round, no norm after expand"),
        _form(
            "paper",
            "the paper's: scale 1, points, offsets as PyTorch initializes them",
            **{"scale": 1.0, "spread": "default", "radius": None, "node_view": 1, "norm_expand": True},
        ),
        _form("norm", "normalization after expand, as in the paper", norm_expand=True),
        _form("points", "nodes of one position, as in the paper", node_view=1),
        _form("nodes-5", "nodes averaged over 5 x 5 positions", node_view=5),
        _form("nodes-9", "nodes averaged over 9 x 9 positions", node_view=9),
        _form("nodes-25", "nodes averaged over 25 x 25 positions", node_view=25),
        _form(
            "nodes-79", "nodes averaged over 79 x 79 positions (on VOC the whole map, or zero outside it)", node_view=79
        ),
        _form("scale-1", "scale 1, as in the paper", scale=1.0),
        _form("scale-16", "scale 1/16", scale=1 / 16),
    ),
    Table(
        "choose",
        "Networks to choose from (not in the paper)",
        "nl",
        *(TableEntry(kind, KINDS[kind].title, kind) for kind in ("baseline", "nl", "psp", "rgnet", "fpn", "pyramid")),
    ),
)
TABLES: dict[str, Table] = {table.name: table for table in _TABLES}


def resolve(entry: TableEntry, start: Recipe, tuned: Mapping[str, Any] | None = None) -> tuple[Recipe, str]:
    """Return an entry's recipe, from ``start`` and the settings ``tuned`` for its kind, and why it cannot be built."""
    model = start.model
    form = MEANS if entry.means and not model.context_options else {}
    settings = {**KINDS[entry.kind].settings, **form, **(tuned or {}), **entry.settings}
    stride = DECODERS["pyramid"][0]
    if settings.get("model.decoder") == "pyramid" and model.output_stride not in (None, stride):
        return start, f"its backbone has output stride {model.output_stride}, and a pyramid needs {stride}"
    if stages := settings.get("model.inserted"):
        if not any(name in model.backbone for name in ("resnet", "resnext")):
            return start, f"its backbone {model.backbone!r} is not a ResNet and has no stage {', '.join(stages)}"
        settings["model.inserted"] = {STAGES[name]: count for name, count in stages.items()}
        settings["model.inserted_options"] = {**model.context_options, "nodes": 9}
    if entry.kind == "control" and "norm_expand" in model.context_options:  # the same convolutions as the layer
        settings["model.context_options.norm_expand"] = model.context_options["norm_expand"]
    removed = [name.removeprefix("model.context_options.") for name, value in settings.items() if value is None]
    recipe = with_values(start, {name: value for name, value in settings.items() if value is not None})
    options = {name: value for name, value in recipe.model.context_options.items() if name not in removed}
    recipe = with_values(recipe, {"model.context_options": options})
    channels = recipe.model.channels or DECODERS[recipe.model.decoder][1]
    groups, inner = options.get("groups", 1), options.get("mid_channels") or channels // 2
    if not isinstance(groups, int) or not isinstance(inner, int) or groups < 1 or inner % groups:
        return start, f"groups={groups} does not divide the layer's {inner} inner channels"
    return recipe.model_copy(update={"name": f"{start.data.name}-{entry.name}", "description": ""}), ""
