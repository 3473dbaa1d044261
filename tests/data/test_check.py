"""``repgraph data check``: finds all that is wrong at once, counts classes, says so in words, JSON and exit code."""

import json

import numpy as np
import pytest
from PIL import Image
from tests.absent import run_without
from tests.data.coco import files as coco
from tests.data.layouts import cut, folder, mask, names, picture
from tests.shared_data import shared

from repgraph import cli
from repgraph.data import check, load
from repgraph.data.check import check_split, open_splits


def run(*arguments: object) -> int:
    try:
        return cli.main(["data", "check", *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)


def report_of(capsys, *arguments: object) -> dict:
    run(*arguments, "--json")
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def broken(tmp_path):
    """One of every problem in train, and a sound val but for one image that is in both."""
    names(tmp_path / "classes.txt", "ground", "thing", "never")
    for name in ("fine", "no mask", "cut", "size", "values", "colours", "both"):
        picture(tmp_path / f"images/{name}.png", (20, 30))
        mask(tmp_path / f"masks/{name}.png", [0, 1, 1, 255], (20, 30))
    (tmp_path / "masks/no mask.png").unlink()
    mask(tmp_path / "masks/stray.png", [0])
    cut(tmp_path / "images/cut.png")
    mask(tmp_path / "masks/size.png", [0, 1, 1, 255], (30, 20))
    mask(tmp_path / "masks/values.png", [0, 9, 77, 255], (20, 30))
    Image.new("RGB", (30, 20)).save(tmp_path / "masks/colours.png")
    picture(tmp_path / "images/mask cut.png", (20, 30))
    mask(tmp_path / "masks/mask cut.png", np.random.default_rng(0).integers(0, 2, 600), (20, 30))
    cut(tmp_path / "masks/mask cut.png")
    listed = ("fine", "no mask", "gone", "cut", "size", "values", "colours", "both", "mask cut", "fine")
    names(tmp_path / "train.txt", *listed)
    names(tmp_path / "val.txt", "both")
    return tmp_path


FOUND = {  # kind: names of the files it is about
    check.NO_IMAGE: ["gone.jpg"],
    check.NO_MASK: ["no mask.png", "gone.png"],
    check.STRAY: ["stray.png"],
    check.BAD_IMAGE: ["cut.png"],
    check.BAD_MASK: ["colours.png", "mask cut.png"],
    check.SIZE: ["size.png"],
    check.UNKNOWN: ["values.png"],
    check.REPEATED: ["fine"],
}


@pytest.mark.parametrize("workers", [1, 3])
def test_everything_is_found_at_once(broken, workers, capsys):
    assert run("folder", broken, "--workers", workers, "--json") == 1
    given = json.loads(capsys.readouterr().out)
    train, val = given["splits"]
    found: dict[str, list[str]] = {}
    for problem in train["problems"]:
        found.setdefault(problem["kind"], []).append(problem["about"].rpartition("/")[2])
    assert found == FOUND
    assert [(p["kind"], p["detail"]) for p in val["problems"]] == [(check.SHARED, "train and val")]
    assert given["problems"] == 11 and (train["images"], val["images"]) == (9, 1)


def test_details(broken, capsys):
    problems = report_of(capsys, "folder", broken)["splits"][0]["problems"]
    details = {problem["kind"]: problem["detail"] for problem in problems}
    assert details[check.UNKNOWN] == "9 (150 pixels), 77 (150 pixels)"
    assert details[check.SIZE].startswith("the mask has 20 x 30 pixels, its image ")
    assert "30 x 20; both need the same size" in details[check.SIZE]
    assert details[check.BAD_IMAGE].startswith("cannot read this image (")
    colours = next(p for p in problems if p["about"].endswith("colours.png"))
    assert "turn its colours into class numbers" in colours["detail"]


def test_problems_in_words(broken, capsys):
    assert run("folder", broken) == 1
    out = capsys.readouterr().out
    assert all(f"{kind}: {len(about)}\n" in out for kind, about in FOUND.items())
    assert "folder train: 9 images, 30 x 20 pixels" in out and "folder val: 1 image, 30 x 20 pixels" in out
    assert "classes that do not occur: never" in out
    assert out.rstrip().endswith("11 problems found")


def test_classes_are_counted(broken, capsys):
    """Pixels and images of each class over all masks that can be read, unknown values and wrong sizes among them."""
    train = report_of(capsys, "folder", broken)["splits"][0]
    known = [load("folder", broken, "val")[0][1].numpy()]  # as in fine, cut, size and both
    zeros, ones, ignored = (int((known[0] == value).sum()) for value in (0, 1, 255))
    counted = {entry["name"]: (entry["pixels"], entry["images"]) for entry in train["classes"]}
    assert counted == {"ground": (5 * zeros, 5), "thing": (4 * ones, 4), "never": (0, 0)}
    assert train["ignored_pixels"] == 5 * ignored


def test_a_sound_set(tmp_path, capsys):
    folder(tmp_path, 4)
    folder(tmp_path, 2, split="val")
    picture(tmp_path / "images/test/a.jpg", (9, 5))
    assert run("folder", tmp_path) == 0
    out = capsys.readouterr().out
    assert "folder train: 4 images" in out and "folder test: 1 image without labels, 5 x 9 pixels" in out
    assert out.rstrip().endswith("no problems found")


def test_a_narrow_screen_cuts_nothing(tmp_path, capsys, monkeypatch):
    names(folder(tmp_path) / "classes.txt", "ground", "chest of drawers", "something else")
    monkeypatch.setenv("COLUMNS", "20")
    assert run("folder", tmp_path) == 0
    out = capsys.readouterr().out
    assert "class" in out and "% of labelled" in out and "\nchest of drawers " in out and "…" not in out


def test_frequencies_by_brute_force(tmp_path, capsys):
    folder(tmp_path, 3)
    mask(tmp_path / "masks/train/1.png", [1])
    data = load("folder", tmp_path)
    masks = [truth.numpy() for _, truth in data]
    given = report_of(capsys, "folder", tmp_path, "--split", "train")["splits"][0]
    for k, entry in enumerate(given["classes"]):
        assert entry == {
            "name": f"thing {k}",
            "id": k,
            "pixels": sum(int((m == k).sum()) for m in masks),
            "images": sum(bool((m == k).any()) for m in masks),
        }
    assert given["ignored_pixels"] == sum(int((m == 255).sum()) for m in masks)


def test_splits_that_are_asked_for(tmp_path, capsys):
    folder(tmp_path)
    folder(tmp_path, split="val")
    given = report_of(capsys, "folder", tmp_path, "--split", "val", "trainval")
    assert [entry["split"] for entry in given["splits"]] == ["val", "trainval"] and given["problems"] == 0


def test_only_the_splits_that_are_there(tmp_path, capsys):
    folder(tmp_path, split="val")
    assert [entry["split"] for entry in report_of(capsys, "folder", tmp_path)["splits"]] == ["val"]


@pytest.mark.parametrize("arguments", [(), ("--split", "train", "val")])
def test_a_split_without_its_masks_is_a_problem(tmp_path, capsys, arguments):
    folder(tmp_path)
    picture(tmp_path / "images/val/a.png")
    train, val = report_of(capsys, "folder", tmp_path, *arguments)["splits"]
    assert train["problems"] == []
    (problem,) = val["problems"]
    assert problem["kind"] == check.SPLIT and "masks/val: there is no such folder" in problem["detail"]


def test_a_set_without_masks_is_a_problem_though_test_needs_none(tmp_path, capsys):
    picture(tmp_path / "JPEGImages/a.jpg")
    for split in ("train", "test"):
        names(tmp_path / f"ImageSets/Segmentation/{split}.txt", "a")
    problems = {entry["split"]: len(entry["problems"]) for entry in report_of(capsys, "voc", tmp_path)["splits"]}
    assert problems == {"train": 1, "test": 0}


def test_a_split_without_a_labelled_pixel_is_a_problem(tmp_path, capsys):
    folder(tmp_path)
    folder(tmp_path, 2, split="val")
    for k in range(2):
        mask(tmp_path / f"masks/val/{k}.png", [255])
    assert run("folder", tmp_path) == 1
    out = capsys.readouterr().out
    assert f"{check.NOTHING}: 1\n  val: all 96 known pixels of the masks are ignored" in out
    assert "1 problem found" in out


def test_a_split_that_cannot_be_opened_is_a_problem_and_not_the_end(tmp_path, capsys):
    folder(tmp_path)
    folder(tmp_path, split="val")
    picture(tmp_path / "images/train/0.jpg")
    assert run("folder", tmp_path) == 1
    out = capsys.readouterr().out
    assert f"{check.SPLIT}: 1" in out and "0.png and 0.jpg have one name" in out
    assert "folder val: 3 images" in out


def test_an_empty_list_is_a_problem(tmp_path, capsys):
    folder(tmp_path / "x")
    for kind in ("images", "masks"):
        (tmp_path / "x" / kind / "train").rename(tmp_path / kind)
    (tmp_path / "x/classes.txt").rename(tmp_path / "classes.txt")
    (tmp_path / "val.txt").write_text("")
    assert run("folder", tmp_path, "--split", "val") == 1
    assert "val.txt: no names in it" in capsys.readouterr().out


@pytest.mark.parametrize("everything", [True, False])
def test_many_problems_are_shown_in_part(tmp_path, capsys, everything):
    folder(tmp_path, 14)
    for k in range(14):
        (tmp_path / f"masks/train/{k}.png").unlink()
    assert run("folder", tmp_path, *["--all"] * everything) == 1
    out = capsys.readouterr().out
    assert out.count("masks/train/") == (14 if everything else 10)
    assert ("... and 4 more (--all shows them)" in out) != everything


def test_options_of_the_reader(tmp_path, capsys):
    folder(tmp_path)
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "masks").rename(tmp_path / "truth")
    assert run("folder", tmp_path, "--option", 'classes=["a", "b", "c"]', "--option", "masks=truth", "--json") == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["splits"][0]["classes"]] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vocc", "x"], "repgraph data check: unknown data set 'vocc'; did you mean 'voc'?"),
        (["voc", "nowhere"], "repgraph data check: nowhere: there is no such folder; expected is VOC2012"),
        (["scenes", "x"], "repgraph data check: scenes are drawn by the program"),
        (["folder", ".", "--split", "tset"], "repgraph data check: images/tset: there is no such folder"),
        (["folder", ".", "--option", "classes"], "repgraph data check: --option 'classes': give it as NAME=VALUE"),
        (
            ["folder", ".", "--option", "clases=3"],
            "repgraph data check: folder has no option 'clases'; its options are",
        ),
        (["folder", ".", "--workers", "0"], "repgraph data check: argument --workers: '0' is not a whole number"),
        (["camvid", ".", "--split", "dev"], "repgraph data check: camvid has no split 'dev'; choose one of train, val"),
        (["voc"], "repgraph data check: the following arguments are required: ROOT"),
    ],
)
def test_mistakes_in_the_command(arguments, message, tmp_path, capsys, monkeypatch):
    folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(message) and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize("name", ["ä漢 [bold]x[/bold] :smile:", "a\nb", b"\xff\xfe".decode("utf-8", "surrogateescape")])
@pytest.mark.parametrize("as_json", [True, False])
def test_odd_names_can_be_printed(tmp_path, capsys, name, as_json):
    folder(tmp_path)
    try:
        picture(tmp_path / f"images/train/{name}.png")
    except OSError:
        pytest.skip("this file system does not take such names")
    assert run("folder", tmp_path, *["--json"] * as_json) == 1
    out = capsys.readouterr().out
    out.encode("utf-8")
    if not as_json and "bold" in name:
        assert f"masks/train/{name}.png" in out


def test_progress_is_told(tmp_path):
    folder(tmp_path, 5)
    told = []
    check_split(load("folder", tmp_path), 2, lambda *state: told.append(state))
    assert told == [("train", done, 5) for done in range(1, 6)]


def test_the_first_error_does_not_stop_other_threads(tmp_path):
    folder(tmp_path, 20)
    for k in range(0, 20, 2):
        (tmp_path / f"images/train/{k}.png").write_bytes(b"?")
    report = check.check(open_splits("folder", tmp_path, ["train"]), 4)[0]
    assert sorted(p.about.rpartition("/")[2] for p in report.problems) == sorted(f"{k}.png" for k in range(0, 20, 2))
    assert report.images.tolist() == [20, 20, 20]  # masks count all the same


def test_help_without_what_it_needs():
    script = "from repgraph.cli import main; main(['data', 'check', '--help'])"
    done = run_without(("torchvision", "PIL", "rich"), script)
    assert done.returncode == 0 and "repgraph data check voc data/VOC2012" in done.stdout


def test_without_what_it_needs():
    done = run_without(
        ("torchvision",), "import sys; from repgraph.cli import main; sys.exit(main(['data', 'check', 'voc', '.']))"
    )
    assert done.returncode == 2 and "needs torchvision: pip install 'repgraph[train]'" in done.stderr


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("ade20k", "samples/ADEChallengeData2016"),
        ("camvid", "CamVid"),
        ("cityscapes", "samples/cityscapes"),
        ("stanford", "stanford_background"),
        ("voc", "VOC2012"),
    ],
)
def test_real_sets_are_sound(name, root, capsys):
    assert run(name, shared(f"data/{root}"), "--workers", 2) == 0
    assert "no problems found" in capsys.readouterr().out


class TestObjects:
    """``repgraph data check coco``: the same command for annotation files in COCO's format."""

    def test_everything_is_found_at_once(self, tmp_path, capsys):
        thin = [[3.1, 4.1, 9.0, 4.2, 3.1, 4.3]]
        given = coco.content(
            coco.annotation(1),
            coco.annotation(2, segmentation=thin),
            coco.annotation(3, bbox=[1, 1, 0, 0]),
            coco.annotation(4, image=99),
            coco.crowd(5),
            images=4,
        )
        coco.write(tmp_path, given)
        picture(tmp_path / "train2017/2.png", (7, 9))
        picture(tmp_path / "train2017/3.png", coco.SIZE)
        cut(tmp_path / "train2017/3.png")
        assert run("coco", tmp_path, "--json") == 1
        (train,) = json.loads(capsys.readouterr().out)["splits"]
        found = {problem["kind"]: problem["about"].rpartition("/")[2] for problem in train["problems"]}
        assert found == {
            check.NO_IMAGE: "4.png",
            check.BAD_IMAGE: "3.png",
            check.instances.IMAGE_SIZE: "2.png",
            "annotations of images that are not in the file": "annotation 4",
            "objects whose mask has no pixel in the image": "annotation 2 of image 1.png",
            "objects whose box has no area in the image": "annotation 3 of image 1.png",
        }
        counted = {entry["name"]: (entry["id"], entry["objects"], entry["images"]) for entry in train["classes"]}
        assert counted == {"cat": (3, 1, 1), "dog": (7, 1, 1), "kite": (90, 0, 0)}
        assert [entry["pixels"] for entry in train["classes"]] == [40, 36, 0]
        assert train["ignored_pixels"] == 4 * 600 - 76 and train["images"] == 4

    def test_in_words(self, tmp_path, capsys):
        coco.write(tmp_path, coco.content(coco.annotation(1), coco.annotation(2, bbox=[1, 1, 0, 0])))
        coco.write(tmp_path, coco.content(coco.annotation(1)), "val")
        assert run("coco", tmp_path) == 1
        out = capsys.readouterr().out
        assert "objects whose box has no area in the image: 1" in out and "coco val: 2 images, 30 x 20 pixels" in out
        assert "% of all in objects" in out and "in no object" in out and "1 problem found" in out
        assert run("coco", tmp_path, "--split", "val") == 0

    @pytest.mark.parametrize("given", [(), (coco.crowd(1),), (coco.annotation(1, bbox=[1, 1, 0, 0]),)])
    def test_a_split_without_an_object_to_find(self, tmp_path, capsys, given):
        coco.write(tmp_path, coco.content(*given))
        assert run("coco", tmp_path) == 1
        assert f"{check.NO_OBJECT}: 1\n  train: crowds do not count" in capsys.readouterr().out

    def test_splits_of_other_classes(self, tmp_path, capsys):
        coco.write(tmp_path, coco.content(coco.annotation(1)))
        others = [{"id": 7, "name": "cat"}, {"id": 8, "name": "dog"}]
        coco.write(tmp_path, coco.content(coco.annotation(1), categories=others), "val")
        assert run("coco", tmp_path) == 1
        assert f"{check.OTHERS}: 1\n  train and val: there are 3 and 2\n" in capsys.readouterr().out

    def test_a_file_that_cannot_be_read_is_a_problem_and_not_the_end(self, tmp_path, capsys):
        coco.write(tmp_path, "{")
        coco.write(tmp_path, coco.content(coco.annotation(1)), "val")
        assert run("coco", tmp_path) == 1
        out = capsys.readouterr().out
        assert f"{check.SPLIT}: 1" in out and "cannot read it as JSON" in out and "coco val: 2 images" in out

    def test_options(self, tmp_path, capsys):
        coco.write(tmp_path, coco.content(coco.annotation(1)))
        (tmp_path / "annotations/instances_train2017.json").rename(tmp_path / "mine.json")
        (tmp_path / "train2017").rename(tmp_path / "photos")
        options = ("--option", "annotations=mine.json", "--option", "images=photos")
        assert run("coco", tmp_path, "--split", "train", *options) == 0
        assert run("coco", tmp_path, "--option", "image=photos") == 2
        assert (
            "coco has no option 'image'; its options are images, annotations, crowds, empty" in capsys.readouterr().err
        )

    def test_real_objects(self, capsys):
        """The sample of COCO has one outline that is too thin for a pixel, VOC's objects are sound."""
        problems = report_of(capsys, "coco", shared("data/coco"), "--workers", 2)["splits"][0]["problems"]
        assert [problem["about"] for problem in problems] == ["annotation 1441425 of image 000000000542.jpg"]
        assert run("coco", shared("data/VOC2012"), "--split", "val", "--workers", 2) == 0
