"""Mask R-CNN with nothing, a non-local block or a RepGraph layer in res4: on COCO, and on the objects of VOC.

On COCO it is the usual short schedule of Mask R-CNN; the paper does not give its own. VOC's is for one GPU: the images
of its segmentation, with the shorter side at 320 pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from repgraph.recipes.detection import Context, DetectionData, DetectionModel, DetectionOptim, DetectionRecipe
from repgraph.recipes.sections import Train

CONTEXTS: dict[str, Context] = {"baseline": "none", "nl": "non_local", "repgraph": "repgraph"}
_TITLES = {
    "baseline": "Mask R-CNN",
    "nl": "Mask R-CNN with a non-local block in res4",
    "repgraph": "Mask R-CNN with a RepGraph layer in res4",
}


@dataclass(frozen=True)
class _Row:
    title: str
    min_size: int
    max_size: int
    optim: DetectionOptim
    train: Train
    paper: Mapping[str, str] = field(default_factory=dict)


_ROWS = {
    "coco": _Row(
        "COCO 2017",
        800,
        1333,
        DetectionOptim(),
        Train(batch=16, iterations=90_000, period=1_000, validate_every=10),
        {
            "baseline": "box AP 38.0, AP50 59.6, AP75 41.0; mask AP 34.6, AP50 56.4, AP75 36.5, on test2017",
            "nl": "box AP 39.0, AP50 61.1, AP75 41.9; mask AP 35.5, AP50 58.0, AP75 37.4, on test2017",
            "repgraph": "box AP 39.6, AP50 61.4, AP75 42.1; mask AP 36.0, AP50 57.9, AP75 37.9, on test2017",
        },
    ),
    "voc_instances": _Row(
        "objects of PASCAL VOC 2012 (annotations/instances_SPLIT.json)",
        320,
        480,
        DetectionOptim(warmup=250),
        Train(batch=16, iterations=2_500, period=500, validate_every=5),
    ),
}


def _recipe(row: str, context: str) -> DetectionRecipe:
    name, said = f"{row}-r50-{context}", _ROWS[row]
    lines = [
        f"{_TITLES[context]}, ResNet-50-FPN, on {said.title}.",
        f"  repgraph train {name} --data ROOT --weights FILE --out runs/{name}",
    ]
    if paper := said.paper.get(context):
        lines.append(f"  The paper: {paper}.")
    return DetectionRecipe(
        name=name,
        data=DetectionData(),
        model=DetectionModel(context=CONTEXTS[context], min_size=(said.min_size,), max_size=said.max_size),
        optim=said.optim,
        train=said.train,
        description="\n".join(lines),
    )


RECIPES = tuple(_recipe(row, context) for row in _ROWS for context in CONTEXTS)
