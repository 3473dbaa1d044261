"""What is read and written: nothing outside the maps, all of the results, and never through PyTorch."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import repgraph.ops.cpu as cpu
from repgraph.ops.cpu import workspace

WILD = (float("inf"), -float("inf"), 1e30, -1e30, 3e9, -3e9, 2.0**31, -(2.0**31) - 1)


def _guarded(t, last):
    """``t`` amid NaN: a read beyond an end of the map is a read of NaN."""
    batch, channels, height, width = t.shape
    shape = (batch, height + 6, width + 6, channels) if last else (batch, channels, height + 6, width + 6)
    guard = torch.full(shape, torch.nan, dtype=t.dtype)
    if last:
        guard = guard.permute(0, 3, 1, 2)
    guard[:, :, 3:-3, 3:-3] = t
    return guard[:, :, 3:-3, 3:-3]


@pytest.mark.parametrize("last", (False, True))
@pytest.mark.parametrize("grid", (1, 3))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_wild_offsets_read_nothing_outside(last, grid, dtype, make_case, check):
    case = make_case(2, 20, 20, 7, 10, 8, grid=grid)
    case.offsets = case.offsets * 0.5
    for n, wild in enumerate(WILD[:6]):
        case.offsets[:, n, n % 3 :: 2] = wild
    check(case, case.tensors(dtype, torch.float32, lambda t: _guarded(t, last)))


@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("grid", (1, 3))
@pytest.mark.parametrize("nodes", (1, 4))
def test_nan_offset_shows_at_its_own_queries_only(axis, grid, nodes, make_case):
    case = make_case(1, 12, 12, 7, 8, nodes, grid=grid)
    clean = case.run(case.tensors(torch.float32))
    case.offsets[0, axis, 1, 2] = torch.nan
    tensors = case.tensors(torch.float32, layout=lambda t: _guarded(t, True))
    got = case.run(tensors)
    at = torch.zeros(7, 8, dtype=torch.bool)
    at[grid : 2 * grid, 2 * grid : 3 * grid] = True
    for name in ("y", "grad_query"):
        assert got[name][..., at].isnan().all(), name
    for name in ("y", "weights", "grad_query"):
        torch.testing.assert_close(got[name][..., ~at], clean[name][..., ~at], msg=name)
    cells = torch.ones(got["grad_offsets"].shape[2:], dtype=torch.bool)
    cells[1, 2] = False
    torch.testing.assert_close(got["grad_offsets"][..., cells], clean["grad_offsets"][..., cells])


def test_infinite_features_stay_where_they_are(make_case):
    case = make_case(1, 8, 8, 6, 7, 3)
    case.value[0, :, 2, 3] = torch.inf
    got, expected = (case.run(case.tensors(), backend)["y"] for backend in ("cpu", "reference"))
    assert got.isfinite().any() and not got.isfinite().all()
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("grid", (1, 5))
@pytest.mark.parametrize("shared", (False, True))
def test_every_element_is_written(grid, shared, monkeypatch, make_case, check):
    case = make_case(2, 33, 33, 9, 17, 3, grid=grid, shared=shared)
    tensors = case.tensors(torch.float32)
    check(case, tensors)  # has the kernels compiled, for which numpy's own functions are needed
    empty, new_empty, empty_like = torch.empty, torch.Tensor.new_empty, torch.empty_like

    def poison(function):
        def poisoned(*args, **kwargs):
            t = function(*args, **kwargs)
            return t.fill_(torch.nan) if t.is_floating_point() else t

        return poisoned

    monkeypatch.setattr(torch, "empty", poison(empty))
    monkeypatch.setattr(torch, "empty_like", poison(empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poison(new_empty))
    plain = np.empty
    monkeypatch.setattr(np, "empty", lambda *a, **k: _poison(plain(*a, **k)))
    monkeypatch.setattr(workspace, "_kept", [np.full(1 << 16, 255, np.uint8) for _ in range(4)])
    check(case, tensors)


def _poison(array):
    array.reshape(-1).view(np.uint8)[...] = 255
    return array


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_no_torch_computation(dtype, make_case):
    case = make_case(2, 8, 8, 5, 6, 3)
    query, key, value, offsets = (t.detach() for t in case.tensors(dtype, torch.float16))
    grad = case.grad.to(dtype)
    with _Recorder() as recorder:
        y, lse, weights = cpu.forward(query, key, value, offsets, 1, 1, 1.0, True)
        cpu.backward(grad, weights, query, key, value, offsets, y, lse, 1, 1, 1.0)
    views = {
        "detach",
        "as_strided",
        "view",
        "permute",
        "empty",
        "new_empty",
        "empty_like",
        "reshape",
        "expand",
    }
    assert recorder.seen <= views, recorder.seen - views
    assert "empty" in recorder.seen


def test_workspace_lends_and_keeps(monkeypatch):
    monkeypatch.setattr(workspace, "_kept", [])
    with workspace.Workspace() as space:
        first = space.lend(1000, np.float32)
        second = space.lend(1000, np.float32)
        assert not np.shares_memory(first, second)
    with workspace.Workspace() as space:
        assert np.shares_memory(space.lend(900, np.float32), first)
    with pytest.raises(ValueError), workspace.Workspace() as space:
        space.lend(900, np.float32)
        raise ValueError
    assert len(workspace._kept) == 1  # what an error interrupted may still be written to
    with workspace.Workspace() as space:
        space.lend(workspace.LIMIT + 1, np.uint8)
    assert sum(b.nbytes for b in workspace._kept) <= workspace.LIMIT
