"""Sparse arrays: ``CSRNDArray`` and ``RowSparseNDArray``.

A sparse array is a handle on a storage, like a dense one. The storage's content consists of several arrays
(``ops/sparse/content.py``), which are replaced together and share one engine variable.
"""

from __future__ import annotations

import importlib
import warnings
import zlib
from typing import Any, NoReturn, Self, cast, overload

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device
from flowmx.engine.runtime import engine
from flowmx.errors import ArgumentError, DataError, MXNetError
from flowmx.late_binding import late
from flowmx.ndarray.array import N, NDArray
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ndarray.creation import array, on_context
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.registry.operators import Array
from flowmx.ops.sparse.content import (
    INDEX,
    Content,
    Csr,
    Rows,
    Unordered,
    check_format,
    check_lengths,
    to_dense,
    validate_content,
    zero_content,
)
from flowmx.ops.sparse.shapes import CsrShape, RowSparseShape, SparseShape

_numbers = (float, int, bool, np.generic)


class SparseStorage(Storage):
    """The content of a sparse array, as a variable of the engine."""

    def ensure(self) -> Any:
        """Return the content, which is empty before the first write."""
        if self.array is None:
            self.array = zero_content(_stype(self.shape), self.shape, self.dtype)
        return self.array

    def whole(self) -> BaseArray:
        """Return a handle on the content, without history."""
        handle = cast("BaseArray", object.__new__(CLASSES[_stype(self.shape)]))
        handle.storage, handle.dims, handle.element_type = self, self.shape, self.dtype
        return handle

    def fingerprint(self) -> object:
        content = self.array
        return (
            None if content is None else tuple([zlib.crc32(np.ascontiguousarray(part).tobytes()) for part in content])
        )


def _stype(shape: object) -> str:
    return cast("SparseShape", shape).stype


def allocate_sparse(
    stype: str, device: Device, shape: tuple[int, ...], dtype: DType, content: Content | None = None
) -> BaseSparseNDArray:
    """Create a sparse array with a content (default: allocated at the first write)."""
    kind = SHAPES[stype](shape)
    storage = SparseStorage(device, kind, dtype, content)
    return cast("BaseSparseNDArray", storage.whole())


class NotSupportedForSparseNDArray(MXNetError, NotImplementedError):
    """A function does not support sparse arrays.

    Args:
        function: the function.
        alias: the function's other name, or None.
        args: the function's arguments.
    """

    def __init__(self, function: Any, alias: str | None, *args: object) -> None:
        name = function.__name__ + (f" (namely {alias})" if alias else "")
        kinds = ", ".join(type(arg).__name__ for arg in args)
        super().__init__(f"{name} does not support sparse arrays; it was given {kinds}")


class BaseSparseNDArray(NDArray):
    """Base class of sparse arrays, which store only nonzero elements or rows.

    The methods are those of :class:`~flowmx.ndarray.NDArray`, except those below. Operators with a sparse
    implementation return sparse arrays; all others convert the arrays to dense, with a warning.
    """

    __hash__ = object.__hash__

    # -- properties ------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.dims)

    @property
    def stype(self) -> str:
        """The storage type: ``csr`` or ``row_sparse``."""
        return _stype(self.dims)

    @property
    def size(self) -> NoReturn:
        """Not supported: the size could count the stored elements or all elements."""
        raise NotImplementedError("size: ambiguous for a sparse array; use its shape, or data.size")

    @property
    def _num_aux(self) -> int:
        return 2 if self.stype == "csr" else 1

    @property
    def _aux_types(self) -> list[Any]:
        return [np.int64] * self._num_aux

    def __repr__(self) -> str:
        return f"\n<{type(self).__name__} {'x'.join(map(str, self.shape))} @{self.context}>"

    def _repr_html_(self) -> None:  # type: ignore[override]
        return None

    # -- reading ---------------------------------------------------------------------------------------

    def raw(self) -> Any:
        content = self.storage.array
        if content.__class__ is Unordered:
            return content.in_order()
        return self.storage.ensure() if content is None else content

    raw_for_writing = raw

    def _content(self) -> Content:
        """Return the content; block until it is computed."""
        engine.wait_variable(self.storage)
        return cast("Content", self.storage.ensure())

    def _part(self, values: Any) -> NDArray:
        """Create a dense array on this array's device."""
        return array(values, self.context, values.dtype)

    def _host(self) -> Array:
        return to_dense(self.raw(), self.shape)

    def asnumpy(self) -> Array:
        """Copy the content into a dense NumPy array; block until it is computed."""
        return to_dense(self._content(), self.shape)

    def asscalar(self) -> NoReturn:
        """Not supported for sparse arrays."""
        raise NotImplementedError("asscalar: not supported for sparse arrays; make it dense with tostype('default')")

    def __float__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be converted to a number")

    __int__ = __index__ = __float__

    def tolist(self) -> NoReturn:
        """Not supported for sparse arrays."""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'tolist'")

    def __bool__(self) -> NoReturn:
        raise ValueError("the truth of a sparse array is ambiguous")

    @property
    def data(self) -> NDArray:
        """A copy of the stored elements or rows; blocks until they are computed."""
        return self._part(self._content().data)

    @data.setter
    def data(self, value: object) -> NoReturn:
        raise NotImplementedError(
            "data: the stored values cannot be replaced alone; assign to the whole array: x[:] = value"
        )

    @property
    def indices(self) -> NDArray:
        """A copy of the positions (int64): columns of elements, or row numbers; blocks until they are computed."""
        return self._part(self._content().indices)

    @indices.setter
    def indices(self, value: object) -> NoReturn:
        raise NotImplementedError("indices: they cannot be replaced alone; assign to the whole array: x[:] = value")

    def check_format(self, full_check: bool = True) -> None:
        """Check that the stored arrays are valid; block until they are computed.

        Args:
            full_check: check every index, not only the lengths.

        Raises:
            DataError: the arrays are invalid.
        """
        check_format(self._content(), self.shape, full_check)

    def __iter__(self) -> NoReturn:
        raise NotImplementedError("a sparse array cannot be iterated over; make it dense with tostype('default')")

    def __contains__(self, value: object) -> bool:
        return bool((self.asnumpy() == np.asarray(value)).any())

    # -- moving and converting -------------------------------------------------------------------------

    def tostype(self, stype: str) -> NDArray:
        """Copy the array to another storage type; ``default`` is dense.

        Raises:
            ValueError: the type is unknown, or is the other sparse type.
        """
        if stype != self.stype and stype in CLASSES:
            raise ValueError(f"cast_storage from {self.stype} to {stype} is not supported: make it dense first")
        return self._call("cast_storage", stype=stype)

    @overload
    def copyto(self, other: Context) -> Self: ...

    @overload
    def copyto(self, other: N) -> N: ...

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the content into an array, or into a new array on a context; return the copy.

        Raises:
            TypeError: the target has the other sparse type, or is neither array nor context.
            ShapeError: the shapes differ.
        """
        if isinstance(other, Context):
            other = allocate_sparse(self.stype, on_context(other), self.shape, self.element_type)
        elif not isinstance(other, NDArray):
            raise TypeError(f"copyto does not support type {type(other)}")
        elif other is self:
            warnings.warn("You are attempting to copy an array to itself", RuntimeWarning, stacklevel=2)
            return cast("NDArray", False)
        elif other.stype not in ("default", self.stype):
            raise TypeError(f"copyto does not support destination NDArray stype {other.stype}")
        late("ndarray.sparse.calls").copy(self, other)
        return other

    def copy(self) -> Self:
        """Return a copy on the same device."""
        return self._call("_copy")

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """Convert to another element type."""
        target_dtype = as_dtype(dtype)
        if not copy and target_dtype == self.element_type:
            return self
        return self.copyto(allocate_sparse(self.stype, self.storage.device, self.shape, target_dtype))

    def as_np_ndarray(self) -> NoReturn:
        """Not supported: arrays of ``mx.np`` are dense."""
        raise ValueError(f"cannot convert an array of stype {self.stype} to an array of mx.np: make it dense first")

    def reshape(self, *shape: object, **kwargs: object) -> NoReturn:
        """Not supported for sparse arrays."""
        raise NotSupportedForSparseNDArray(self.reshape, None, shape)

    def __dlpack__(self, **options: object) -> Any:
        raise BufferError("a sparse array cannot be exported with DLPack; make it dense with tostype('default')")

    def __getstate__(self) -> dict[str, object]:
        content = [np.array(part) for part in self._content()]
        return {"stype": self.stype, "shape": self.shape, "content": content, "context": self.context}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if "handle" in saved:
            restored = late("ndarray.sparse.creation").from_bytes(saved["handle"])
        else:
            restored = _unpacked(**saved)
        self.storage, self.dims, self.element_type = restored.storage, restored.dims, restored.element_type
        self.strided_view = self.history = None

    def __reduce__(self) -> Any:
        return _unpickled, (type(self),), self.__getstate__()

    def __deepcopy__(self, memo: object) -> NDArray:
        return self.copy()

    # -- indexing --------------------------------------------------------------------------------------

    def __setitem__(self, key: object, value: object) -> None:
        """Replace the whole content; only ``x[:] = value`` is supported."""
        if not isinstance(key, slice):
            if not isinstance(key, (int, tuple)):
                raise ArgumentError(f"{type(self).__name__} only supports [:] for assignment, not [{key}]")
            self._refuse_key()
        elif key != slice(None):
            raise ValueError(f"Assignment with slice for {type(self).__name__} is not implemented yet.")
        if isinstance(value, _numbers):
            self._fill(value)
        elif isinstance(value, NDArray):
            if value is not self:
                value.copyto(self)
        elif isinstance(value, np.ndarray):
            name = type(self).__name__
            warnings.warn(f"Assigning non-NDArray object to {name} is not efficient", RuntimeWarning, stacklevel=2)
            array(value, self.context, self.element_type).copyto(self)
        else:
            raise TypeError(f"type {type(value)} not supported")

    def _refuse_key(self) -> NoReturn:
        raise MXNetError("CSRNDArray only supports [:] for assignment")

    def _fill(self, number: object) -> None:
        raise NotImplementedError

    __matmul__ = None  # type: ignore[assignment]

    def __ipow__(self, other: Any) -> NDArray:  # the result is dense
        return cast("NDArray", self**other)

    def __imod__(self, other: Any) -> NDArray:
        return cast("NDArray", self % other)


def _arithmetic(name: str, both: str, broadcast: str, number: str) -> Any:
    """Return an arithmetic method, from the operators for equal shapes, broadcasting, and numbers."""

    def method(self: NDArray, other: object) -> NDArray:
        if isinstance(other, NDArray):
            op = both if tuple(self.dims) == tuple(other.dims) else broadcast
            return self._call(op, other)
        if isinstance(other, _numbers):
            return self._call(number, scalar=float(other))
        raise TypeError(f"type {type(other)} not supported")

    method.__name__ = method.__qualname__ = name
    return method


def _in_place(name: str, compute: Any) -> Any:
    def method(self: NDArray, other: Any) -> NDArray:
        compute(self, other).copyto(self)
        return self

    method.__name__ = method.__qualname__ = name
    return method


for _name, _both, _broadcast, _number in [
    ("add", "elemwise_add", "broadcast_add", "_plus_scalar"),
    ("sub", "elemwise_sub", "broadcast_sub", "_minus_scalar"),
    ("mul", "elemwise_mul", "broadcast_mul", "_mul_scalar"),
    ("truediv", "elemwise_div", "broadcast_div", "_div_scalar"),
]:
    _method = _arithmetic(f"__{_name}__", _both, _broadcast, _number)
    setattr(BaseSparseNDArray, f"__{_name}__", _method)
    setattr(BaseSparseNDArray, f"__i{_name}__", _in_place(f"__i{_name}__", _method))


class CSRNDArray(BaseSparseNDArray):
    """A matrix in compressed sparse rows.

    Row ``i`` has the elements ``data[indptr[i]:indptr[i + 1]]``, in the columns ``indices[indptr[i]:indptr[i + 1]]``,
    in ascending order.

    Example:
        >>> a = mx.nd.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 0, 3]]).tostype("csr")
        >>> a.indptr.asnumpy()
        array([0, 1, 2, 2, 3])
    """

    @property
    def indptr(self) -> NDArray:
        """A copy of the row starts and the end of the last row (int64); blocks until they are computed."""
        return self._part(cast("Csr", self._content()).indptr)

    def asscipy(self) -> Any:
        """Copy to SciPy's ``csr_matrix``; block until the content is computed.

        Raises:
            ImportError: SciPy is not installed.
        """
        content = cast("Csr", self._content())
        matrix = importlib.import_module("scipy.sparse").csr_matrix
        return matrix(tuple(np.array(each) for each in content), shape=self.shape, dtype=self.dtype)

    def __getitem__(self, key: object) -> NDArray:
        """Copy one row, or consecutive rows, to a new csr matrix."""
        if isinstance(key, slice):
            if key.step is not None:
                raise ValueError("CSRNDArray only supports continuous slicing on axis 0")
            if key.start is None and key.stop is None:
                return self
            return self._call("slice", begin=(key.start or 0,), end=(key.stop or self.dims[0],))
        if isinstance(key, tuple):
            raise ValueError("Multi-dimension indexing is not supported")
        if not isinstance(key, (int, np.integer)):
            raise ValueError(f"Undefined behaviour for {key}")
        begin = self.dims[0] - 1 if key == -1 else int(key)
        return self._call("slice", begin=(begin,), end=(begin + 1,))

    def _fill(self, number: object) -> None:
        if number != 0:
            raise ValueError("Assigning numeric types to CSRNDArray is not implemented yet.")
        late("ndarray.sparse.calls").compute(self.storage.device, "_zeros", _zeros("csr", self), (), self)


class RowSparseNDArray(BaseSparseNDArray):
    """An array that stores some of its rows (slices along the first axis); all others are zero.

    Row ``indices[i]`` is ``data[i]``; indices ascend.

    Example:
        >>> a = mx.nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [0, 3]), shape=(5, 2))
        >>> a.indices.asnumpy()
        array([0, 3])
    """

    def __getitem__(self, key: object) -> NDArray:
        """Return the array itself for ``x[:]``; no other key is supported."""
        if isinstance(key, (int, np.integer)):
            raise MXNetError("__getitem__ with int key is not implemented for RowSparseNDArray yet")
        if isinstance(key, slice):
            if key != slice(None):
                raise MXNetError("RowSparseNDArray only supports [:] for __getitem__")
            return self
        if isinstance(key, tuple):
            raise ValueError("Multi-dimension indexing is not supported")
        raise ValueError(f"Undefined behaviour for {key}")

    def retain(self, *args: object, **kwargs: object) -> Any:
        """Call :func:`flowmx.nd.sparse.retain` with this method's arguments, as in MXNet."""
        return late("ndarray.sparse").retain(*args, **kwargs)

    def _refuse_key(self) -> NoReturn:
        raise TypeError("RowSparseNDArray only supports [:] for assignment")

    def _fill(self, number: object) -> None:
        device, shape, dtype = self.storage.device, self.shape, self.element_type
        if number == 0:
            late("ndarray.sparse.calls").compute(device, "_zeros", _zeros("row_sparse", self), (), self)
        else:
            late("ndarray.sparse.calls").compute(
                device, "full", lambda: Rows(np.full(shape, number, dtype), np.arange(shape[0], dtype=INDEX)), (), self
            )


def _zeros(stype: str, like: BaseArray) -> Any:
    shape, dtype = tuple(like.dims), like.element_type
    return lambda: zero_content(stype, shape, dtype)


def _unpacked(stype: str, shape: tuple[int, ...], content: Any, context: Context) -> BaseSparseNDArray:
    """Restore an array from a pickle, which may be damaged."""
    content_class, count = (Csr, 3) if stype == "csr" else (Rows, 2)
    if stype not in CLASSES or len(content) != count or any(part.dtype != INDEX for part in content[1:]):
        raise DataError(f"a pickled sparse array has storage type {stype!r} and {len(content)} parts: it is damaged")
    restored = content_class(*content)
    check_lengths(restored, shape)
    return allocate_sparse(
        stype, devices.get(context), shape, as_dtype(restored.data.dtype), validate_content(restored, shape)
    )


def _unpickled(kind: type[BaseSparseNDArray]) -> BaseSparseNDArray:
    return object.__new__(kind)


CLASSES: dict[str, type[BaseSparseNDArray]] = {"csr": CSRNDArray, "row_sparse": RowSparseNDArray}
SHAPES: dict[str, type[SparseShape]] = {"csr": CsrShape, "row_sparse": RowSparseShape}
