"""Every kernel against float64, results and all gradients: odd sizes, strange layouts, poisoned memory, determinism."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.problem import LAST, LAYOUTS, NAMES, Problem, attention, check, device_of, prepare, run, vary

from repgraph.ops import representative_attention

FLOAT, DOUBLE, BFLOAT = torch.float32, torch.float64, torch.bfloat16
PROBLEMS = [
    (vary(batch=2, channels=5, values=11, height=2), FLOAT),
    (vary(channels=24, values=24, shared=True, nodes=4, sigma=5.0, height=2), BFLOAT),
    (vary(channels=12, values=6, groups=3), FLOAT),
    (vary(channels=16, values=16, groups=16, shared=True, height=2, width=3), BFLOAT),
    (vary(channels=40, values=33, height=2, nodes=2), FLOAT),
    (vary(height=1, width=1, nodes=5), FLOAT),
    (vary(height=1, width=7, nodes=1, shared=True), BFLOAT),
    (vary(height=5, width=1, nodes=3), FLOAT),
    (vary(channels=1, values=1, height=2, nodes=5), BFLOAT),
    (vary(batch=2, grid=2, shared=True), BFLOAT),
    (vary(height=4, width=4, grid=3, groups=2, nodes=3), FLOAT),
    (vary(grid=11, height=2), FLOAT),
    (vary(channels=2, values=2, height=2, width=2, nodes=20, grid=2, shared=True), FLOAT),
    (vary(sigma=100.0), BFLOAT),
]
LARGER = [  # whole vectors, blocks and tiles of the CPU kernels, and remainders
    vary(batch=2, channels=16, values=16, height=7, width=9, nodes=9),
    vary(channels=330, values=83, height=5, width=17, nodes=2, scale=0.1),
    vary(height=6, width=6, nodes=101),
    vary(batch=2, channels=24, values=36, height=9, width=7, nodes=4, groups=3),
    vary(batch=2, channels=40, values=24, height=10, width=13, nodes=5, grid=3, scale=0.2),
    vary(channels=16, values=20, height=19, width=45, nodes=6, grid=64),
    vary(batch=2, channels=16, values=16, height=29, width=71, nodes=3, grid=35, shared=True),
]


# bfloat16 takes long to compile, and the interpreter is slow: six of its cases are in the fast tests.
COMPILED = [pytest.param("cpu", *case, marks=pytest.mark.slow if case[1] == BFLOAT else ()) for case in PROBLEMS]
INTERPRETED = [
    pytest.param("triton", *case, marks=() if number in (0, 1, 2, 9, 10, 12) else pytest.mark.slow)
    for number, case in enumerate(PROBLEMS)
]


@pytest.mark.parametrize(("kernel", "problem", "dtype"), [*COMPILED, *INTERPRETED], indirect=["kernel"], ids=str)
def test_accuracy(kernel: str, problem: Problem, dtype: torch.dtype) -> None:
    check(problem, kernel, dtype)


@pytest.mark.parametrize(
    "dtype", [FLOAT, *(pytest.param(d, marks=pytest.mark.slow) for d in (BFLOAT, DOUBLE))], ids=str
)
@pytest.mark.parametrize("problem", LARGER, ids=str)
def test_accuracy_of_larger_maps_on_the_cpu(problem: Problem, dtype: torch.dtype) -> None:
    check(problem, "cpu", dtype)


def test_float16_on_triton() -> None:
    check(vary(channels=24, values=12, groups=2, height=2), "triton", torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT, torch.float16], ids=str)
@pytest.mark.parametrize(
    "problem",
    [
        vary(batch=2, channels=256, values=256, height=33, width=47, nodes=9, shared=True, scale=0.06),
        vary(batch=2, channels=256, values=256, height=33, width=47, nodes=9, scale=0.06),
        vary(channels=96, values=160, height=17, width=23, nodes=27, groups=4, scale=0.2),
        vary(channels=320, values=320, height=19, width=21, nodes=12, groups=5, grid=3, scale=0.1),
        vary(channels=64, values=64, height=31, width=29, nodes=5, groups=8, grid=4, shared=True, scale=0.3),
        vary(channels=1024, values=1024, height=9, width=8, nodes=3, scale=0.03),
        vary(channels=2048, values=700, height=5, width=6, nodes=2, scale=0.02, grid=2),
        vary(batch=33, channels=48, values=48, height=11, width=13, nodes=81, scale=0.1, sigma=4.0),
        vary(channels=512, values=512, height=65, width=65, nodes=9, grid=13, shared=True, scale=0.04),
        vary(channels=32, values=32, height=40, width=40, nodes=9, grid=99, scale=0.2),
    ],
    ids=str,
)
def test_accuracy_at_real_sizes(problem: Problem, dtype: torch.dtype) -> None:
    check(problem, "triton", dtype)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    groups, shared = draw(st.integers(1, 4)), draw(st.booleans())
    channels = groups * draw(st.integers(1, 6))
    return Problem(
        batch=draw(st.integers(1, 3)),
        channels=channels,
        values=channels if shared else groups * draw(st.integers(1, 6)),
        height=draw(st.integers(1, 7)),
        width=draw(st.integers(1, 7)),
        nodes=draw(st.integers(1, 8)),
        groups=groups,
        grid=draw(st.integers(1, 5)),
        shared=shared,
        sigma=draw(st.sampled_from([0.3, 2.0, 9.0])),
        seed=draw(st.integers(0, 2**20)),
    )


@settings(max_examples=20, deadline=None, derandomize=True)
@given(problem=problems())
def test_any_shape_on_the_cpu(problem: Problem) -> None:
    check(problem, "cpu", FLOAT, least=1.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(), dtype=st.sampled_from([FLOAT, DOUBLE]))
def test_many_shapes(kernel: str, problem: Problem, dtype: torch.dtype) -> None:
    check(problem, kernel, FLOAT if kernel == "triton" else dtype, least=1.0)


def check_layout(problem: Problem, kernel: str, dtype: torch.dtype, layout: str) -> None:
    tensors = prepare(problem, dtype, device_of(kernel))
    for name in ("query", "key", "value", "grad", "offsets"):
        tensors[name] = LAYOUTS[layout](tensors[name])
    got = check(problem, kernel, dtype, tensors)
    memory_format = {"contiguous": torch.contiguous_format, "channels last": LAST}.get(layout)
    if memory_format is not None:
        for name in ("y", "grad query", "grad key", "grad value"):
            assert got[name].is_contiguous(memory_format=memory_format), name


@pytest.mark.parametrize("dtype", [FLOAT, BFLOAT], ids=str)
@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_on_the_cpu(layout: str, grid: int, dtype: torch.dtype) -> None:
    """Maps are large enough for transposition in blocks."""
    problem = vary(batch=2, channels=34, values=18, height=8, width=21, nodes=4, groups=2, grid=grid, scale=0.2)
    check_layout(problem, "cpu", dtype, layout)


PLAIN = ["contiguous", "channels last", "window"]


@pytest.mark.parametrize("grid", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "layout", ["channel slice", "flipped batch", *(pytest.param(n, marks=pytest.mark.slow) for n in PLAIN)]
)
def test_layouts_on_triton(layout: str, grid: int) -> None:
    check_layout(vary(batch=2, values=16, height=2, width=3, grid=grid), "triton", FLOAT, layout)


@pytest.mark.slow
def test_expanded_tensors(kernel: str) -> None:
    problem = vary(batch=2, height=2)
    tensors = prepare(problem, FLOAT, device_of(kernel))
    for name in ("key", "value", "grad", "offsets"):
        tensors[name] = tensors[name][:1].expand_as(tensors[name])
    tensors["query"] = tensors["query"][:, :1].expand_as(tensors["query"])
    check(problem, kernel, FLOAT, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT, DOUBLE], ids=str)
@pytest.mark.slow
def test_offsets_of_any_dtype(kernel: str, dtype: torch.dtype) -> None:
    problem = vary(height=2)
    tensors = prepare(problem, FLOAT, device_of(kernel))
    every_other = tensors["offsets"].to(dtype).repeat_interleave(2, 1)[:, ::2]
    rounded = dict(tensors, offsets=every_other.float())
    got = run(attention(problem, kernel), dict(tensors, offsets=every_other), False)
    want = run(attention(problem, "reference"), rounded, False)
    assert not every_other.is_contiguous() and got["grad offsets"].dtype == dtype
    for name in NAMES:
        tolerance = 1e-5 if name != "grad offsets" else max(1e-5, 2 * torch.finfo(dtype).eps)
        torch.testing.assert_close(got[name].float(), want[name].float(), rtol=tolerance, atol=tolerance, msg=name)


def to_one_place(offsets: torch.Tensor) -> torch.Tensor:
    """Return offsets with which all nodes of all queries are near one position."""
    height, width = offsets.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    towards = torch.stack((3.25 - x, 4.75 - y)).to(offsets).repeat(offsets.shape[1] // 2, 1, 1)
    return (0.1 * offsets + towards).contiguous()


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.slow
def test_all_nodes_near_one_position(kernel: str, is_deterministic: bool) -> None:
    """The Triton kernels sum in several pieces there."""
    problem = vary(channels=4, values=4, height=8, width=9)
    tensors = prepare(problem, FLOAT, device_of(kernel), LAST)
    tensors["offsets"] = to_one_place(tensors["offsets"])
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        check(problem, kernel, FLOAT, tensors)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("problem", [vary(groups=2, height=2), vary(grid=2, height=2, shared=True)], ids=str)
def test_deterministic_algorithms(kernel: str, problem: Problem, deterministic) -> None:
    tensors = prepare(problem, FLOAT, device_of(kernel))
    first = check(problem, kernel, FLOAT, tensors)
    second = run(attention(problem, kernel), tensors, problem.shared)
    for name in NAMES:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("grid", [2**30 + 1, 10**30])
def test_huge_grids(backend: str, grid: int) -> None:
    t = prepare(vary(), FLOAT, device_of(backend))
    maps = (t["query"], t["key"], t["value"], t["offsets"][:, :, :1, :1].contiguous())
    got, want = (representative_attention(*maps, grid=g, backend=backend) for g in (grid, 5))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_offsets_far_apart_in_memory() -> None:
    """Strides beyond 32 bits; the memory between is not touched."""
    if torch.cuda.is_available():
        pytest.skip("needs 6 GiB of address space, on the CPU")
    stride = 2**28
    t = prepare(vary(height=3, width=3, nodes=6), torch.float16, torch.device("cpu"))
    far = torch.empty(12 * stride, dtype=torch.float16).as_strided((1, 12, 3, 3), (12 * stride, stride, 3, 1))
    far.copy_(t["offsets"].half())
    got = representative_attention(t["query"], t["key"], t["value"], far, backend="triton")
    near = representative_attention(t["query"], t["key"], t["value"], far.contiguous(), backend="triton")
    torch.testing.assert_close(got, near)


def test_one_node_has_weight_one_however_large_its_logit(kernel: str) -> None:
    problem = vary(nodes=1, scale=1.0, height=2)
    t = prepare(problem, FLOAT, device_of(kernel))
    t = {name: 100 * tensor if name in ("query", "key") else tensor for name, tensor in t.items()}
    got = run(attention(problem, kernel), t, False)
    want = run(attention(problem, kernel), dict(t, query=torch.zeros_like(t["query"])), False)
    assert (got["weights"] == 1).all()
    assert (got["grad query"] == 0).all() and (got["grad key"] == 0).all()
    torch.testing.assert_close(got["grad value"], want["grad value"], rtol=1e-6, atol=1e-6)


def test_large_logits(kernel: str) -> None:
    problem = vary(scale=3000.0, height=2)
    got = run(attention(problem, kernel), prepare(problem, FLOAT, device_of(kernel)), False)
    torch.testing.assert_close(got["weights"].sum(2), torch.ones_like(got["weights"][:, :, 0]))
    assert all(t.isfinite().all() for t in got.values())


@pytest.mark.parametrize("grid", [1, 2])
def test_empty_batch(kernel: str, grid: int) -> None:
    device = device_of(kernel)
    query = torch.zeros(0, 4, 5, 6, device=device, requires_grad=True)
    offsets = torch.zeros(0, 6, -(-5 // grid), 6 // grid, device=device, requires_grad=True)
    y, _, weights = representative_attention(query, query, query, offsets, grid=grid, backend=kernel, return_nodes=True)
    assert y.shape == (0, 4, 5, 6) and weights.shape == (0, 1, 3, 5, 6)
    y.sum().backward()
    assert query.grad is not None and query.grad.shape == query.shape


def test_only_the_weights_are_differentiated(kernel: str) -> None:
    tensors = prepare(vary(height=2), FLOAT, device_of(kernel))
    leaves = [tensors[name].requires_grad_() for name in ("query", "key", "value", "offsets")]
    grads = []
    for backend in (kernel, "reference"):
        _, _, weights = representative_attention(*leaves, backend=backend, return_nodes=True)
        grads.append(torch.autograd.grad((weights**2).sum(), leaves, allow_unused=True))
    for got, want in zip(*grads, strict=True):
        want = torch.zeros_like(got) if want is None else want
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
