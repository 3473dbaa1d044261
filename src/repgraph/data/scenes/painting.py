"""A scene as a picture and its labels."""

import numpy as np
from numpy.typing import NDArray

from repgraph.data.scenes import landscape, things
from repgraph.data.scenes.canvas import Canvas
from repgraph.data.scenes.chance import hashed
from repgraph.data.scenes.world import Scene

NAMES = ("sky", "woods", "building", "water", "sand", "snow", "inbound boat", "outbound boat")
SKY, WOODS, BUILDING, WATER, SAND, SNOW, INBOUND, OUTBOUND = range(8)


def paint(scene: Scene, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The picture (H, W, 3) of a scene and its labels (H, W).

    >>> from repgraph.data.scenes.world import scene
    >>> picture, labels = paint(scene(0, "train", 0), (96, 128))
    >>> picture.shape, labels.shape
    ((96, 128, 3), (96, 128))
    """
    canvas = Canvas.blank(size)
    landscape.sky(canvas, scene, SKY)
    for tower in scene.lighthouses:
        things.beam(canvas, scene, tower)
    landscape.disc(canvas, scene)
    landscape.hills(canvas, scene, WOODS)
    for house in scene.cottages:
        things.cottage(canvas, scene, house, BUILDING)
    for tower in scene.lighthouses:
        things.lighthouse(canvas, scene, tower, BUILDING)
    landscape.water(canvas, scene, WATER)
    for boat in scene.boats:
        outbound = scene.lighthouses[boat.lighthouse].blue
        things.boat(canvas, boat, OUTBOUND if outbound else INBOUND, sea=WATER)
    landscape.near_shore(canvas, scene, SNOW if scene.moon else SAND)
    for pine in scene.pines:
        things.pine(canvas, pine, scene.light[0], WOODS)
    return _bytes(canvas, scene.seed + 99), canvas.labels


def _bytes(canvas: Canvas, seed: int) -> NDArray[np.uint8]:
    """The picture as bytes, with the grain of a photograph."""
    height, width = canvas.labels.shape
    grain = hashed(seed, np.arange(width)[None, :], np.arange(height)[:, None]) - np.float32(0.5)
    picture = np.clip(canvas.picture + np.float32(0.028) * grain, 0.0, 1.0)
    return np.ascontiguousarray((picture * np.float32(255.0) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0))
