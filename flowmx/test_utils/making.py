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
from flowmx.ndarray.array import NDArray, array
from flowmx.ndarray.creation import arange
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
    """A random shape with axes up to ``dim`` long."""
    return tuple(int(n) for n in np.random.randint(0 if allow_zero_size else 1, dim + 1, size=num_dim))


def rand_shape_2d(dim0: int = 10, dim1: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape of two axes, up to these lengths."""
    return _rand_shape((dim0, dim1), allow_zero_size)


def rand_shape_3d(dim0: int = 10, dim1: int = 10, dim2: int = 10, allow_zero_size: bool = False) -> tuple[int, ...]:
    """A random shape of three axes, up to these lengths."""
    return _rand_shape((dim0, dim1, dim2), allow_zero_size)


def _rand_shape(most: Shape, allow_zero_size: bool) -> tuple[int, ...]:
    return tuple(int(np.random.randint(0 if allow_zero_size else 1, each + 1)) for each in most)


def rand_coord_2d(x_low: int, x_high: int, y_low: int, y_high: int) -> tuple[int, int]:
    """A random place between two corners, the upper one left out."""
    return int(np.random.randint(x_low, x_high)), int(np.random.randint(y_low, y_high))


def rand_ndarray(
    shape: Shape, stype: str = "default", density: float | None = None, dtype: Any = None,
    modifier_func: Callable[[Any], Any] | None = None, shuffle_csr_indices: bool = False,
    distribution: str | None = None, ctx: Context | None = None, scale: float | None = None,
) -> NDArray:  # fmt: skip
    """An array of random numbers: normally distributed in a dense one, from 0 to 1 in a sparse one.

    Args:
        shape: its shape.
        stype: its storage type.
        density: see :func:`rand_sparse_ndarray`, as the next five.
        dtype: by default float32.
        modifier_func: a function of each stored element.
        shuffle_csr_indices: have the columns of each row in any order.
        distribution: of the elements' places.
        ctx: its device.
        scale: give numbers evenly spread between -scale and scale instead.

    Raises:
        ArgumentError: there is no such storage type or distribution.
    """
    if stype not in ("default", "csr", "row_sparse"):
        raise ArgumentError(f"rand_ndarray: stype is {stype!r}, expected 'default', 'csr' or 'row_sparse'")
    size = tuple(shape)
    if stype == "default":
        made = np.random.randn(*size) if scale is None else np.random.uniform(-scale, scale, size)
        return array(made, ctx, dtype or default_dtype())
    if scale is not None:
        modifier_func = _spread(scale)
    return rand_sparse_ndarray(
        size, stype, density, dtype, distribution, None, None, modifier_func, shuffle_csr_indices, ctx
    )[0]


def _spread(scale: float) -> Callable[[Any], Any]:
    return lambda number: (2 * number - 1) * scale


def rand_sparse_ndarray(
    shape: Shape, stype: str, density: float | None = None, dtype: Any = None, distribution: str | None = None,
    data_init: float | None = None, rsp_indices: Any = None, modifier_func: Callable[[Any], Any] | None = None,
    shuffle_csr_indices: bool = False, ctx: Context | None = None,
) -> tuple[NDArray, tuple[Any, ...]]:  # fmt: skip
    """A sparse array of numbers from 0 to 1, and its parts.

    Args:
        shape: its shape.
        stype: ``csr`` or ``row_sparse``.
        density: the share of elements, or rows, that are stored (default: any).
        dtype: by default float32.
        distribution: ``uniform``; or ``powerlaw``, for csr: each row has twice as many elements as the one before.
        data_init: the number to store in each place instead.
        rsp_indices: the rows that are stored, for row_sparse.
        modifier_func: a function of each stored element.
        shuffle_csr_indices: have the columns of each row in any order.
        ctx: its device.

    Returns:
        the array, and of csr ``(indptr, indices, data)``, of row_sparse ``(data, indices)`` as NumPy's.

    Raises:
        ArgumentError: there is no such storage type or distribution.
        ValueError: the density is none, or one with which a power law can not be.
    """
    kind = np.dtype(dtype or default_dtype())
    share = np.random.rand() if density is None else density
    if not 0 <= share <= 1:
        raise ValueError(f"rand_sparse_ndarray: density is {density}, expected from 0 to 1")
    if stype == "row_sparse" and distribution in (None, "uniform"):
        rows = np.flatnonzero(np.random.rand(shape[0]) < share) if rsp_indices is None else np.asarray(rsp_indices)
        values = _filled((len(rows), *shape[1:]), kind, data_init, modifier_func)
        return sparse.row_sparse_array((values, rows), tuple(shape), ctx, kind), (values, rows)
    if stype == "csr" and distribution in (None, "uniform", "powerlaw") and len(shape) == 2:
        places = _powerlaw_places(shape, share) if distribution == "powerlaw" else _uniform_places(shape, share)
        indptr = np.searchsorted(places[:, 0], np.arange(shape[0] + 1))
        columns = places[:, 1].copy()
        if shuffle_csr_indices:
            _shuffle(indptr, columns)
        values = _filled((len(columns),), kind, data_init, modifier_func)
        if distribution == "powerlaw" and data_init is None:
            values += 1  # as MXNet's, of which none is 0
        made: Any = sparse.csr_matrix((values, columns, indptr), tuple(shape), ctx, kind)
        return made, (made.indptr, made.indices, made.data)
    raise ArgumentError(
        f"rand_sparse_ndarray: stype is {stype!r}, distribution {distribution!r} and shape {tuple(shape)}, expected "
        "'row_sparse' with 'uniform', or 'csr' with 'uniform' or 'powerlaw' and two axes"
    )


def _filled(shape: tuple[int, ...], dtype: Any, number: float | None, function: Callable[[Any], Any] | None) -> Numbers:
    values = np.random.rand(*shape) if number is None else np.full(shape, number)
    return assign_each(values.astype(dtype), function).astype(dtype)


def _uniform_places(shape: Shape, share: float) -> Numbers:
    rows, columns = shape
    chosen = np.random.permutation(rows * columns)[: round(rows * columns * share)]
    return np.stack(np.unravel_index(np.sort(chosen), (rows, columns)), axis=1)


def _powerlaw_places(shape: Shape, share: float) -> Numbers:
    """The first elements of each row, twice as many as in the row before, until there are enough."""
    rows, columns = shape
    left = int(rows * columns * share)
    if left < 2 * rows:
        raise ValueError(
            f"rand_sparse_ndarray: density {share} of shape {tuple(shape)} is too low for a power law: it gives {left} "
            f"elements, expected at least two a row"
        )
    lengths = np.ones(rows, np.int64)
    left -= rows
    for row in range(rows):
        more = min(columns - 1, 2 ** min(row + 1, 62) - 1, left)
        lengths[row] += more
        left -= more
    if left:
        raise ValueError(f"rand_sparse_ndarray: density {share} of shape {tuple(shape)} is too high for a power law")
    return np.array([(row, column) for row, length in enumerate(lengths) for column in range(length)])


def shuffle_csr_column_indices(csr: Any) -> None:
    """Put the columns of each row of SciPy's matrix in any order, in place; its elements stay where they are."""
    _shuffle(csr.indptr, csr.indices)


def _shuffle(indptr: Numbers, columns: Numbers) -> None:
    for begin, end in itertools.pairwise(indptr):
        np.random.shuffle(columns[begin:end])


def create_sparse_array(
    shape: Shape, stype: str, data_init: float | None = None, rsp_indices: Any = None, dtype: Any = None,
    modifier_func: Callable[[Any], Any] | None = None, density: float = 0.5, shuffle_csr_indices: bool = False,
) -> NDArray:  # fmt: skip
    """A sparse array, by the arguments of :func:`rand_sparse_ndarray`; rows may be named in any order."""
    rows = None if rsp_indices is None else np.sort(np.asarray(rsp_indices))
    return rand_sparse_ndarray(shape, stype, density, dtype, None, data_init, rows, modifier_func, shuffle_csr_indices)[
        0
    ]


def create_sparse_array_zd(
    shape: Shape, stype: str, density: float, data_init: float | None = None, rsp_indices: Any = None,
    dtype: Any = None, modifier_func: Callable[[Any], Any] | None = None, shuffle_csr_indices: bool = False,
) -> NDArray:  # fmt: skip
    """A sparse array as :func:`create_sparse_array` makes it; of a row_sparse one ``rsp_indices`` alone are stored."""
    share = 0.0 if stype == "row_sparse" else density
    return create_sparse_array(shape, stype, data_init, rsp_indices, dtype, modifier_func, share, shuffle_csr_indices)


def random_arrays(*shapes: Shape) -> Any:
    """Normally distributed float32 numbers in NumPy arrays of these shapes; one by itself, several in a list."""
    made = [np.asarray(np.random.randn(*shape), default_dtype()) for shape in shapes]
    return made[0] if len(made) == 1 else made


def random_uniform_arrays(
    *shapes: Shape, low: float = 0.0, high: float = 1.0, dtype: npt.DTypeLike = np.float32
) -> list[Numbers]:
    """Evenly distributed numbers in NumPy arrays of these shapes."""
    return [np.random.uniform(low, high, size=shape).astype(dtype) for shape in shapes]


def random_sample(population: MutableSequence[Any], k: int) -> Any:
    """Elements chosen without replacement.

    Raises:
        ValueError: there are not so many.
    """
    if not 0 <= k <= len(population):
        raise ValueError(f"random_sample: k is {k}, expected from 0 to {len(population)}")
    mixed = population[:]
    np.random.shuffle(mixed)
    return mixed[:k]


def create_vector(size: int, dtype: Any = np.int64) -> NDArray:
    """The numbers 0, 1, 2, ... in a vector."""
    return arange(0, size, dtype=dtype)


def create_2d_tensor(rows: int, columns: int, dtype: Any = np.int64) -> NDArray:
    """A matrix with the number of the row in each element."""
    return array(np.repeat(np.arange(rows)[:, None], columns, axis=1), dtype=dtype)


# -- matrices ----------------------------------------------------------------------------------------------


def get_identity_mat(size: int) -> Numbers:
    """The identity matrix."""
    return np.identity(size)


def get_identity_mat_batch(size: int) -> Numbers:
    """Two identity matrices."""
    return np.stack([np.identity(size)] * 2)


def new_orthonormal_matrix_2d(num_rows: int, num_cols: int) -> Numbers:
    """A matrix whose rows, or columns if there are fewer of them, are orthonormal."""
    tall = np.random.normal(size=(max(num_rows, num_cols), min(num_rows, num_cols)))
    q = np.linalg.qr(tall)[0]
    return q if num_rows >= num_cols else q.T


def new_matrix_with_real_eigvals_2d(n: int) -> Numbers:
    """A square matrix with real eigenvalues from -10 to 10, and eigenvectors that are well apart."""
    turn = new_orthonormal_matrix_2d(n, n)
    vectors = turn @ np.diag(np.random.uniform(0.5, 1.5, n)) @ new_orthonormal_matrix_2d(n, n)
    return np.asarray(np.linalg.inv(vectors) @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ vectors)


def new_sym_matrix_with_real_eigvals_2d(n: int) -> Numbers:
    """A symmetric matrix with eigenvalues from -10 to 10."""
    q = new_orthonormal_matrix_2d(n, n)
    made = q @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ q.T
    return np.asarray((made + made.T) / 2)


def _stacked(make: Callable[[int], Numbers], shape: Shape) -> Numbers:
    count = int(np.prod(shape[:-2]))
    return np.array([make(shape[-1]) for _ in range(count)]).reshape(tuple(shape))


def new_matrix_with_real_eigvals_nd(shape: Shape) -> Numbers:
    """An array of such shape of matrices of :func:`new_matrix_with_real_eigvals_2d`."""
    return _stacked(new_matrix_with_real_eigvals_2d, shape)


def new_sym_matrix_with_real_eigvals_nd(shape: Shape) -> Numbers:
    """An array of such shape of matrices of :func:`new_sym_matrix_with_real_eigvals_2d`."""
    return _stacked(new_sym_matrix_with_real_eigvals_2d, shape)


# -- reference computations of tests ------------------------------------------------------------------------


def assign_each(the_input: Numbers, function: Callable[[Any], Any] | None) -> Numbers:
    """An array with a function of each element; without one, a copy."""
    return np.array(the_input) if function is None else _mapped(function, the_input)


def assign_each2(input1: Numbers, input2: Numbers, function: Callable[[Any, Any], Any] | None) -> Numbers:
    """An array with a function of each pair of elements; without one, a copy of the first."""
    return np.array(input1) if function is None else _mapped(function, input1, input2)


def _mapped(function: Callable[..., Any], *inputs: Numbers) -> Numbers:
    made = np.zeros(inputs[0].shape)
    for at in np.ndindex(made.shape):
        made[at] = function(*(each[at] for each in inputs))
    return made


def np_reduce(
    dat: Numbers, axis: int | Sequence[int] | None, keepdims: bool, numpy_reduce_func: Callable[..., Any]
) -> Any:
    """Reduce one axis after the other by a function of NumPy, such as ``np.sum``."""
    axes = range(dat.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    found: Any = dat
    for each in sorted({each % dat.ndim for each in axes}, reverse=True):
        found = numpy_reduce_func(found, axis=each)
        if keepdims:
            found = np.expand_dims(found, each)
    return found


def collapse_sum_like(a: Numbers, shape: Shape) -> Numbers:
    """Sum over the axes along which an array of this shape was repeated to become as large as ``a``."""
    if not a.size or not np.prod(shape):
        return np.zeros(shape, a.dtype)
    first = a.ndim - len(shape)
    repeated = [first + i for i, length in enumerate(shape) if length != a.shape[first + i]]
    return np.asarray(np.sum(a, axis=(*range(first), *repeated))).reshape(tuple(shape))
