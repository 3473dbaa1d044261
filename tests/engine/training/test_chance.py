"""Which images an iteration sees, where a batch is to have images of one group."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from repgraph.engine.training.chance import chosen, grouped
from repgraph.engine.training.loader import Batches

SIZES = st.tuples(st.integers(1, 23), st.integers(1, 23))


def groups_of(sizes):
    first, second = sizes
    return [list(range(first)), list(range(first, first + second))]


@given(SIZES, st.integers(1, 8), st.integers(0, 9), st.integers(0, 10**6))
def test_a_batch_is_of_one_group(sizes, batch, seed, iteration):
    groups = groups_of(sizes)
    found = grouped(seed, groups, iteration, batch)
    assert len(found) == batch and any(set(found) <= set(group) for group in groups)
    assert found == grouped(seed, groups, iteration, batch)


@given(SIZES, st.integers(1, 8), st.integers(0, 9))
def test_every_image_of_a_group_comes_once_before_any_comes_again(sizes, batch, seed):
    groups = groups_of(sizes)
    seen = [[], []]
    for iteration in range(40):
        found = grouped(seed, groups, iteration, batch)
        seen[found[0] in groups[1]] += found
    for group, indices in zip(groups, seen, strict=True):
        turns = [indices[at : at + len(group)] for at in range(0, len(indices), len(group))]
        assert all(len(set(turn)) == len(turn) for turn in turns)


@given(SIZES, st.integers(1, 8), st.integers(0, 9), st.integers(0, 1000), st.integers(1, 60))
def test_groups_have_their_share_of_the_batches(sizes, batch, seed, first, count):
    groups = groups_of(sizes)
    found = [grouped(seed, groups, iteration, batch) for iteration in range(first, first + count)]
    second = sum(each[0] in groups[1] for each in found)
    assert abs(second - count * sizes[1] / sum(sizes)) < 1


def test_an_epoch_visits_every_image_about_once():
    groups = [list(range(75)), list(range(75, 100))]
    seen = collections.Counter(index for iteration in range(25) for index in grouped(1, groups, iteration, 4))
    assert sum(seen.values()) == 100 and len(seen) >= 92 and max(seen.values()) <= 2


@given(st.integers(1, 23), st.integers(0, 9), st.integers(0, 99))
def test_one_group_alone_is_no_group(length, seed, iteration):
    images = list(range(length))
    assert grouped(seed, [images, []], iteration, 4) == chosen(seed, length, iteration, 4)
    assert grouped(seed, [[], images], iteration, 4) == chosen(seed, length, iteration, 4)


@given(SIZES, st.integers(0, 9), st.integers(0, 500), st.sampled_from([2, 4]))
def test_devices_share_the_same_batch(sizes, seed, first, world):
    def batches(rank, of):
        choose = lambda iteration: grouped(seed, groups_of(sizes), iteration, 8)  # noqa: E731
        return list(Batches(sum(sizes), 8, seed, first, first + 3, rank, of, choose))

    parts = [batches(rank, world) for rank in range(world)]
    for number, batch in enumerate(batches(0, 1)):
        assert [key for part in parts for key in part[number]] == batch
