"""Iterators, compared with MXNet's batches; shuffling, awaiting, prefetching."""

import asyncio
import json
import threading

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_training as recorded
from tests.seeding import seed_all

EXPECTED = json.loads((recorded.FOLDER / "iterators.json").read_text())


@pytest.mark.parametrize("arguments", recorded.ITERATORS, ids=str)
def test_yields_the_recorded_batches(arguments):
    assert recorded.run_iterator(mx, arguments) == EXPECTED[str(arguments)]


def numbers(count):
    return np.arange(count, dtype=np.float32)


def read_all(iterator):
    return [batch.data[0].asnumpy().tolist() for batch in iterator]


def test_describes_its_batches():
    iterator = mx.io.NDArrayIter([np.zeros((4, 2)), np.zeros((4, 3))], batch_size=2, label_name="l")
    assert [tuple(desc) for desc in iterator.provide_data] == [("_0_data", (2, 2)), ("_1_data", (2, 3))]
    assert iterator.provide_label == []
    assert iterator.provide_data[0].dtype is np.float32
    assert str(iterator.next()) == "DataBatch: data shapes: [(2, 2), (2, 3)] label shapes: None"


def test_samples_may_be_on_another_axis():
    data = np.arange(12).reshape(3, 4)
    iterator = mx.io.NDArrayIter(data, batch_size=3, layout="TN")
    assert iterator.provide_data[0].shape == (3, 3)
    assert [batch.data[0].asnumpy().tolist() for batch in iterator] == [
        data[:, :3].tolist(),
        data[:, [3, 0, 1]].tolist(),
    ]


def test_batches_are_copies():
    iterator = mx.io.NDArrayIter(numbers(4), batch_size=2)
    iterator.next().data[0][:] = 9
    iterator.reset()
    assert read_all(iterator) == [[0, 1], [2, 3]]


def test_the_seed_determines_the_order_of_data_and_labels():
    runs = []
    for _ in range(2):
        seed_all(8)
        iterator = mx.io.NDArrayIter(numbers(10), numbers(10) * 2, batch_size=4, shuffle=True)
        epochs = []
        for _ in range(2):
            batches = list(iterator)
            for batch in batches:
                assert (batch.data[0].asnumpy() * 2 == batch.label[0].asnumpy()).all()
            flat = [value for batch in batches for value in batch.data[0].asnumpy().tolist()]
            assert sorted(flat[:10]) == list(range(10))
            epochs.append(flat)
            iterator.reset()
        assert epochs[0] != epochs[1]
        runs.append(epochs)
    assert runs[0] == runs[1]


def test_samples_that_roll_over_come_first_even_if_shuffled():
    iterator = mx.io.NDArrayIter(numbers(10), batch_size=4, shuffle=True, last_batch_handle="roll_over")
    first = [value for batch in read_all(iterator) for value in batch]
    iterator.reset()
    rest = set(range(10)) - set(first)
    assert set(read_all(iterator)[0][:2]) == rest


def test_less_than_a_batch_may_roll_over_repeatedly():
    iterator = mx.io.NDArrayIter(numbers(3), batch_size=8, last_batch_handle="roll_over")
    counts = []
    for _ in range(4):
        counts.append(read_all(iterator))
        iterator.reset()
    assert counts == [[], [], [[0, 1, 2, 0, 1, 2, 0, 1]], []]
    iterator.hard_reset()
    assert read_all(iterator) == []


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: mx.io.NDArrayIter(numbers(3), last_batch_handle="x"), "last_batch_handle is 'x'"),
        (ValueError, lambda: mx.io.NDArrayIter(numbers(3), batch_size=0), "batch_size is 0"),
        (ValueError, lambda: mx.io.NDArrayIter([]), "data has no arrays"),
        (
            ValueError,
            lambda: mx.io.NDArrayIter(numbers(3), numbers(2)),
            r"'softmax_label' has shape \(2,\), expected 3",
        ),
        (ValueError, lambda: mx.io.NDArrayIter(numbers(3), None, 4, False, "discard"), "only 3 samples"),
        (TypeError, lambda: mx.io.NDArrayIter("text"), "data is str, expected an array"),
        (TypeError, lambda: mx.io.NDArrayIter({"a": "text"}), "'a' is str, expected an array"),
        (TypeError, lambda: mx.io.DataBatch(numbers(3)), "data is ndarray, expected a list"),
        (NotImplementedError, lambda: mx.io.DataIter().next(), "must implement next"),
    ],
)
def test_refuses_invalid_arguments(error, make, message):
    with pytest.raises(error, match=message):
        make()


def test_descriptions():
    described = mx.io.DataDesc("data", (2, 3), np.float16, "NC")
    assert described == ("data", (2, 3))
    assert repr(described) == "DataDesc[data,(2, 3),<class 'numpy.float16'>,NC]"
    assert [mx.io.DataDesc.get_batch_axis(layout) for layout in ("NCHW", "TNC", "C", None)] == [0, 1, -1, 0]
    listed = mx.io.DataDesc.get_list([("a", (1,))], [("a", np.int32)])
    assert listed[0].dtype is np.int32
    assert mx.io.DataDesc.get_list([("a", (1,))], None)[0].dtype is np.float32


def test_resizing():
    resized = mx.io.ResizeIter(mx.io.NDArrayIter(numbers(4), batch_size=2), 3)
    assert read_all(resized) == [[0, 1], [2, 3], [0, 1]]
    resized.reset()
    assert read_all(resized) == [[0, 1], [2, 3], [0, 1]]
    assert resized.provide_data[0].shape == (2,)


async def test_async_for_never_blocks():
    iterator = mx.io.NDArrayIter(numbers(10), batch_size=4, shuffle=True)
    resized = mx.io.ResizeIter(iterator, 5)
    assert len([batch async for batch in resized]) == 5
    iterator.reset()
    values = []
    async for batch in iterator:
        values += (await batch.data[0]).asnumpy().tolist()
    assert set(values) == set(range(10))


class Slow(mx.io.DataIter):
    """Three batches, which wait for an event of the test."""

    def __init__(self):
        super().__init__(1)
        self.count = 0
        self.gate = threading.Event()
        self.threads = set()
        self.provide_data = [mx.io.DataDesc("data", (1,))]
        self.provide_label = []

    def reset(self):
        self.count = 0

    def next(self):
        self.threads.add(threading.current_thread())
        assert self.gate.wait(10)
        if self.count == 3:
            raise StopIteration
        self.count += 1
        return mx.io.DataBatch([mx.nd.array([self.count])], [], 0)


async def test_next_runs_in_another_thread():
    slow = Slow()
    pending = asyncio.ensure_future(anext(slow))
    await asyncio.sleep(0)
    assert not pending.done()
    slow.gate.set()
    assert (await (await pending).data[0]).asnumpy() == 1
    assert len([batch async for batch in slow]) == 2
    assert threading.current_thread() not in slow.threads


def test_prefetching():
    slow = Slow()
    prefetched = mx.io.PrefetchingIter(
        [slow, mx.io.NDArrayIter(numbers(3), numbers(3))], rename_data=[{"data": "a"}, {"data": "b"}]
    )
    slow.gate.set()
    assert [desc.name for desc in prefetched.provide_data] == ["a", "b"]
    for _ in range(2):
        rows = [(batch.data[0].asscalar(), batch.data[1].asscalar(), batch.label[0].asscalar()) for batch in prefetched]
        assert rows == [(1, 0, 0), (2, 1, 1), (3, 2, 2)]
        prefetched.reset()
    uneven = mx.io.PrefetchingIter([mx.io.NDArrayIter(numbers(3)), mx.io.NDArrayIter(numbers(2))])
    with pytest.raises(ValueError, match="differ in their number of samples"):
        list(uneven)


async def test_prefetching_is_awaited():
    prefetched = mx.io.PrefetchingIter(mx.io.NDArrayIter(numbers(3), batch_size=2))
    assert [batch.pad async for batch in prefetched] == [0, 1]
