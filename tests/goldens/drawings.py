"""Pictures for the golden tests, drawn with arithmetic only: they are the same on every machine."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

CATEGORIES = [{"id": 7, "name": "box"}, {"id": 12, "name": "disc"}]


def bay(height: int, width: int, light: tuple[int, int, int]) -> np.ndarray:
    """Draw a bay like in the scenes: a sky with a sun, hills, lighthouses, water, boats and a shore."""
    y, x = np.mgrid[:height, :width]
    down, across = y / height, x / width
    picture = np.empty((height, width, 3))
    picture[:] = np.stack((120 + 110 * down, 110 + 90 * down, 95 + 60 * down), axis=2)

    def paint(where: np.ndarray, colour: tuple[int, int, int]) -> None:
        picture[where] = colour

    paint((down - 0.15) ** 2 + (across - 0.6) ** 2 * (width / height) ** 2 < 0.008, (250, 225, 160))
    paint((down > 0.44 - 0.04 * np.cos(9 * across)) & (down < 0.58), (70, 85, 85))
    for middle in (0.2, 0.75):
        paint((abs(across - middle) < 0.02) & (down > 0.3) & (down < 0.58), (175, 165, 150))
        paint((abs(across - middle) < 0.025) & (abs(down - 0.3) < 0.03), light)
    paint(down >= 0.58, (105, 120, 120))
    for middle in (0.2, 0.75):
        paint((abs(down - 0.7) < 0.03) & (abs(across - middle) < 0.06), (45, 50, 50))
        paint((abs(across - middle) < (down - 0.55) / 2.5) & (down > 0.57) & (down < 0.67), (190, 195, 190))
    paint(down > 0.84 + 0.02 * np.sin(7 * across), (205, 195, 185))
    grain = (x * 37 + y * 91 + x * y * 13) % 23 - 11
    return (picture + grain[..., None]).clip(0, 255).astype(np.uint8)


def save_bays(folder: Path) -> list[Path]:
    """Write a bay with orange lights, and another of an odd size with blue ones."""
    pictures = {"orange": bay(96, 128, (240, 140, 50)), "blue": bay(75, 110, (90, 150, 240))}
    for name, picture in pictures.items():
        Image.fromarray(picture).save(folder / f"{name}.png")
    return [folder / f"{name}.png" for name in pictures]


def save_objects(root: Path) -> Path:
    """Write images with a box and a disc each, with annotations in COCO's format: five to train on, three to test."""
    (root / "annotations").mkdir(parents=True)
    (root / "images").mkdir()
    for split, count in (("train", 5), ("val", 3)):
        images, annotations = [], []
        for number in range(count):
            width, height = (60, 72) if number % 3 == 2 else (72 + 2 * number, 60)  # some are wide, some are high
            y, x = np.mgrid[:height, :width]
            grain = (x * 37 + y * 91 + x * y * 13 + 7 * number) % 71
            picture = np.repeat((90 + grain)[..., None], 3, axis=2).astype(np.uint8)
            left, top, side = 4 + number, 5 + 2 * number, 22 + 2 * number
            picture[top : top + side, left : left + side] = (210, 50, 40)
            middle_x, middle_y, radius = width - 18 - number, height - 17 - number, 9 + number
            picture[(x + 0.5 - middle_x) ** 2 + (y + 0.5 - middle_y) ** 2 < radius**2] = (40, 80, 220)
            name = f"{split}-{number}.png"
            Image.fromarray(picture).save(root / "images" / name)
            images.append({"id": number + 1, "file_name": name, "height": height, "width": width})
            right, bottom = left + side, top + side
            angles = np.arange(16) * np.pi / 8
            circle = np.stack((middle_x + radius * np.cos(angles), middle_y + radius * np.sin(angles)), axis=1)
            for category, outline in (
                (7, [left, top, right, top, right, bottom, left, bottom]),
                (12, circle.round(2).flatten().tolist()),
            ):
                annotations.append(_annotation(len(annotations) + 1, number + 1, category, outline))
        content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
        (root / "annotations" / f"{split}.json").write_text(json.dumps(content))
    return root


def _annotation(number: int, image: int, category: int, outline: list[float]) -> dict[str, object]:
    x, y = outline[0::2], outline[1::2]
    box = [min(x), min(y), max(x) - min(x), max(y) - min(y)]
    entry = {"id": number, "image_id": image, "category_id": category, "iscrowd": 0}
    return entry | {"segmentation": [outline], "bbox": box, "area": box[2] * box[3]}
