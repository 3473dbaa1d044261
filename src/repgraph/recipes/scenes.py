"""A small network on the embedded scenes, with the RepGraph layer and without it: a minute each on the CPU.

Nodes start on a ring of 10 positions (40 pixels), whose offsets learn 20 times as fast as the rest, and logits are
scaled as in scaled dot products. Unscaled, the node on the query itself has the largest logit and takes all; from a
ring of 4 positions they do not find what is far: with either, RGNet scored no more than the baseline. Nodes are points,
as what they have to find is small. Boats, a few per cent of the pixels, weigh five times as much as the rest.
"""

from typing import Any

from repgraph.recipes.recipe import Context, Data, Model, Optim, Recipe, Test
from repgraph.recipes.sections import Train

SIZE = (96, 128)
NODES = {"spread": "ring", "radius": 10.0, "scale": 0.125, "node_view": 1, "norm_expand": True}


def _recipe(name: str, title: str, context: Context, options: dict[str, Any]) -> Recipe:
    return Recipe(
        name=name,
        data=Data("scenes", crop=SIZE, scales=(1.0,), workers=0, cache=True),
        model=Model(
            backbone="repgraph_small",
            weights="none",
            output_stride=4,
            context=context,
            context_options=options,
            channels=96,
            auxiliary=False,
            dropout=0.0,
        ),
        optim=Optim(lr=0.05, offset=20.0, weight_decay=1e-4, class_weights=(*(1.0,) * 6, 5.0, 5.0)),
        train=Train(batch=8, iterations=600, period=150, precision="fp32", norm="local", accelerator="cpu"),
        test=Test(crop=SIZE),
        description=f"{title}, small, on the embedded scenes.\n  repgraph train {name} --out runs/{name}",
    )


RECIPES = (
    _recipe("scenes-baseline", "The backbone baseline", "none", {}),
    _recipe(
        "scenes-control", "The control (the layer's convolutions without its nodes)", "control", {"norm_expand": True}
    ),
    _recipe("scenes-nl", "The non-local baseline", "non_local", {}),
    _recipe("scenes-rgnet", "RGNet", "repgraph", NODES),
)
