"""The pictures on the demo's page."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repgraph.data.scenes import LABELS, Scene, Scenes, paint
from repgraph.data.scenes.painting import INBOUND, OUTBOUND, SAND, SNOW
from repgraph.data.transforms import normalise
from repgraph.demo.measure import depends_on
from repgraph.engine.inference import predict
from repgraph.models import RGNet
from repgraph.pictures import nodes, page
from repgraph.pictures.overlay import colour
from repgraph.pictures.page import Html

ZOOM = 4  # the scenes are drawn anew for pictures that are looked at closely
_ARROW = dict(stroke="#fff", stroke_width=0.9, stroke_linecap="round", stroke_dasharray="2 1.6", fill="none")


def large(data: Scenes, scene: Scene) -> np.ndarray:
    """The scene, four times as large as the networks see it."""
    height, width = data.size
    return paint(scene, (ZOOM * height, ZOOM * width))[0]


def small(image: Tensor, alt: str) -> Html:
    """An image as the networks see it."""
    return page.image(image.permute(1, 2, 0).numpy(), alt, photo=True)


def labels(classes: Any, alt: str) -> Html:
    return page.image(colour(np.asarray(classes), LABELS.palette), alt)


def predicted(model: RGNet, image: Tensor, alt: str) -> Html:
    return labels(predict(model, image), alt)


def explained(data: Scenes, scene: Scene) -> Html:
    """The scene with an arrow from each cue to what it decides."""
    width = float(data.size[1])
    marks = []
    for boat in scene.boats:
        tower = scene.lighthouses[boat.lighthouse]
        top = scene.horizon - tower.height
        marks.append(_arrow((tower.x, top + 6), (boat.x, boat.y - 14.5 * boat.size)))
    between = itertools.pairwise(sorted(boat.x for boat in scene.boats))
    gaps = [(a + b) / 2 for a, b in between] or [width / 4]
    x, y = scene.light
    marks.append(_arrow((x, y + 7), (min(gaps, key=lambda gap: abs(gap - x)), 88)))
    return nodes.drawing(large(data, scene), data.size, *marks, alt="A bay with lighthouses and boats; arrows as below")


def _arrow(start: tuple[float, float], end: tuple[float, float], bend: float = 0) -> Html:
    (x0, y0), (x1, y1) = start, end
    tip = f"M {x1 - 1.6:.1f} {y1 - 2.2:.1f} L {x1:.1f} {y1:.1f} L {x1 + 1.6:.1f} {y1 - 2.2:.1f}"
    middle = (x0 + x1) / 2 + bend, (y0 + y1) / 2
    line = f"M {x0:.1f} {y0:.1f} Q {middle[0]:.1f} {middle[1]:.1f} {x1:.1f} {y1 - 0.5:.1f}"
    return page.tag(
        "g", page.tag("path", d=line, **_ARROW), page.tag("path", d=tip, **(_ARROW | {"stroke_dasharray": None}))
    )


def spots(data: Scenes, scene: Scene) -> list[tuple[int, int]]:
    """A place (x, y) on a boat, and one on the near shore: those that are least hidden by pines."""
    mask = data.draw(scene)[1]

    def free(places: Sequence[tuple[float, float]], classes: tuple[int, ...]) -> tuple[int, int]:
        def clear(place: tuple[float, float]) -> int:
            x, y = int(place[0]), int(place[1])
            around = mask[max(0, y - 4) : y + 5, max(0, x - 4) : x + 5]
            return int(torch.isin(around, torch.tensor(classes)).sum())

        x, y = max(places, key=clear)
        return int(x), int(y)

    width = data.size[1]
    boat = free([(b.x, b.y - 5 * b.size) for b in scene.boats], (INBOUND, OUTBOUND))
    shore = free([(width * share, 89) for share in (0.5, 0.35, 0.65, 0.2, 0.8)], (SAND, SNOW))
    return [boat, shore]


def dependence(model: RGNet, data: Scenes, scene: Scene, at: tuple[int, int], alt: str) -> Html:
    """The scene, dark where it makes no difference to what the network says at a place."""
    image, _ = data.draw(scene)
    counts = _spread(depends_on(model, image, at))
    strong = counts / max(float(np.quantile(counts[counts > 0], 0.9)), 1e-30)
    share = np.clip(strong, 0, 1)[:, :, None] ** 0.6
    picture = image.permute(1, 2, 0).numpy().astype(np.float64)
    dark = 14 + 0.22 * picture.mean(-1, keepdims=True)
    shown = (dark + share * (picture - dark)).astype(np.uint8)
    here = nodes.draw([nodes.Look(*at, nodes=())], data.size[1])
    return nodes.drawing(shown, data.size, here, alt=alt)


def _spread(values: np.ndarray, reach: int = 2) -> np.ndarray:
    """The largest value around each pixel, smoothed: strides leave a fine pattern."""
    for function in (np.max, np.mean):
        padded = np.pad(values, reach, mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * reach + 1, 2 * reach + 1))
        values = function(windows, axis=(2, 3))
    return values


def looks(model: RGNet, data: Scenes, scene: Scene, places: Sequence[tuple[int, int]], alt: str) -> tuple[Html, str]:
    """The nodes of some places, and how far off those with the most attention are."""
    image, _ = data.draw(scene)
    with torch.no_grad():
        where, weights = model.nodes(normalise(image[None], model.mean, model.std))
    found = [nodes.look(where[0], weights[0], at, data.size) for at in places]
    far = " and ".join(f"{look.farthest:.0f}" for look in found)
    return nodes.drawing(large(data, scene), data.size, nodes.draw(found, data.size[1]), alt=alt), far
