"""Files that are written as a whole or not at all."""

from pathlib import Path

import pytest
from tests.models.networks import no_space  # noqa: F401

from repgraph import files
from repgraph.errors import UsageError


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.bin"
    assert files.write(path, b"one") == path
    assert files.write(path, b"two").read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.bin"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, no_space: None) -> None:  # noqa: F811
    path = files.write(tmp_path / "b.bin", b"old")
    with pytest.raises(UsageError, match=r"cannot write .*b\.bin: File too large"):
        files.write(path, bytes(1_000_000))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("check", [files.check_writable, lambda path: files.write(path, b"")])
def test_places_where_no_file_can_be(tmp_path: Path, check) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/x: Not a directory"):
        check(tmp_path / "file" / "x")
    with pytest.raises(UsageError, match=r"cannot write .*: Is a directory"):
        check(tmp_path)


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "new" / "x.bin")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]
