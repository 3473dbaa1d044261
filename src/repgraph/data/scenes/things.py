"""The small parts of a scene: lighthouses, cottages, boats and pines."""

import numpy as np

from repgraph.data.scenes.canvas import Canvas, Colour, Point, blend, rgb
from repgraph.data.scenes.chance import Array, smooth
from repgraph.data.scenes.world import Boat, Cottage, Lighthouse, Pine, Scene

ORANGE, BLUE = rgb(255, 132, 24), rgb(64, 150, 255)
HALO, BEAM = 8.0, 9.0  # how far a lamp shines around it, and half the width of its beam at the upper edge, in units
STONE, BAND, ROOF, SAIL = rgb(226, 220, 210), rgb(120, 92, 96), rgb(62, 58, 74), rgb(240, 234, 224)
PANE, LEAF, LIT = rgb(250, 224, 150), rgb(26, 52, 56), rgb(190, 190, 140)
WHITE = (1.0, 1.0, 1.0)


def beam(canvas: Canvas, scene: Scene, one: Lighthouse) -> None:
    """Light of the lamp's colour, which opens to the sky: a cue."""
    x, y = lamp(scene, one)
    part = canvas.part(x - BEAM, 0, x + BEAM, y)
    up = np.clip((np.float32(y) - part.y) / np.float32(y), 0.0, 1.0)  # 0 at the lamp, 1 at the upper edge
    across = (part.x - np.float32(x))[None, :] / (1.5 + (BEAM - 1.5) * up)[:, None]
    strength = np.where(part.y < np.float32(y), 0.8 - 0.5 * up, np.float32(0.0))
    part.paint(smooth(np.maximum(1.0 - across * across, 0.0)) * strength[:, None], BLUE if one.blue else ORANGE)


def lamp(scene: Scene, one: Lighthouse) -> Point:
    """Where its lamp is."""
    return one.x, scene.horizon - one.height - 2.4


def lighthouse(canvas: Canvas, scene: Scene, one: Lighthouse, label: int) -> None:
    """A tower that narrows to the top, with a lamp that shines in its colour: a cue."""
    foot, top, x = scene.horizon + 0.6, scene.horizon - one.height, one.x
    shine = BLUE if one.blue else ORANGE
    part = canvas.part(x - HALO, top - 11, x + HALO, foot + 1)
    colour = _flat(part, STONE) * (1.05 - 0.13 * (part.x - np.float32(x - 2)))
    if one.banded:
        bands = part.cover(np.abs((part.y - np.float32(top)) % np.float32(6.0) - 3.0) - 1.5)[:, None]
        colour = colour + bands * (_flat(part, BAND) - colour)
    body = part.polygon([(x - 1.5, top), (x + 1.5, top), (x + 2.6, foot), (x - 2.6, foot)])
    part.paint(part.cover(body), np.clip(colour, 0.0, 1.0), label)
    part.paint(part.cover(part.box(x - 2.5, top - 0.7, x + 2.5, top + 0.5)), ROOF, label)
    part.paint(part.cover(part.box(x - 1.6, top - 4.2, x + 1.6, top - 0.7)), shine, label)
    part.paint(part.cover(part.polygon([(x, top - 6.6), (x + 2.3, top - 4.1), (x - 2.3, top - 4.1)])), ROOF, label)
    part.light(part.glow(lamp(scene, one), HALO) * 0.7, shine)
    part.light(part.glow(lamp(scene, one), 1.6) * 0.6, WHITE)


def cottage(canvas: Canvas, scene: Scene, one: Cottage, label: int) -> None:
    """A house on the far shore, with a lit window or a dark one."""
    foot, half = scene.horizon + 0.4, one.width / 2
    eaves, ridge, x = foot - 3.4, foot - 6.0, one.x
    part = canvas.part(x - half - 2, ridge - 1, x + half + 2, foot + 1)
    part.paint(part.cover(part.box(x - half, eaves, x + half, foot)), blend(STONE, scene.sky[1], 0.25), label)
    corners = [(half - 0.9, ridge), (half + 0.7, eaves + 0.2)]
    roof = [(x - corners[0][0], ridge), *((x + dx, y) for dx, y in corners), (x - corners[1][0], corners[1][1])]
    part.paint(part.cover(part.polygon(roof)), blend(ROOF, BAND, 0.4), label)
    part.paint(part.cover(part.box(x - 0.8, eaves + 0.9, x + 0.8, eaves + 2.4)), PANE if one.lit else ROOF)


def boat(canvas: Canvas, one: Boat, label: int, sea: int) -> None:
    """A hull with two sails, and its image in the water; painted in the same way wherever it is bound."""
    size, x, y, way = one.size, one.x, one.y, -1.0 if one.left else 1.0

    def shape(*points: Point) -> Array:
        placed = [(x + 1.2 * way * size * px, y + size * py) for px, py in points]
        return part.polygon(placed if way > 0 else placed[::-1])

    part = canvas.part(x - 10 * size, y - 14 * size, x + 10 * size, y + 8 * size)
    image = part.cover(part.disc((x, y + 2.4 * size), 2.3 * size, 2.8)) * 0.4
    part.paint(np.where(part.labels == sea, image, np.float32(0.0)), blend(SAIL, one.hull, 0.35))
    shaded = np.clip(0.84 + np.float32(0.02 * way / size) * (part.x - np.float32(x)), 0.6, 1.0)
    sail = _flat(part, SAIL) * shaded
    parts: list[tuple[Array, Colour | Array]] = [
        (shape((-0.3, -12.6), (0.3, -12.6), (0.3, -1.0), (-0.3, -1.0)), one.hull),  # mast
        (shape((-0.4, -12.0), (-0.4, -2.2), (-5.6, -2.2)), sail),
        (shape((0.5, -10.4), (5.4, -2.4), (0.5, -2.4)), sail * np.float32(0.93)),
        (shape((-6.2, -1.8), (6.8, -1.8), (4.6, 1.2), (-4.8, 1.2)), one.hull),
    ]
    for distance, colour in parts:
        part.paint(part.cover(distance), colour)
    part.mark(np.minimum.reduce([distance for distance, _ in parts]) < 0.3, label)  # with the slits between them


def pine(canvas: Canvas, one: Pine, light: float, label: int) -> None:
    """Tiers of branches on a trunk, with a soft shadow away from the light."""
    x, y, height = one.x, one.y, one.height
    side = 1.0 if light < x else -1.0
    reach = 0.42 * height
    ground = canvas.part(x - 1.6 * reach, y - 4, x + 1.6 * reach, y + 4)
    ground.shade(1.0 - 0.42 * smooth(ground.glow((x + side * 0.55 * reach, y + 0.2), 2.6, reach / 2.6)))
    part = canvas.part(x - height * 0.35, y - height - 1, x + height * 0.35, y + 1)
    part.paint(part.cover(part.box(x - 0.8, y - height * 0.3, x + 0.8, y)), blend(LEAF, BAND, 0.4), label)
    for tier in range(4):
        low, half = y - height * (0.12 + 0.19 * tier), height * (0.25 - 0.045 * tier)
        middle = x + one.lean * (tier + 1) * 0.3
        share = np.clip(0.5 - np.float32(side / (2 * half)) * (part.x - np.float32(x)), 0.0, 1.0)
        dark, lit = _flat(part, LEAF), _flat(part, blend(LEAF, LIT, 0.16 + 0.05 * tier))
        branches = part.polygon([(middle, low - height * 0.31), (middle + half, low), (middle - half, low)])
        part.paint(part.cover(branches), dark + (lit - dark) * share, label)


def _flat(part: Canvas, colour: Colour) -> Array:
    """The colour as (3, H, W)."""
    planes = np.array(colour, np.float32)[:, None, None]
    return np.broadcast_to(planes, part.picture.shape)
