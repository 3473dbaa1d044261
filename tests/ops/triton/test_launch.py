"""Decisions before a Triton kernel runs, and the kernel variants that depend on them."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.ops.problem import DEVICE, check, normal, vary

pytest.importorskip("triton")
import triton.language as tl

from repgraph.ops import representative_attention
from repgraph.ops.triton import launch, plan

ROOT = Path(__file__).parents[3]
SIZES = [(1, 33, 47), (3, 64, 128), (2, 4, 5), (1, 500, 501)]


def recorded_plans(batch: int, height: int, width: int, grid: int = 1, channels: int = 256) -> list[plan.Plan]:
    """Return the plans of both passes, forward first, without running them: on tensors without data."""
    cells = (-(-height // grid), -(-width // grid))
    kind = dict(dtype=torch.bfloat16, device="meta")
    x = torch.empty((batch, channels, height, width), **kind).contiguous(memory_format=torch.channels_last)
    offsets = torch.empty((batch, 18, *cells), device="meta")
    plans: list[plan.Plan] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan.Plan, "__call__", lambda self, *tensors, **numbers: plans.append(self))
        y, lse, *_ = launch.one_map_forward(x, x, None, offsets, 1, grid, 1.0, False)
        launch.one_map_backward(y, None, x, x, None, offsets, y, lse, 1, grid, 1.0)
    return plans


@pytest.mark.parametrize("grid", [1, 4])
def test_no_kernel_is_compiled_for_an_image_size(grid: int) -> None:
    """Sizes are arguments that Triton does not specialise on, and constants are the same for all sizes."""
    for plans in zip(*(recorded_plans(*size, grid=grid) for size in SIZES), strict=True):
        first = plans[0]
        assert all((p.constants, p.options) == (first.constants, first.options) for p in plans)
        if hasattr(first.function, "params"):  # not in the interpreter
            names = [p.name for p in first.function.params]
            leading = len(names) - len(first.numbers) - len(first.constants)
            kept = {p.name for p in first.function.params if not p.do_not_specialize}
            assert not kept & {"scale", *names[leading : leading + len(first.numbers)]}


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="tested by the previous test")
def test_no_kernel_is_compiled_for_an_image_size_without_the_interpreter() -> None:
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "image_size and not without"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_64_bit_indices_where_needed() -> None:
    for size, index in (((1, 128, 256), tl.int32), ((64, 128, 256), tl.int32), ((1, 3000, 3000), tl.int64)):
        forward, backward, *_ = recorded_plans(*size)  # the size of an image counts, not of the batch
        assert forward.constants["INDEX"] is backward.constants["INDEX"] is index


@pytest.mark.parametrize(
    "size",
    [(2, 2000, 3000, 1), (2, 2000, 3000, 4), (2, 2000, 3000, 5000), (70000, 1, 1, 1), (1, 150000, 8, 1)],
    ids=str,
)
def test_programs_fit_the_axes_of_a_grid(size: tuple[int, ...]) -> None:
    """CUDA has at most 2^31 - 1 blocks along the first axis and 65535 along the others."""
    for each in recorded_plans(*size, channels=16):
        first, *others = each.programs
        assert first < 2**31 and all(programs <= 65535 for programs in others)


def test_logsumexp_is_optional() -> None:
    query, key, offsets = normal(1, 8, 3, 4), normal(1, 8, 3, 4), normal(1, 4, 3, 4)
    arguments = (query, key, None, offsets, 2, 1, 0.5)
    y, lse, *_ = launch.one_map_forward(*arguments, False, with_lse=False)
    assert lse.numel() == 0
    other, _, weights, _ = launch.one_map_forward(*arguments, True, with_lse=False)  # weights are computed from it
    assert torch.equal(other, y)
    torch.testing.assert_close(weights.sum(2), torch.ones(1, 2, 3, 4, device=DEVICE))


def test_batches_with_too_many_pairs_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MAX_PAIRS", 2 * 3 * 2)
    check(vary(batch=3, height=2, width=3), "triton", torch.float32)


@pytest.mark.parametrize(
    ("same_value", "grid"),
    [(True, 1), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((False, 1), (True, 2)))],
)
def test_one_map_as_query_and_key(same_value: bool, grid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds the two gradients, also where many queries read one position, and in batches that are split."""
    monkeypatch.setattr(launch, "MAX_PAIRS", 8 * 9 * 4)
    x, value = normal(2, 8, 8, 9), normal(2, 8, 8, 9, seed=1)
    y, x_at = torch.meshgrid(torch.arange(0.0, 8, grid), torch.arange(0.0, 9, grid), indexing="ij")
    offsets = normal(2, 8, *y.shape, seed=2)
    offsets[1] = (torch.tensor([4.25, 5.5])[:, None, None] - torch.stack((x_at, y))).repeat(4, 1, 1).to(DEVICE)
    found = []
    for backend, dtype in (("triton", torch.float32), ("reference", torch.float64)):
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in (x, value, offsets)]
        q, v, places = leaves
        result = representative_attention(q, q, q if same_value else v, places, grid=grid, backend=backend)
        found.append(torch.autograd.grad(result.square().sum(), leaves, allow_unused=True, materialize_grads=True))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


HEIGHT, WIDTH = 3, 4
BEFORE = 1 - 1 / 4096
PLACES = [  # x and y, inside of a map of 3 x 4 or at its border
    (1.25, 0.5), (0.0, 0.0), (WIDTH - 2 + BEFORE, 1.0), (WIDTH - 1.0, 1.0), (1.5, HEIGHT - 2 + BEFORE),
    (1.5, HEIGHT - 1.0), (-1 / 4096, 1.0), (1.0, -1 / 4096), (1e30, -1e30), (math.inf, 1.0),
]  # fmt: skip


def offsets_to(places: list[tuple[float, float]], nodes: int) -> torch.Tensor:
    """Return offsets for a batch in which all queries have their last node at one place, and the others inside."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    positions = torch.stack((x, y)).float()  # [2, H, W]
    nodes_at = normal(len(places), nodes, 2, HEIGHT, WIDTH, device="cpu").abs() % 1.9
    nodes_at[:, -1] = torch.tensor(places)[:, :, None, None]
    return (nodes_at - positions).flatten(1, 2).to(DEVICE)


def assert_forward(offsets: torch.Tensor, channels: int, shared: bool) -> torch.Tensor:
    query, key, value = (normal(len(offsets), channels, HEIGHT, WIDTH, seed=seed) for seed in (1, 2, 3))
    value = key if shared else value
    doubles = [t.double() for t in (query, key, value, offsets)]
    want = representative_attention(*doubles, backend="reference")
    got = representative_attention(query, key, value, offsets, backend="triton")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)
    return got


@pytest.mark.parametrize(("channels", "shared", "nodes"), [(8, False, 1), (12, True, 2)])
@pytest.mark.slow
def test_nodes_are_masked_unless_all_are_inside(channels: int, shared: bool, nodes: int) -> None:
    assert_forward(offsets_to(PLACES, nodes), channels, shared)


def test_one_query_with_a_node_outside_and_one_with_nan() -> None:
    """The other queries have all nodes inside."""
    offsets = offsets_to([(1.25, 0.5)] * 2, 3)
    offsets[0, 4, 1, 2] -= 40
    offsets[1, 2, 2, 3] = math.nan
    got = assert_forward(offsets, 8, True)
    assert got[1, :, 2, 3].isnan().all() and got.isnan().sum() == 8


# In a separate process: kernels that Triton has compiled keep their order.
OTHER_ORDER = """
import torch
import triton.language as tl
from repgraph.ops.triton import geometry
geometry.PARTS_FIRST = tl.constexpr(not geometry.PARTS_FIRST.value)
from tests.ops.problem import check, vary
check(vary(channels=24, values=12, groups=2, height=2, nodes=4), "triton", torch.float32)
check(vary(channels=32, values=32, shared=True, height=2, nodes=4, sigma=1.0), "triton", torch.bfloat16)
from repgraph.ops.triton import launch
launch.WIDEST_CELLS = 0
check(vary(channels=24, values=12, groups=2, grid=3), "triton", torch.float32)
"""


@pytest.mark.slow
def test_the_order_of_axes_of_other_versions_of_triton() -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", OTHER_ORDER], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
