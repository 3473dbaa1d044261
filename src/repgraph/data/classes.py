"""The classes of published data sets: names, colors and values in label files."""

from dataclasses import replace

from torchvision.datasets import Cityscapes

from repgraph.data.labels import Labels, hex_palette, voc_palette

# The first name of each class in objectInfo150.txt, and the colors of the challenge; road and skyscraper share one.
_ADE20K = """
787878 wall, b47878 building, 06e6e6 sky, 503232 floor, 04c803 tree, 787850 ceiling, 8c8c8c road, cc05ff bed,
e6e6e6 windowpane, 04fa07 grass, e005ff cabinet, ebff07 sidewalk, 96053d person, 787846 earth, 08ff33 door,
ff0652 table, 8fff8c mountain, ccff04 plant, ff3307 curtain, cc4603 chair, 0066c8 car, 3de6fa water, ff0633 painting,
0b66ff sofa, ff0747 shelf, ff09e0 house, 0907e6 sea, dcdcdc mirror, ff095c rug, 7009ff field, 08ffd6 armchair,
07ffe0 seat, ffb806 fence, 0aff47 desk, ff290a rock, 07ffff wardrobe, e0ff08 lamp, 6608ff bathtub, ff3d06 railing,
ffc207 cushion, ff7a08 base, 00ff14 box, ff0829 column, ff0599 signboard, 0633ff chest of drawers, eb0cff counter,
a09614 sand, 00a3ff sink, 8c8c8c skyscraper, fa0a0f fireplace, 14ff00 refrigerator, 1fff00 grandstand, ff1f00 path,
ffe000 stairs, 99ff00 runway, 0000ff case, ff4700 pool table, 00ebff pillow, 00adff screen door, 1f00ff stairway,
0bc8c8 river, ff5200 bridge, 00fff5 bookcase, 003dff blind, 00ff70 coffee table, 00ff85 toilet, ff0000 flower,
ffa300 book, ff6600 hill, c2ff00 bench, 008fff countertop, 33ff00 stove, 0052ff palm, 00ff29 kitchen island,
00ffad computer, 0a00ff swivel chair, adff00 boat, 00ff99 bar, ff5c00 arcade machine, ff00ff hovel, ff00f5 bus,
ff0066 towel, ffad00 light, ff0014 truck, ffb8b8 tower, 001fff chandelier, 00ff3d awning, 0047ff streetlight,
ff00cc booth, 00ffc2 television, 00ff52 airplane, 000aff dirt track, 0070ff apparel, 3300ff pole, 00c2ff land,
007aff bannister, 00ffa3 escalator, ff9900 ottoman, 00ff0a bottle, ff7000 buffet, 8fff00 poster, 5200ff stage,
a3ff00 van, ffeb00 ship, 08b8aa fountain, 8500ff conveyer belt, 00ff5c canopy, b800ff washer, ff001f plaything,
00b8ff swimming pool, 00d6ff stool, ff0070 barrel, 5cff00 basket, 00e0ff waterfall, 70e0ff tent, 46b8a0 bag,
a300ff minibike, 9900ff cradle, 47ff00 oven, ff00a3 ball, ffcc00 food, ff008f step, 00ffeb tank, 85ff00 trade name,
ff00eb microwave, f500ff pot, ff007a animal, fff500 bicycle, 0abed4 lake, d6ff00 dishwasher, 00ccff screen,
1400ff blanket, ffff00 sculpture, 0099ff hood, 0029ff sconce, 00ffcc vase, 2900ff traffic light, 29ff00 tray,
ad00ff ashcan, 00f5ff fan, 4700ff pier, 7a00ff crt screen, 00ffb8 plate, 005cff monitor, b8ff00 bulletin board,
0085ff shower, ffd600 radiator, 19c2c2 glass, 66ff00 clock, 5c00ff flag
"""
_CAMVID = """
808080 sky, 800000 building, c0c080 pole, 804080 road, 0000c0 pavement, 808000 tree, c08080 sign, 404080 fence,
400080 car, 404000 pedestrian, 0080c0 bicyclist
"""
_STANFORD = """
87ceeb sky, 228b22 tree, 808080 road, 9acd32 grass, 1e66c8 water, b22222 building, 8b5a2b mountain, ffa500 foreground
"""
# The 59 frequent ones of 459 categories, with their numbers in the release.
_PASCAL_CONTEXT = """
2 aeroplane, 9 bag, 18 bed, 19 bedclothes, 22 bench, 23 bicycle, 25 bird, 31 boat, 33 book, 34 bottle, 44 building,
45 bus, 46 cabinet, 59 car, 65 cat, 68 ceiling, 72 chair, 80 cloth, 85 computer, 98 cow, 104 cup, 105 curtain, 113 dog,
115 door, 144 fence, 158 floor, 159 flower, 162 food, 187 grass, 189 ground, 207 horse, 220 keyboard, 232 light,
258 motorbike, 259 mountain, 260 mouse, 284 person, 295 plate, 296 platform, 308 pottedplant, 324 road, 326 rock,
347 sheep, 349 shelves, 354 sidewalk, 355 sign, 360 sky, 366 snow, 368 sofa, 397 table, 415 track, 416 train, 420 tree,
424 truck, 427 tvmonitor, 440 wall, 445 water, 454 window, 458 wood
"""
_VOC = (
    "background, aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, "
    "motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"
)


def _columns(table: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the first words of all entries, and the names that follow them."""
    first, names = zip(*(entry.split(maxsplit=1) for entry in table.strip().split(",")), strict=True)
    return first, names


def _labels(table: str, ids: range, *ignored: int) -> Labels:
    colours, names = _columns(table)
    return Labels(names, hex_palette(" ".join(colours)), tuple(ids), ignored)


ADE20K = _labels(_ADE20K, range(1, 151), 0)
CAMVID = _labels(_CAMVID, range(11), 11)
STANFORD = _labels(_STANFORD, range(8), 255, -1)  # -1 in the texts of the release, 255 in PNG files made from them
VOC = Labels(tuple(_VOC.split(", ")), voc_palette(21), tuple(range(21)), ignored=(255,))  # 255: borders of objects

_SCORED = [(entry.name, entry.color, entry.id) for entry in Cityscapes.classes if not entry.ignore_in_eval]
_NAMES, _COLOURS, _IDS = zip(*_SCORED, strict=True)
CITYSCAPES = Labels(_NAMES, _COLOURS, _IDS, ignored=tuple(sorted({*range(34)} - {*_IDS})))

_NUMBERS, _NAMES = _columns(_PASCAL_CONTEXT)
PASCAL_CONTEXT = Labels(_NAMES, voc_palette(60)[1:], ids=tuple(range(1, 60)), ignored=(0, 255))  # PNG files
_CATEGORIES = tuple(map(int, _NUMBERS))
_OTHERS = tuple(sorted({*range(460)} - {*_CATEGORIES}))
PASCAL_CONTEXT_459 = replace(PASCAL_CONTEXT, ids=_CATEGORIES, ignored=_OTHERS)  # .mat files
