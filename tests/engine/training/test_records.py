"""metrics.csv of a run that goes on has every row once."""

import csv
import errno
import os

import pytest

from repgraph.engine.training.checkpoint import SaveError
from repgraph.engine.training.records import Records
from repgraph.errors import UsageError

COLUMNS = ["loss", "val_miou"]


def rows(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.reader(file))


def records(folder, start=0, columns=COLUMNS):
    made = Records(folder, columns, start)
    made.open()
    return made


def test_one_row_for_an_iteration(tmp_path):
    noted = records(tmp_path)
    noted.log_metrics({"loss": 1.0}, 10)
    noted.log_metrics({"loss": 0.5}, 20)
    noted.log_metrics({"val_miou": 0.25}, 20)
    assert rows(tmp_path) == [["iteration", *COLUMNS], ["10", "1", ""]]  # 20 may still become more
    noted.save()
    assert rows(tmp_path)[2:] == [["20", "0.5", "0.25"]]
    noted.save()
    noted.finalize("success")
    assert len(rows(tmp_path)) == 3


def test_going_on_drops_what_came_later_and_what_was_cut(tmp_path):
    noted = records(tmp_path)
    for iteration in (10, 20, 30):
        noted.log_metrics({"loss": iteration / 10}, iteration)
    noted.finalize("failed")
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("2")  # killed while it wrote 25 or so: no row
    noted = records(tmp_path, start=20)
    noted.log_metrics({"loss": 9.0}, 30)
    noted.finalize("success")
    assert [row[:2] for row in rows(tmp_path)[1:]] == [["10", "1"], ["20", "2"], ["30", "9"]]


def test_a_run_from_the_start_has_nothing_to_keep(tmp_path):
    noted = records(tmp_path)
    noted.log_metrics({"loss": 1.0}, 10)
    noted.finalize("failed")
    records(tmp_path).finalize("success")
    assert rows(tmp_path) == [["iteration", *COLUMNS]]


def test_tensorboard_has_the_numbers_too(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    noted = records(tmp_path)
    for iteration in (10, 20, 30):
        noted.log_metrics({"loss": iteration / 10}, iteration)
    noted.finalize("failed")
    noted = records(tmp_path, start=20)
    noted.log_metrics({"loss": 9.0}, 30)
    noted.finalize("success")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 1.0), (20, 2.0), (30, 9.0)]


def test_other_columns_are_refused(tmp_path):
    noted = records(tmp_path)
    noted.log_metrics({"loss": 1.0}, 10)
    noted.finalize("failed")
    with pytest.raises(UsageError, match="has other columns than this run: iteration, loss, val_miou"):
        records(tmp_path, 10, ["loss"])


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    noted = records(tmp_path)
    noted.log_metrics({"loss": 1.0}, 10)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError, match=r"cannot write .*metrics\.csv: No space left on device"):
        noted.save()
    monkeypatch.undo()
    noted.finalize("failed")


def test_an_unwritable_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"cannot write .*metrics\.csv"):
        records(tmp_path / "file")
