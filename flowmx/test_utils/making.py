"""Random shapes, arrays and matrices for tests (NumPy's global generator, as in MXNet)."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowmx.devices import Context
from flowmx.ndarray.array import NDArray, array
from flowmx.ndarray.creation import arange
from flowmx.test_utils.tolerance import Numbers, default_dtype

__all__ = [
    "assign_each", "assign_each2", "collapse_sum_like", "create_2d_tensor", "create_vector", "get_identity_mat",
    "get_identity_mat_batch", "new_matrix_with_real_eigvals_2d", "new_matrix_with_real_eigvals_nd",
    "new_orthonormal_matrix_2d", "new_sym_matrix_with_real_eigvals_2d", "new_sym_matrix_with_real_eigvals_nd",
    "np_reduce", "rand_coord_2d", "rand_ndarray", "rand_shape_2d", "rand_shape_3d", "rand_shape_nd", "random_arrays",
    "random_sample", "random_uniform_arrays",
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
    """An array of normally distributed numbers.

    Args:
        shape: its shape.
        stype: its storage type.
        density: the share of a sparse array's elements, or rows, that are stored (default: any).
        dtype: its dtype, by default float32.
        modifier_func: kept for MXNet's tests, as are the next two.
        shuffle_csr_indices: see ``modifier_func``.
        distribution: see ``modifier_func``.
        ctx: its device.
        scale: give numbers evenly spread between -scale and scale instead.

    Raises:
        ValueError: there is no such storage type.
    """
    if stype not in ("default", "csr", "row_sparse"):
        raise ValueError(f"rand_ndarray: stype is {stype!r}, expected 'default', 'csr' or 'row_sparse'")
    size = tuple(shape)
    made = np.random.randn(*size) if scale is None else np.random.uniform(-scale, scale, size)
    if stype != "default":
        share = np.random.rand() if density is None else density
        places = size if stype == "csr" else (size[0], *(1,) * (len(size) - 1))
        made *= np.random.rand(*places) < share
    return array(made, ctx, dtype or default_dtype()).tostype(stype)


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
