"""The files of a run: checkpoints are complete or absent and run no code, and metrics have every row once."""

import errno
import math
import os
import pickle
import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.models.networks import Runs
from tests.train.tiny import rows

from repgraph.errors import UsageError
from repgraph.train.checkpoint import read, write
from repgraph.train.metrics import MetricsLog
from repgraph.train.session import load_state

CONTENT = {
    "state_dict": {"w": torch.arange(50_000.0)},
    "optimizer_states": [{"state": {0: {"momentum_buffer": torch.ones(2)}}}],
    "iteration": 0,
    "best": {},
    "sums": torch.zeros(2),
    "recipe": {},
    "config": {},
    **{name: {} for name in ("unaveraged", "scaler", "data", "versions")},
}


def save(folder, iteration=0, best=False):
    write(folder, CONTENT | {"iteration": iteration}, best=best)
    return folder / "last.ckpt"


def refuse(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "copies"])
def test_previous_and_best_are_kept(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", refuse)
    folder = tmp_path / "checkpoints"
    for iteration in (1, 2, 3):
        path = save(folder, iteration, best=iteration == 1)
    assert {path.stem: read(path)["iteration"] for path in folder.iterdir()} == {"last": 3, "previous": 2, "best": 1}
    assert torch.equal(read(path)["state_dict"]["w"], CONTENT["state_dict"]["w"])


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.99])
def test_truncated_file_is_named_with_the_remedy(tmp_path, fraction):
    save(tmp_path)
    path, previous = save(tmp_path), tmp_path / "previous.ckpt"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(UsageError, match=rf"{path} .*truncated.*repgraph train --resume {previous}"):
        read(path)
    assert read(previous)["iteration"] == 0


@pytest.mark.parametrize("store", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))])
def test_pickle_that_runs_code_is_refused(tmp_path, store):
    path, trace = tmp_path / "last.ckpt", tmp_path / "was-here"
    store(CONTENT | {"best": Runs(str(trace))}, path)
    with pytest.raises(UsageError, match="could run code"):
        read(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Runs(str(trace))))
    assert trace.exists()  # so it would have been noticed


@pytest.mark.parametrize("content", [{"state_dict": {}}, [1]])
def test_other_files_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.ckpt")
    with pytest.raises(UsageError, match=r"a\.ckpt is not a checkpoint of training: "):
        read(tmp_path / "a.ckpt")


WRONG = [("iteration", math.nan), ("iteration", -1), ("optimizer_states", []), ("optimizer_states", [{}])]
WRONG += [("best", 5), ("best", {"miou": "x"}), ("sums", 3), ("data", 5), ("versions", ["torch"]), ("scaler", 5)]
WRONG += [("state_dict", {"w": 5}), ("state_dict", {5: torch.ones(1)}), ("recipe", None), ("config", 5)]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_of_wrong_types_are_named(tmp_path, name, value):
    save(tmp_path)
    torch.save(CONTENT | {name: value}, tmp_path / "last.ckpt")
    with pytest.raises(UsageError, match=rf"last\.ckpt is not a checkpoint of training: {name}.* is "):
        read(tmp_path / "last.ckpt")


def test_momenta_that_do_not_fit():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], 0.1, 0.9)
    for index, momentum in ((0, torch.ones(2)), (1, torch.ones(3)), (0, torch.ones(3).int())):
        with pytest.raises(UsageError, match=f"momentum that fits parameter {index}"):
            load_state(optimizer, {index: {"momentum_buffer": momentum}})


def test_failed_writes_leave_the_old_files(tmp_path, monkeypatch):
    path = save(tmp_path, 1)
    with monkeypatch.context() as patch, pytest.raises(UsageError) as caught:
        patch.setattr(os, "fsync", refuse)
        save(tmp_path, 2)
    assert str(caught.value) == f"cannot write {path}: No space left on device; {path} is unchanged"
    assert [each.name for each in tmp_path.iterdir()] == ["last.ckpt"] and read(path)["iteration"] == 1
    (tmp_path / "best.ckpt").mkdir()
    with pytest.raises(UsageError, match=r"cannot write .*best\.ckpt: Is a directory"):
        save(tmp_path, 3, best=True)
    assert read(path)["iteration"] == 3


def log(folder, losses, start=0):
    metrics = MetricsLog(folder, ["loss", "val_miou"], start)
    for iteration, loss in losses.items():
        metrics.log(iteration, {"loss": loss})
    metrics.close()


def test_resume_drops_later_rows_and_truncated_ones(tmp_path):
    log(tmp_path, {10: 1.0, 20: 2.0, 30: 3.0})
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("2")  # killed while writing
    time.sleep(1.1)  # TensorBoard orders files by the second and by numbers as text
    log(tmp_path, {30: 9.0}, start=20)
    assert [(row["iteration"], row["loss"]) for row in rows(tmp_path)] == [("10", "1"), ("20", "2"), ("30", "9")]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 1.0), (20, 2.0), (30, 9.0)]
    with pytest.raises(UsageError, match="has different columns from this run: iteration,loss,val_miou"):
        MetricsLog(tmp_path, ["loss"], 10)
    log(tmp_path, {})
    assert rows(tmp_path) == []  # a run that starts again drops all rows


def test_metrics_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tensorboard").touch()
    with pytest.raises(UsageError, match=r"cannot write .*tensorboard/events: Not a directory"):
        log(tmp_path / "a", {10: 1.0})
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UsageError, match=r"cannot write .*metrics\.csv: No space left on device"):
        log(tmp_path, {10: 1.0})
