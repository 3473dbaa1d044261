"""Which images files, folders and patterns name, and that no two of them get one name."""

import os
import sys
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repgraph.engine.prediction.inputs import find, names
from repgraph.errors import UsageError


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
    return {source.name: source.path.relative_to(top).as_posix() for source in find(given, **options)}


def test_a_folder_has_its_images_and_with_recursive_those_below(tree):
    assert found(".") == {"a": "a.jpg", "b": "b.PNG"}
    assert found(".", recursive=True, skip=[Path("out")]) == {
        "a": "a.jpg", "b": "b.PNG", "sub/a": "sub/a.jpg", "sub/deep/c": "sub/deep/c.tif",
    }  # fmt: skip


def test_patterns_keep_the_folders_below_their_fixed_part(tree):
    assert found("*.jpg") == {"a": "a.jpg"}
    assert found("**/*.jpg") == {"a": "a.jpg", "sub/a": "sub/a.jpg"}
    assert found("sub/*/*.tif") == {"deep/c": "sub/deep/c.tif"}
    assert found(f"{tree}/sub/*.jpg") == {"a": "sub/a.jpg"}
    assert found("out/**/*.png", "a.jpg", skip=[Path("elsewhere")]) == {"labels/a": "out/labels/a.png", "a": "a.jpg"}


def test_files_are_taken_whatever_their_ending_and_once(tree):
    assert found("notes.txt", "a.jpg", "./a.jpg", str(tree / "a.jpg"), "*.jpg") == {"notes": "notes.txt", "a": "a.jpg"}


def test_a_name_that_looks_like_a_pattern_is_a_name_where_there_is_such_a_file(tree):
    (tree / "[1].jpg").touch()
    assert found("[1].jpg") == {"[1]": "[1].jpg"}


def test_names_grow_until_they_differ(tree):
    assert found("a.jpg", "sub/a.jpg") == {"a": "a.jpg", "sub/a": "sub/a.jpg"}
    (tree / "a.png").touch()
    assert found(".") == {"a.jpg": "a.jpg", "a.png": "a.png", "b": "b.PNG"}
    (tree / "a.jpg.bmp").touch()
    assert found(".") == {"a.jpg": "a.jpg", "a.jpg.bmp": "a.jpg.bmp", "a.png": "a.png", "b.PNG": "b.PNG"}


def test_the_same_names_in_two_folders(tree):
    (tree / "other").mkdir()
    (tree / "other" / "a.jpg").touch()
    assert found("sub", "other") == {"sub/a": "sub/a.jpg", "other/a": "other/a.jpg"}


words = st.text("ab", min_size=1, max_size=2)
paths = st.lists(
    st.tuples(st.lists(words, max_size=2), words, st.sampled_from([".jpg", ".png", ".jpg.png", ""])).map(
        lambda parts: Path("/top", *parts[0], parts[1] + parts[2])
    ),
    min_size=1,
    max_size=8,
    unique=True,
)


@given(paths, st.booleans())
def test_names_are_always_different(chosen, flat):
    relative = [PurePath(path.name) if flat else path.relative_to("/top") for path in chosen]
    made = names(chosen, relative)
    assert len({name.casefold() for name in made}) == len(chosen)
    assert not any(PurePath(name).is_absolute() or ".." in PurePath(name).parts for name in made)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that tells large from small letters")
def test_names_that_only_differ_in_large_and_small_letters(tree):
    (tree / "A.jpg").touch()
    with pytest.raises(UsageError, match="differ in large and small letters only; predict them into two folders"):
        find(["."])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nowhere.jpg"], "nowhere.jpg is not there; give images, folders"),
        (["~no such user/x.png"], "~no such user/x.png is not there"),
        (["*.gif"], r"there is no file like '\*.gif'"),
        (["empty"], "there is no image in empty; --recursive looks in folders below it too"),
    ],
)
def test_what_names_nothing(given, message, tree):
    (tree / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        find(given, recursive=False)


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_links_that_go_round_in_circles_end(tree):
    (tree / "sub" / "round").symlink_to(tree)
    assert "sub/deep/c" in found(".", recursive=True, skip=[Path("out")])


@pytest.mark.parametrize("given", ["out", "out/*/*", "out/labels/a.*"])
def test_what_has_only_predictions(given, tree):
    with pytest.raises(UsageError, match=r"out/labels/a\.png is where predictions go, .*; give another --out"):
        find([given], recursive=True, skip=[Path("out/labels"), Path("out/overlays")])


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_links_to_one_image_are_images_of_their_own(tree):
    (tree / "farm").mkdir()
    for name in ("x.jpg", "y.jpg"):
        (tree / "farm" / name).symlink_to(tree / "a.jpg")
    assert found("farm") == {"x": "farm/x.jpg", "y": "farm/y.jpg"}
    assert found("farm/*.jpg", "farm/x.jpg", "sub/../farm") == {"x": "farm/x.jpg", "y": "farm/y.jpg"}


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_a_dead_link_keeps_its_name(tree):
    (tree / "sub" / "dead.png").symlink_to(tree / "gone.png")
    assert found("sub") == found("sub/*.*") == {"a": "sub/a.jpg", "dead": "sub/dead.png"}
    with pytest.raises(UsageError, match=r"^sub/dead\.png is not there"):
        find(["sub/dead.png"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have names")
def test_only_regular_files_are_read(tree):
    os.mkfifo(tree / "sub" / "x.png")
    assert found("sub") == found("sub/*.*") == {"a": "sub/a.jpg"}
    with pytest.raises(UsageError, match=r"^sub/x\.png is no regular file"):
        find(["sub/x.png"])
