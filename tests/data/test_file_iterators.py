"""Iterators over text files and MNIST's; states of all iterators."""

import gzip
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowmx as mx
from tests.fixtures import record_images as recorded

EXPECTED = json.loads((recorded.FOLDER / "recorded.json").read_text())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    recorded.write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", recorded.TEXTS, ids=str)
def test_yields_mxnets_batches(case, folder):
    (name, arguments), expected = case, EXPECTED["texts"][str(case)]
    epochs = recorded.epochs(getattr(mx.io, name)(**arguments), 3)
    assert [len(epoch) for epoch in epochs] == [len(epoch) for epoch in expected]
    assert np.allclose(_flat(epochs), _flat(expected))


def _flat(nested):
    if isinstance(nested, (list, tuple)):
        return [leaf for part in nested for leaf in _flat(part)]
    return [nested]


def test_folders_parts_and_types(folder):
    (folder / "more").mkdir()
    for name in ("b.csv", "a.csv"):
        (folder / "more" / name).write_text(f"{ord(name[0])},1\n2,3\n")
    iterator = mx.io.CSVIter(data_csv="more", data_shape=(2,), batch_size=4, dtype="int32")
    (batch,) = list(iterator)
    assert batch.data[0].dtype is np.int32 and batch.data[0].asnumpy()[:, 0].tolist() == [97, 2, 98, 2]
    parts = [
        [batch.data[0].asnumpy()[0, 0] for batch in mx.io.CSVIter("more", (2,), num_parts=3, part_index=part)]
        for part in range(3)
    ]
    assert parts == [[97], [2], [98, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n", "has 2 numbers per line, expected 3"),
        ("1,2,3\n1,x,3\n", "could not convert string 'x'"),
        ("", "no samples"),
    ],
)
def test_refuses_csv(folder, text, message):
    (folder / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        mx.io.CSVIter(data_csv="bad.csv", data_shape=(3,))


def test_refuses_csv_arguments(folder):
    (folder / "short.csv").write_text("1\n")
    with pytest.raises(ValueError, match=r"'data.csv' has 4 samples and 'short.csv' 1"):
        mx.io.CSVIter(data_csv="data.csv", data_shape=(3,), label_csv="short.csv")
    with pytest.raises(FileNotFoundError, match="is neither a file nor a folder"):
        mx.io.CSVIter(data_csv="none.csv", data_shape=(3,))
    with pytest.raises(mx.MXNetError, match="dtype is 'complex64'"):
        mx.io.CSVIter(data_csv="data.csv", data_shape=(3,), dtype="complex64")


def test_libsvm_labels_in_another_file(folder):
    (folder / "label.t").write_text("1.0\n-2.0 0:0.125\n-3.0 2:1.2 # remark\n4 1:1.0 2:-1.2\n")
    iterator = mx.io.LibSVMIter(
        data_libsvm="data.t", data_shape=(3,), label_libsvm="label.t", label_shape=(3,), batch_size=4
    )
    (batch,) = list(iterator)
    assert np.allclose(batch.label[0].asnumpy(), [[0, 0, 0], [0.125, 0, 0], [0, 0, 1.2], [0, 1, -1.2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3:1\n", r"line 1 of 'bad.t' has the index 3, expected 0 to 2 \(counted from 0\)"),
        ("1 0:1\n\nx 0:1\n", "line 3 of 'bad.t' is 'x 0:1', expected a number and pairs"),
        ("1 0=1\n", "line 1 .* expected a number and pairs"),
    ],
)
def test_refuses_libsvm(folder, text, message):
    (folder / "bad.t").write_text(text)
    with pytest.raises(ValueError, match=message):
        mx.io.LibSVMIter(data_libsvm="bad.t", data_shape=(3,))
    with pytest.raises(ValueError, match=r"data_shape is \(3, 1\), expected one number"):
        mx.io.LibSVMIter(data_libsvm="data.t", data_shape=(3, 1))


# -- MNIST -------------------------------------------------------------------------------------------------


@pytest.fixture
def digits(folder):
    images = np.random.default_rng(0).integers(0, 256, (10, 28, 28), np.uint8)
    labels = np.arange(10, dtype=np.uint8)
    (folder / "images").write_bytes(struct.pack(">4I", 0x803, *images.shape) + images.tobytes())
    (folder / "labels").write_bytes(struct.pack(">2I", 0x801, 10) + labels.tobytes())
    return images


def mnist(**arguments):
    return mx.io.MNISTIter(**{"image": "images", "label": "labels", "batch_size": 4, "shuffle": False, **arguments})


@pytest.mark.parametrize("compressed", [False, True])
def test_mnist(digits, folder, compressed):
    if compressed:
        for name in ("images", "labels"):
            (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
            (folder / name).unlink()
    batches = list(mnist())
    assert [batch.label[0].asnumpy().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (batches[1].data[0].asnumpy()[:, 0] == digits[4:8].astype(np.float32) / 256).all()
    assert mnist(flat=True).next().data[0].shape == (4, 784)
    assert tuple(mnist().provide_data[0]) == ("data", (4, 1, 28, 28))
    assert mnist().provide_data[0].dtype is np.float32


def test_mnist_is_shuffled_by_its_seed_once(digits):
    def order(iterator):
        return [label for batch in iterator for label in batch.label[0].asnumpy().tolist()]

    iterator = mnist(shuffle=True, seed=3, batch_size=5)
    first = order(iterator)
    iterator.reset()
    assert sorted(first) == list(range(10)) and first != list(range(10))
    assert order(iterator) == first == order(mnist(shuffle=True, seed=3, batch_size=5))
    assert order(mnist(shuffle=True, seed=4, batch_size=5)) != first
    parts = [order(mnist(num_parts=2, part_index=part, batch_size=5)) for part in range(2)]
    assert parts == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_refuses_mnist(digits, folder):
    with pytest.raises(ValueError, match="'labels' begins with 00000801, expected 00000803"):
        mnist(image="labels")
    (folder / "short").write_bytes((folder / "images").read_bytes()[:500])
    with pytest.raises(ValueError, match="has 484 bytes of content, expected 7840"):
        mnist(image="short")
    (folder / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="is truncated, or not an IDX file"):
        mnist(label="empty")
    with pytest.raises(ValueError, match="only 10 samples"):
        mnist(batch_size=11)
    with pytest.raises(FileNotFoundError):
        mnist(image="none")


# -- states ------------------------------------------------------------------------------------------------

COUNT = 11


def numbers():
    return np.arange(COUNT, dtype=np.float32)


MAKERS: dict[str, Callable[[], Any]] = {
    "pad": lambda: mx.io.NDArrayIter(numbers(), numbers(), 4),
    "shuffled": lambda: mx.io.NDArrayIter(numbers(), numbers(), 4, shuffle=True),
    "roll over": lambda: mx.io.NDArrayIter({"a": numbers(), "b": numbers()}, None, 4, True, "roll_over"),
    "discard": lambda: mx.io.NDArrayIter(numbers(), None, 4, last_batch_handle="discard"),
    "csv": lambda: mx.io.CSVIter(data_csv="data.csv", data_shape=(3,), batch_size=3),
    "csv without rounding": lambda: mx.io.CSVIter("data.csv", (3,), batch_size=3, round_batch=False),
    "libsvm": lambda: mx.io.LibSVMIter(data_libsvm="data.t", data_shape=(3,), batch_size=3),
    "mnist": lambda: mnist(shuffle=True),
    "resized": lambda: mx.io.ResizeIter(MAKERS["pad"](), 5, reset_internal=False),
    "prefetched": lambda: mx.io.PrefetchingIter(MAKERS["shuffled"]()),
    "two prefetched": lambda: mx.io.PrefetchingIter(
        [MAKERS["pad"](), MAKERS["pad"]()],
        [{"data": "a"}, {"data": "b"}],
        [{"softmax_label": "c"}, {"softmax_label": "d"}],
    ),
}  # fmt: skip


def content(batch):
    return [array.asnumpy().tolist() for array in (*batch.data, *batch.label)], batch.pad


def rest(iterator):
    """Return the remaining batches of an epoch."""
    return [content(batch) for batch in iterator]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("epochs", [0, 1])
def test_resumes_from_a_state(name, epochs, digits):
    mx.random.seed(5)
    iterator = MAKERS[name]()
    for _ in range(epochs):
        rest(iterator)
        iterator.reset()
    for position in range(2):
        state = json.loads(json.dumps(iterator.state()))
        mx.random.seed(77)  # the new shuffle does not matter
        resumed = MAKERS[name]()
        resumed.set_state(state)
        expected = content(iterator.next()) if position < 1 else None
        if expected is not None:
            assert content(resumed.next()) == expected
    assert rest(resumed) == rest(iterator)


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("pad", "discard", "last_batch_handle = 'pad', but this iterator has 'discard'"),
        ("csv", "mnist", "count = 4, but this iterator has 10"),
        ("pad", "shuffled", "is shuffled and this one is not"),
        ("prefetched", "two prefetched", "the state has 1 iterators, expected 2"),
    ],
)
def test_refuses_states_of_other_iterators(name, other, message, digits):
    with pytest.raises(ValueError, match=message):
        MAKERS[other]().set_state(MAKERS[name]().state())


def test_an_iterator_without_a_state():
    class Custom(mx.io.DataIter):
        def next(self):
            return mx.io.DataBatch([mx.nd.zeros(2)], pad=0)

    with pytest.raises(NotImplementedError, match=r"Custom must implement state\(\) to save its position"):
        Custom().state()
    with pytest.raises(NotImplementedError, match="Custom must implement state"):
        mx.io.PrefetchingIter(Custom()).state()
    with pytest.raises(NotImplementedError, match="must implement set_state"):
        Custom().set_state({})


def test_unknown_arguments_are_ignored_with_a_warning(tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("1,2\n3,4\n")
    with pytest.warns(UserWarning, match="CSVIter: unknown arguments are ignored: input_shape"):
        batches = mx.io.CSVIter(data_csv=path, data_shape=(2,), batch_size=2, input_shape=(1, 2))
    assert next(batches).data[0].asnumpy().tolist() == [[1, 2], [3, 4]]
