"""Memory of the CPU backend: scratch that is written before it is read, bfloat16, no use of PyTorch's threads."""

import numpy as np
import pytest
import torch
from tests.layers.mechanics import Calls
from tests.ops.problem import Problem, check, prepare, vary

import repgraph.ops.cpu as cpu
from repgraph.ops.cpu import maps
from repgraph.ops.cpu.jit import jit
from repgraph.ops.cpu.memory import load, store


@pytest.mark.parametrize(
    "problem",
    [vary(batch=2, channels=33, values=33, height=9, width=17, grid=grid, shared=grid > 1) for grid in (1, 5)],
    ids=str,
)
def test_scratch_memory_is_written_before_it_is_read(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    check(problem, "cpu", torch.float32)  # compile the kernels with numpy's own functions
    plain = np.empty

    def poisoned(*args, **kwargs) -> np.ndarray:
        array = plain(*args, **kwargs)
        array.reshape(-1).view(np.uint8)[...] = 255
        return array

    monkeypatch.setattr(np, "empty", poisoned)
    monkeypatch.setattr(maps, "_kept", [np.full(1 << 16, 255, np.uint8) for _ in range(4)])
    check(problem, "cpu", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_nothing_is_computed_by_pytorch(dtype: torch.dtype) -> None:
    """Its thread pool hangs in a forked child."""
    t = prepare(vary(), dtype, torch.device("cpu"))
    maps = (t["query"], t["key"], t["value"], t["offsets"].half(), None)
    numbers = ([], [], 1, 1, 1, 1.0)
    with Calls() as calls:
        _, lse, weights, response = cpu.forward(*maps, *numbers, True, True)
        cpu.backward(t["grad"], weights, *maps, response, lse, *numbers)
    views = {"detach", "as_strided", "view", "permute", "reshape", "expand", "transpose", "slice", "unsqueeze"}
    seen = set(calls.seen)
    assert seen <= views | {"empty", "new_empty", "empty_like"} and "empty" in seen, seen


def test_bfloat16_rounds_to_nearest_even() -> None:
    @jit
    def convert(source, target):
        for i in range(source.size):
            store(target, i, load(source, i))

    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    bits[:4] = (0x7F800001, 0xFF80FFFF, 0x7F7FFFFF, 0x3F808000)  # NaNs with an empty upper half, overflow, a tie
    floats = torch.from_numpy(bits.view(np.float32))
    out = np.empty(bits.size, np.uint16)
    convert(floats.numpy(), out)
    got, expected = torch.from_numpy(out).view(torch.bfloat16), floats.bfloat16()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    back = np.empty(bits.size, np.float32)
    convert(out, back)
    torch.testing.assert_close(torch.from_numpy(back), got.float(), rtol=0, atol=0, equal_nan=True)
