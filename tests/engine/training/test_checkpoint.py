"""Checkpoints are whole or not there, and nothing in them is run."""

import errno
import os
import pickle
import zipfile

import pytest
import torch

from repgraph.engine.training import checkpoint
from repgraph.engine.training.checkpoint import AtomicIO, also_known_as, read, write
from repgraph.errors import UsageError

GOOD = dict.fromkeys(checkpoint.NEEDED, 0) | {"state_dict": {"w": torch.arange(5000.0)}}


def save(path, content=GOOD):
    io = AtomicIO()
    io.save_checkpoint(content, path)
    return io.error


def test_what_is_saved_comes_back(tmp_path):
    path = tmp_path / "checkpoints" / "last.ckpt"
    assert save(path) == ""
    assert torch.equal(read(path)["state_dict"]["w"], GOOD["state_dict"]["w"])
    assert AtomicIO().load_checkpoint(path)["iteration"] == 0
    assert sorted(p.name for p in path.parent.iterdir()) == ["last.ckpt"]


def test_the_one_before_is_kept(tmp_path):
    path = tmp_path / "last.ckpt"
    for iteration in (1, 2, 3):
        save(path, GOOD | {"iteration": iteration})
    assert read(path)["iteration"] == 3
    assert read(tmp_path / "previous.ckpt")["iteration"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


def test_others_may_read_it_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        save(tmp_path / "last.ckpt")
    finally:
        os.umask(before)
    assert (tmp_path / "last.ckpt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short_is_named_with_the_remedy(tmp_path, share):
    path = tmp_path / "last.ckpt"
    save(path)
    save(path)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError) as caught:
        read(path)
    previous = tmp_path / "previous.ckpt"
    assert str(path) in str(caught.value) and "cut short" in str(caught.value)
    assert f"repgraph train --resume {previous}" in str(caught.value)
    assert read(previous)["iteration"] == 0


def test_damage_inside_is_noticed(tmp_path):
    path = tmp_path / "last.ckpt"
    save(path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        largest = max(file.infolist(), key=lambda info: info.file_size)
    content[largest.header_offset + 2000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        read(path)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("legacy", [False, True], ids=["torch", "plain pickle"])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, legacy):
    path, trace = tmp_path / "last.ckpt", tmp_path / "was-here"
    content = GOOD | {"best": Evil(trace)}
    if legacy:
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    with pytest.raises(UsageError, match="could run code when it is read, and is refused"):
        read(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil(trace)))
    assert trace.exists()  # it would have


def test_other_files_are_no_checkpoints(tmp_path):
    path = tmp_path / "other.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(UsageError, match="is no checkpoint of training: it has no optimizer_states, iteration"):
        read(path)
    torch.save([1], path)
    with pytest.raises(UsageError, match="is no checkpoint of training"):
        read(path)
    with pytest.raises(UsageError, match="there is no such checkpoint"):
        read(tmp_path / "none.ckpt")
    with pytest.raises(UsageError, match="there is no such checkpoint"):
        read(tmp_path)
    path.write_text("hello")
    with pytest.raises(UsageError, match=r"other\.ckpt is damaged"):
        read(path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    save(path, GOOD | {"iteration": 1})

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    error = save(path, GOOD | {"iteration": 2})
    assert error == f"cannot write {path}: No space left on device; {path} is as it was before"
    assert read(path)["iteration"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]  # and nothing half written


def test_a_full_disk_in_the_midst_of_writing(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    save(path, GOOD | {"iteration": 1})

    class Full:
        def __init__(self, file):
            self.file, self.left = file, 1000

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.left -= len(data)
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    monkeypatch.setattr(checkpoint, "open", lambda path, mode: Full(path.open(mode)), raising=False)
    error = save(path, GOOD | {"iteration": 2})
    assert "No space left on device" in error and "as it was before" in error
    assert read(path)["iteration"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "last.ckpt"
    assert save(path).startswith(f"cannot write {path}: ")
    assert "no checkpoint was written before" in save(path)


@pytest.mark.parametrize("links", [True, False])
def test_a_second_name(tmp_path, monkeypatch, links):
    if not links:

        def refuse(*_):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    save(tmp_path / "last.ckpt", GOOD | {"iteration": 1})
    (tmp_path / "best.ckpt").write_text("old")
    also_known_as(tmp_path / "last.ckpt", tmp_path / "best.ckpt")
    write(tmp_path / "last.ckpt", GOOD | {"iteration": 2})
    assert read(tmp_path / "best.ckpt")["iteration"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]
    AtomicIO().remove_checkpoint(tmp_path / "best.ckpt")
    assert not (tmp_path / "best.ckpt").exists()
