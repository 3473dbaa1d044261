"""Where all nodes of some queries are inside the map, nothing is masked: it must not matter to the result."""

import math

import pytest
import torch
from tests.ops.problem import DEVICE, normal

pytest.importorskip("triton")
from repgraph.ops import representative_attention
from repgraph.ops.triton import launch

HEIGHT, WIDTH = 9, 11
# The last place along each axis that has a position on either side, and what is next to it.
LAST_X, LAST_Y = WIDTH - 1, HEIGHT - 1
BEFORE = 1 - 1 / 4096


def offsets_to(place: tuple[float, float], nodes: int, batch: int = 1) -> torch.Tensor:
    """Offsets (B, 2S, H, W) with which every query has its last node at ``place`` and the others well inside."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    positions = torch.stack((x, y)).float()  # [2, H, W]
    inside = 1 + normal(batch, nodes, 2, HEIGHT, WIDTH, device="cpu").abs() % 5
    inside[:, -1] = torch.tensor(place)[:, None, None]
    return (inside - positions).flatten(1, 2).to(DEVICE)


def outcome(monkeypatch: pytest.MonkeyPatch, looked_at: int, *tensors: torch.Tensor, **options):
    monkeypatch.setattr(launch, "_LOOKED_AT", looked_at)
    launch._forward_plan.cache_clear()
    try:
        return representative_attention(*tensors, backend="triton", return_nodes=True, **options)
    finally:
        launch._forward_plan.cache_clear()


PLACES = {
    "inside": (4.25, 3.5),
    "on the first position": (0.0, 0.0),
    "before the last column": (LAST_X - 1 + BEFORE, 2.0),
    "on the last column": (float(LAST_X), 2.0),
    "before the last row": (3.5, LAST_Y - 1 + BEFORE),
    "on the last row": (3.5, float(LAST_Y)),
    "left of the map": (-1 / 4096, 2.0),
    "above the map": (2.0, -1 / 4096),
    "far away": (1e30, -1e30),
    "infinite": (math.inf, 2.0),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("channels", [8, 12])
def test_look_changes_nothing(place: str, nodes: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_to(PLACES[place], nodes, 2)
    query, key = (normal(2, channels, HEIGHT, WIDTH, seed=seed) for seed in (1, 2))
    for value in (key, normal(2, channels, HEIGHT, WIDTH, seed=3)):
        want = representative_attention(query.double(), key.double(), value.double(), offsets.double(),
                                        backend="reference", return_nodes=True)  # fmt: skip
        for looked_at in (0, 64):
            got = outcome(monkeypatch, looked_at, query, key, value, offsets)
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_one_query_with_a_node_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that has it is masked, the others are not; groups are units of their own."""
    offsets = offsets_to((5.5, 4.5), 5)
    offsets[0, 4, 3, 7] -= 40
    query, key = (normal(1, 8, HEIGHT, WIDTH, seed=seed) for seed in (1, 2))
    for groups in (1, 2):
        want, _, _ = representative_attention(query.double(), key.double(), key.double(), offsets.double(),
                                              groups=groups, backend="reference", return_nodes=True)  # fmt: skip
        got, _, _ = outcome(monkeypatch, 64, query, key, key, offsets, groups=groups)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_node_that_is_no_number_spoils_its_query_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_to((5.5, 4.5), 3)
    offsets[0, 2, 4, 6] = math.nan
    query, key = (normal(1, 8, HEIGHT, WIDTH, seed=seed) for seed in (1, 2))
    got, _, _ = outcome(monkeypatch, 64, query, key, key, offsets)
    spoilt = got.isnan().any(1)[0]
    assert spoilt[4, 6] and spoilt.sum() == 1


@pytest.mark.parametrize("nodes", [64, 65])
def test_too_many_nodes_to_look_at(nodes: int) -> None:
    strides = (HEIGHT * WIDTH * 8, 1, WIDTH * 8, 8)
    plan = launch._forward_plan(
        torch.Size((1, 8, HEIGHT, WIDTH)), 8, *[strides] * 4, torch.Size((1, 2 * nodes, HEIGHT, WIDTH)),
        (2 * nodes * HEIGHT * WIDTH, HEIGHT * WIDTH, WIDTH, 1), torch.float32, torch.float32, -1, True, 1, 1, True,
        False, True,
    )  # fmt: skip
    assert plan.constants["NODE_BLOCK"] == (64 if nodes == 64 else 0)


def test_nothing_outside_the_map_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What surrounds a window of a larger map is NaN, and so is every result that touches it."""
    larger = torch.full((1, 8, HEIGHT + 4, WIDTH + 4), math.nan, device=DEVICE)
    larger = larger.contiguous(memory_format=torch.channels_last)
    larger[:, :, 2:-2, 2:-2] = normal(1, 8, HEIGHT, WIDTH)
    window = larger[:, :, 2:-2, 2:-2]
    for place in PLACES.values():
        got, _, _ = outcome(monkeypatch, 64, window, window, window, offsets_to(place, 4))
        assert got.isfinite().all()
