"""Images with objects: samples, layouts, and files that cannot be used."""

import json
import pickle

import numpy as np
import pytest
import torch
from tests.data.coco.files import SIZE, SQUARE, annotation, content, crowd, write
from tests.data.layouts import fails, picture
from tests.shared_data import shared
from torch.utils.data import DataLoader
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

from repgraph.data import DataError
from repgraph.data.coco import load, masks

HUGE = 10**400  # valid in JSON, but too large for float64


def test_a_sample(tmp_path):
    data = load(write(tmp_path, content(annotation(5), annotation(6, category=90), crowd(9))))
    image, target = data[0]
    assert type(image) is Image and image.dtype == torch.uint8 and image.shape == (3, *SIZE)
    assert type(target["boxes"]) is BoundingBoxes and target["boxes"].dtype == torch.float32
    assert target["boxes"].tolist() == [[2, 3, 8, 9], [2, 3, 8, 9], [0, 0, 2, 20]]
    assert target["boxes"].format.name == "XYXY" and target["boxes"].canvas_size == SIZE
    assert target["labels"].tolist() == [2, 3, 1] and target["labels"].dtype == torch.int64
    assert type(target["masks"]) is Mask and target["masks"].dtype == torch.uint8
    assert target["masks"].shape == (3, *SIZE) and target["masks"].sum((1, 2)).tolist() == [36, 36, 40]
    assert target["masks"][0, 3:9, 2:8].all() and target["masks"][2, :, :2].all()
    assert target["area"].tolist() == [36, 36, 40] and target["iscrowd"].tolist() == [0, 0, 1]
    assert target["image_id"] == 1 and data.labels.ids == (3, 7, 90) and data.labels.names == ("cat", "dog", "kite")
    assert data.labelled and data.problems == [] and data.sizes == [SIZE, SIZE]
    empty = data[1][1]
    assert empty["boxes"].shape == (0, 4) and empty["masks"].shape == (0, *SIZE) and len(empty["labels"]) == 0
    ((first, second),) = DataLoader(data, batch_size=2, num_workers=1, collate_fn=list)
    assert [len(target["labels"]) for _, target in (first, second)] == [3, 0]
    assert torch.equal(pickle.loads(pickle.dumps(data))[0][1]["masks"], target["masks"])


def test_crowds_and_empty_images(tmp_path):
    root = write(tmp_path, content(annotation(1), crowd(2), crowd(3, image=2)))
    assert [len(load(root, crowds=False)[k][1]["labels"]) for k in range(2)] == [1, 0]
    data = load(root, crowds=False, empty=False)
    assert [item.name for item in data.items] == ["1.png"] and len(load(root, empty=False)) == 2
    assert [entry["iscrowd"] for entry in data.truth()["annotations"]] == [0, 1]
    fails(
        "no image has an object that can be used", load, write(tmp_path, content(crowd(2))), crowds=False, empty=False
    )


def test_all_mask_formats(tmp_path):
    mask = np.zeros(SIZE, np.uint8)
    mask[3:9, 2:8] = 1
    runs = [43, *[6, 14] * 5, 6, 600 - 43 - 6 * 6 - 5 * 14]
    formats = [SQUARE, masks.encode(mask), {"size": list(SIZE), "counts": runs}]
    entries = [annotation(k, segmentation=each) for k, each in enumerate(formats)]
    data = load(write(tmp_path, content(*entries)))
    target = data[0][1]
    assert len(target["masks"]) == 3 and all(torch.equal(each, torch.from_numpy(mask)) for each in target["masks"])
    assert torch.equal(load(write(tmp_path, data.truth()))[0][1]["masks"], target["masks"])


def rle(counts, size=SIZE):
    return dict(segmentation={"size": list(size), "counts": counts})


@pytest.mark.parametrize(
    "fault",
    [
        dict(segmentation=None),
        *(dict(segmentation=[each]) for each in ([1, 1, 5, 5, 1e12, 4], ["a"] * 6, [float("nan")] * 6, [HUGE] * 6)),
        rle([0.5] * 1200),
        rle("1o"),  # crashes pycocotools
        rle([600], (30, 20)),
        *(dict(bbox=each) for each in (None, [2, 3, 0, 6], [2, 3, HUGE, 6])),
        dict(iscrowd="no"),
        dict(image=77),
        dict(category=4),
        dict(number=1),
    ],
)
def test_invalid_annotations_are_skipped(tmp_path, fault):
    data = load(write(tmp_path, content(annotation(1), annotation(**{"number": 2, **fault}))))
    assert len(data[0][1]["labels"]) == 1
    (problem,) = data.problems
    assert problem.startswith(f"{data.path}: annotation")


def test_clipped_thin_and_outside_objects(tmp_path):
    clipped = annotation(1, bbox=[-4, -2, 12, 40.5])
    thin = annotation(2, segmentation=[[3.1, 4.1, 9.0, 4.2, 3.1, 4.3]])  # no pixel centre: skipped when it is drawn
    outside = [annotation(3, segmentation=[[40, 1, 50, 1, 50, 9]]), annotation(4, **rle([600]))]
    data = load(write(tmp_path, content(clipped, "x", thin, *outside)))
    assert [problem.split(": ")[1] for problem in data.problems] == ["annotations[1]"]
    assert data[0][1]["boxes"].tolist() == [[0, 0, 8, 20]]
    assert [entry["bbox"] for entry in data.truth()["annotations"]][:2] == [[-4, -2, 12, 40.5], [2, 3, 6, 6]]


def image(**changes):
    return {**content(), "images": [{**dict(id=1, file_name="1.png", height=4, width=4), **changes}]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('{"images": [', " is not valid JSON"),
        (content(categories=[{"id": 3}]), r": categories\[0\].name "),
        (content(categories=[{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]), ": the label value 3 occurs 2 times"),
        (
            content(categories=[{"id": k, "name": "a"} for k in range(300)]),
            ": 300 classes, .* expected 1 to 255 of each",
        ),
        (image(file_name=None), r": images\[0\].file_name is None"),
        (image(height=0), r": images\[0\].height is 0; input should be greater than 0"),
        (image(height=10**9, width=10**9), ": 1.png has more than 1073741824 pixels"),
    ],
)
def test_invalid_files(tmp_path, given, message):
    fails(f"instances_train2017.json{message}", load, write(tmp_path, given))


def test_images_that_cannot_be_used(tmp_path):
    root = write(tmp_path, content(annotation(1), annotation(2, image=3), images=4), images=3)
    fails(r"train2017/4.png: no such file \(1 missing in coco train\)", load, root)
    picture(root / "train2017/4.png", SIZE)
    picture(root / "train2017/1.png", (30, 20))
    (root / "train2017/2.png").write_bytes(b"?")
    with pytest.raises(DataError, match=r"1.png: the image has 20 x 30 pixels but 30 x 20 in .*2017.json"):
        load(root)[0]
    with pytest.raises(DataError, match=r"2.png: cannot read this image"):
        load(root)[1]


@pytest.mark.parametrize(
    ("file", "folder", "options"),
    [
        ("annotations/instances_val2014.json", "val2014", {}),
        ("annotations/instances_val.json", "JPEGImages", {}),
        ("annotations/val.json", "images/val", {}),
        ("val-objects.json", "val photos", dict(images="{split} photos", annotations="{split}-objects.json")),
        ("annotations/image_info_val-dev2017.json", "val2017", {}),
    ],
)
def test_layouts(tmp_path, file, folder, options):
    given = content(annotation(1))
    given["images"][0]["file_name"] = "deep/1.png"
    labelled = "image_info" not in file
    if not labelled:
        del given["annotations"]
    picture(tmp_path / folder / "deep/1.png", SIZE)
    picture(tmp_path / folder / "2.png", SIZE)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(json.dumps(given))
    data = load(tmp_path, "val", **options)
    assert data.labelled == labelled and len(data[0][1]["labels"]) == labelled and data[1][1]["image_id"] == 2


def test_missing_files_and_folders(tmp_path):
    write(tmp_path, content())
    fails("instances_val2017.json: no such file; .* expected annotations/", load, tmp_path, "val")
    fails("x.json: no such file", load, tmp_path, annotations="x.json")
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    fails(r"train2017: no such folder; .* or pass images=FOLDER", load, tmp_path)


@pytest.mark.parametrize(("root", "counts"), [("coco", (66, 560, 8)), ("VOC2012", (483, 1158, 0))])
def test_real_data(root, counts):
    data = load(shared(f"data/{root}"), "val")
    objects = [each for item in data.items for each in item.objects]
    assert (len(data), len(objects), sum(each.crowd for each in objects)) == counts and not data.problems
    for index in range(0, len(data), 25):
        image, target = data[index]
        assert image.shape[-2:] == target["masks"].shape[-2:] == data.sizes[index]
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()


def test_real_annotations_are_preserved():
    root = shared("data/coco")
    original = json.loads((root / "annotations/instances_train2017.json").read_text())
    keys = ("image_id", "category_id", "iscrowd", "area", "bbox", "segmentation")
    order = {image["id"]: k for k, image in enumerate(original["images"])}
    expected = sorted(original["annotations"], key=lambda entry: order[entry["image_id"]])
    truth = load(root, "train").truth()["annotations"]
    assert [[entry[key] for key in keys] for entry in truth] == [[entry[key] for key in keys] for entry in expected]
