"""Shares of workers: each sample in one share, by the rule of each iterator."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx.data.sharding import byte_share, share

COUNTS = st.tuples(st.integers(0, 60), st.integers(1, 9))


def shares(count, parts, rule):
    everything = list(range(count))
    return [everything[share(count, index, parts, rule)] for index in range(parts)]


@given(COUNTS, st.sampled_from(["even", "longer first", "shorter last"]))
def test_shares_hold_each_sample_once_in_order(given_counts, rule):
    count, parts = given_counts
    assert list(itertools.chain.from_iterable(shares(count, parts, rule))) == list(range(count))


@given(COUNTS, st.sampled_from(["even", "longer first"]))
def test_lengths_differ_by_at_most_one(given_counts, rule):
    lengths = [len(part) for part in shares(*given_counts, rule)]
    assert max(lengths) - min(lengths) <= 1
    assert rule == "even" or lengths == sorted(lengths, reverse=True)


@given(COUNTS)
def test_a_rest_may_be_dropped(given_counts):
    count, parts = given_counts
    assert {len(part) for part in shares(count, parts, "drop rest")} == {count // parts}


@given(COUNTS.filter(lambda counts: counts[0] >= counts[1]))
def test_shares_of_equal_length_hold_everything(given_counts):
    count, parts = given_counts
    parts_of_all = shares(count, parts, "equal")
    assert {len(part) for part in parts_of_all} == {-(-count // parts)}
    assert set().union(*parts_of_all) == set(range(count))


def test_rules_differ_if_samples_do_not_divide_evenly():
    rules = ["even", "longer first", "shorter last", "drop rest", "equal"]
    assert [[len(part) for part in shares(10, 4, rule)] for rule in rules] == [
        [2, 3, 2, 3], [3, 3, 2, 2], [3, 3, 3, 1], [2, 2, 2, 2], [3, 3, 3, 3],
    ]  # fmt: skip


@given(st.integers(0, 500), st.integers(1, 9))
def test_shares_of_bytes_begin_at_multiples_of_four(size, parts):
    edges = [byte_share(size, index, parts) for index in range(parts)]
    assert edges[0][0] == 0 and edges[-1][1] == size
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(edges))
    assert all(start % 4 == 0 or start == size for start, _ in edges)


@pytest.mark.parametrize(("part_index", "num_parts"), [(2, 2), (-1, 2), (0, 0)])
def test_refuses_a_share_that_does_not_exist(part_index, num_parts):
    with pytest.raises(ValueError, match=f"part_index is {part_index} and num_parts {num_parts}"):
        share(10, part_index, num_parts)
