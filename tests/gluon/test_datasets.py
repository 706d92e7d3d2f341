"""Data sets, samplers and batchify functions."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon import data
from flowmx.gluon.contrib.data import IntervalSampler
from flowmx.gluon.data import batchify
from tests.seeding import seed_all


def numbers(dataset):
    return [dataset[i] for i in range(len(dataset))]


# -- data sets ---------------------------------------------------------------------------------------------


def test_array_datasets():
    dataset = data.ArrayDataset(mx.nd.array([[1, 2], [3, 4]]), mx.nd.array([5, 6]), ["a", "b"])
    array, number, text = dataset[1]
    assert array.asnumpy().tolist() == [3, 4] and isinstance(number, np.float32) and number == 6 and text == "b"
    assert len(dataset) == 2
    assert data.ArrayDataset([7, 8])[0] == 7
    with pytest.raises(ValueError, match=r"lengths \[2, 3\]"):
        data.ArrayDataset([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="no arrays"):
        data.ArrayDataset()


def test_transforms_receive_the_parts_of_a_tuple():
    pairs = data.ArrayDataset([1, 2, 3], [4, 5, 6])
    assert numbers(pairs.transform(lambda a, b: a * b)) == [4, 10, 18]
    assert numbers(pairs.transform_first(lambda a: -a)) == [(-1, 4), (-2, 5), (-3, 6)]
    single = data.SimpleDataset([1, 2])
    assert numbers(single.transform_first(lambda a: -a)) == [-1, -2]
    calls = []
    lazy, eager = (single.transform(lambda a: calls.append(a) or a, lazy=lazy) for lazy in (True, False))
    assert calls == [1, 2]
    assert numbers(eager) == numbers(lazy) == [1, 2] and calls == [1, 2, 1, 2]


def test_parts_of_a_data_set():
    dataset = data.SimpleDataset(list(range(10)))
    assert [numbers(dataset.shard(4, i)) for i in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
    assert numbers(dataset.take(3)) == [0, 1, 2] and len(dataset.take(None)) == len(dataset.take(99)) == 10
    assert numbers(dataset.filter(lambda x: x % 3 == 0)) == [0, 3, 6, 9]
    assert numbers(dataset.sample(data.SequentialSampler(2, 4))) == [4, 5]
    assert sorted(numbers(dataset.sample(data.RandomSampler(10)))) == list(range(10))
    assert numbers(dataset.filter(lambda x: x > 5).take(2).transform(lambda x: x * 2)) == [12, 14]
    assert list(dataset) == list(range(10))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda dataset: dataset.shard(2, 2), ValueError, "index is 2 and num_shards 2"),
        (lambda dataset: dataset.take(-1), ValueError, "count is -1"),
        (lambda dataset: dataset.sample([1]), TypeError, "sampler is list"),
    ],
)
def test_refuses_parts(call, error, message):
    with pytest.raises(error, match=message):
        call(data.SimpleDataset([1, 2, 3]))


def test_records(tmp_path):
    with mx.recordio.MXIndexedRecordIO(tmp_path / "a.idx", tmp_path / "a.rec", "w") as file:
        for key in (3, 1, 2):
            file.write_idx(key, b"record %d" % key)
    dataset = data.RecordFileDataset(str(tmp_path / "a.rec"))
    assert numbers(dataset) == [b"record 3", b"record 1", b"record 2"]
    batches = list(data.DataLoader(dataset, 2, num_workers=2, thread_pool=True, batchify_fn=batchify.AsList()))
    assert batches == [[b"record 3", b"record 1"], [b"record 2"]]


# -- samplers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_batch", "epochs"),
    [
        ("keep", [[[0, 1, 2], [3, 4, 5], [6]]] * 2),
        ("discard", [[[0, 1, 2], [3, 4, 5]]] * 2),
        ("rollover", [[[0, 1, 2], [3, 4, 5]], [[6, 0, 1], [2, 3, 4]]]),
    ],
)
def test_batches_of_a_sampler(last_batch, epochs):
    sampler = data.BatchSampler(data.SequentialSampler(7), 3, last_batch)
    for epoch in epochs:
        assert len(sampler) == len(epoch)
        assert list(sampler) == epoch


def test_orders_follow_the_seed_and_differ_from_epoch_to_epoch():
    seed_all(4)
    one, two = data.RandomSampler(50), data.RandomSampler(50)
    first = [list(one), list(one), list(two)]
    assert all(sorted(order) == list(range(50)) for order in first)
    assert len({tuple(order) for order in first}) == 3
    seed_all(4)
    assert [list(one), list(one), list(two)] == first  # the seed restarts the orders
    state, expected = one.state(), list(one)
    before = np.random.get_state()[2]
    other = data.RandomSampler(50)
    other.set_state(state)
    assert list(other) == expected and np.random.get_state()[2] == before  # it was drawn from NumPy's generator before


@pytest.mark.parametrize(("length", "parts"), [(10, 3), (9, 3), (7, 4), (5, 5), (3, 1)])
def test_shares_cover_all_samples_and_have_equal_lengths(length, parts):
    plain = [list(data.SplitSampler(length, parts, part, shuffle=False)) for part in range(parts)]
    mixed = [list(data.SplitSampler(length, parts, part)) for part in range(parts)]
    assert {len(share) for share in plain + mixed} == {-(-length // parts)}
    assert {number for share in plain for number in share} == set(range(length))
    assert [sorted(share) for share in mixed] == plain
    with pytest.raises(ValueError, match="part_index is 5"):
        data.SplitSampler(length, parts, 5)


def test_more_samplers():
    assert list(IntervalSampler(13, interval=3)) == [0, 3, 6, 9, 12, 1, 4, 7, 10, 2, 5, 8, 11]
    assert list(IntervalSampler(13, interval=3, rollover=False)) == [0, 3, 6, 9, 12]
    with pytest.raises(ValueError, match="interval is 14"):
        IntervalSampler(13, 14)
    sampler = data.FilterSampler(lambda number: number > 3, [1, 5, 2, 7])
    assert list(sampler) == [1, 3] and len(sampler) == 2
    for sampler in (data.Sampler(), data.Dataset()):
        with pytest.raises(NotImplementedError, match="must implement __len__"):
            len(sampler)


# -- batches -----------------------------------------------------------------------------------------------


def test_default_batches():
    batch = batchify.default_batchify_fn([(mx.nd.ones(2), 1, 2.5), (mx.nd.zeros(2), 3, 4.5)])
    assert [array.asnumpy().tolist() for array in batch] == [[[1, 1], [0, 0]], [1, 3], [2.5, 4.5]]
    assert [array.dtype for array in batch] == [np.float32, np.int64, np.float64]
    assert batchify.default_batchify_fn([{"a": 1}, {"a": 2}])["a"].asnumpy().tolist() == [1, 2]
    nested = batchify.default_batchify_fn([((1, 2), 3), ((4, 5), 6)])
    assert nested[0][1].asnumpy().tolist() == [2, 5]
    sample = np.ones((2, 3), "uint8")
    batch_array = batchify.default_batchify_fn([sample, sample])
    sample[:] = 7
    assert batch_array.asnumpy().max() == 1 and batch_array.dtype is np.uint8


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([mx.nd.ones(2), mx.nd.ones(3)], r"different shapes, \[\(2,\), \(3,\)\]"),
        ([(1, 2), (1,)], r"different numbers of parts, \[2, 1\]"),
        (["a", "b"], "are neither numbers"),
        ([[1], [1, 2]], r"different shapes, \[\(1,\), \(2,\)\]"),
    ],
)
def test_refuses_samples_that_cannot_be_stacked(samples, message):
    with pytest.raises(ValueError, match=message):
        batchify.default_batchify_fn(samples)


def test_stack_and_pad():
    assert batchify.Stack()([[1, 2], [3, 4]]).asnumpy().tolist() == [[1, 2], [3, 4]]
    assert batchify.Stack()([mx.nd.ones(2), mx.nd.ones(2)]).shape == (2, 2)
    assert batchify.Pad(val=-1)([[1, 2, 3], [4]]).asnumpy().tolist() == [[1, 2, 3], [4, -1, -1]]
    padded = batchify.Pad(val=9, dtype="float16", round_to=4)([np.ones((2, 1)), mx.nd.zeros((1, 3))])
    assert padded.shape == (2, 4, 4) and padded.dtype is np.float16
    assert padded.asnumpy()[1].tolist() == [[0, 0, 0, 9], *[[9] * 4] * 3]
    with pytest.raises(ValueError, match="different numbers of axes"):
        batchify.Pad()([np.ones(2), np.ones((2, 2))])
    with pytest.raises(ValueError, match="different shapes"):
        batchify.Stack()([[1], [1, 2]])


def test_append_group_and_lists():
    first, second = batchify.Append()([[1, 2], mx.nd.ones((3, 1))])
    assert first.shape == (1, 2) and second.shape == (1, 3, 1)
    assert batchify.Append(expand=False)([[1, 2]])[0].shape == (2,)
    assert batchify.Append(batch_axis=1)([[1, 2]])[0].shape == (2, 1)
    group = batchify.Group(batchify.Stack(), batchify.Pad(), batchify.AsList())
    stacked, padded, plain = group([([1, 2], [1], "a"), ([3, 4], [1, 2], "b")])
    assert stacked.shape == (2, 2) and padded.asnumpy().tolist() == [[1, 0], [1, 2]] and plain == ["a", "b"]
    assert len(batchify.Group([batchify.AsList()])([(1,), (2,)])) == 1
    with pytest.raises(ValueError, match=r"have \[2\] parts, expected 3"):
        group([(1, 2)])
    with pytest.raises(TypeError, match="function 1 is int"):
        batchify.Group(batchify.Stack(), 3)
    with pytest.raises(TypeError, match="there are further functions"):
        batchify.Group([batchify.Stack()], batchify.Stack())
