"""MXNet's binary ``.params`` format: a list of arrays with optional names.

All numbers are little-endian. A file is::

    uint64 0x112, uint64 reserved
    uint64 number of arrays, then the arrays
    uint64 number of names (0, or one for each array), then the names: uint64 length, UTF-8

and an array has one of the four layouts that MXNet has written since 0.8::

    unversioned     uint32 ndim, uint32 dims        device, dtype, data
    V1              magic, int32 ndim, int64 dims   device, dtype, data
    V2, V3          magic, storage type, [stored shape,] shape,
                    device, dtype, [dtype and shape of each index array,] data, [index arrays]

Only sparse arrays have the parts in brackets. V3 is V2 with NumPy's shape rules: in V3 an array with ndim 0 is a
scalar; in the other layouts it is an empty NDArray, and nothing follows its shape.
"""

from __future__ import annotations

import logging
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.reading import FileFormatError, Reader, Source, in_memory, little_endian, read_source


class SparseParts(NamedTuple):
    """The parts of a sparse array.

    Attributes:
        shape: The length of each axis.
        data: The stored elements or rows.
        indices: The positions of the data, int64: row numbers, or for csr the row pointers and the columns.
    """

    shape: tuple[int, ...]
    data: Array
    indices: tuple[Array, ...]


@dataclass(frozen=True)
class Deferred:
    """An array whose content is read when it is written, so that not all arrays are copied at once.

    Attributes:
        shape: The length of each axis.
        dtype: The type of the elements.
        read: A function that returns the content.
    """

    shape: tuple[int, ...]
    dtype: DType
    read: Callable[[], Array]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Return the content."""
        return np.asarray(self.read(), dtype)


Writable: TypeAlias = npt.ArrayLike | SparseParts | Deferred
Arrays: TypeAlias = Mapping[str, Writable] | Sequence[Writable] | Array

LIST_MAGIC = 0x112
V1_MAGIC = 0xF993FAC8
V2_MAGIC = 0xF993FAC9
V3_MAGIC = 0xF993FACA

_DENSE, _ROW_SPARSE, _CSR = 0, 1, 2
_INDEX_ARRAYS = {_DENSE: 0, _ROW_SPARSE: 1, _CSR: 2}
_CPU_0 = struct.pack("<ii", 1, 0)
_MIN_ARRAY, _MIN_NONEMPTY = 4, 32  # minimum sizes in bytes: of an array, and of an array with elements
_MAX_EMPTY = 1 << 14  # limit on empty arrays: in memory each takes 100 times its bytes in the file
_MAX_NDIM = 32  # supported by every version of NumPy

_DTYPES: dict[int, DType] = {
    flag: np.dtype(scalar)
    for flag, scalar in enumerate(
        [
            np.float32,
            np.float64,
            np.float16,
            np.uint8,
            np.int32,
            np.int8,
            np.int64,
            np.bool_,
            np.int16,
            np.uint16,
            np.uint32,
            np.uint64,
            ml_dtypes.bfloat16,
        ]
    )
}
_FLAGS = {dtype: flag for flag, dtype in _DTYPES.items()}


class ParamsFormatError(FileFormatError):
    """A file is not a valid ``.params`` file."""


def save(path: str | os.PathLike[str], arrays: Arrays, *, np_shape: bool | None = None) -> None:
    """Write arrays to a file atomically.

    Args:
        path: The file.
        arrays: As for `dumps`.
        np_shape: As for `dumps`.

    Raises:
        TypeError: MXNet does not support a dtype.
        OSError: The file cannot be written.
    """
    replace_file(path, chunks(arrays, np_shape))


def dumps(arrays: Arrays, *, np_shape: bool | None = None) -> bytes:
    """Return the bytes that MXNet 1.9.1 writes for the same arrays.

    Args:
        arrays: Named arrays, or a sequence of arrays, or one array, which is written as a list of one.
        np_shape: Write V3, which MXNet reads only under NumPy's shape rules (``npx.set_np``), instead of V2.
            None writes V3 only if an array is 0-dimensional, which V2 does not support.

    Raises:
        TypeError: MXNet does not support a dtype.
        ValueError: `np_shape` is False and an array is 0-dimensional.
    """
    return b"".join(chunks(arrays, np_shape))


def load(
    path: str | os.PathLike[str], *, densify_limit: int | None = None, keep_sparse: bool = False
) -> dict[str, Any] | list[Any]:
    """Read a file. Arguments are those of `loads`.

    Raises:
        ParamsFormatError: The file is damaged, or not a ``.params`` file.
        OSError: The file cannot be read.
    """
    return read_source(
        path, lambda source, size, name: _read_list(_Reader(source, size, name, densify_limit, keep_sparse))
    )


def loads(
    data: bytes | bytearray | memoryview, *, source: str = "<bytes>", densify_limit: int | None = None,
    keep_sparse: bool = False,
) -> dict[str, Any] | list[Any]:  # fmt: skip
    """Read the content of a ``.params`` file. Return a dict if the arrays have names, else a list.

    The arrays are copies: writable, aligned and in C order. An empty NDArray of MXNet becomes a float32 array of shape
    (0,). Sparse arrays are converted to dense arrays, with a message in the log, unless `keep_sparse` is true.

    Args:
        data: The content of the file.
        source: The name of the file in errors.
        densify_limit: The maximum total size in bytes of the dense forms of the file's sparse arrays. None means
            1 GiB or eight times the file size, whichever is more. Everything else takes no more memory than the file.
        keep_sparse: Return sparse arrays as `SparseParts`.

    Raises:
        ParamsFormatError: The data is damaged, or not in this format.
    """
    return _read_list(_Reader(*in_memory(data, source), densify_limit, keep_sparse))


def loads_one(data: bytes | bytearray | memoryview, keep_sparse: bool = False) -> Any:
    """Read an array from a pickle of MXNet, which contains the bytes of the array's entry in a file.

    Raises:
        ParamsFormatError: The data is damaged, or not in this format.
    """
    arrays = loads(
        struct.pack("<QQQ", LIST_MAGIC, 0, 1) + bytes(data) + bytes(8), source="<pickle>", keep_sparse=keep_sparse
    )
    assert isinstance(arrays, list)
    return arrays[0]


def chunks(arrays: Arrays, np_shape: bool | None = None) -> Iterator[bytes | memoryview]:
    """Yield the bytes of `dumps` in pieces. Pieces of data are views of the arrays if possible."""
    names: list[str] = []
    if isinstance(arrays, Mapping):
        names = list(arrays)
        values = [_storable(value, repr(name)) for name, value in arrays.items()]
    else:
        items = [arrays] if isinstance(arrays, np.ndarray) else arrays
        values = [_storable(value, str(i)) for i, value in enumerate(items)]
    if np_shape is None:
        np_shape = any(_is_scalar(value) for value in values)
    elif not np_shape and any(_is_scalar(value) for value in values):
        raise ValueError("a 0-dimensional array can only be written with np_shape=True")
    yield struct.pack("<QQQ", LIST_MAGIC, 0, len(values))
    for value in values:
        if isinstance(value, SparseParts):
            yield from _sparse_chunks(value, np_shape)
            continue
        yield struct.pack(
            f"<Iii{value.ndim}q8si",
            V3_MAGIC if np_shape else V2_MAGIC,
            _DENSE,
            value.ndim,
            *value.shape,
            _CPU_0,
            _FLAGS[value.dtype],
        )
        yield little_endian(np.asarray(value, order="C"))
    yield struct.pack("<Q", len(names))
    for name in names:
        encoded = name.encode()
        yield struct.pack("<Q", len(encoded)) + encoded


def _is_scalar(value: Array | SparseParts | Deferred) -> bool:
    return not value.shape


def _sparse_chunks(value: SparseParts, np_shape: bool) -> Iterator[bytes | memoryview]:
    shape, data, indices = value
    index_arrays = [_storable(index, "indices") for index in indices]
    kind = _CSR if len(indices) == _INDEX_ARRAYS[_CSR] else _ROW_SPARSE
    magic = V3_MAGIC if np_shape else V2_MAGIC
    yield struct.pack("<Ii", magic, kind) + _pack_shape(data.shape) + _pack_shape(shape) + _CPU_0
    yield struct.pack("<i", _FLAGS[data.dtype])
    for array in index_arrays:
        yield struct.pack("<i", _FLAGS[array.dtype]) + _pack_shape(array.shape)
    for array in (data, *index_arrays):
        yield little_endian(np.ascontiguousarray(array))


def _pack_shape(shape: tuple[int, ...]) -> bytes:
    return struct.pack(f"<i{len(shape)}q", len(shape), *shape)


def _storable(value: Writable, name: str) -> Any:
    if isinstance(value, Deferred) and value.dtype in _FLAGS:
        return value
    if isinstance(value, SparseParts):
        if value.data.dtype not in _FLAGS:
            raise TypeError(f"array {name}: MXNet's format does not support dtype {value.data.dtype}")
        return value
    array = np.asarray(value)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in _FLAGS:
        raise TypeError(f"array {name}: MXNet's format does not support dtype {array.dtype}")
    return np.asarray(array, dtype=dtype, order="C")


class _Reader(Reader):
    """A reader of the fields of arrays."""

    Error = ParamsFormatError

    def __init__(self, source: Source, size: int, name: str, densify_limit: int | None, keep_sparse: bool) -> None:
        super().__init__(source, size, name)
        self.keep_sparse = keep_sparse
        self._densify_budget = max(1 << 30, 8 * size) if densify_limit is None else densify_limit
        self.sparse: list[int] = []

    def log_sparse(self, names: Sequence[str]) -> None:
        """Log which arrays were sparse."""
        if self.sparse and not self.keep_sparse:
            listing = ", ".join(repr(names[i]) if names else str(i) for i in self.sparse[:5])
            suffix = f" and {len(self.sparse) - 5} more" if len(self.sparse) > 5 else ""
            logging.warning("%s: sparse arrays are converted to dense arrays: %s%s", self._name, listing, suffix)

    def shape(self, what: str) -> tuple[int, ...] | None:
        """Return a shape with 64-bit dims, or None if its rank or a dim is unknown (-1)."""
        start = self.offset
        ndim = self.number("i", f"{what}'s number of dimensions")
        if not -1 <= ndim <= _MAX_NDIM:
            raise self.error(f"{what} of at most {_MAX_NDIM} dimensions", ndim, start)
        dims = self.numbers(f"{max(ndim, 0)}q", what)
        if min(dims, default=0) < -1:
            raise self.error(f"{what} without negative dimensions", dims, start)
        return None if ndim == -1 or -1 in dims else dims

    def full_shape(self, what: str) -> tuple[int, ...]:
        start = self.offset
        shape = self.shape(what)
        if shape is None:
            raise self.error(f"{what} without unknown dimensions", "-1", start)
        return shape

    def dtype(self, what: str) -> DType:
        start = self.offset
        flag = self.number("i", what)
        if flag not in _DTYPES:
            raise self.error(f"{what}, a type flag in 0..{max(_DTYPES)}", flag, start)
        return _DTYPES[flag]

    def zeros(self, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
        """Return an array of zeros for the dense form of a sparse array."""
        self.check_size(dtype, shape, what)
        size = math.prod(shape) * dtype.itemsize
        if size > self._densify_budget:
            limit = f"dense form of at most {self._densify_budget} bytes (densify_limit of serialization.params.load)"
            raise self.error(f"a {what} with a {limit}", f"shape {shape} of {dtype}, {size} bytes")
        self._densify_budget -= size
        return np.zeros(shape, dtype)


def _read_list(reader: _Reader) -> dict[str, Any] | list[Any]:
    if not reader.remaining:
        raise reader.error("a .params file", "an empty file", 0)
    magic = reader.read(8, "list magic")
    if int.from_bytes(magic, "little") != LIST_MAGIC:
        is_pickle = magic[:1] == b"\x80" and magic[1] in range(2, 6)
        content = "a Python pickle, which can run code; save arrays with mx.nd.save or np.savez" if is_pickle else magic
        raise reader.error(f"a .params file, which starts with {struct.pack('<Q', LIST_MAGIC)!r}", content, 0)
    reader.number("Q", "reserved field")
    start = reader.offset
    count = reader.number("Q", "number of arrays")
    limit = min(reader.remaining // _MIN_ARRAY, max(_MAX_EMPTY, reader.remaining // _MIN_NONEMPTY))
    if count > limit:
        raise reader.error(f"at most {limit} arrays in {reader.remaining} bytes", count, start)
    arrays = [_read_array(reader, i) for i in range(count)]
    names = _read_names(reader, count)
    if reader.remaining:
        raise reader.error("the end of the file", f"{reader.remaining} more bytes")
    reader.log_sparse(names)
    return dict(zip(names, arrays, strict=True)) if names else arrays


def _read_names(reader: _Reader, arrays: int) -> list[str]:
    start = reader.offset
    count = reader.number("Q", "number of names")
    if count not in (0, arrays):
        raise reader.error(f"0 names or {arrays}, one for each array", count, start)
    names: dict[str, None] = {}
    for i in range(count):
        start = reader.offset
        encoded = reader.read(reader.number("Q", f"name {i}'s length"), f"name {i}")
        try:
            name = encoded.decode()
        except UnicodeDecodeError:
            raise reader.error(f"name {i} in UTF-8", encoded[:80], start) from None
        if name in names:
            raise reader.error("unique names", f"{name!r} twice", start)
        names[name] = None
    return list(names)


def _read_array(reader: _Reader, position: int) -> Any:
    start, what = reader.offset, f"array {position}"
    magic = reader.number("I", f"{what}'s magic")
    storage = _DENSE
    data_shape: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None
    if magic in (V2_MAGIC, V3_MAGIC):
        start = reader.offset
        storage = reader.number("i", f"{what}'s storage type")
        if storage not in _INDEX_ARRAYS:
            raise reader.error(f"{what}'s storage type, one of 0 (dense), 1 (row_sparse), 2 (csr)", storage, start)
        if storage != _DENSE:
            data_shape = reader.full_shape(f"{what}'s stored shape")
        shape = reader.shape(f"{what}'s shape")
    elif magic == V1_MAGIC:
        shape = reader.shape(f"{what}'s shape")
    elif magic <= _MAX_NDIM:
        shape = reader.numbers(f"{magic}I", f"{what}'s shape")
    else:
        expected = f"the magic of {what}, {V1_MAGIC:#x} to {V3_MAGIC:#x}, or at most {_MAX_NDIM} dimensions"
        raise reader.error(expected, f"{magic:#x}", start)
    if shape is None or (shape == () and magic != V3_MAGIC):
        return np.empty(0, np.float32)
    reader.read(len(_CPU_0), f"{what}'s device")  # the caller chooses the device
    dtype = reader.dtype(f"{what}'s dtype")
    if data_shape is None:
        return reader.array(dtype, shape, what)
    reader.sparse.append(position)
    index_layouts = [
        (reader.dtype(f"{what}'s index dtype"), reader.full_shape(f"{what}'s index shape"))
        for _ in range(_INDEX_ARRAYS[storage])
    ]
    data_start = reader.offset
    values = reader.array(dtype, data_shape, f"{what}'s stored values")
    indices = [reader.array(*layout, f"{what}'s indices") for layout in index_layouts]
    build = _build_row_sparse if storage == _ROW_SPARSE else _build_csr
    return build(reader, shape, values, indices, what, data_start)


def _build_row_sparse(
    reader: _Reader, shape: tuple[int, ...], values: Array, indices: list[Array], what: str, start: int
) -> Any:
    (rows,) = indices
    row_per_index = shape != () and values.shape == (*rows.shape, *shape[1:])
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not row_per_index:
        description = f"{rows.shape} indices of {rows.dtype} with values of shape {values.shape}"
        raise reader.error(f"row_sparse {what} of shape {shape}, a row of values for each index", description, start)
    if not _in_range(rows, shape[0]):
        raise reader.error(f"row indices of {what} below {shape[0]}", f"{rows.min()}..{rows.max()}", start)
    if reader.keep_sparse:
        return SparseParts(shape, values, (rows.astype(np.int64, copy=False),))
    dense = reader.zeros(values.dtype, shape, f"row_sparse {what}")
    dense[rows] = values
    return dense


def _build_csr(
    reader: _Reader, shape: tuple[int, ...], values: Array, indices: list[Array], what: str, start: int
) -> Any:
    pointers, columns = indices
    if values.size == 0 and len(shape) == 2:  # MXNet omits the pointers of an array without values
        if reader.keep_sparse:
            return SparseParts(shape, values, (np.zeros(shape[0] + 1, np.int64), np.empty(0, np.int64)))
        return reader.zeros(values.dtype, shape, f"csr {what}")
    if (
        len(shape) != 2
        or values.ndim != 1
        or values.shape != columns.shape
        or pointers.shape != (shape[0] + 1,)
        or pointers.dtype.kind not in "iu"
        or columns.dtype.kind not in "iu"
    ):
        description = f"{pointers.shape} pointers, {columns.shape} columns, {values.shape} values"
        raise reader.error(f"csr {what} of shape {shape}, with a column for each value", description, start)
    is_ascending = bool(np.all(pointers[1:] >= pointers[:-1]))
    if not is_ascending or pointers[0] != 0 or pointers[-1] != len(columns):
        raise reader.error(f"ascending row pointers of {what} from 0 to {len(columns)}", "other pointers", start)
    if not _in_range(columns, shape[1]):
        description = f"{columns.min()}..{columns.max()}"
        raise reader.error(f"column indices of {what} below {shape[1]}", description, start)
    if reader.keep_sparse:
        return SparseParts(shape, values, tuple(array.astype(np.int64, copy=False) for array in (pointers, columns)))
    dense = reader.zeros(values.dtype, shape, f"csr {what}")
    counts = (pointers[1:] - pointers[:-1]).astype(np.int64)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def _in_range(indices: Array, count: int) -> bool:
    return indices.size == 0 or (int(indices.min()) >= 0 and int(indices.max()) < count)
