"""What is where in a scene, drawn by lot from a seed, a split and an index.

A bay at dusk: sky with the sun or the moon, wooded hills, lighthouses on the far shore, water with boats, and the near
shore. Two things about it cannot be seen where they are:

- The near shore is sand under the sun and snow under the moon. It is painted in the same way in both cases.
- A boat lies below the lighthouse that it has to do with: it is inbound where that shows an orange light, and outbound
  where it shows a blue one. The boat itself looks the same.

The cues (sun or moon, the lights' colours) come from a stream of their own and nothing else is drawn from it: so what
the rest of the picture looks like says nothing about them.
"""

from dataclasses import dataclass, replace

from repgraph.data.scenes.canvas import HEIGHT, Colour, Point, blend, rgb
from repgraph.data.scenes.chance import Stream

SLOT = 128.0 / 3  # units of width that a lighthouse and its boat have for themselves
DUSKS: tuple[tuple[Colour, Colour, Colour], ...] = (  # zenith, middle, horizon
    (rgb(52, 58, 104), rgb(172, 112, 138), rgb(247, 192, 150)),  # rose
    (rgb(34, 66, 100), rgb(98, 140, 156), rgb(238, 214, 172)),  # teal
    (rgb(46, 42, 90), rgb(122, 92, 148), rgb(240, 172, 160)),  # violet
    (rgb(66, 80, 118), rgb(188, 146, 124), rgb(250, 214, 152)),  # amber
    (rgb(30, 58, 86), rgb(104, 150, 150), rgb(244, 222, 184)),  # sea green
)
HULLS = (rgb(92, 44, 46), rgb(44, 58, 84), rgb(60, 54, 52), rgb(52, 82, 76))


@dataclass(frozen=True)
class Lighthouse:
    """On the far shore; its light is a cue."""

    x: float
    height: float
    banded: bool
    blue: bool


@dataclass(frozen=True)
class Boat:
    """Below a lighthouse; ``x``, ``y`` is the middle of its water line."""

    x: float
    y: float
    size: float
    left: bool  # where it heads
    hull: Colour
    lighthouse: int


@dataclass(frozen=True)
class Pine:
    x: float
    y: float  # its foot
    height: float
    lean: float


@dataclass(frozen=True)
class Cottage:
    x: float
    width: float
    lit: bool


@dataclass(frozen=True)
class Scene:
    """All that is in a picture; in units, see :data:`repgraph.data.scenes.canvas.HEIGHT`."""

    seed: int  # of its textures
    sky: tuple[Colour, Colour, Colour]
    moon: bool  # the cue of the near shore; else there is the sun
    light: Point  # the middle of sun or moon
    horizon: float
    shore: float
    hills: tuple[float, float]  # heights of the two ranges
    lighthouses: tuple[Lighthouse, ...]
    boats: tuple[Boat, ...]
    pines: tuple[Pine, ...]
    cottages: tuple[Cottage, ...]

    def swapped(self, sky: bool = False, lights: tuple[int, ...] = ()) -> "Scene":
        """The same scene with the other of sun and moon, or with the other light on some lighthouses.

        >>> first = scene(0, "train", 0)
        >>> first.swapped(sky=True).moon == first.moon
        False
        """
        turned = tuple(
            replace(one, blue=not one.blue) if i in lights else one for i, one in enumerate(self.lighthouses)
        )
        return replace(self, moon=self.moon != sky, lighthouses=turned)


def scene(seed: int, split: str, index: int, width: float = 128.0) -> Scene:
    """The scene with that number; ``width`` is that of the picture, in units."""
    chance = Stream(seed, split, index)
    cues = Stream(seed, split, index, "cues")
    horizon = chance.number(49.0, 52.0)
    slots = max(1, int(width / SLOT))
    lighthouses, boats = [], []
    for slot in range(slots):
        pitch = width / slots
        x = (slot + 0.5) * pitch + chance.number(-0.12, 0.12) * pitch
        lighthouses.append(Lighthouse(x, chance.number(13.0, 15.5), chance.coin(), cues.coin()))
        y = chance.number(75.5, 79.5)
        size = (y - 63.0) / 12.6 - chance.number(0.0, 0.06)  # all masts end at much the same height
        hull = chance.one_of(HULLS)
        boats.append(Boat(x + chance.number(-4.0, 4.0), y, size, chance.coin(), hull, slot))
    first, second, share = chance.one_of(DUSKS), chance.one_of(DUSKS), chance.number()
    zenith, middle, low = (blend(a, b, share) for a, b in zip(first, second, strict=True))
    return Scene(
        seed=chance.seed(),
        sky=(zenith, middle, low),
        moon=cues.coin(),
        light=(chance.number(14.0, width - 14.0), chance.number(9.0, 18.0)),
        horizon=horizon,
        shore=chance.number(77.0, 79.5),
        hills=(chance.number(9.0, 14.0), chance.number(3.5, 7.0)),
        lighthouses=tuple(lighthouses),
        boats=tuple(sorted(boats, key=lambda boat: boat.y)),
        pines=_pines(chance, width),
        cottages=tuple(
            Cottage(chance.number(4.0, width - 4.0), chance.number(4.5, 6.5), chance.coin(0.7))
            for _ in range(chance.whole(1, slots + 1))
        ),
    )


def _pines(chance: Stream, width: float) -> tuple[Pine, ...]:
    """A group of pines on one side or on both, those in front last."""
    pines = []
    for left in (True, False):
        for _ in range(chance.whole(0, 3)):
            off = chance.number(0.0, 0.16) * width
            y = chance.number(85.0, HEIGHT + 2.0)
            height = chance.number(15.0, 22.0) + (y - 85.0) * 0.8
            pines.append(Pine(off if left else width - off, y, height, chance.number(-0.6, 0.6)))
    return tuple(sorted(pines, key=lambda pine: pine.y))
