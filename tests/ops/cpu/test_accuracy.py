"""Results and all gradients against the float64 reference: sizes, dtypes, layouts, grids, groups."""

import numpy as np
import pytest
import torch

from repgraph.ops import representative_attention

SHAPES = {
    "plain": dict(batch=2, channels=16, vchannels=16, height=7, width=9, nodes=9),
    "odd": dict(batch=1, channels=37, vchannels=21, height=11, width=5, nodes=3),
    "wide channels": dict(batch=1, channels=330, vchannels=83, height=5, width=17, nodes=2),
    "many nodes": dict(batch=1, channels=8, vchannels=8, height=6, width=6, nodes=101),
    "one node": dict(batch=1, channels=18, vchannels=18, height=4, width=33, nodes=1),
    "one position": dict(batch=3, channels=5, vchannels=7, height=1, width=1, nodes=4),
    "one column": dict(batch=1, channels=20, vchannels=4, height=19, width=1, nodes=5),
    "shared": dict(batch=2, channels=24, vchannels=24, height=9, width=8, nodes=9, shared=True),
    "groups": dict(batch=2, channels=24, vchannels=36, height=9, width=7, nodes=4, groups=3),
    "a group each": dict(batch=1, channels=19, vchannels=19, height=5, width=6, nodes=3, groups=19),
    "grid": dict(batch=2, channels=40, vchannels=24, height=10, width=13, nodes=5, grid=3),
    "grid, groups": dict(batch=1, channels=36, vchannels=18, height=9, width=9, nodes=4, grid=2, groups=9),
    "grid, shared": dict(batch=1, channels=32, vchannels=32, height=8, width=12, nodes=9, grid=4, shared=True),
    "one cell": dict(batch=1, channels=16, vchannels=20, height=19, width=45, nodes=6, grid=64),
    "tall cells": dict(batch=2, channels=16, vchannels=16, height=29, width=71, nodes=3, grid=35, shared=True),
}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def _sliced(t):
    """A channel slice of a wider channels-last map."""
    wide = torch.full((t.shape[0], t.shape[2], t.shape[3], t.shape[1] + 5), torch.nan, dtype=t.dtype)
    wide[..., 2:-3] = t.permute(0, 2, 3, 1)
    return wide[..., 2:-3].permute(0, 3, 1, 2)


def _swapped(t):
    """Rows and columns swapped in memory."""
    return t.transpose(2, 3).contiguous().transpose(2, 3)


def _every_other(t):
    wide = torch.full((*t.shape[:3], 2 * t.shape[3]), torch.nan, dtype=t.dtype)
    wide[..., ::2] = t
    return wide[..., ::2]


LAYOUTS = {
    "contiguous": torch.clone,
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced": _sliced,
    "swapped": _swapped,
    "every other": _every_other,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, dtype, make_case, check):
    case = make_case(**shape)
    check(case, case.tensors(dtype, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("grid", (1, 3))
def test_layouts(layout, dtype, grid, make_case, check):
    case = make_case(2, 34, 18, 8, 21, 4, groups=2, grid=grid)
    check(case, case.tensors(dtype, torch.float32, layout), weighted=False)


@pytest.mark.parametrize("layout", ("contiguous", "channels last"))
def test_expanded_batch(layout, make_case, check):
    case = make_case(1, 20, 20, 6, 19, 4)
    tensors = [LAYOUTS[layout](t.float()) for t in (case.query, case.key, case.value)]
    tensors = [t.expand(3, -1, -1, -1).requires_grad_() for t in tensors]
    case.grad, case.grad_weights = (
        case.grad.expand(3, -1, -1, -1),
        case.grad_weights.expand(3, -1, -1, -1, -1),
    )
    check(case, [*tensors, case.offsets.float().expand(3, -1, -1, -1).requires_grad_()])


@pytest.mark.parametrize("features", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
@pytest.mark.parametrize("grid", (1, 2))
def test_offset_dtypes_and_strides(features, dtype, grid, make_case, check):
    case = make_case(2, 12, 12, 6, 10, 3, grid=grid)
    wide = torch.full((2, 5, 12, *case.offsets.shape[2:]), torch.nan, dtype=dtype)
    wide[:, 2, ::2] = case.offsets.to(torch.float16)  # such as float16 holds, for the sake of comparison
    offsets = wide[:, 2, ::2].requires_grad_()
    tensors = [*case.tensors(features)[:3], offsets]
    assert not offsets.is_contiguous()
    check(case, tensors)


def test_offset_gradients_are_right_handed_at_integers(make_case):
    case = make_case(1, 4, 4, 5, 6, 2)
    case.offsets.round_()
    tensors = case.tensors()
    right = case.tensors()
    right[3] = (case.offsets + 1e-9).requires_grad_()
    got = case.run(tensors)["grad_offsets"]
    torch.testing.assert_close(got, case.run(right)["grad_offsets"], rtol=1e-6, atol=1e-6)


def test_gradcheck():
    torch.manual_seed(0)
    maps = [torch.randn(1, 4, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for grid, shape in ((1, (1, 6, 4, 5)), (3, (1, 6, 2, 2))):
        offsets = torch.randn(shape, dtype=torch.float64, requires_grad=True)

        def call(q, k, v, o, grid=grid):
            y, _, weights = representative_attention(q, k, v, o, groups=2, grid=grid, backend="cpu", return_nodes=True)
            return y, weights

        assert torch.autograd.gradcheck(call, (*maps, offsets))


def test_format_of_results(make_case):
    case = make_case(2, 6, 4, 3, 5, 2)
    for last, layout in ((False, torch.clone), (True, LAYOUTS["channels last"])):
        got = case.run(case.tensors(torch.float32, layout=layout))
        for name in ("y", "grad_query", "grad_key", "grad_value"):
            form = torch.channels_last if last else torch.contiguous_format
            assert got[name].is_contiguous(memory_format=form), name


def test_empty_batch(make_case):
    case = make_case(0, 6, 4, 3, 5, 2)
    for grid in (1, 2):
        case.options["grid"] = grid
        case.offsets = case.offsets.new_empty(0, 4, -(-3 // grid), -(-5 // grid))
        got = case.run(case.tensors(torch.float32))
        assert got["y"].shape == (0, 4, 3, 5) and got["grad_value"].shape == (0, 4, 3, 5)


def test_large_logits_keep_weights_normalised(make_case):
    case = make_case(1, 16, 16, 5, 5, 4)
    case.options["scale"] = 3000.0
    got = case.run(case.tensors(torch.float32))
    torch.testing.assert_close(got["weights"].sum(2), torch.ones(1, 1, 5, 5), rtol=1e-6, atol=1e-6)
    assert all(t.isfinite().all() for t in got.values())


def test_bfloat16_rounds_to_nearest_even():
    from repgraph.ops.cpu.jit import jit
    from repgraph.ops.cpu.memory import load, store

    @jit
    def convert(source, target):
        for i in range(source.size):
            store(target, i, load(source, i))

    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    bits[:4] = (
        0x7F800001,
        0xFF80FFFF,
        0x7F7FFFFF,
        0x3F808000,
    )  # NaNs with an empty upper half, overflow, a tie
    floats = torch.from_numpy(bits.view(np.float32))
    out = np.empty(bits.size, np.uint16)
    convert(floats.numpy(), out)
    got, expected = torch.from_numpy(out).view(torch.bfloat16), floats.bfloat16()
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    back = np.empty(bits.size, np.float32)
    convert(out, back)
    torch.testing.assert_close(torch.from_numpy(back), got.float(), rtol=0, atol=0, equal_nan=True)
