"""The placement of keys: every element on exactly one server, evenly, and the same for every worker."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx import settings
from flowmx.kvstore.shards import Layout, Shard, bundles, stable_hash

KEYS = st.one_of(st.integers(0, 10_000), st.text(max_size=8))
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)


@given(st.dictionaries(KEYS, SHAPES, max_size=20), st.integers(1, 5), st.integers(1, 500))
def test_every_element_is_on_one_server(shapes, servers, bound):
    layout = Layout(servers, bound)
    layout.add(shapes)
    for key, shape in shapes.items():
        shards = layout[key]
        size = math.prod(shape)
        covered = [i for shard in shards for i in range(shard.start, shard.stop)]
        assert covered == list(range(size))
        assert [shard.part for shard in shards] == list(range(len(shards)))
        assert len({shard.home for shard in shards}) == len(shards)
        assert all(0 <= shard.home < servers and shard.nbytes == 4 * (shard.stop - shard.start) for shard in shards)
        if size < bound or servers == 1:
            assert len(shards) == 1
    assert sum(layout.loads) == 4 * sum(map(math.prod, shapes.values()))


@given(st.dictionaries(KEYS, SHAPES, max_size=20), st.integers(1, 4), st.randoms())
def test_the_order_within_a_batch_does_not_matter(shapes, servers, random):
    shuffled = list(shapes.items())
    random.shuffle(shuffled)
    one, other = Layout(servers, 100), Layout(servers, 100)
    one.add(shapes)
    other.add(dict(shuffled))
    assert all(one[key] == other[key] for key in shapes)


def test_a_big_array_is_split_evenly():
    layout = Layout(3, bound=1000)
    layout.add({"big": (1000,), "small": (999,)})
    assert [shard.stop - shard.start for shard in layout["big"]] == [333, 333, 334]
    assert len(layout["small"]) == 1


def test_a_matrix_is_split_between_rows():
    layout = Layout(3, bound=1000)
    layout.add({"embedding": (100, 17), "wide": (4, 1000)})
    assert all(shard.start % 17 == 0 for shard in layout["embedding"])
    assert [shard.stop - shard.start for shard in layout["wide"]] == [1333, 1333, 1334]  # too few rows for equal shares


def test_small_arrays_are_balanced_by_bytes():
    layout = Layout(4, bound=1 << 30)
    layout.add({f"layer{i}": (100 + 37 * (i % 13),) for i in range(200)})
    assert max(layout.loads) < 1.02 * min(layout.loads)


def test_keys_stay_where_they_are_when_more_come():
    layout = Layout(3)
    layout.add({0: (5,), 1: (7,)})
    before = layout[0], layout[1]
    layout.add({2: (11,), 3: (13,)})
    assert (layout[0], layout[1]) == before
    assert list(layout) == [1, 0, 3, 2] and 3 in layout


def test_equal_keys_of_two_types_are_two():
    # The first 8 bytes of SHA-256 of "i3" and "s3": other languages must compute the same.
    assert stable_hash(3) == 0x3DD92611CBC6839A
    assert stable_hash("3") == 0xD4FA56AE9F2B2441


def test_the_default_bound_is_the_setting():
    with settings.override(kvstore_bigarray_bound=10):
        layout = Layout(2)
    layout.add({0: (10,)})
    assert len(layout[0]) == 2


def test_refuses_invalid_layouts():
    with pytest.raises(ValueError, match="0 servers"):
        Layout(0)
    layout = Layout(1)
    layout.add({1: (1,)})
    with pytest.raises(ValueError, match=r"duplicate init of the keys \[1\]"):
        layout.add({1: (1,), 2: (1,)})
    with pytest.raises(KeyError, match="call init with it first"):
        layout["missing"]


def shard(key, home, nbytes):
    return Shard(key, 0, home, 0, nbytes // 4, nbytes)


def test_small_shards_of_a_server_share_a_request():
    shards = [shard("a", 0, 40), shard("b", 1, 40), shard("c", 0, 40), shard("d", 0, 400), shard("e", 0, 40)]
    result = [[item.key for item in bundle] for bundle in bundles(shards, limit=100)]
    assert result == [["a", "c"], ["b"], ["d"], ["e"]]


def test_no_limit_means_each_by_itself():
    assert [len(bundle) for bundle in bundles([shard(i, 0, 4) for i in range(3)], limit=0)] == [1, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=30), st.integers(0, 120))
def test_bundles_keep_the_order_and_the_limit(spec, limit):
    shards = [shard(i, home, 4 * size) for i, (home, size) in enumerate(spec)]
    result = bundles(shards, limit)
    assert sorted(item.key for bundle in result for item in bundle) == list(range(len(shards)))
    assert [bundle[0].key for bundle in result] == sorted(bundle[0].key for bundle in result)
    for bundle in result:
        assert len({item.home for item in bundle}) == 1
        assert [item.key for item in bundle] == sorted(item.key for item in bundle)
        assert len(bundle) == 1 or sum(item.nbytes for item in bundle) <= limit
