"""Tests for every device. A module that imports them defines the device fixtures.

``places`` are two devices of a kind, and ``opened`` gives the content of an array inside a function on its device.
"""

import asyncio
import pickle

import numpy as np
import pytest

import flowmx as mx
from flowmx import devices
from flowmx.engine.runtime import engine


@pytest.fixture(autouse=True)
def forgotten_errors():
    """Errors that tests provoke are not reported at exit."""
    yield
    engine.failures.clear()


def test_arrays_are_made_computed_and_read(places):
    a = mx.nd.array([[1.0, 2], [3, 4]], ctx=places[0])
    assert a.context == places[0]
    np.testing.assert_array_equal((mx.nd.dot(a, a.T) + 1).asnumpy(), [[6, 12], [12, 26]])


def test_copies_go_between_devices_and_the_host(places):
    a = mx.nd.arange(12, ctx=places[0]).reshape((3, 4))
    there = a.as_in_context(places[1]) * 2
    here = there.as_in_context(mx.cpu(5))
    assert there.context == places[1] and here.context == mx.cpu(5)
    np.testing.assert_array_equal((here + 1).asnumpy(), np.arange(12).reshape(3, 4) * 2 + 1)


def test_the_host_does_not_change_memory_that_a_copy_still_reads(places):
    source = mx.nd.ones((64, 64), ctx=mx.cpu(0))
    copies = []
    for value in range(8):
        source[:] = value
        copies.append(source.copyto(places[value % 2]))
    assert [each.asnumpy().max() for each in copies] == list(range(8))


def test_slices_are_read_and_assigned(places):
    a = mx.nd.zeros((4, 4), ctx=places[0])
    a[1:3, ::2] = 7
    a[0] = mx.nd.ones(4, ctx=places[1]).as_in_context(places[0])
    np.testing.assert_array_equal(a[:3].asnumpy(), [[1, 1, 1, 1], [7, 0, 7, 0], [7, 0, 7, 0]])


def test_an_await_is_for_the_value(places):
    async def main():
        a = mx.nd.ones((8, 8), ctx=places[0])
        b = await (a * 3).as_in_context(places[1])
        await mx.nd.waitall_async()
        return b.asnumpy()

    assert (asyncio.run(main()) == 3).all()


def test_user_functions_see_earlier_writes(places, opened):
    a = mx.nd.ones((4, 4), ctx=places[0])
    a += 1
    handle = mx.engine.push(lambda: float(opened(a).sum()), reads=[a], device=places[0])
    host = mx.engine.push(lambda: opened(a).fill(5), writes=[a], device=places[0])
    b = a * 2
    assert handle.wait() == 32
    host.wait()
    assert (b.asnumpy() == 10).all()


def test_operations_of_the_host_come_after_the_devices(places):
    a = mx.nd.ones((4, 4), ctx=places[0])
    host = mx.nd.zeros((4, 4))
    a += 1
    a.copyto(host)
    total = mx.engine.push(lambda: float(np.from_dlpack(host).sum()), reads=[host], device=mx.cpu(0))
    mx.engine.push(lambda: np.from_dlpack(host).fill(5), writes=[host], device=mx.cpu(0))
    host.copyto(a)
    assert total.wait() == 32
    assert (a * 2).asnumpy().max() == 10


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("uint8", "float32"), ("float64", "int32")])
def test_copies_change_the_dtype(places, dtypes):
    values = np.arange(6).reshape(2, 3)
    a = mx.nd.array(values, ctx=places[0], dtype=dtypes[0])
    for context in (places[0], places[1], mx.cpu(0)):
        there = mx.nd.zeros((2, 3), ctx=context, dtype=dtypes[1])
        a.copyto(there)
        back = mx.nd.zeros((2, 3), ctx=places[0], dtype=dtypes[0])
        there.copyto(back)
        np.testing.assert_array_equal(back.asnumpy(), values)
        assert there.asnumpy().dtype == dtypes[1] and back.asnumpy().dtype == dtypes[0]


def test_views_are_copied_between_devices(places):
    a = mx.nd.array(np.arange(24).reshape(4, 6), ctx=places[0])
    b = mx.nd.zeros((4, 6), ctx=places[1])
    host = mx.nd.zeros((4, 6))
    part = (slice(1, 3), slice(0, 6, 2))
    b[part] = a[part].as_in_context(places[1])
    host[part] = b[part].as_in_context(mx.cpu(0))
    b[0] = host[1].as_in_context(places[1])
    expected = np.zeros((4, 6))
    expected[part] = np.arange(24).reshape(4, 6)[part]
    np.testing.assert_array_equal(host.asnumpy(), expected)
    expected[0] = expected[1]
    np.testing.assert_array_equal(b.asnumpy(), expected)


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_arrays_of_any_size_go_there_and_back(places, size):
    values = np.arange(size, dtype=np.float32)
    a = mx.nd.array(values, ctx=places[0]).as_in_context(places[1])
    np.testing.assert_array_equal(a.as_in_context(mx.cpu(0)).asnumpy(), values)
    np.testing.assert_array_equal(a.asnumpy(), values)


def test_pinned_memory_of_the_host_is_copied_from_and_to(places):
    a = mx.nd.array(np.arange(100_000), ctx=mx.cpu_pinned(0))
    b = a.as_in_context(places[0]) + 1
    a[:] = 0
    back = b.as_in_context(mx.cpu_pinned(0))
    assert back.context == mx.cpu_pinned(0)
    np.testing.assert_array_equal(back.asnumpy(), np.arange(100_000) + 1)


def test_arrays_are_pickled_with_their_device(places):
    a = mx.nd.array([[1, 2], [3, 4]], ctx=places[0])
    again = pickle.loads(pickle.dumps(a))
    assert again.context == places[0]
    np.testing.assert_array_equal((again + 0).asnumpy(), a.asnumpy())


def fail():
    raise ValueError("on purpose")


def test_an_error_poisons_what_depends_on_it_and_a_write_heals(places):
    a, other = mx.nd.ones(3, ctx=places[0]), mx.nd.ones(3, ctx=places[0])
    mx.engine.push(fail, writes=[a], device=places[0], name="failing")
    b = a * 2
    with pytest.raises(ValueError, match="on purpose") as caught:
        b.as_in_context(places[1]).wait_to_read()
    assert any("failing" in note for note in caught.value.__notes__)
    assert (other + 1).asnumpy().sum() == 6
    a[:] = 2
    assert (a * 2).asnumpy().sum() == 12


def test_a_seed_repeats_random_numbers(places):
    def draw():
        mx.random.seed(11)
        return mx.nd.random.normal(shape=(40, 40), ctx=places[0]).asnumpy()

    np.testing.assert_array_equal(draw(), draw())


def test_free_and_total_bytes_are_reported(places):
    free, total = devices.get(places[0]).memory_info()
    assert 0 < free <= total
    places[0].empty_cache()
