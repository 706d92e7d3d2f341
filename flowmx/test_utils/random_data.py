"""Random shapes, arrays and matrices for tests (NumPy's global generator, as in MXNet)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowmx.devices import Context
from flowmx.errors import ArgumentError
from flowmx.ndarray import sparse
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.creation import arange, array
from flowmx.test_utils.tolerance import Numbers, default_dtype

__all__ = [
    "assign_each", "assign_each2", "collapse_sum_like", "create_2d_tensor", "create_sparse_array",
    "create_sparse_array_zd", "create_vector", "get_identity_mat", "get_identity_mat_batch",
    "new_matrix_with_real_eigvals_2d", "new_matrix_with_real_eigvals_nd", "new_orthonormal_matrix_2d",
    "new_sym_matrix_with_real_eigvals_2d", "new_sym_matrix_with_real_eigvals_nd", "np_reduce", "rand_coord_2d",
    "rand_ndarray", "rand_shape_2d", "rand_shape_3d", "rand_shape_nd", "rand_sparse_ndarray", "random_arrays",
    "random_sample", "random_uniform_arrays", "shuffle_csr_column_indices",
]  # fmt: skip

Shape = Sequence[int]


def rand_shape_nd(num_dim: int, dim: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """Return a random shape with lengths up to ``dim``."""
    return tuple(int(n) for n in np.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """Return a random shape of two axes with at most these lengths."""
    return _rand_shape((dim0, dim1), allow_zero_size)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """Return a random shape of three axes with at most these lengths."""
    return _rand_shape((dim0, dim1, dim2), allow_zero_size)


def _rand_shape(limits: Shape, allow_zero_size: bool) -> tuple[int, ...]:
    return tuple(int(np.random.randint(0 if allow_zero_size else 1, limit + 1)) for limit in limits)


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[int, int]:
    """Return random coordinates between two corners; the upper one is excluded."""
    return int(np.random.randint(x_low, x_high)), int(np.random.randint(y_low, y_high))


def rand_ndarray(
    shape: Shape, stype: str = "default", density: float | None = None, dtype: object = None,
    modifier_func: Callable[[Any], Any] | None = None, shuffle_csr_indices: bool = False,
    distribution: str | None = None, ctx: Context | None = None, scale: float | None = None,
) -> NDArray:  # fmt: skip
    """Return an array of random numbers: normally distributed if dense, uniform from 0 to 1 if sparse.

    Args:
        shape: its shape.
        stype: its storage type.
        density: see :func:`rand_sparse_ndarray`, as for the next five arguments.
        dtype: its dtype (default: float32).
        modifier_func: a function applied to every stored element.
        shuffle_csr_indices: whether to shuffle the columns within rows.
        distribution: distribution of the elements' places.
        ctx: its device.
        scale: draw uniform numbers between -scale and scale instead.

    Raises:
        ArgumentError: the storage type or distribution is unknown.
    """
    if stype not in ("default", "csr", "row_sparse"):
        raise ArgumentError(f"rand_ndarray: stype is {stype!r}, expected 'default', 'csr' or 'row_sparse'")
    size = tuple(shape)
    if stype == "default":
        values = np.random.randn(*size) if scale is None else np.random.uniform(-scale, scale, size)
        return array(values, ctx, dtype or default_dtype())
    if scale is not None:
        modifier_func = _spread(scale)
    return rand_sparse_ndarray(
        size, stype, density, dtype, distribution, None, None, modifier_func, shuffle_csr_indices, ctx
    )[0]


def _spread(scale: float) -> Callable[[Any], Any]:
    return lambda number: (2 * number - 1) * scale


def rand_sparse_ndarray(
    shape: Shape, stype: str, density: float | None = None, dtype: Any = None, distribution: str | None = None,
    data_init: float | None = None, rsp_indices: object = None, modifier_func: Callable[[Any], Any] | None = None,
    shuffle_csr_indices: bool = False, ctx: Context | None = None,
) -> tuple[NDArray, tuple[Any, ...]]:  # fmt: skip
    """Return a sparse array of random numbers from 0 to 1, and its parts.

    Args:
        shape: its shape.
        stype: ``csr`` or ``row_sparse``.
        density: fraction of stored elements or rows (default: random).
        dtype: its dtype (default: float32).
        distribution: ``uniform``; or ``powerlaw`` for csr: a row has twice as many elements as the previous one.
        data_init: the value of all stored elements, instead of random numbers.
        rsp_indices: the stored rows, for row_sparse.
        modifier_func: a function applied to every stored element.
        shuffle_csr_indices: whether to shuffle the columns within rows.
        ctx: its device.

    Returns:
        the array, and its parts as NumPy arrays: ``(indptr, indices, data)`` (csr) or ``(data, indices)`` (row_sparse).

    Raises:
        ArgumentError: the storage type or distribution is unknown.
        ValueError: the density is out of range, or impossible with a power law.
    """
    kind = np.dtype(dtype or default_dtype())
    share = np.random.rand() if density is None else density
    if not 0 <= share <= 1:
        raise ValueError(f"rand_sparse_ndarray: density is {density}, expected from 0 to 1")
    if stype == "row_sparse" and distribution in (None, "uniform"):
        rows = np.flatnonzero(np.random.rand(shape[0]) < share) if rsp_indices is None else np.asarray(rsp_indices)
        values = _values((len(rows), *shape[1:]), kind, data_init, modifier_func)
        return sparse.row_sparse_array((values, rows), tuple(shape), ctx, kind), (values, rows)
    if stype == "csr" and distribution in (None, "uniform", "powerlaw") and len(shape) == 2:
        places = _powerlaw_places(shape, share) if distribution == "powerlaw" else _uniform_places(shape, share)
        indptr = np.searchsorted(places[:, 0], np.arange(shape[0] + 1))
        columns = places[:, 1].copy()
        if shuffle_csr_indices:
            _shuffle(indptr, columns)
        values = _values((len(columns),), kind, data_init, modifier_func)
        if distribution == "powerlaw" and data_init is None:
            values += 1  # nonzero, as in MXNet
        matrix: Any = sparse.csr_matrix((values, columns, indptr), tuple(shape), ctx, kind)
        return matrix, (matrix.indptr, matrix.indices, matrix.data)
    raise ArgumentError(
        f"rand_sparse_ndarray: stype is {stype!r}, distribution {distribution!r} and shape {tuple(shape)}, expected "
        "'row_sparse' with 'uniform', or 'csr' with 'uniform' or 'powerlaw' and two axes"
    )


def _values(shape: tuple[int, ...], dtype: Any, number: float | None, function: Callable[[Any], Any] | None) -> Numbers:
    values = np.random.rand(*shape) if number is None else np.full(shape, number)
    return assign_each(values.astype(dtype), function).astype(dtype)


def _uniform_places(shape: Shape, share: float) -> Numbers:
    rows, columns = shape
    flat = np.random.permutation(rows * columns)[: round(rows * columns * share)]
    return np.stack(np.unravel_index(np.sort(flat), (rows, columns)), axis=1)


def _powerlaw_places(shape: Shape, share: float) -> Numbers:
    """Return the first elements of rows, twice as many per row as in the previous one, up to the density."""
    rows, columns = shape
    remaining = int(rows * columns * share)
    if remaining < 2 * rows:
        raise ValueError(
            f"rand_sparse_ndarray: density {share} of shape {tuple(shape)} is too low for a power law: it gives "
            f"{remaining} elements, expected at least two per row"
        )
    lengths = np.ones(rows, np.int64)
    remaining -= rows
    for row in range(rows):
        more = min(columns - 1, 2 ** min(row + 1, 62) - 1, remaining)
        lengths[row] += more
        remaining -= more
    if remaining:
        raise ValueError(f"rand_sparse_ndarray: density {share} of shape {tuple(shape)} is too high for a power law")
    return np.array([(row, column) for row, length in enumerate(lengths) for column in range(length)])


def shuffle_csr_column_indices(csr: Any) -> None:
    """Shuffle the column indices within the rows of a SciPy matrix in place, without moving its elements."""
    _shuffle(csr.indptr, csr.indices)


def _shuffle(indptr: Numbers, columns: Numbers) -> None:
    for begin, end in itertools.pairwise(indptr):
        np.random.shuffle(columns[begin:end])


def create_sparse_array(
    shape: Shape, stype: str, data_init: float | None = None, rsp_indices: object = None, dtype: object = None,
    modifier_func: Callable[[Any], Any] | None = None, density: float = 0.5, shuffle_csr_indices: bool = False,
) -> NDArray:  # fmt: skip
    """Return a sparse array by the arguments of :func:`rand_sparse_ndarray`; ``rsp_indices`` may be unsorted."""
    rows = None if rsp_indices is None else np.sort(np.asarray(rsp_indices))
    return rand_sparse_ndarray(shape, stype, density, dtype, None, data_init, rows, modifier_func, shuffle_csr_indices)[
        0
    ]


def create_sparse_array_zd(
    shape: Shape, stype: str, density: float, data_init: float | None = None, rsp_indices: object = None,
    dtype: object = None, modifier_func: Callable[[Any], Any] | None = None, shuffle_csr_indices: bool = False,
) -> NDArray:  # fmt: skip
    """Return an array of :func:`create_sparse_array`; a row_sparse array stores only the rows ``rsp_indices``."""
    share = 0.0 if stype == "row_sparse" else density
    return create_sparse_array(shape, stype, data_init, rsp_indices, dtype, modifier_func, share, shuffle_csr_indices)


def random_arrays(*shapes: Shape) -> Any:
    """Return normally distributed float32 NumPy arrays of these shapes: a single array, or a list of several."""
    arrays = [np.asarray(np.random.randn(*shape), default_dtype()) for shape in shapes]
    return arrays[0] if len(arrays) == 1 else arrays


def random_uniform_arrays(
    *shapes: Shape, low: float = 0.0, high: float = 1.0, dtype: npt.DTypeLike = np.float32
) -> list[Numbers]:
    """Return uniformly distributed NumPy arrays of these shapes."""
    return [np.random.uniform(low, high, size=shape).astype(dtype) for shape in shapes]


def random_sample(population: MutableSequence[Any], k: int) -> Any:
    """Return ``k`` random elements without replacement.

    Raises:
        ValueError: there are fewer elements.
    """
    if not 0 <= k <= len(population):
        raise ValueError(f"random_sample: k is {k}, expected from 0 to {len(population)}")
    shuffled = population[:]
    np.random.shuffle(shuffled)
    return shuffled[:k]


def create_vector(size: int, dtype: object = np.int64) -> NDArray:
    """Return the vector 0, 1, 2, ..."""
    return arange(0, size, dtype=dtype)


def create_2d_tensor(rows: int, columns: int, dtype: object = np.int64) -> NDArray:
    """Return a matrix whose elements are their row numbers."""
    return array(np.repeat(np.arange(rows)[:, None], columns, axis=1), dtype=dtype)


# -- matrices ----------------------------------------------------------------------------------------------


def get_identity_mat(size: int) -> Numbers:
    """Return the identity matrix."""
    return np.identity(size)


def get_identity_mat_batch(size: int) -> Numbers:
    """Return a batch of two identity matrices."""
    return np.stack([np.identity(size)] * 2)


def new_orthonormal_matrix_2d(num_rows: int, num_cols: int) -> Numbers:
    """Return a matrix with orthonormal rows, or orthonormal columns if there are fewer columns."""
    tall = np.random.normal(size=(max(num_rows, num_cols), min(num_rows, num_cols)))
    q = np.linalg.qr(tall)[0]
    return q if num_rows >= num_cols else q.T


def new_matrix_with_real_eigvals_2d(n: int) -> Numbers:
    """Return a square matrix with real eigenvalues from -10 to 10 and well-conditioned eigenvectors."""
    rotation = new_orthonormal_matrix_2d(n, n)
    vectors = rotation @ np.diag(np.random.uniform(0.5, 1.5, n)) @ new_orthonormal_matrix_2d(n, n)
    return np.asarray(np.linalg.inv(vectors) @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ vectors)


def new_sym_matrix_with_real_eigvals_2d(n: int) -> Numbers:
    """Return a symmetric matrix with eigenvalues from -10 to 10."""
    q = new_orthonormal_matrix_2d(n, n)
    matrix = q @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ q.T
    return np.asarray((matrix + matrix.T) / 2)


def _stacked(make: Callable[[int], Numbers], shape: Shape) -> Numbers:
    count = int(np.prod(shape[:-2]))
    return np.array([make(shape[-1]) for _ in range(count)]).reshape(tuple(shape))


def new_matrix_with_real_eigvals_nd(shape: Shape) -> Numbers:
    """Return an array of this shape with matrices of :func:`new_matrix_with_real_eigvals_2d`."""
    return _stacked(new_matrix_with_real_eigvals_2d, shape)


def new_sym_matrix_with_real_eigvals_nd(shape: Shape) -> Numbers:
    """Return an array of this shape with matrices of :func:`new_sym_matrix_with_real_eigvals_2d`."""
    return _stacked(new_sym_matrix_with_real_eigvals_2d, shape)


# -- reference implementations -----------------------------------------------------------------------------


def assign_each(the_input: Numbers, function: Callable[[Any], Any] | None) -> Numbers:
    """Return the function applied to every element; without a function, a copy."""
    return np.array(the_input) if function is None else _mapped(function, the_input)


def assign_each2(input1: Numbers, input2: Numbers, function: Callable[[Any, Any], Any] | None) -> Numbers:
    """Return the function applied to every pair of elements; without a function, a copy of the first array."""
    return np.array(input1) if function is None else _mapped(function, input1, input2)


def _mapped(function: Callable[..., Any], *inputs: Numbers) -> Numbers:
    result = np.zeros(inputs[0].shape)
    for at in np.ndindex(result.shape):
        result[at] = function(*(array[at] for array in inputs))
    return result


def np_reduce(
    dat: Numbers, axis: int | Sequence[int] | None, keepdims: bool, numpy_reduce_func: Callable[..., object]
) -> Any:
    """Reduce the axes one by one with a NumPy function such as ``np.sum``."""
    axes = range(dat.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    result: Any = dat
    for position in sorted({number % dat.ndim for number in axes}, reverse=True):
        result = numpy_reduce_func(result, axis=position)
        if keepdims:
            result = np.expand_dims(result, position)
    return result


def collapse_sum_like(a: Numbers, shape: Shape) -> Numbers:
    """Sum over the axes along which an array of this shape was broadcast to the shape of ``a``."""
    if not a.size or not np.prod(shape):
        return np.zeros(shape, a.dtype)
    first = a.ndim - len(shape)
    repeated = [first + i for i, length in enumerate(shape) if length != a.shape[first + i]]
    return np.asarray(np.sum(a, axis=(*range(first), *repeated))).reshape(tuple(shape))
