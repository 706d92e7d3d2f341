"""Sparse arrays from parts: valid parts give SciPy's and MXNet's matrix, invalid ones an error."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowmx as mx
from flowmx.errors import DataError, ShapeError
from flowmx.serialization import params

scipy = pytest.importorskip("scipy.sparse")
sparse = mx.nd.sparse


@st.composite
def matrices(draw):
    """Draw parts of a matrix: unsorted columns, some repeated, and perhaps elements after the last."""
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    counts = draw(st.lists(st.integers(0, 6), min_size=rows, max_size=rows))
    indptr = np.cumsum([0, *counts])
    count = sum(counts) + draw(st.integers(0, 2))
    indices = draw(st.lists(st.integers(0, columns - 1), min_size=count, max_size=count))
    return np.arange(1.0, len(indices) + 1), np.array(indices, "int64"), indptr, (rows, columns)


def dense_of(data, indices, indptr, shape):
    matrix = np.zeros(shape)
    for row in range(shape[0]):
        for at in range(indptr[row], indptr[row + 1]):
            matrix[row, indices[at]] = data[at]
    return matrix


@given(matrices())
def test_a_matrix_of_parts_is_scipys(parts):
    data, indices, indptr, shape = parts
    x = sparse.csr_matrix((data, indices, indptr), shape=shape)
    assert x.data.shape == (indptr[-1],)
    np.testing.assert_array_equal(x.asnumpy(), dense_of(*parts))  # the last counts, as in MXNet
    reference = scipy.csr_matrix((data, indices, indptr), shape=shape)
    right = np.arange(shape[1] * 2.0).reshape(shape[1], 2)
    np.testing.assert_allclose(mx.nd.dot(x, mx.nd.array(right, dtype="float64")).asnumpy(), reference @ right)
    np.testing.assert_allclose(mx.nd.sum(x, axis=1).asnumpy(), np.asarray(reference.sum(axis=1))[:, 0])
    ours = sparse.array(reference)  # summed, as SciPy and MXNet do
    np.testing.assert_allclose(ours.asnumpy(), reference.toarray())
    ours.check_format()
    rows = np.repeat(np.arange(shape[0]), np.diff(indptr))
    placed = sparse.csr_matrix((data[: len(rows)], (rows, indices[: len(rows)])), shape=shape)
    np.testing.assert_allclose(placed.asnumpy(), reference.toarray())


def damages(indices, indptr, shape):
    """Draw indices of a matrix, each with one fault."""
    rows, columns = shape
    for at in range(len(indices)):
        for wrong in (-1, columns, 2**62):
            yield np.r_[indices[:at], wrong, indices[at + 1 :]], indptr
    yield indices, indptr[:-1]
    yield indices, np.r_[indptr, indptr[-1]]
    yield indices, np.r_[indptr[:-1], len(indices) + 1]
    yield indices, np.r_[1, indptr[1:]]
    yield indices, np.r_[0, [len(indices)] * (rows - 1), -1]
    yield indices[:-1], indptr
    yield indices + 0.5, indptr
    yield indices, np.r_[indptr[:-1], np.nan]


@settings(max_examples=30)
@given(matrices().filter(lambda parts: len(parts[1]) == parts[2][-1] > 0))
def test_a_matrix_of_wrong_parts_is_an_error(parts):
    data, indices, indptr, shape = parts
    for columns, starts in damages(indices, indptr, shape):
        with pytest.raises(DataError, match=r"^(csr: |indices has|indptr has)"):
            sparse.csr_matrix((data, columns, starts), shape=shape).wait_to_read()


@given(st.lists(st.integers(-2, 7), max_size=5))
def test_rows_are_stored_unchanged_or_an_error_is_raised(numbers):
    data = np.arange(1.0, 2 * len(numbers) + 1).reshape(-1, 2)
    if len(set(numbers)) < len(numbers) or not all(0 <= item < 6 for item in numbers):
        with pytest.raises(DataError, match="row_sparse: indices has"):
            sparse.row_sparse_array((data, numbers), shape=(6, 2)).wait_to_read()
        return
    x = sparse.row_sparse_array((data, numbers), shape=(6, 2))
    expected = np.zeros((6, 2))
    expected[numbers] = data
    assert x.indices.asnumpy().tolist() == numbers  # as given, and computed with in order
    for matrix in (x, pickle.loads(pickle.dumps(x)), x + sparse.zeros("row_sparse", (6, 2), dtype="float64")):
        np.testing.assert_array_equal(matrix.asnumpy(), expected)
    retained = sparse.retain(x, mx.nd.array([5, 0, 5]))
    assert retained.indices.asnumpy().tolist() == [0, 5]
    np.testing.assert_array_equal(retained.asnumpy()[[0, 5]], expected[[0, 5]])


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: sparse.csr_matrix(([1, 2], [0], [0, 2]), shape=(1, 3)), DataError, "2 elements and indices 1"),
        (lambda: sparse.csr_matrix(([[1, 2]], [0, 1], [0, 2]), shape=(1, 3)), DataError, r"\(1, 2\)"),
        (lambda: sparse.csr_matrix(([1], [0], [0, 1]), shape=(1,)), DataError, "expected two"),
        (lambda: sparse.csr_matrix(([1], ["a"], [0, 1]), shape=(1, 2)), TypeError, "whole numbers"),
        (lambda: sparse.csr_matrix((["a"], [0], [0, 1]), shape=(1, 2)), TypeError, "array like"),
        (lambda: sparse.csr_matrix(([1], [[0], [1, 2]], [0, 1]), shape=(1, 2)), TypeError, "whole numbers"),
        (lambda: sparse.csr_matrix(([1], [2.0**70], [0, 1]), shape=(1, 2)), DataError, "whole number"),
        (lambda: sparse.csr_matrix(([1], [0], [0, 1]), shape=(1.5, 2)), ShapeError, "whole"),
        (lambda: sparse.csr_matrix((2, -3)), ShapeError, "from 0"),
        (lambda: sparse.csr_matrix(("2", 3)), ShapeError, "whole"),
        (lambda: sparse.csr_matrix(([1, 2], ([0, 3], [1, 1])), shape=(2, 3)), DataError, "row has 3 at position 1"),
        (lambda: sparse.csr_matrix(([1, 2], ([0, 1], [1, -1])), shape=(2, 3)), DataError, "col has -1"),
        (lambda: sparse.csr_matrix(([1, 2], ([0], [1, 1])), shape=(2, 3)), DataError, "same length"),
        (lambda: sparse.row_sparse_array(([[1, 2]], [0, 1]), shape=(3, 2)), DataError, r"expected \(2, 2\)"),
        (lambda: sparse.row_sparse_array(([[1, 2]], [0]), shape=(3, 3)), DataError, r"expected \(1, 3\)"),
        (lambda: sparse.row_sparse_array(([[1, 2]], [[0]]), shape=(3, 2)), DataError, "one axis"),
        (lambda: sparse.row_sparse_array(([1], [0]), shape=()), DataError, "row_sparse"),
        (lambda: sparse.zeros("row_sparse", (2.5, 3)), ShapeError, "whole"),
        (lambda: sparse.retain(mx.nd.ones((2, 2)).tostype("row_sparse"), mx.nd.array([2])).asnumpy(), IndexError, "2"),
    ],
)
def test_invalid_arguments_are_refused(make, error, says):
    with pytest.raises(error, match=says):
        make()


def test_whole_numbers_of_any_dtype_are_indices():
    parts = [7, 8], mx.nd.array([2, 0]), np.array([0.0, 1.0, 2.0])
    assert sparse.csr_matrix(parts, shape=(2, 3)).asnumpy().tolist() == [[0, 0, 7], [8, 0, 0]]


def test_damaged_matrices_of_scipys_pickles_and_files_are_refused(tmp_path):
    x = sparse.csr_matrix(([7, 8], [0, 2], [0, 1, 2]), shape=(2, 3))
    reference = x.asscipy()
    reference.indices[1] = 9
    with pytest.raises(DataError, match="9 at position 1"):
        sparse.array(reference)
    state = x.__getstate__()
    for content in ([*state["content"][:2], np.array([0, 5, 2])], state["content"][:2]):
        with pytest.raises(DataError):
            x.copy().__setstate__({**state, "content": content})
    y = sparse.row_sparse_array(([[7.0, 8.0]], [1]), shape=(2, 2))
    for stored in (
        params.SparseParts((2, 3), np.ones(2, "f"), (np.array([0, 1, 2]), np.array([0, 3]))),
        params.SparseParts((2, 3), np.ones(2, "f"), (np.array([0, 3, 2]), np.array([0, 1]))),
        params.SparseParts((2, 2), np.ones((2, 2), "f"), (np.array([1, 1]),)),
        params.SparseParts((2, 2), np.ones((1, 2), "f"), (np.array([2]),)),
    ):
        params.save(tmp_path / "x.params", [stored])
        with pytest.raises(mx.MXNetError):
            mx.nd.load(str(tmp_path / "x.params"))
    mx.nd.save(str(tmp_path / "y.params"), [y])
    assert mx.nd.load(str(tmp_path / "y.params"))[0].asnumpy().tolist() == [[0, 0], [7, 8]]
