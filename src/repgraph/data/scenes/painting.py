"""The content of a scene, sampled from a seed, a split and an index, and how it is drawn.

A bay at dusk, in which two things look the same for both of their classes: the near shore is sand under the sun and
snow under the moon, and a boat is inbound if the lighthouse above it has an orange light and outbound if the light is
blue. These cues have their own random stream, so the rest of the image does not depend on them.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from repgraph.data.labels import hex_palette
from repgraph.data.scenes.canvas import Array, Canvas, Colour, Point, Stream, fractal, noise, planes, smoothstep

NAMES = ("sky", "woods", "building", "water", "sand", "snow", "inbound boat", "outbound boat")
SKY, WOODS, BUILDING, WATER, SAND, SNOW, INBOUND, OUTBOUND = range(8)


def blend(first: Colour, second: Colour, share: float) -> Colour:
    return (1 - share) * first + share * second


def rgb(text: str) -> Array:
    """Return colors (N, 3) of six hexadecimal digits each."""
    return np.array(hex_palette(text)) / 255


SUN, WARM, MOON, COLD = rgb("ffecb2 ffbe6e eef2ff 5c84d6")
PALE, WOOD, DEEP, WHITE, ORANGE, BLUE = rgb("e2dbd6 1e303a 286078 ffffff ff8418 4096ff")
STONE, BAND, ROOF, SAIL, PANE, LEAF, LIT = rgb("e2dcd2 785c60 3e3a4a f0eae0 fae096 1a3438 bebe8c")
HULLS = rgb("5c2c2e 2c3a54 3c3634 34524c")
# Rose, teal, violet, amber and sea green: colors at the zenith, in the middle and at the horizon.
DUSKS = rgb(
    "343a68 ac708a f7c096 224264 628c9c eed6ac 2e2a5a 7a5c94 f0aca0 425076 bc927c fad698 1e3a56 689696 f4deb8"
).reshape(5, 3, 3)
RADIUS = 5.2  # of the sun and moon
HALO, BEAM = 8.0, 9.0  # radius of the glow of a lamp, and half the width of its beam at the upper edge, in units
SLOT = 128.0 / 3  # width in units of a lighthouse and its boat
_FLAT = np.zeros(1, np.float32)


class Lighthouse(NamedTuple):
    x: float
    height: float
    banded: bool
    blue: bool  # its light: a cue


class Boat(NamedTuple):
    x: float  # (x, y) is the center of its waterline
    y: float
    size: float
    left: bool  # heading
    hull: Colour
    lighthouse: int


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything in an image; lengths are in units, see :data:`repgraph.data.scenes.canvas.HEIGHT`."""

    seed: int  # of its textures
    sky: Array  # colors at the zenith, in the middle and at the horizon
    moon: bool  # instead of the sun: the cue of the near shore
    light: Point  # center of the sun or moon
    horizon: float
    shore: float
    hills: tuple[float, float]  # heights of the far and near range
    lighthouses: tuple[Lighthouse, ...]
    boats: tuple[Boat, ...]
    pines: tuple[tuple[float, float, float, float], ...]  # x and y of the foot, height, lean
    cottages: tuple[tuple[float, float, bool], ...]  # x, width, whether there is light

    def swapped(self, sky: bool = False, lights: tuple[int, ...] = ()) -> "Scene":
        """Return the scene with sun and moon exchanged, or with the other color for some lights."""
        lighthouses = tuple(each._replace(blue=each.blue != (i in lights)) for i, each in enumerate(self.lighthouses))
        return replace(self, moon=self.moon != sky, lighthouses=lighthouses)


def sample_scene(seed: int, split: str, index: int, width: float = 128.0) -> Scene:
    random = Stream(seed, split, index)
    cues = Stream(seed, split, index, "cues")
    horizon = random.uniform(49.0, 52.0)
    slots = max(1, int(width / SLOT))
    lighthouses, boats = [], []
    for slot in range(slots):
        pitch = width / slots
        x = (slot + 0.5) * pitch + random.uniform(-0.12, 0.12) * pitch
        lighthouses.append(Lighthouse(x, random.uniform(13.0, 15.5), random.boolean(), cues.boolean()))
        y = random.uniform(75.5, 79.5)
        size = (y - 63.0) / 12.6 - random.uniform(0.0, 0.06)  # all masts end at about the same height
        hull = random.choice(HULLS)
        boats.append(Boat(x + random.uniform(-4.0, 4.0), y, size, random.boolean(), hull, slot))
    sky = blend(random.choice(DUSKS), random.choice(DUSKS), random.uniform())
    return Scene(
        seed=random.bits() >> 32,
        sky=sky,
        moon=cues.boolean(),
        light=(random.uniform(14.0, width - 14.0), random.uniform(9.0, 18.0)),
        horizon=horizon,
        shore=random.uniform(77.0, 79.5),
        hills=(random.uniform(9.0, 14.0), random.uniform(3.5, 7.0)),
        lighthouses=tuple(lighthouses),
        boats=tuple(sorted(boats, key=lambda boat: boat.y)),
        pines=_pines(random, width),
        cottages=tuple(
            (random.uniform(4.0, width - 4.0), random.uniform(4.5, 6.5), random.boolean(0.7))
            for _ in range(random.integer(1, slots + 1))
        ),
    )


def _pines(random: Stream, width: float) -> tuple[tuple[float, float, float, float], ...]:
    pines = []
    for left in (True, False):
        for _ in range(random.integer(0, 3)):
            off = random.uniform(0.0, 0.16) * width
            y = random.uniform(85.0, 98.0)
            height = random.uniform(15.0, 22.0) + (y - 85.0) * 0.8
            pines.append((off if left else width - off, y, height, random.uniform(-0.6, 0.6)))
    return tuple(sorted(pines, key=lambda pine: pine[1]))


def paint(scene: Scene, size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    canvas = Canvas.blank(size)
    _sky(canvas, scene)
    for tower in scene.lighthouses:
        _beam(canvas, scene, tower)
    _disc(canvas, scene)
    _hills(canvas, scene)
    for cottage in scene.cottages:
        _cottage(canvas, scene, *cottage)
    for tower in scene.lighthouses:
        _lighthouse(canvas, scene, tower)
    _water(canvas, scene)
    for boat in scene.boats:
        _boat(canvas, boat, OUTBOUND if scene.lighthouses[boat.lighthouse].blue else INBOUND)
    _near_shore(canvas, scene)
    for pine in scene.pines:
        _pine(canvas, scene, *pine)
    return canvas.to_bytes(scene.seed + 99), canvas.labels


def _sky(canvas: Canvas, scene: Scene) -> None:
    canvas.labels[:] = SKY
    part = canvas.part(0, 0, canvas.width, scene.horizon + 1)
    part.image[:] = _gradient(scene.sky, part.y / scene.horizon)
    streaks = fractal(scene.seed, part.x / 26, part.y / 5, 3)
    part.paint(smoothstep(np.clip((streaks - 0.5) * 3.4, 0.0, 1.0)) * 0.42, blend(scene.sky[2], WHITE, 0.35))
    part.paint(0.25 + 0.25 * smoothstep(part.glow(scene.light, 42.0, 2.2)), COLD if scene.moon else WARM)
    random = Stream(scene.seed, "stars")
    for _ in range(26 if scene.moon else 0):
        at = random.uniform(0, part.width), random.uniform(0, 26)
        star = part.part(at[0] - 2, at[1] - 2, at[0] + 2, at[1] + 2)
        star.light(star.glow(at, random.uniform(0.6, 1.3)) * random.uniform(0.5, 1.0), MOON)


def _disc(canvas: Canvas, scene: Scene) -> None:
    x, y = scene.light
    part = canvas.part(x - 16, y - 16, x + 16, y + 16)
    whole = part.disc(scene.light, RADIUS)
    if scene.moon:
        part.light(part.glow(scene.light, 13.0) * 0.5, MOON)
        part.paint(part.cover(np.maximum(whole, -part.disc((x + 2.6, y - 1.6), RADIUS - 0.6))), MOON)
    else:
        part.light(part.glow(scene.light, 16.0) * 0.7, SUN)
        part.paint(part.cover(whole), SUN)


def _hills(canvas: Canvas, scene: Scene) -> None:
    far, near = scene.hills
    far_top, near_top = scene.horizon - far, scene.horizon - near
    haze = blend(scene.sky[2], scene.sky[0], 0.45)
    part = canvas.part(0, scene.horizon - 1.3 * far, canvas.width, scene.horizon + 1)
    line = fractal(scene.seed + 10, part.x / 30, _FLAT, 4)[0]
    edge = scene.horizon - far * (line * 1.5 - 0.25)
    colour = _between(blend(haze, WOOD, 0.35), haze, (part.y - far_top) / (scene.horizon - far_top))
    part.paint(part.cover(part.below(edge)), colour, WOODS)
    line = fractal(scene.seed + 20, part.x / 21, _FLAT, 3)[0]
    crowns = noise(scene.seed + 30, part.x / 1.3, _FLAT)[0] * 1.5
    edge = scene.horizon - 0.6 - near * (line * 1.2) - crowns
    share = (part.y - near_top) / (scene.horizon - near_top)
    colour = _between(blend(WOOD, haze, 0.42), blend(WOOD, haze, 0.1), share)
    speckle = noise(scene.seed + 40, part.x / 1.4, part.y / 1.1)
    part.paint(part.cover(part.below(edge)), colour * (0.86 + 0.28 * speckle), WOODS)


def _water(canvas: Canvas, scene: Scene) -> None:
    part = canvas.part(0, scene.horizon - 1, canvas.width, scene.shore + 6)
    depth = np.maximum(part.y - scene.horizon, 0.0)
    reach = depth / (scene.shore + 4 - scene.horizon)
    colour = _gradient(np.array((scene.sky[2], scene.sky[1], blend(scene.sky[0], DEEP, 0.4))), reach)
    rows = 220.0 / (depth + 7.0)  # perspective
    ripples = noise(scene.seed + 50, part.x / 9, rows) + 0.5 * noise(scene.seed + 51, part.x / 4, rows * 2)
    colour = colour * (0.74 + 0.16 * ripples)
    woods = np.clip(1.0 - depth / 6.0, 0.0, 1.0)[:, None] * (0.5 + 0.35 * ripples)  # their reflection
    colour = colour + woods * (planes(blend(WOOD, scene.sky[1], 0.25)) - colour)
    part.paint(part.cover(part.below(np.full(len(part.x), scene.horizon, np.float32))), colour, WATER)
    sparkle = np.clip(noise(scene.seed + 52, part.x / 3.0, rows * 3.1) * 7.0 - 5.9, 0.0, 1.0)
    level = np.clip(reach * 4.0, 0.0, 1.0) * np.clip((1.0 - reach) * 2.2, 0.0, 1.0) * 0.6
    part.light(sparkle * level[:, None], blend(scene.sky[2], WHITE, 0.5))


def _near_shore(canvas: Canvas, scene: Scene) -> None:
    part = canvas.part(0, scene.shore - 5, canvas.width, float(canvas.y[-1]) + 1)
    edge = scene.shore + (fractal(scene.seed + 60, part.x / 34, _FLAT, 2)[0] - 0.5) * 7.0
    height = fractal(scene.seed + 61, part.x / 22, part.y / 7, 3)
    slope = np.diff(height, axis=1, prepend=height[:, :1]) * canvas.scale
    if scene.light[0] > canvas.width / 2:
        slope = -slope
    grain = noise(scene.seed + 62, part.x / 1.2, part.y / 0.9)
    distance = part.below(edge)
    dry = smoothstep(np.clip(distance / -3.2, 0.0, 1.0))  # darker at the waterline
    light = (0.9 + 1.3 * slope + 0.05 * grain) * (0.7 + 0.3 * dry)
    colour = np.clip(planes(blend(PALE, scene.sky[2], 0.22)) * light, 0.0, 1.0)
    part.paint(part.cover(distance), colour, SNOW if scene.moon else SAND)
    foam = np.clip(1.0 - np.abs(distance + 0.4) * 1.6, 0.0, 1.0) * 0.7
    part.paint(foam, blend(scene.sky[2], WHITE, 0.6))


def _beam(canvas: Canvas, scene: Scene, item: Lighthouse) -> None:
    x, y = lamp(scene, item)
    part = canvas.part(x - BEAM, 0, x + BEAM, y)
    up = np.clip((y - part.y) / y, 0.0, 1.0)  # 0 at the lamp, 1 at the upper edge
    across = (part.x - x)[None, :] / (1.5 + (BEAM - 1.5) * up)[:, None]
    strength = np.where(part.y < y, 0.8 - 0.5 * up, 0.0)
    part.paint(smoothstep(np.maximum(1.0 - across * across, 0.0)) * strength[:, None], BLUE if item.blue else ORANGE)


def lamp(scene: Scene, item: Lighthouse) -> Point:
    return item.x, scene.horizon - item.height - 2.4


def _lighthouse(canvas: Canvas, scene: Scene, item: Lighthouse) -> None:
    foot, top, x = scene.horizon + 0.6, scene.horizon - item.height, item.x
    shine = BLUE if item.blue else ORANGE
    part = canvas.part(x - HALO, top - 11, x + HALO, foot + 1)
    colour = planes(STONE) * (1.05 - 0.13 * (part.x - (x - 2)))
    if item.banded:
        bands = part.cover(np.abs((part.y - top) % 6.0 - 3.0) - 1.5)[:, None]
        colour = colour + bands * (planes(BAND) - colour)
    body = part.polygon([(x - 1.5, top), (x + 1.5, top), (x + 2.6, foot), (x - 2.6, foot)])
    part.paint(part.cover(body), np.clip(colour, 0.0, 1.0), BUILDING)
    part.paint(part.cover(part.box(x - 2.5, top - 0.7, x + 2.5, top + 0.5)), ROOF, BUILDING)
    part.paint(part.cover(part.box(x - 1.6, top - 4.2, x + 1.6, top - 0.7)), shine, BUILDING)
    part.paint(part.cover(part.polygon([(x, top - 6.6), (x + 2.3, top - 4.1), (x - 2.3, top - 4.1)])), ROOF, BUILDING)
    part.light(part.glow(lamp(scene, item), HALO) * 0.7, shine)
    part.light(part.glow(lamp(scene, item), 1.6) * 0.6, WHITE)


def _cottage(canvas: Canvas, scene: Scene, x: float, width: float, lit: bool) -> None:
    foot, half = scene.horizon + 0.4, width / 2
    eaves, ridge = foot - 3.4, foot - 6.0
    part = canvas.part(x - half - 2, ridge - 1, x + half + 2, foot + 1)
    part.paint(part.cover(part.box(x - half, eaves, x + half, foot)), blend(STONE, scene.sky[1], 0.25), BUILDING)
    upper, lower = half - 0.9, half + 0.7
    roof = [(x - upper, ridge), (x + upper, ridge), (x + lower, eaves + 0.2), (x - lower, eaves + 0.2)]
    part.paint(part.cover(part.polygon(roof)), blend(ROOF, BAND, 0.4), BUILDING)
    part.paint(part.cover(part.box(x - 0.8, eaves + 0.9, x + 0.8, eaves + 2.4)), PANE if lit else ROOF)


def _boat(canvas: Canvas, item: Boat, label: int) -> None:
    size, x, y, way = item.size, item.x, item.y, -1.0 if item.left else 1.0

    def shape(*points: Point) -> Array:
        placed = [(x + 1.2 * way * size * px, y + size * py) for px, py in points]
        return part.polygon(placed if way > 0 else placed[::-1])

    part = canvas.part(x - 10 * size, y - 14 * size, x + 10 * size, y + 8 * size)
    reflection = part.cover(part.disc((x, y + 2.4 * size), 2.3 * size, 2.8)) * 0.4
    part.paint(np.where(part.labels == WATER, reflection, 0.0), blend(SAIL, item.hull, 0.35))
    shaded = np.clip(0.84 + (0.02 * way / size) * (part.x - x), 0.6, 1.0)
    sail = planes(SAIL) * shaded
    parts: list[tuple[Array, Colour | Array]] = [
        (shape((-0.3, -12.6), (0.3, -12.6), (0.3, -1.0), (-0.3, -1.0)), item.hull),  # mast
        (shape((-0.4, -12.0), (-0.4, -2.2), (-5.6, -2.2)), sail),
        (shape((0.5, -10.4), (5.4, -2.4), (0.5, -2.4)), sail * 0.93),
        (shape((-6.2, -1.8), (6.8, -1.8), (4.6, 1.2), (-4.8, 1.2)), item.hull),
    ]
    for distance, colour in parts:
        part.paint(part.cover(distance), colour)
    part.labels[np.minimum.reduce([distance for distance, _ in parts]) < 0.3] = label  # includes gaps between the parts


def _pine(canvas: Canvas, scene: Scene, x: float, y: float, height: float, lean: float) -> None:
    side = 1.0 if scene.light[0] < x else -1.0
    reach = 0.42 * height
    ground = canvas.part(x - 1.6 * reach, y - 4, x + 1.6 * reach, y + 4)
    shadow = smoothstep(ground.glow((x + side * 0.55 * reach, y + 0.2), 2.6, reach / 2.6))
    np.multiply(ground.image, 1.0 - 0.42 * shadow, out=ground.image)
    part = canvas.part(x - height * 0.35, y - height - 1, x + height * 0.35, y + 1)
    part.paint(part.cover(part.box(x - 0.8, y - height * 0.3, x + 0.8, y)), blend(LEAF, BAND, 0.4), WOODS)
    for tier in range(4):
        low, half = y - height * (0.12 + 0.19 * tier), height * (0.25 - 0.045 * tier)
        middle = x + lean * (tier + 1) * 0.3
        share = np.clip(0.5 - (side / (2 * half)) * (part.x - x), 0.0, 1.0)
        dark, lit = planes(LEAF), planes(blend(LEAF, LIT, 0.16 + 0.05 * tier))
        branches = part.polygon([(middle, low - height * 0.31), (middle + half, low), (middle - half, low)])
        part.paint(part.cover(branches), dark + (lit - dark) * share, WOODS)


def _gradient(stops: Array, t: Array) -> Array:
    """Return a gradient (3, H, 1) between colors at 0, 0.55 and 1."""
    upper, lower = _between(stops[0], stops[1], t / 0.55), _between(stops[1], stops[2], (t - 0.55) / 0.45)
    return np.where(t[:, None] < 0.55, upper, lower)


def _between(first: Colour, second: Colour, share: Array) -> Array:
    """Return colors (3, H, 1) from the first (share 0) to the second (share 1)."""
    return planes(first) + planes(second - first) * np.clip(share, 0.0, 1.0)[:, None]
