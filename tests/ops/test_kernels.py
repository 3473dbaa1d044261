"""Each kernel against float64, results and all gradients: odd sizes, strange layouts, poisoned memory."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.ops.problem import NAMES, Problem, attention, check, device_of, distance, prepare, run, vary

from repgraph.ops import representative_attention

PROBLEMS = [
    vary(batch=2, channels=5, values=11, height=6, width=5),
    vary(channels=24, values=24, shared=True, nodes=9, sigma=5.0),
    vary(channels=12, values=6, groups=3, nodes=4),
    vary(channels=16, values=16, groups=16, shared=True),
    vary(channels=40, values=33, height=3, width=4, nodes=2),
    vary(height=1, width=1, nodes=5),
    vary(height=1, width=9, nodes=1, shared=True),
    vary(height=9, width=1),
    vary(channels=1, values=1, nodes=7),
    vary(batch=3, height=5, width=7, grid=2, shared=True),
    vary(height=7, width=5, grid=3, groups=2, nodes=4),
    vary(height=5, width=6, grid=11, nodes=6),
    vary(channels=4, values=4, height=4, width=4, nodes=81, sigma=6.0),
    vary(channels=2, values=2, height=4, width=4, nodes=20, grid=2, shared=True),
    vary(sigma=100.0),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_accuracy(kernel: str, problem: Problem, dtype: torch.dtype) -> None:
    check(problem, kernel, dtype)


def test_float16() -> None:
    check(vary(batch=2, channels=24, values=12, groups=2, nodes=5), "triton", torch.float16)


def test_float64() -> None:
    check(vary(batch=2, channels=24, values=12, groups=2, nodes=5), "cpu", torch.float64)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
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
    ids=repr,
)
def test_accuracy_at_real_sizes(problem: Problem, dtype: torch.dtype) -> None:
    check(problem, "triton", dtype)


def draw(data: st.DataObject) -> Problem:
    groups = data.draw(st.integers(1, 4), "groups")
    shared = data.draw(st.booleans(), "shared")
    channels = groups * data.draw(st.integers(1, 6), "channels per group")
    return Problem(
        batch=data.draw(st.integers(1, 3), "batch"),
        channels=channels,
        values=channels if shared else groups * data.draw(st.integers(1, 6), "values per group"),
        height=data.draw(st.integers(1, 9), "height"),
        width=data.draw(st.integers(1, 9), "width"),
        nodes=data.draw(st.integers(1, 11), "nodes"),
        groups=groups,
        grid=data.draw(st.integers(1, 5), "grid"),
        shared=shared,
        sigma=data.draw(st.sampled_from([0.3, 2.0, 9.0]), "sigma"),
        seed=data.draw(st.integers(0, 2**20), "seed"),
    )


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_shape(kernel: str, data: st.DataObject) -> None:
    check(draw(data), kernel, torch.float32)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_shapes(kernel: str, data: st.DataObject) -> None:
    dtype = torch.float32 if kernel == "triton" else data.draw(st.sampled_from([torch.float32, torch.float64]))
    check(draw(data), kernel, dtype, least=1.0)


def channel_slice(t):
    """Channels out of the middle of a wider channels-last map."""
    wide = torch.full((t.shape[0], t.shape[1] + 5, *t.shape[2:]), math.nan, dtype=t.dtype, device=t.device)
    wide = wide.contiguous(memory_format=torch.channels_last)
    wide[:, 3:-2] = t
    return wide[:, 3:-2]


def window(t):
    """A window of a larger map whose surroundings are NaN."""
    big = torch.full((*t.shape[:2], t.shape[2] + 4, t.shape[3] + 3), math.nan, dtype=t.dtype, device=t.device)
    big = big.contiguous(memory_format=torch.channels_last)
    big[:, :, 2:-2, 1:-2] = t
    return big[:, :, 2:-2, 1:-2]


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "channel slice": channel_slice,
    "window": window,
    "every other row": lambda t: t.repeat_interleave(2, 2)[:, :, ::2],
    "flipped batch": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grid", [1, 2])
def test_layouts(kernel: str, layout: str, grid: int) -> None:
    problem = vary(batch=2, channels=8, values=16, height=4, width=6, grid=grid)
    tensors = prepare(problem, torch.float32, device_of(kernel))
    for name in ("query", "key", "value", "grad", "offsets"):
        tensors[name] = LAYOUTS[layout](tensors[name])
    check(problem, kernel, torch.float32, tensors)


def test_expanded(kernel: str) -> None:
    problem = vary(batch=3)
    tensors = prepare(problem, torch.float32, device_of(kernel))
    for name in ("key", "value", "grad", "offsets"):
        tensors[name] = tensors[name][:1].expand_as(tensors[name])
    tensors["query"] = tensors["query"][:, :1].expand_as(tensors["query"])
    check(problem, kernel, torch.float32, tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_offsets_of_any_dtype(kernel: str, dtype: torch.dtype) -> None:
    problem = vary()
    tensors = prepare(problem, torch.float32, device_of(kernel))
    tensors["offsets"] = tensors["offsets"].to(dtype)
    got = run(attention(problem, kernel), tensors, False)
    want = run(attention(problem, "reference"), dict(tensors, offsets=tensors["offsets"].float()), False)
    assert got["grad offsets"].dtype == dtype
    for name in NAMES:
        tolerance = 1e-5 if name != "grad offsets" else max(1e-5, 2 * torch.finfo(dtype).eps)
        torch.testing.assert_close(got[name].float(), want[name].float(), rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    "problem", [vary(), vary(shared=True, groups=2), vary(grid=3), vary(grid=2, shared=True)], ids=repr
)
def test_every_element_is_written(kernel: str, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uninitialised memory is NaN: what a kernel fails to write cannot pass for a result."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(t):
        return t.fill_(math.nan) if t.dtype.is_floating_point else t.fill_(torch.iinfo(t.dtype).max // 2)

    tensors = prepare(problem, torch.float32, device_of(kernel))
    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    got = run(attention(problem, kernel), tensors, problem.shared)
    for name in NAMES:
        assert got[name].isfinite().all(), name


def test_one_place_that_everybody_reads(kernel: str) -> None:
    """Thousands of additions to one position, in the GPU's pieces and the CPU's slices."""
    problem = vary(channels=4, values=4, height=16, width=18, nodes=3)
    tensors = prepare(problem, torch.float32, device_of(kernel))
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(18.0), indexing="ij")
    away = torch.stack((6.25 - x, 7.75 - y)).to(tensors["offsets"].device)
    tensors["offsets"] = away.repeat(3, 1, 1)[None] + 0.01 * tensors["offsets"]
    check(problem, kernel, torch.float32, tensors, roundings=100)  # in whatever order they are added


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "problem", [vary(batch=2, groups=2), vary(nodes=2, grid=2), vary(height=16, width=18)], ids=repr
)
def test_one_map_for_query_key_and_value(kernel: str, problem: Problem, memory_format, deterministic: bool) -> None:
    """As in the bottleneck layer: one gradient for all of them; in the last problem everybody reads one place."""
    t = prepare(problem, torch.float32, device_of(kernel), memory_format)
    offsets = t["offsets"]
    if problem.height == 16:
        y, x = torch.meshgrid(torch.arange(16.0), torch.arange(18.0), indexing="ij")
        offsets = (0.01 * offsets + torch.stack((6.25 - x, 7.75 - y)).to(offsets).repeat(3, 1, 1)).contiguous()

    def gradients(feature: torch.Tensor, offsets: torch.Tensor, grad: torch.Tensor, backend: str):
        feature, offsets = feature.detach().requires_grad_(), offsets.detach().requires_grad_()
        y = representative_attention(feature, feature, feature, offsets, backend=backend, **problem.options())
        return torch.autograd.grad(y, (feature, offsets), grad)

    want = gradients(t["query"].double(), offsets.double(), t["grad"].double(), "reference")
    torch.use_deterministic_algorithms(deterministic)
    try:
        got = gradients(t["query"], offsets, t["grad"], kernel)
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float32 and distance(a, b) < 2e-5


@pytest.mark.parametrize("grid", [2**30 + 1, 2**62, 2**63 - 2, 10**30])
def test_absurd_grids(backend: str, grid: int) -> None:
    """One cell, as any grid that is larger than the map."""
    problem = vary(height=9, width=11)
    t = prepare(problem, torch.float32, device_of(backend))
    offsets = t["offsets"][:, :, :1, :1].contiguous()
    got, want = (
        representative_attention(t["query"], t["key"], t["value"], offsets, grid=g, backend=backend) for g in (grid, 11)
    )
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_offsets_far_apart_in_memory(kernel: str) -> None:
    """Strides beyond 32 bits; the memory between is never touched."""
    stride = 2**28
    problem = vary(height=3, width=3, nodes=6)
    t = prepare(problem, torch.float16, torch.device("cpu"))
    if kernel == "cpu" or torch.cuda.is_available():
        pytest.skip("half a dozen GiB of address space: for the interpreter")
    far = torch.empty(12 * stride, dtype=torch.float16).as_strided((1, 12, 3, 3), (12 * stride, stride, 3, 1))
    far.copy_(t["offsets"].half())
    got = representative_attention(t["query"], t["key"], t["value"], far, backend=kernel)
    near = representative_attention(t["query"], t["key"], t["value"], far.contiguous(), backend=kernel)
    torch.testing.assert_close(got, near)


def test_one_node_has_weight_one_however_large_its_logit(kernel: str) -> None:
    problem = vary(nodes=1, scale=1.0)
    t = prepare(problem, torch.float32, device_of(kernel))
    t = {name: 100 * tensor if name in ("query", "key") else tensor for name, tensor in t.items()}
    got = run(attention(problem, kernel), t, False)
    want = run(attention(problem, kernel), dict(t, query=torch.zeros_like(t["query"])), False)
    assert (got["weights"] == 1).all()
    assert (got["grad query"] == 0).all() and (got["grad key"] == 0).all()
    torch.testing.assert_close(got["grad value"], want["grad value"], rtol=1e-6, atol=1e-6)


def test_memory_format_of_results(kernel: str) -> None:
    problem = vary(channels=8, values=16)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        tensors = prepare(problem, torch.float32, device_of(kernel), memory_format)
        got = run(attention(problem, kernel), tensors, False)
        for name in ("y", "grad query", "grad key", "grad value"):
            assert got[name].is_contiguous(memory_format=memory_format), name


def test_empty_batch(kernel: str) -> None:
    device = device_of(kernel)
    query = torch.zeros(0, 4, 5, 6, device=device, requires_grad=True)
    offsets = torch.zeros(0, 6, 5, 6, device=device, requires_grad=True)
    y, nodes, weights = representative_attention(query, query, query, offsets, backend=kernel, return_nodes=True)
    assert y.shape == (0, 4, 5, 6) and nodes.shape == (0, 3, 2, 5, 6) and weights.shape == (0, 1, 3, 5, 6)
    y.sum().backward()
    assert query.grad is not None and query.grad.shape == query.shape


def test_only_the_weights_are_differentiated(kernel: str) -> None:
    problem = vary()
    tensors = prepare(problem, torch.float32, device_of(kernel))
    leaves = [tensors[name].requires_grad_() for name in ("query", "key", "value", "offsets")]
    grads = []
    for backend in (kernel, "reference"):
        _, _, weights = representative_attention(*leaves, backend=backend, return_nodes=True)
        grads.append(torch.autograd.grad((weights**2).sum(), leaves, allow_unused=True))
    for got, want in zip(*grads, strict=True):
        want = torch.zeros_like(got) if want is None else want
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("problem", [vary(groups=2), vary(grid=2, shared=True), vary(grid=5, nodes=4)], ids=repr)
def test_deterministic_algorithms(kernel: str, problem: Problem) -> None:
    problem = Problem(**{**problem.__dict__, "height": 7, "width": 6, "batch": 2})
    tensors = prepare(problem, torch.float32, device_of(kernel))
    torch.use_deterministic_algorithms(True)
    try:
        first, *more = (run(attention(problem, kernel), tensors, problem.shared) for _ in range(2))
        check(problem, kernel, torch.float32, tensors)
    finally:
        torch.use_deterministic_algorithms(False)
    for other in more:
        for name in NAMES:
            assert torch.equal(first[name], other[name]), name
