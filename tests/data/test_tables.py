"""Tables of pandas, polars, Arrow and `datasets` as data."""

from __future__ import annotations

import numpy as np
import pytest

import flowmx as mx
from flowmx.gluon.data import ArrayDataset, DataLoader

COLUMNS = {"height": [1.5, 2.5, 3.5, 4.5], "age": [1, 2, 3, 4]}
ROWS = [[1.5, 1], [2.5, 2], [3.5, 3], [4.5, 4]]


def frame(library, columns):
    if library == "pandas":
        return pytest.importorskip("pandas").DataFrame(columns)
    if library == "polars":
        return pytest.importorskip("polars").DataFrame(columns)
    if library == "pyarrow":
        return pytest.importorskip("pyarrow").table(columns)
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


LIBRARIES = ("pandas", "polars", "pyarrow", "datasets")
FRAMES = LIBRARIES[:3]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_is_one_input(library):
    table = frame(library, COLUMNS)
    batches = list(mx.io.NDArrayIter(table, np.arange(4), batch_size=2))
    assert batches[1].data[0].dtype == np.float32
    assert batches[1].data[0].asnumpy().tolist() == ROWS[2:]


@pytest.mark.parametrize("library", FRAMES)
def test_columns_become_inputs_of_the_same_name(library):
    table = frame(library, COLUMNS)
    batches = mx.io.NDArrayIter({name: table[name] for name in COLUMNS}, table["age"], batch_size=4)
    assert [(each.name, each.shape) for each in batches.provide_data] == [("age", (4,)), ("height", (4,))]
    assert [each.name for each in batches.provide_label] == ["softmax_label"]
    assert batches.next().label[0].asnumpy().tolist() == COLUMNS["age"]


@pytest.mark.parametrize("library", FRAMES)
def test_a_data_set_yields_the_rows(library):
    table = frame(library, COLUMNS)
    data = ArrayDataset(table, table["age"])
    assert data[1][0].tolist() == ROWS[1] and data[1][1] == 2
    (batch, labels), _ = DataLoader(data, batch_size=2)
    assert batch.asnumpy().tolist() == ROWS[:2] and labels.asnumpy().tolist() == [1, 2]


@pytest.mark.parametrize("library", LIBRARIES)
def test_missing_values_are_named(library):
    table = frame(library, {**COLUMNS, "age": [1, None, 3, None]})
    with pytest.raises(ValueError, match="column 'age' has 2 missing values of 4"):
        mx.io.NDArrayIter(table, batch_size=2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_texts_are_named(library):
    table = frame(library, {**COLUMNS, "town": ["Oslo", "Rome", "Bonn", "Graz"]})
    with pytest.raises(TypeError, match=r"column .town. holds .*Oslo.* expected numbers"):
        mx.io.NDArrayIter(table, batch_size=2)
    if library in FRAMES:
        with pytest.raises(TypeError, match=r"ArrayDataset: argument 1: column .*Oslo"):
            ArrayDataset(np.zeros(4), table["town"])


def test_a_column_of_images_is_a_separate_input():
    images = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    table = frame("datasets", {"image": images.tolist(), "label": [0, 1]})
    data = mx.io.NDArrayIter(table.select_columns("image"), table.select_columns("label"), batch_size=2)
    assert (data.next().data[0].asnumpy() == images).all()
    with pytest.raises(ValueError, match=r"column 'image' holds arrays of shape \(3, 4\), .* give the columns by name"):
        mx.io.NDArrayIter(table, batch_size=2)


def test_two_columns_of_the_same_name():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="two columns are called 'a'"):
        mx.io.NDArrayIter(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_any_object_with_column_access_is_a_table():
    class Column:
        def __init__(self, values):
            self.values = values

        def to_numpy(self):
            return np.asarray(self.values)

        def __len__(self):
            return len(self.values)

    class Table:
        columns = tuple(COLUMNS)

        def __getitem__(self, name):
            return Column(COLUMNS[name])

    assert mx.io.NDArrayIter(Table(), batch_size=4).next().data[0].asnumpy().tolist() == ROWS
    with pytest.raises(ValueError, match=r"column .without a name. has 1 missing values of 2"):
        mx.io.NDArrayIter({"a": Column([np.nan, 1])})
