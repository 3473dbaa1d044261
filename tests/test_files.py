"""Atomic writes, folder walks, and JSON files with clear errors."""

import os
import resource
from pathlib import Path

import pytest

from repgraph import files
from repgraph.errors import UsageError


def test_files_are_replaced(tmp_path):
    path = tmp_path / "a" / "b.bin"
    assert files.write(path, b"one") == path
    assert files.write(path, "zwölf").read_bytes() == "zwölf".encode()
    assert [each.name for each in path.parent.iterdir()] == ["b.bin"]


def test_full_disk_leaves_the_old_file(tmp_path):
    path = files.write(tmp_path / "b.bin", b"old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limit[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot write .*b\.bin: File too large"):
            files.write(path, bytes(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("check", [files.check_writable, lambda path: files.write(path, b"")], ids=["check", "write"])
def test_paths_that_cannot_be_written(tmp_path, check):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/x: Not a directory"):
        check(tmp_path / "file" / "x")
    with pytest.raises(UsageError, match=r"cannot write .*: Is a directory"):
        check(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # like a device
    with pytest.raises(UsageError, match=r"cannot write .*pipe: Not a regular file"):
        check(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_paths_inside_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    Path("out/link").symlink_to(tmp_path)
    Path("alias").symlink_to("out")
    for folder in (Path("out"), Path("alias"), Path("new")):
        assert files.inside(folder, "a/b.png") == folder / "a/b.png"
    for name in ("..", "a/..", "../x", "a/../../x", "/etc/x", "link/x"):
        with pytest.raises(UsageError, match="is outside of out"):
            files.inside(Path("out"), name)


def test_check_leaves_nothing(tmp_path):
    files.check_writable(tmp_path / "new" / "deep" / "x.bin")
    assert list(tmp_path.iterdir()) == []


def test_folders_are_searched_once(tmp_path):
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    for folder in (top / "a", top / "b", elsewhere):
        folder.mkdir(parents=True)
        (folder / "1.txt").write_text("")
    (top / ".hidden").mkdir()
    links = {"a/loop": top, "a/self": top / "a", "above": tmp_path, "again": top / "b", "z": elsewhere}
    for name, target in links.items():
        (top / name).symlink_to(target)
    (top / "itself").symlink_to("itself")
    loops = []
    found = sorted(path.relative_to(top).as_posix() for path in files.walk(top, loops.append))
    assert {path.relative_to(top).as_posix() for path in loops} == links.keys() - {"z"}
    assert found == ["a/1.txt", "b/1.txt", "itself", "z/1.txt"]


def test_json_that_cannot_be_read(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UsageError, match=rf"{path}: No such file or directory; give another$"):
        files.read_json(path, remedy="give another")
    for content in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"^{path} is not valid JSON: .*; give another$"):
            files.read_json(path, remedy="give another")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: Not a regular file"):
        files.read_json(tmp_path / "pipe")
    path.write_text('{"a": 1}')
    assert files.read_json(path) == {"a": 1}
