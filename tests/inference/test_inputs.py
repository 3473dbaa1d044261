"""Images from files, folders and patterns; unique names; EXIF orientation."""

import os
from pathlib import Path, PurePath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests import trained

from repgraph.data.files import read_image
from repgraph.data.labels import DataError
from repgraph.errors import UsageError
from repgraph.inference.inputs import check_not_overwritten, find_images, large_images, unique_names


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in (
        "a.jpg", "b.PNG", "notes.txt", ".hidden.jpg", "sub/a.jpg", "sub/deep/c.tif", ".git/d.jpg", "out/labels/a.png",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*given, **options) -> dict[str, str]:
    top = Path.cwd().resolve()
    return {source.name: source.path.relative_to(top).as_posix() for source in find_images(given, **options)}


def test_folders(tree):
    assert found(".") == {"a": "a.jpg", "b": "b.PNG"}
    assert found(".", recursive=True, skip=[Path("out")]) == {
        "a": "a.jpg", "b": "b.PNG", "sub/a": "sub/a.jpg", "sub/deep/c": "sub/deep/c.tif",
    }  # fmt: skip


def test_patterns_keep_the_folders_below_their_fixed_part(tree):
    assert found("*.jpg") == {"a": "a.jpg"}
    assert found("**/*.jpg") == {"a": "a.jpg", "sub/a": "sub/a.jpg"}
    assert found("sub/*/*.tif") == {"deep/c": "sub/deep/c.tif"}
    assert found(f"{tree}/sub/*.jpg") == {"a": "sub/a.jpg"}
    (tree / "[1].jpg").touch()  # a file whose name looks like a pattern
    assert found("[1].jpg") == {"[1]": "[1].jpg"}


def test_files_are_taken_with_any_suffix_and_once(tree):
    assert found("notes.txt", "a.jpg", "./a.jpg", str(tree / "a.jpg"), "*.jpg") == {"notes": "notes.txt", "a": "a.jpg"}


def test_names_that_clash(tree):
    assert found("a.jpg", "sub/a.jpg") == {"a": "a.jpg", "a-2": "sub/a.jpg"}
    (tree / "A.png").touch()
    (tree / "a-2.bmp").touch()
    assert found("a-2.bmp", "a.jpg", "A.png") == {"a-2": "a-2.bmp", "a": "a.jpg", "A-3": "A.png"}


parts = st.sampled_from(["a", "b", "A", "..", "猫"])
ends = st.sampled_from(["a", "a-2", "b.jpg", "a.jpg", "a.png", "a.jpg.png", "猫.jpeg", "猫1.png"])
names = st.tuples(st.lists(parts, max_size=3), ends).map(lambda each: PurePath("/top", *each[0], each[1]))


@given(st.lists(names, min_size=1, max_size=8), st.sampled_from(["flat", "relative", "absolute"]))
def test_names_are_unique_and_stay_in_the_folder(chosen, kind):
    relative = [{"flat": PurePath(path.name), "absolute": path}.get(kind, path.relative_to("/top")) for path in chosen]
    found = unique_names(relative)
    assert len({name.casefold() for name in found}) == len(chosen)
    assert not any(PurePath(name).is_absolute() or ".." in PurePath(name).parts for name in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.jpg", "nowhere.jpg: no such file or folder$"),
        ("*.gif", r"'\*.gif' matches no images$"),
        ("empty", "empty: no images in this folder$"),
        ("out", r"out: no images in this folder \(for its sub-folders, use the pattern 'out/\*\*/\*\.jpg'\)"),
        ("out/*/*", r"out/\*/\*: predictions in --out are not used as inputs"),
    ],
)
def test_arguments_without_images(given, message, tree):
    (tree / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        find_images([given], recursive=False, skip=[Path("out/labels"), Path("out/overlays")])


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links and named pipes")
def test_outputs_that_are_inputs(tree):
    check_not_overwritten([Path("b.png")], [Path("~nobody-here/b.png")])  # an unknown user is not an error
    os.symlink("b.png", "link.png")
    with pytest.raises(UsageError, match=r"b\.png is an input"):
        check_not_overwritten([Path("link.png")], [Path("./b.png")])


def test_links_and_pipes(tree):
    (tree / "links").mkdir()
    for name in ("x.jpg", "y.jpg"):
        (tree / "links" / name).symlink_to(tree / "a.jpg")
    assert found("links", "links/x.jpg", "sub/../links") == {"x": "links/x.jpg", "y": "links/y.jpg"}
    (tree / "sub" / "broken.png").symlink_to(tree / "gone.png")  # fails when it is read
    (tree / "sub" / "loop").symlink_to(tree)
    os.mkfifo(tree / "sub" / "pipe.png")
    expected = {"a": "sub/a.jpg", "broken": "sub/broken.png", "pipe": "sub/pipe.png"}  # so does a pipe
    assert found("sub") == found("sub/*.*") == found(*expected.values()) == expected
    with pytest.raises(DataError, match=r"(?i)not a regular file"):
        find_images(["sub/pipe.png"])[0].read()
    for pattern in (".", "**/*"):
        assert found(pattern, recursive=pattern == ".", skip=[Path("out")]) == {
            "a": "a.jpg", "b": "b.PNG", "links/x": "links/x.jpg", "links/y": "links/y.jpg", "sub/a": "sub/a.jpg",
            "sub/broken": "sub/broken.png", "sub/pipe": "sub/pipe.png", "sub/deep/c": "sub/deep/c.tif",
        } | ({"notes": "notes.txt"} if pattern == "**/*" else {})  # fmt: skip


@pytest.mark.parametrize("orientation", range(10))
def test_photos_are_rotated_by_their_exif_orientation(orientation, tmp_path):
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(trained.picture(16, 24)).save(path, exif=exif, quality=100)
    with Image.open(path) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    assert np.array_equal(read_image(path, upright=True).permute(1, 2, 0).numpy(), expected)


def test_images_beyond_pillows_limit(tmp_path, monkeypatch):
    path = trained.save_picture(tmp_path / "a.png", 30, 40)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    with pytest.raises(DataError, match="exceeds limit"):
        read_image(path, upright=True)
    with large_images():
        assert read_image(path, upright=True).shape == (3, 30, 40)
    assert Image.MAX_IMAGE_PIXELS == 500
