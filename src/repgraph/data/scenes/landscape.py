"""The large parts of a scene: sky, hills, water and the near shore."""

import numpy as np

from repgraph.data.scenes.canvas import Canvas, Colour, blend, rgb
from repgraph.data.scenes.chance import Array, Stream, fractal, noise, smooth
from repgraph.data.scenes.world import Scene

SUN, WARM = rgb(255, 236, 178), rgb(255, 190, 110)
MOON, COLD = rgb(238, 242, 255), rgb(92, 132, 214)
RADIUS = 5.2  # of sun and moon
PALE, WOOD, DEEP, WHITE = rgb(226, 219, 214), rgb(30, 48, 58), rgb(40, 96, 120), (1.0, 1.0, 1.0)
_FLAT = np.zeros(1, np.float32)


def sky(canvas: Canvas, scene: Scene, label: int) -> None:
    """A gradient in three colours with streaks of cloud, in the light of sun or moon: a cue."""
    canvas.labels[:] = label
    part = canvas.part(0, 0, canvas.width, scene.horizon + 1)
    part.picture[:] = _gradient(scene.sky, part.y / np.float32(scene.horizon))
    streaks = fractal(scene.seed, part.x / 26, part.y / 5, 3)
    part.paint(smooth(np.clip((streaks - 0.5) * 3.4, 0.0, 1.0)) * 0.42, blend(scene.sky[2], WHITE, 0.35))
    near = 0.25 + 0.25 * smooth(part.glow(scene.light, 42.0, 2.2))
    part.paint(near, COLD if scene.moon else WARM)
    if scene.moon:
        _stars(part, scene)


def disc(canvas: Canvas, scene: Scene) -> None:
    """The sun, or the moon as a crescent."""
    x, y = scene.light
    part = canvas.part(x - 16, y - 16, x + 16, y + 16)
    whole = part.disc(scene.light, RADIUS)
    if scene.moon:
        part.light(part.glow(scene.light, 13.0) * 0.5, MOON)
        part.paint(part.cover(np.maximum(whole, -part.disc((x + 2.6, y - 1.6), RADIUS - 0.6))), MOON)
    else:
        part.light(part.glow(scene.light, 16.0) * 0.7, SUN)
        part.paint(part.cover(whole), SUN)


def hills(canvas: Canvas, scene: Scene, label: int) -> None:
    """Two ranges of hills: the far one in the haze, the near one with trees on it."""
    far, near = scene.hills
    bottom = scene.horizon + 1
    haze = blend(scene.sky[2], scene.sky[0], 0.45)
    part = canvas.part(0, scene.horizon - 1.3 * far, canvas.width, bottom)
    line = fractal(scene.seed + 10, part.x / 30, _FLAT, 4)[0]
    edge = np.float32(scene.horizon) - np.float32(far) * (line * 1.5 - 0.25)
    colour = _faded(part, blend(haze, WOOD, 0.35), haze, scene.horizon - far, scene.horizon)
    part.paint(part.cover(part.below(edge)), colour, label)
    line = fractal(scene.seed + 20, part.x / 21, _FLAT, 3)[0]
    crowns = noise(scene.seed + 30, part.x / 1.3, _FLAT)[0] * 1.5
    edge = np.float32(scene.horizon - 0.6) - np.float32(near) * (line * 1.2) - crowns
    colour = _faded(part, blend(WOOD, haze, 0.42), blend(WOOD, haze, 0.1), scene.horizon - near, scene.horizon)
    speckle = noise(scene.seed + 40, part.x / 1.4, part.y / 1.1)
    part.paint(part.cover(part.below(edge)), colour * (0.86 + 0.28 * speckle), label)


def water(canvas: Canvas, scene: Scene, label: int) -> None:
    """Dusk once more, upside down and darker, with ripples that lie closer together the farther off they are."""
    part = canvas.part(0, scene.horizon - 1, canvas.width, scene.shore + 6)
    depth = np.maximum(part.y - np.float32(scene.horizon), 0.0)
    reach = depth / np.float32(scene.shore + 4 - scene.horizon)
    colour = _gradient((scene.sky[2], scene.sky[1], blend(scene.sky[0], DEEP, 0.4)), reach)
    rows = 220.0 / (depth + 7.0)  # perspective
    ripples = noise(scene.seed + 50, part.x / 9, rows) + 0.5 * noise(scene.seed + 51, part.x / 4, rows * 2)
    colour = colour * (0.74 + 0.16 * ripples)
    woods = np.clip(1.0 - depth / 6.0, 0.0, 1.0)[:, None] * (0.5 + 0.35 * ripples)  # their image
    dark = blend(WOOD, scene.sky[1], 0.25)
    colour = np.stack([plane + woods * (value - plane) for plane, value in zip(colour, dark, strict=True)])
    part.paint(part.cover(part.below(np.full(len(part.x), scene.horizon, np.float32))), colour, label)
    sparkle = np.clip(noise(scene.seed + 52, part.x / 3.0, rows * 3.1) * 7.0 - 5.9, 0.0, 1.0)
    level = np.clip(reach * 4.0, 0.0, 1.0) * np.clip((1.0 - reach) * 2.2, 0.0, 1.0) * 0.6
    part.light(sparkle * level[:, None], blend(scene.sky[2], WHITE, 0.5))


def near_shore(canvas: Canvas, scene: Scene, label: int) -> None:
    """Pale dunes, painted in the same way whether they are sand or snow."""
    part = canvas.part(0, scene.shore - 5, canvas.width, float(canvas.y[-1]) + 1)
    edge = np.float32(scene.shore) + (fractal(scene.seed + 60, part.x / 34, _FLAT, 2)[0] - 0.5) * 7.0
    height = fractal(scene.seed + 61, part.x / 22, part.y / 7, 3)
    slope = np.zeros_like(height)
    slope[:, 1:] = (height[:, 1:] - height[:, :-1]) * np.float32(canvas.scale)
    if scene.light[0] > canvas.width / 2:
        slope = -slope
    grain = noise(scene.seed + 62, part.x / 1.2, part.y / 0.9)
    distance = part.below(edge)
    dry = smooth(np.clip(distance / -3.2, 0.0, 1.0))  # darker where the water was
    light = (0.9 + 1.3 * slope + 0.05 * grain) * (0.7 + 0.3 * dry)
    colour = np.stack([np.clip(np.float32(value) * light, 0.0, 1.0) for value in blend(PALE, scene.sky[2], 0.22)])
    part.paint(part.cover(distance), colour, label)
    foam = np.clip(1.0 - np.abs(distance + 0.4) * 1.6, 0.0, 1.0) * 0.7
    part.paint(foam, blend(scene.sky[2], WHITE, 0.6))


def _stars(part: Canvas, scene: Scene) -> None:
    chance = Stream(scene.seed, "stars")
    for _ in range(26):
        at = chance.number(0, part.width), chance.number(0, 26)
        one = part.part(at[0] - 2, at[1] - 2, at[0] + 2, at[1] + 2)
        one.light(one.glow(at, chance.number(0.6, 1.3)) * np.float32(chance.number(0.5, 1.0)), MOON)


def _gradient(stops: tuple[Colour, Colour, Colour], t: Array) -> Array:
    """(3, H, 1): from one colour at 0 over another at 0.55 to a third at 1."""
    t = np.clip(t, 0.0, 1.0)
    planes = []
    for first, second, third in zip(*stops, strict=True):
        early = np.float32(first) + np.float32(second - first) * (t / np.float32(0.55))
        late = np.float32(second) + np.float32(third - second) * ((t - np.float32(0.55)) / np.float32(0.45))
        planes.append(np.where(t < np.float32(0.55), early, late)[:, None])
    return np.stack(planes)


def _faded(part: Canvas, first: Colour, second: Colour, top: float, bottom: float) -> Array:
    """(3, H, 1): from one colour down to another."""
    share = np.clip((part.y - np.float32(top)) / np.float32(bottom - top), 0.0, 1.0)[:, None]
    return np.stack([np.float32(a) + np.float32(b - a) * share for a, b in zip(first, second, strict=True)])
