"""Sums of many parts: parts that are adjacent for every worker are added together, and no others."""

import numpy as np
import pytest

from flowmx.kvstore.server.store import Store, as_array


@pytest.fixture
def store(monkeypatch):
    """A store that records the number of elements of each addition."""
    new_store = Store(1)
    new_store.sizes = []

    def merge_now(gradients):
        new_store.sizes.append(gradients[0].size)
        return type(new_store).merge_now(new_store, gradients)

    monkeypatch.setattr(new_store, "merge_now", merge_now)
    yield new_store
    new_store.close()


def part(base, start, stop):
    return base, start, stop, (stop - start,)


def tensor(worker, seed=0):
    return np.arange(12, dtype=np.float32) * (worker + 1) + seed


def summed(store, gradients):
    expected = [np.sum([as_array(item) for item in result], axis=0) for result in gradients]
    for result, value in zip(store.merge_all(gradients), expected, strict=True):
        np.testing.assert_array_equal(as_array(result), value)
    return store.sizes


def test_adjacent_parts_are_added_together(store):
    a, b = tensor(0), tensor(1)
    cuts = [(0, 4), (4, 5), (5, 12)]
    assert summed(store, [[part(a, *cut), part(b, *cut)] for cut in cuts]) == [12]


def test_a_gap_in_one_workers_tensor_separates_them(store):
    a, b = tensor(0), tensor(1)
    gradients = [[part(a, 0, 3), part(b, 0, 3)], [part(a, 3, 6), part(b, 5, 8)], [part(a, 6, 9), part(b, 8, 11)]]
    assert summed(store, gradients) == [3, 6]


def test_another_tensor_separates_them(store):
    a, b, other = tensor(0), tensor(1), tensor(1, seed=7)
    assert summed(store, [[part(a, 0, 3), part(b, 0, 3)], [part(a, 3, 6), part(other, 3, 6)]]) == [3, 3]


def test_parts_of_different_workers_are_not_joined(store):
    a, b, c = tensor(0), tensor(1), tensor(2)
    gradients = [[part(a, 0, 3), part(b, 0, 3)], [part(a, 3, 6), part(b, 3, 6), part(c, 3, 6)], [part(a, 6, 9)]]
    assert summed(store, gradients) == [3, 3, 3]


def test_whole_arrays_are_added_one_by_one(store):
    gradients = [[tensor(0), tensor(1)], [part(tensor(0), 0, 3), tensor(1)[:3]], [tensor(2), tensor(3)]]
    assert summed(store, gradients) == [12, 3, 12]
