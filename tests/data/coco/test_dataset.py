"""Images with objects: what a sample is, layouts, and what is done about files that are not sound."""

import json
import pickle

import numpy as np
import pytest
import torch
from tests.data.coco.files import SIZE, SQUARE, annotation, content, crowd, write
from tests.data.layouts import cut, picture
from tests.shared_data import shared
from torch.utils.data import DataLoader
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

from repgraph import data as sets
from repgraph.data import DataError
from repgraph.data.coco import RandomFlip, annotations, dataset, load, objects, open_split, rle
from repgraph.data.coco.annotations import read_annotations
from repgraph.data.listing import Missing

HUGE = 10**400  # JSON has such numbers, float64 has not


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
    assert target["image_id"] == 1
    assert data.labels.names == ("cat", "dog", "kite") and data.labels.ids == (3, 7, 90)
    assert data.labelled and not data.problems and data.skipped == {} and data.sizes == [SIZE, SIZE]
    assert "2 images, 3 objects, 3 classes" in repr(data) and "left out" not in repr(data)


def test_an_image_without_objects(tmp_path):
    _, target = load(write(tmp_path, content(annotation(1))))[1]
    assert target["boxes"].shape == (0, 4) and target["masks"].shape == (0, *SIZE)
    assert {name: len(target[name]) for name in ("labels", "area", "iscrowd")} == dict(labels=0, area=0, iscrowd=0)


def test_crowds_and_empty_images_can_be_left_out(tmp_path):
    root = write(tmp_path, content(annotation(1), crowd(2), crowd(3, image=2)))
    assert [len(load(root, crowds=False)[k][1]["labels"]) for k in range(2)] == [1, 0]
    data = load(root, crowds=False, empty=False)
    assert [item.name for item in data.items] == ["1.png"]
    assert len(load(root, empty=False)) == 2
    assert [entry["iscrowd"] for entry in data.truth()["annotations"]] == [0, 1]  # results are compared with all
    write(tmp_path, content(crowd(2)))
    with pytest.raises(DataError, match="no image in it has an object that can be used"):
        load(root, crowds=False, empty=False)


def test_all_ways_to_write_a_mask_are_one(tmp_path):
    mask = np.zeros(SIZE, np.uint8)
    mask[3:9, 2:8] = 1
    runs = rle.encode(mask)
    ways = [SQUARE, {"size": list(SIZE), "counts": runs.tolist()}, {"size": list(SIZE), "counts": rle.pack(runs)}]
    given = [annotation(k, segmentation=way) for k, way in enumerate(ways)]
    given += [annotation(k + 3, segmentation=way, bbox=None, area=None) for k, way in enumerate(ways)]
    data = load(write(tmp_path, content(*given)))
    target = data[0][1]
    assert all(torch.equal(each, torch.from_numpy(mask)) for each in target["masks"])
    assert target["boxes"].unique(dim=0).tolist() == [[2, 3, 8, 9]] and target["area"].unique().tolist() == [36]
    again = write(tmp_path / "again", {**data.truth()})
    for name in ("train2017/1.png", "train2017/2.png"):
        (again / name).write_bytes((tmp_path / name).read_bytes())
    assert torch.equal(load(again)[0][1]["masks"], target["masks"])


def test_an_area_beyond_all_numbers_is_counted_anew(tmp_path):
    assert load(write(tmp_path, content(annotation(1, area=HUGE))))[0][1]["area"].tolist() == [36]


def test_boxes_are_cut_at_the_rim(tmp_path):
    data = load(write(tmp_path, content(annotation(1, bbox=[-4, -2, 12, 40.5]))))
    assert data[0][1]["boxes"].tolist() == [[0, 0, 8, 20]]
    assert data.truth()["annotations"][0]["bbox"] == [-4, -2, 12, 40.5]


FAULTS = {  # what is wrong with an annotation: its kind, words of the detail
    "no mask": (dict(segmentation=None), objects.NO_MASK, "no segmentation"),
    "empty mask": (dict(segmentation=[]), objects.NO_MASK, "is empty"),
    "two corners": (dict(segmentation=[[1, 1, 5, 5]]), objects.BAD_MASK, "three corners"),
    "odd": (dict(segmentation=[[1, 1, 5, 5, 3, 1, 9]]), objects.BAD_MASK, "one corner after the other"),
    "words": (dict(segmentation=[["a"] * 6]), objects.BAD_MASK, "finite numbers"),
    "nan": (dict(segmentation=[[float("nan")] * 6]), objects.BAD_MASK, "finite numbers"),
    "far away": (dict(segmentation=[[1, 1, 5, 5, 1e12, 4]]), objects.BAD_MASK, "more than 1e+06 pixels away"),
    "a text": (dict(segmentation="x"), objects.BAD_MASK, "neither a list of polygons"),
    "bad runs": (dict(segmentation={"size": list(SIZE), "counts": "!"}), objects.BAD_MASK, "characters"),
    "few runs": (dict(segmentation={"size": list(SIZE), "counts": [7]}), objects.BAD_MASK, "cover 7 pixels"),
    "half runs": (dict(segmentation={"size": list(SIZE), "counts": [0.5]}), objects.BAD_MASK, "whole numbers"),
    "size": (dict(segmentation={"size": [30, 20], "counts": [600]}), objects.SIZE, "[30, 20] instead of [20, 30]"),
    "no pixel": (dict(segmentation={"size": list(SIZE), "counts": [600]}), objects.OUTSIDE, "it is empty"),
    "outside": (dict(segmentation=[[40, 1, 50, 1, 50, 9]]), objects.OUTSIDE, "x 40 to 50, y 1 to 9, in 30 x 20"),
    "zero box": (dict(bbox=[2, 3, 0, 6]), objects.NO_BOX, "x 2, y 3, width 0, height 6"),
    "negative box": (dict(bbox=[2, 3, 4, -6]), objects.NO_BOX, "height -6"),
    "box outside": (dict(bbox=[31, 3, 4, 6]), objects.NO_BOX, "x 31"),
    "three numbers": (dict(bbox=[2, 3, 4]), objects.BAD_BOX, "[2, 3, 4]; x, y, width and height are needed"),
    "huge corner": (dict(segmentation=[[HUGE, 1, 5, 5, 3, 4]]), objects.BAD_MASK, "finite numbers"),
    "huge run": (dict(segmentation={"size": list(SIZE), "counts": [HUGE]}), objects.BAD_MASK, "too large"),
    "runs that wrap": (
        dict(segmentation={"size": list(SIZE), "counts": [2**63 - 1, 2**63 - 1, 602]}),  # 600 in 64 bits
        objects.BAD_MASK,
        "a run is 9223372036854775807 long in 30 x 20 pixels",
    ),
    "huge box": (dict(bbox=[2, 3, HUGE, 6]), objects.BAD_BOX, "x, y, width and height are needed"),
    "crowd": (dict(iscrowd="no"), objects.BAD_CROWD, "it is 'no'; 0 or 1 is needed"),
    "image": (dict(image=77), annotations.NO_IMAGE, "image_id 77"),
    "category": (dict(category=4), annotations.NO_CATEGORY, "category_id 4"),
    "no category": (dict(category_id=None), annotations.NO_OBJECT, "are needed, as whole numbers"),
    "taken": (dict(number=1), annotations.REPEATED, "the first one counts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_objects_that_cannot_be_used_are_left_out_and_counted(tmp_path, fault):
    wrong, kind, words = FAULTS[fault]
    data = load(write(tmp_path, content(annotation(1), annotation(**{"number": 2, **wrong}))))
    assert len(data[0][1]["labels"]) == 1
    assert data.skipped == {kind: 1} and words in data.problems[0].detail
    assert data.problems[0].about.startswith("annotation ")
    assert f"left out are {kind}: 1" in repr(data)


def test_an_entry_that_is_no_annotation(tmp_path):
    data = load(write(tmp_path, content(annotation(1), "x")))  # type: ignore[arg-type]
    assert [problem.about for problem in data.problems] == ["the entry at place 1"]


def test_an_outline_without_a_pixels_centre_is_left_out_when_drawn(tmp_path):
    thin = [[3.1, 4.1, 9.0, 4.2, 3.1, 4.3]]
    data = load(write(tmp_path, content(annotation(1), annotation(2, segmentation=thin))))
    assert data[0][1]["boxes"].shape == (1, 4) and len(data.truth()["annotations"]) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('{"images": [', "cannot read it as JSON .*; it is damaged or cut short"),
        ("[1]", "a list; an object with images, annotations, categories is needed"),
        (content(images=0), "'images' has to be a list with something in it"),
        (content(categories=[]), "'categories' has to be a list"),
        (content(categories=[{"name": "cat"}]), r"categories\[0\] has no id that is a whole number"),
        (content(categories=[{"id": 3}]), "category 3 has no name"),
        (content(categories=[{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]), "two of 'categories' have the id 3"),
        (content(categories=[{"id": k, "name": "a"} for k in range(300)]), "300 classes: there can be 1 to 255"),
        ({**content(), "images": [dict(id=1, height=4, width=4)]}, "image 1 has no file_name"),
        (
            {**content(), "images": [dict(id=1, file_name="1.png", height=0, width=4)]},
            r"image 1 \(1.png\) has no height and",
        ),
        (
            {**content(), "images": [dict(id=1, file_name="1.png", height="4", width=4)]},
            r"image 1 \(1.png\) has no height and",
        ),
        (
            {**content(), "images": [dict(id=1, file_name="1.png", height=10**9, width=10**9)]},
            r"image 1 \(1.png\) has a height and width of more than 1073741824 pixels",
        ),
        ({**content(), "annotations": {}}, "'annotations' is a dict; a list is needed"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, given, message):
    root = write(tmp_path, given)
    with pytest.raises(DataError, match=f"instances_train2017.json: {message}"):
        load(root)


def test_bytes_that_are_no_text(tmp_path):
    (write(tmp_path, content()) / "annotations/instances_train2017.json").write_bytes(b"\xff\xfe\x80\x00\x01")
    with pytest.raises(DataError, match="cannot read it as JSON"):
        load(tmp_path)


def test_missing_images_are_found_when_the_set_is_opened(tmp_path):
    root = write(tmp_path, content(annotation(1), images=4))
    with pytest.raises(
        DataError, match=r"train2017/3.png: there is no such file, .*; 2 missing in all, which repgraph"
    ):
        load(root)
    assert [path.name for path in open_split(root).missing] == ["3.png", "4.png"]


def test_images_that_are_not_what_the_file_says(tmp_path):
    root = write(tmp_path, content(annotation(1)))
    picture(root / "train2017/1.png", (30, 20))
    cut(root / "train2017/2.png")
    data = load(root)
    with pytest.raises(DataError, match=r"1.png: the image has 20 x 30 pixels, and 30 x 20 in .*2017.json; both need"):
        data[0]
    with pytest.raises(DataError, match=r"2.png: cannot read this image"):
        data[1]


def test_images_can_be_verified_beforehand(tmp_path):
    root = write(tmp_path, content(annotation(1), annotation(2, image=3), images=4), images=4)
    picture(root / "train2017/1.png", (30, 20))
    (root / "train2017/2.png").write_bytes(b"?")
    data = load(root).verify(workers=2)
    assert [item.name for item in data.items] == ["3.png", "4.png"] and len(data[0][1]["labels"]) == 1
    assert data.skipped == {dataset.IMAGE_SIZE: 1, dataset.BAD_IMAGE: 1}
    assert data.problems[0].detail.startswith("the image has 20 x 30 pixels, and 30 x 20 in ")
    assert len(data.truth()["images"]) == 2 and "left out are images of another size" in repr(data)
    for name in ("3.png", "4.png"):
        (root / "train2017" / name).write_bytes(b"")
    with pytest.raises(DataError, match=r"none of its images can be used; cannot read this image"):
        load(root).verify()


@pytest.mark.parametrize(
    ("file", "folder", "options"),
    [
        ("annotations/instances_val2017.json", "val2017", {}),
        ("annotations/instances_val2014.json", "val2014", {}),
        ("annotations/instances_val2017.json", "images/val2017", {}),
        ("annotations/instances_val.json", "JPEGImages", {}),
        ("annotations/val.json", "images/val", {}),
        ("annotations/val.json", "images", {}),
        ("my objects.json", "some/where", dict(images="some/where", annotations="my objects.json")),
        ("val-objects.json", "val photos", dict(images="{split} photos", annotations="{split}-objects.json")),
    ],
)
def test_layouts(tmp_path, file, folder, options):
    given = content(annotation(1))
    given["images"][0]["file_name"] = "deep/1.png"
    picture(tmp_path / folder / "deep/1.png", SIZE)
    picture(tmp_path / folder / "2.png", SIZE)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(json.dumps(given))
    assert len(load(tmp_path, "val", **options)[0][1]["labels"]) == 1


def test_a_split_without_annotations(tmp_path):
    given = content()
    del given["annotations"]
    picture(tmp_path / "test2017/1.png", SIZE)
    picture(tmp_path / "test2017/2.png", SIZE)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/image_info_test-dev2017.json").write_text(json.dumps(given))
    data = load(tmp_path, "test")
    assert not data.labelled and len(data[1][1]["labels"]) == 0 and data[1][1]["image_id"] == 2


def test_what_is_not_there(tmp_path):
    with pytest.raises(Missing, match=r"nowhere: there is no such folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(Missing, match=r"instances_val2017.json: there is no such file; expected is annotations/"):
        load(write(tmp_path, content()), "val")
    with pytest.raises(Missing, match=r"x.json: there is no such annotation file"):
        load(tmp_path, annotations="x.json")
    with pytest.raises(Missing, match=r"photos: there is no such folder"):
        load(tmp_path, images="photos")
    (tmp_path / "train2017").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"train2017: there is no such folder; .* or give images=FOLDER"):
        load(tmp_path)


def test_segmentation_sends_you_here(tmp_path):
    with pytest.raises(DataError, match=r"coco has objects and no label maps; repgraph.data.coco.load opens it"):
        sets.load("coco", tmp_path)


class TestFlip:
    def test_everything_is_flipped(self, tmp_path):
        image, target = load(write(tmp_path, content(annotation(1), crowd(2))))[0]
        flipped, mirrored = RandomFlip(1.0)(image, target, torch.Generator())
        assert torch.equal(flipped, image.flip(-1)) and torch.equal(mirrored["masks"], target["masks"].flip(-1))
        assert mirrored["boxes"].tolist() == [[22, 3, 28, 9], [28, 0, 30, 20]]
        assert mirrored["labels"] is target["labels"] and mirrored["image_id"] == 1
        assert target["boxes"].tolist() == [[2, 3, 8, 9], [0, 0, 2, 20]]  # as it was
        empty = load(tmp_path)[1]
        assert RandomFlip(1.0)(*empty, torch.Generator())[1]["boxes"].shape == (0, 4)

    def test_the_generator_decides(self, tmp_path):
        sample = load(write(tmp_path, content(annotation(1))))[0]
        seeds = range(40)
        drawn = [torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(s)) < 0.5 for s in seeds]
        made = [RandomFlip()(*sample, torch.Generator().manual_seed(s))[0] is not sample[0] for s in seeds]
        assert made == [bool(each) for each in drawn] and 5 < sum(made) < 35
        assert RandomFlip(0.0)(*sample, torch.Generator()) == sample

    def test_a_chance_that_is_none(self):
        with pytest.raises(DataError, match="chance is 2; a number from 0 to 1"):
            RandomFlip(2)


def test_workers_read_it_too(tmp_path):
    data = load(write(tmp_path, content(annotation(1), crowd(2))))
    loader = DataLoader(data, batch_size=2, num_workers=1, collate_fn=list)
    ((first, second),) = loader
    assert [len(target["labels"]) for _, target in (first, second)] == [2, 0]
    twin = pickle.loads(pickle.dumps(data))
    assert torch.equal(twin[0][1]["masks"], data[0][1]["masks"])


@pytest.mark.parametrize(
    ("root", "split", "images", "count", "crowds"),
    [("coco", "train", 120, 988, 11), ("coco", "val", 66, 560, 8), ("VOC2012", "val", 483, 1158, 0)],
)
def test_real_sets(root, split, images, count, crowds):
    data = load(shared(f"data/{root}"), split)
    everything = [each for item in data.items for each in item.picture.objects]
    assert len(data) == images and len(everything) + len(data.problems) == count and not data.problems
    assert sum(each.crowd for each in everything) == crowds
    for index in range(0, images, 25):
        image, target = data[index]
        assert image.shape[-2:] == target["masks"].shape[-2:] == data.sizes[index]
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the package's
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_real_sample_comes_back(split, tmp_path):
    """Polygons and crowds, through the set and back: every object is the same, and every mask as the package's."""
    package = pytest.importorskip("pycocotools.mask", reason="pip install 'repgraph[detection]'")
    root = shared("data/coco")
    original = json.loads((root / f"annotations/instances_{split}2017.json").read_text())
    truth = load(root, split).truth()
    path = tmp_path / "again.json"
    path.write_text(json.dumps(truth))
    keys = ("image_id", "category_id", "iscrowd", "area", "bbox", "segmentation")
    order = {image["id"]: k for k, image in enumerate(original["images"])}
    wanted = sorted(original["annotations"], key=lambda entry: order[entry["image_id"]])  # grouped by image
    assert [{k: entry[k] for k in keys} for entry in truth["annotations"]] == [{k: e[k] for k in keys} for e in wanted]
    again = read_annotations(path)
    kinds = {type(each.outline) for picture in again.pictures for each in picture.objects}
    assert kinds == {tuple, str}
    entries = iter(truth["annotations"])
    for picture_ in again.pictures[:40]:
        size = picture_.height, picture_.width
        for each in picture_.objects:
            given = next(entries)["segmentation"]
            theirs = package.merge(package.frPyObjects(given, *size)) if isinstance(given, list) else given
            np.testing.assert_array_equal(each.mask(*size), package.decode(theirs))
