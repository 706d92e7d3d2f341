"""Sparse arrays: ``CSRNDArray`` and ``RowSparseNDArray``.

A sparse array is a handle on a storage, as a dense one. The storage's content is not one array but a few
(``ops/sparse/content.py``), which are replaced together: they have one variable.
"""

from __future__ import annotations

import importlib
import warnings
import zlib
from typing import Any, NoReturn, cast

import numpy as np

from flowmx import devices
from flowmx.devices import Context, Device
from flowmx.engine.runtime import engine
from flowmx.errors import ArgumentError, DataError, MXNetError
from flowmx.ndarray.array import NDArray, array, on_context
from flowmx.ndarray.core import BaseArray, Storage
from flowmx.ops.registry.dtypes import DType, as_dtype
from flowmx.ops.sparse.content import (
    INDEX,
    Content,
    Csr,
    Rows,
    Unordered,
    check,
    check_lengths,
    nothing,
    to_dense,
    usable,
)
from flowmx.ops.sparse.shapes import CsrShape, RowSparseShape, SparseShape

_numbers = (float, int, bool, np.generic)


class SparseStorage(Storage):
    """The content of a sparse array, as a variable of the engine."""

    def ensure(self) -> Any:
        """The content: nothing is stored where nothing was written."""
        if self.array is None:
            self.array = nothing(_stype(self.shape), self.shape, self.dtype)
        return self.array

    def whole(self) -> BaseArray:
        """A handle on it, without history."""
        made = cast("BaseArray", object.__new__(CLASSES[_stype(self.shape)]))
        made._storage, made._shape, made._dtype = self, self.shape, self.dtype
        return made

    def fingerprint(self) -> object:
        content = self.array
        return (
            None if content is None else tuple([zlib.crc32(np.ascontiguousarray(each).tobytes()) for each in content])
        )


def _stype(shape: Any) -> str:
    return cast("SparseShape", shape).stype


def allocated(
    stype: str, device: Device, shape: tuple[int, ...], dtype: DType, content: Content | None = None
) -> BaseSparseNDArray:
    """A new sparse array; ``content`` is what it stores, where that is known already."""
    kind = SHAPES[stype](shape)
    storage = SparseStorage(device, kind, dtype, content)
    return cast("BaseSparseNDArray", storage.whole())


class NotSupportedForSparseNDArray(MXNetError, NotImplementedError):
    """A function can not work on sparse arrays.

    Args:
        function: it.
        alias: its other name, or None.
        args: its arguments.
    """

    def __init__(self, function: Any, alias: str | None, *args: Any) -> None:
        called = function.__name__ + (f" (namely {alias})" if alias else "")
        kinds = ", ".join(type(each).__name__ for each in args)
        super().__init__(f"{called} does not support sparse arrays; it was given {kinds}")


class BaseSparseNDArray(NDArray):
    """Base of the sparse arrays, which store what differs from zero.

    Everything is as of :class:`~flowmx.ndarray.NDArray` but for what is said here: operators that have a way for them
    leave them sparse, for others they are made dense, with a warning.
    """

    __hash__ = object.__hash__

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self._shape)

    @property
    def stype(self) -> str:
        """The storage type: ``csr`` or ``row_sparse``."""
        return _stype(self._shape)

    @property
    def size(self) -> NoReturn:
        """Not given: of a sparse array it could be two things."""
        raise NotImplementedError("size: it is ambiguous for a sparse array: ask for its shape, or for data.size")

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

    def _read(self) -> Any:
        content = self._storage.array
        if content.__class__ is Unordered:
            return content.in_order()
        return self._storage.ensure() if content is None else content

    _written = _read

    def _content(self) -> Content:
        """The content as it was given, which is waited for."""
        engine.wait_variable(self._storage)
        return cast("Content", self._storage.ensure())

    def _part(self, values: Any) -> NDArray:
        """A new dense array on this one's device."""
        return array(values, self.context, values.dtype)

    def _host(self) -> Any:
        return to_dense(self._read(), self.shape)

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The content as a dense NumPy array; blocks until it is there."""
        return to_dense(self._content(), self.shape)

    def asscalar(self) -> NoReturn:
        """Not given for sparse arrays."""
        raise NotImplementedError("asscalar: not for sparse arrays; make it dense with tostype('default')")

    def __float__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is no number")

    __int__ = __index__ = __float__

    def tolist(self) -> NoReturn:
        """Not given for sparse arrays."""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'tolist'")

    def __bool__(self) -> NoReturn:
        raise ValueError("the truth of a sparse array is ambiguous")

    @property
    def data(self) -> NDArray:
        """A copy of the stored elements or rows; blocks until they are there."""
        return self._part(self._content().data)

    @data.setter
    def data(self, value: Any) -> NoReturn:
        raise NotImplementedError(
            "data: what is stored is not replaced in part; assign to the whole array: x[:] = value"
        )

    @property
    def indices(self) -> NDArray:
        """A copy of where they belong, int64: columns of elements, or numbers of rows; blocks until they are there."""
        return self._part(self._content().indices)

    @indices.setter
    def indices(self, value: Any) -> NoReturn:
        raise NotImplementedError("indices: what is stored is not replaced in part; assign to the whole: x[:] = value")

    def check_format(self, full_check: bool = True) -> None:
        """Check the form of what is stored; blocks until it is there.

        Args:
            full_check: look at every index, not at the lengths alone.

        Raises:
            DataError: it is not as it must be.
        """
        check(self._content(), self.shape, full_check)

    def __iter__(self) -> NoReturn:
        raise NotImplementedError("a sparse array can not be iterated over; make it dense with tostype('default')")

    def __contains__(self, value: Any) -> bool:
        return bool((self.asnumpy() == np.asarray(value)).any())

    # -- moving and converting -------------------------------------------------------------------------

    def tostype(self, stype: str) -> NDArray:
        """The array in another storage type, ``default`` being dense; a copy.

        Raises:
            ValueError: between the two sparse ones, or there is no such type.
        """
        if stype != self.stype and stype in CLASSES:
            raise ValueError(f"cast_storage from {self.stype} to {stype} is not supported: make it dense first")
        return self._call("cast_storage", stype=stype)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the content into another array, or into a new one on a context; returns that array.

        Raises:
            TypeError: the target is of the other sparse type, or neither array nor context.
            ShapeError: it has another shape.
        """
        if isinstance(other, Context):
            other = allocated(self.stype, on_context(other), self.shape, self._dtype)
        elif not isinstance(other, NDArray):
            raise TypeError(f"copyto does not support type {type(other)}")
        elif other is self:
            warnings.warn("You are attempting to copy an array to itself", RuntimeWarning, stacklevel=2)
            return cast("NDArray", False)
        elif other.stype not in ("default", self.stype):
            raise TypeError(f"copyto does not support destination NDArray stype {other.stype}")
        _calls().copy(self, other)
        return other

    def copy(self) -> NDArray:
        """A copy on the same device."""
        return self._call("_copy")

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """The content as another element type."""
        wanted = as_dtype(dtype)
        if not copy and wanted == self._dtype:
            return self
        return self.copyto(allocated(self.stype, self._storage.device, self.shape, wanted))

    def as_np_ndarray(self) -> NoReturn:
        """Not given: arrays of ``mx.np`` are dense."""
        raise ValueError(f"cannot convert an array of stype {self.stype} to an array of mx.np: make it dense first")

    def reshape(self, *shape: Any, **kwargs: Any) -> NoReturn:
        """Not given for sparse arrays."""
        raise NotSupportedForSparseNDArray(self.reshape, None, shape)

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("a sparse array has no memory of its own form to lend; make it dense with tostype('default')")

    def __getstate__(self) -> dict[str, Any]:
        content = [np.array(each) for each in self._content()]
        return {"stype": self.stype, "shape": self.shape, "content": content, "context": self.context}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if "handle" in saved:
            made = importlib.import_module("flowmx.ndarray.sparse.creation").from_bytes(saved["handle"])
        else:
            made = _unpacked(**saved)
        self._storage, self._shape, self._dtype = made._storage, made._shape, made._dtype
        self._view = self._past = None

    def __reduce__(self) -> Any:
        return _unpickled, (type(self),), self.__getstate__()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -- indexing --------------------------------------------------------------------------------------

    def __setitem__(self, key: Any, value: Any) -> None:
        """Give the whole array another content: only ``x[:] = value`` exists."""
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
            array(value, self.context, self._dtype).copyto(self)
        else:
            raise TypeError(f"type {type(value)} not supported")

    def _refuse_key(self) -> NoReturn:
        raise MXNetError("CSRNDArray only supports [:] for assignment")

    def _fill(self, number: Any) -> None:
        raise NotImplementedError

    __matmul__ = None  # type: ignore[assignment]

    def __ipow__(self, other: Any) -> NDArray:  # the result is dense
        return cast("NDArray", self**other)

    def __imod__(self, other: Any) -> NDArray:
        return cast("NDArray", self % other)


def _arithmetic(name: str, both: str, broadcast: str, number: str) -> Any:
    """The method of an arithmetic operator: elementwise where shapes are equal, else broadcast, or with a number."""

    def method(self: NDArray, other: Any) -> Any:
        if isinstance(other, NDArray):
            called = both if tuple(self._shape) == tuple(other._shape) else broadcast
            return self._call(called, other)
        if isinstance(other, _numbers):
            return self._call(number, scalar=float(other))
        raise TypeError(f"type {type(other)} not supported")

    method.__name__ = method.__qualname__ = name
    return method


def _in_place(name: str, compute: Any) -> Any:
    def method(self: NDArray, other: Any) -> Any:
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
    which ascend.

    Example:
        >>> a = mx.nd.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 0, 3]]).tostype("csr")
        >>> a.indptr.asnumpy()
        array([0, 1, 2, 2, 3])
    """

    @property
    def indptr(self) -> NDArray:
        """A copy of where each row begins, and the last ends, int64; blocks until it is there."""
        return self._part(cast("Csr", self._content()).indptr)

    def asscipy(self) -> Any:
        """A copy as SciPy's ``csr_matrix``; blocks until the content is there.

        Raises:
            ImportError: SciPy is not installed.
        """
        content = cast("Csr", self._content())
        matrix = importlib.import_module("scipy.sparse").csr_matrix
        return matrix(tuple(np.array(each) for each in content), shape=self.shape, dtype=self.dtype)

    def __getitem__(self, key: Any) -> NDArray:
        """One row, or consecutive rows, as a new csr matrix."""
        if isinstance(key, slice):
            if key.step is not None:
                raise ValueError("CSRNDArray only supports continuous slicing on axis 0")
            if key.start is None and key.stop is None:
                return self
            return self._call("slice", begin=(key.start or 0,), end=(key.stop or self._shape[0],))
        if isinstance(key, tuple):
            raise ValueError("Multi-dimension indexing is not supported")
        if not isinstance(key, (int, np.integer)):
            raise ValueError(f"Undefined behaviour for {key}")
        begin = self._shape[0] - 1 if key == -1 else int(key)
        return self._call("slice", begin=(begin,), end=(begin + 1,))

    def _fill(self, number: Any) -> None:
        if number != 0:
            raise ValueError("Assigning numeric types to CSRNDArray is not implemented yet.")
        _calls().compute(self._storage.device, "_zeros", _zeros("csr", self), (), self)


class RowSparseNDArray(BaseSparseNDArray):
    """An array of which some rows (parts along the first axis) are stored, the others being zero.

    Row ``indices[i]`` is ``data[i]``; indices ascend.

    Example:
        >>> a = mx.nd.sparse.row_sparse_array(([[1, 2], [3, 4]], [0, 3]), shape=(5, 2))
        >>> a.indices.asnumpy()
        array([0, 3])
    """

    def __getitem__(self, key: Any) -> NDArray:
        """The array itself, for ``x[:]``: nothing else exists."""
        if isinstance(key, (int, np.integer)):
            raise MXNetError("__getitem__ with int key is not implemented for RowSparseNDArray yet")
        if isinstance(key, slice):
            if key != slice(None):
                raise MXNetError("RowSparseNDArray only supports [:] for __getitem__")
            return self
        if isinstance(key, tuple):
            raise ValueError("Multi-dimension indexing is not supported")
        raise ValueError(f"Undefined behaviour for {key}")

    def retain(self, *args: Any, **kwargs: Any) -> Any:
        """As :func:`flowmx.nd.sparse.retain`, all arguments of which are to be given, as in MXNet."""
        return importlib.import_module("flowmx.ndarray.sparse").retain(*args, **kwargs)

    def _refuse_key(self) -> NoReturn:
        raise TypeError("RowSparseNDArray only supports [:] for assignment")

    def _fill(self, number: Any) -> None:
        device, shape, dtype = self._storage.device, self.shape, self._dtype
        if number == 0:
            _calls().compute(device, "_zeros", _zeros("row_sparse", self), (), self)
        else:
            _calls().compute(
                device, "full", lambda: Rows(np.full(shape, number, dtype), np.arange(shape[0], dtype=INDEX)), (), self
            )


def _zeros(stype: str, like: BaseArray) -> Any:
    shape, dtype = tuple(like._shape), like._dtype
    return lambda: nothing(stype, shape, dtype)


def _unpacked(stype: str, shape: tuple[int, ...], content: Any, context: Context) -> BaseSparseNDArray:
    """An array of what a pickle has of it, which may be damaged."""
    kind, count = (Csr, 3) if stype == "csr" else (Rows, 2)
    if stype not in CLASSES or len(content) != count or any(each.dtype != INDEX for each in content[1:]):
        raise DataError(f"a pickled sparse array has storage type {stype!r} and {len(content)} parts: it is damaged")
    given = kind(*content)
    check_lengths(given, shape)
    return allocated(stype, devices.get(context), shape, as_dtype(given.data.dtype), usable(given, shape))


def _unpickled(kind: type[BaseSparseNDArray]) -> BaseSparseNDArray:
    return object.__new__(kind)


def _calls() -> Any:
    return importlib.import_module("flowmx.ndarray.sparse.calls")


CLASSES: dict[str, type[BaseSparseNDArray]] = {"csr": CSRNDArray, "row_sparse": RowSparseNDArray}
SHAPES: dict[str, type[SparseShape]] = {"csr": CsrShape, "row_sparse": RowSparseShape}
