"""What is decided before a Triton kernel runs: one kernel for all image sizes, wide indices where needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from tests.ops.problem import normal

from repgraph.ops import library
from repgraph.ops.triton import inverse_launch, launch, tiles


def forward_plan(batch: int, height: int, width: int, grid: int = 1, channels: int = 256):
    strides = (height * width * channels, 1, width * channels, channels)
    cells = (-(-height // grid), -(-width // grid))
    return launch._forward_plan(
        torch.Size((batch, channels, height, width)), channels, strides, strides, strides, strides,
        torch.Size((batch, 18, *cells)), (18 * cells[0] * cells[1], cells[0] * cells[1], cells[1], 1),
        torch.bfloat16, torch.float32, -1, True, 1, grid, True, False, True,
    )  # fmt: skip


def backward_plan(batch: int, height: int, width: int, grid: int = 1, channels: int = 256):
    strides = (height * width * channels, 1, width * channels, channels)
    cells = (-(-height // grid), -(-width // grid))
    plan, _ = launch._backward_plan(
        torch.Size((batch, channels, height, width)), channels, *[strides] * 6, torch.Size((batch, 18, *cells)),
        (18 * cells[0] * cells[1], cells[0] * cells[1], cells[1], 1), torch.bfloat16, torch.float32, 0, True,
        1, grid, True, False, grid > 1, False,
    )  # fmt: skip
    return plan


def gather_plans(batch: int, height: int, width: int, channels: int = 256):
    strides = (height * width * channels, 1, width * channels, channels)
    offsets = (18 * height * width, height * width, width, 1)
    return inverse_launch._plans(
        batch, height, width, 9, channels, channels, 1, 1, True, offsets, torch.float32, strides, strides,
        torch.bfloat16, 0, True, False, True,
    )  # fmt: skip


SIZES = [(1, 33, 47), (3, 64, 128), (2, 1, 5), (1, 500, 501)]


@pytest.mark.parametrize("make", [forward_plan, backward_plan])
@pytest.mark.parametrize("grid", [1, 4])
def test_no_kernel_is_compiled_for_an_image_size(make, grid: int) -> None:
    """Sizes are plain arguments that Triton does not specialise on; what it compiles for is the same for all."""
    plans = [make(*size, grid=grid) for size in SIZES if size[1] >= grid]
    first = plans[0]
    for plan in plans:
        assert (plan.constants, plan.options) == (first.constants, first.options)
    names = first.function.arg_names
    tensors = len(names) - len(first.numbers) - len(first.constants) - 1  # and the scale
    numbers = names[tensors + 1 : tensors + 1 + len(first.numbers)]
    _assert_not_specialised(first.function, [*numbers, "scale"])


def test_no_gather_is_compiled_for_an_image_size() -> None:
    first, *others = [gather_plans(*size) for size in SIZES]
    for name in ("count", "fill", "plan", "gather", "join_key", "join_value"):
        plan = getattr(first, name)
        for other in others:
            assert getattr(other, name).constants == plan.constants
        names = plan.function.arg_names
        tensors = len(names) - len(plan.numbers) - len(plan.constants)
        _assert_not_specialised(plan.function, names[tensors : tensors + len(plan.numbers)])


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="without the interpreter the tests themselves do this"
)
def test_the_same_without_the_interpreter() -> None:
    """Interpreted functions keep no parameters; compiled ones say what they are specialised on."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "compiled_for"],
        capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"}, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout


def _assert_not_specialised(function, numbers: list[str]) -> None:
    if not hasattr(function, "params"):
        pytest.skip("the interpreter keeps no parameters")
    kept = {p.name for p in function.params if not p.do_not_specialize}
    assert not kept & set(numbers)


@pytest.mark.parametrize("grid", [1, 2])
def test_logsumexp_is_left_out_where_nobody_asks(grid: int) -> None:
    query, key, offsets = normal(2, 8, 5, 6), normal(2, 8, 5, 6), normal(2, 6, -(-5 // grid), -(-6 // grid))
    y, lse, _ = launch.forward(query, key, None, offsets, 2, grid, 0.5, False)
    assert lse.shape == (2, 2, 5, 6) and lse.isfinite().all()
    other, nothing, _ = launch.forward(query, key, None, offsets, 2, grid, 0.5, False, with_lse=False)
    assert nothing.numel() == 0 and torch.equal(other, y)
    other, again, weights = launch.forward(query, key, None, offsets, 2, grid, 0.5, True, with_lse=False)
    assert torch.equal(other, y) and torch.equal(again, lse)  # weights are made of it
    torch.testing.assert_close(weights.sum(2), torch.ones_like(lse))


@pytest.mark.parametrize("learning", [False, True])
def test_logsumexp_is_kept_for_a_backward_pass_alone(learning: bool) -> None:
    query, offsets = normal(1, 8, 5, 6).requires_grad_(learning), normal(1, 6, 5, 6)
    _, lse, _ = library.attention(query, query, None, offsets, 1, 1, 1.0, "triton", False)
    assert lse.numel() == (30 if learning else 0)


def test_wide_indices_only_where_needed() -> None:
    import triton.language as tl

    assert forward_plan(1, 128, 256).constants["INDEX"] is tl.int32
    assert forward_plan(64, 128, 256).constants["INDEX"] is tl.int32  # the image counts, not the batch
    assert forward_plan(1, 3000, 3000).constants["INDEX"] is tl.int64
    assert backward_plan(1, 3000, 3000).constants["INDEX"] is tl.int64


@pytest.mark.parametrize("channels", [1, 2, 8, 64, 256, 512, 1024, 4096])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_hold_their_channels(channels: int, itemsize: int) -> None:
    for tile in (
        tiles.forward(channels, itemsize, 1, 1, True, 9),
        tiles.forward(channels, itemsize, 1, 16, False, 9),
        tiles.backward(channels, itemsize, 1, 1, False),
        tiles.backward(channels, itemsize, 1, 16, True),
    ):
        assert channels % tile.parts == 0
        assert tile.units >= 1 and tile.patch[0] * tile.patch[1] >= 1
        assert tile.warps in (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(
    ("shape", "strides", "step"),
    [
        ((2, 8, 3, 4), (96, 1, 32, 8), 8),
        ((2, 8, 3, 4), (120, 1, 40, 10), 10),  # channels out of a wider map
        ((2, 8, 3, 4), (0, 1, 32, 8), None),  # expanded
        ((1, 8, 3, 4), (0, 1, 32, 8), 8),
        ((2, 8, 3, 4), (128, 1, 40, 8), None),  # a window of a larger map
        ((2, 8, 3, 1), (24, 1, 8, 99), 8),
        ((1, 8, 1, 1), (7, 1, 7, 7), 8),
    ],
)
def test_step_from_position_to_position(shape, strides, step) -> None:
    assert inverse_launch._step(shape, strides) == step


def test_batches_with_too_many_pairs_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.ops.problem import attention, device_of, distance, prepare, run, vary

    problem = vary(batch=5, height=3, width=4, nodes=2)
    tensors = prepare(problem, torch.float32, device_of("triton"))
    want = run(attention(problem, "triton"), tensors, False)
    monkeypatch.setattr(inverse_launch, "MOST_PAIRS", 2 * 3 * 4 * 2)
    got = run(attention(problem, "triton"), tensors, False)
    for name in ("grad key", "grad value"):
        assert distance(got[name], want[name]) < 1e-6


@pytest.mark.parametrize("make", [forward_plan, backward_plan])
@pytest.mark.parametrize(
    ("batch", "height", "width", "grid"),
    [
        (2, 2000, 3000, 1), (2, 2000, 3000, 4), (2, 2000, 3000, 5000),
        (70000, 1, 1, 1), (1, 150000, 8, 1), (1, 8, 1000000, 1),
    ],
)  # fmt: skip
def test_programs_fit_their_axes(make, batch: int, height: int, width: int, grid: int) -> None:
    """CUDA has 2^31 - 1 blocks along the first axis and 65535 along the others."""
    plan = make(batch, height, width, grid=grid, channels=16)
    first, *others = plan.programs
    assert first < 2**31 and all(programs <= 65535 for programs in others)
    assert plan.constants.get("ONE", False) == (len(others) == 2)


@pytest.mark.parametrize("nodes", [1, 4])
def test_programs_on_one_axis_give_the_same_as_on_three(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.ops.problem import attention, device_of, prepare, run, vary

    problem = vary(batch=2, height=5, width=7, nodes=nodes)
    tensors = prepare(problem, torch.float32, device_of("triton"))
    torch.use_deterministic_algorithms(True)  # bit for bit
    try:
        want = run(attention(problem, "triton"), tensors, False)
        monkeypatch.setattr(launch, "_MOST_PROGRAMS", 1)
        for plan in (launch._forward_plan, launch._backward_plan):
            plan.cache_clear()
        got = run(attention(problem, "triton"), tensors, False)
        assert not any(launch._programs((2, 8, 5, 7), (2, 2, 5, 7), 1, tiles.Tile(8, 1, (2, 4), 1, 1))[2:])
    finally:
        torch.use_deterministic_algorithms(False)
        for plan in (launch._forward_plan, launch._backward_plan):
            plan.cache_clear()
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert torch.equal(got[name], value), name


@pytest.mark.parametrize("channels", [8, 6])
def test_maps_whose_positions_are_apart(channels: int) -> None:
    """Channels out of a wider map: the step from position to position is not the number of channels."""
    from tests.ops.problem import device_of

    from repgraph.ops import representative_attention

    device = device_of("triton")
    wide = torch.randn(2, 5, 7, 2 * channels, device=device).permute(0, 3, 1, 2)
    offsets = 2 * torch.randn(2, 6, 5, 7, device=device)
    for at in (0, channels):
        part = wide[:, at : at + channels]
        want = representative_attention(part, part, part, offsets, backend="reference")
        got = representative_attention(part, part, part, offsets, backend="triton")
        assert torch.allclose(got, want, atol=1e-5)
