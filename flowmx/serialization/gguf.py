"""The GGUF format of language models: metadata, and tensors whose weights may be quantized.

All numbers are little-endian. A file is::

    "GGUF", uint32 version (2 or 3)
    uint64     number of tensors
    uint64     number of metadata entries
    entries    name, uint32 type, value
    tensors    name, uint32 number of dimensions, uint64 sizes (the last axis first), uint32 type, uint64 offset
    padding    to a multiple of general.alignment (32 by default), as after each tensor's data
    the rest   the tensors' data at their offsets

A name or text is a uint64 length and UTF-8. An array is a uint32 type, a uint64 count and the values.

`load` maps the file into memory, so that tensors are read when they are used. While it is in use, another program must
neither change nor truncate the file; `save` replaces an existing file, whose maps keep the old content.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from flowmx.errors import DataError, ShapeError
from flowmx.ops.quantization.block_formats import FORMATS
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Shape
from flowmx.serialization.atomic import read_from, supersede_file
from flowmx.serialization.reading import FileFormatError, Reader, file_size, in_memory, little_endian

__all__ = ["MAGIC", "GGUFFile", "GGUFFormatError", "GGUFTensor", "Value", "dumps", "load", "loads", "save"]

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_TENSORS = 1 << 16
"""Maximum number of tensors. Large models have thousands."""
_MAX_VALUES = 1 << 13
"""Maximum number of metadata entries, and of arrays in arrays. Models have tens."""
_MAX_DEPTH = 4
"""Maximum depth of arrays in arrays."""

Value: TypeAlias = "bool | int | float | str | Array | Sequence[Value]"
"""A value of the metadata. Arrays of numbers are NumPy arrays, other arrays are lists."""


class _Layout(NamedTuple):
    """The storage of a type of tensors: the name, the values of a block, and the block's size in bytes."""

    name: str
    values: int
    nbytes: int


_LAYOUTS = {
    0: _Layout("F32", 1, 4), 1: _Layout("F16", 1, 2), 2: _Layout("Q4_0", 32, 18), 3: _Layout("Q4_1", 32, 20),
    6: _Layout("Q5_0", 32, 22), 7: _Layout("Q5_1", 32, 24), 8: _Layout("Q8_0", 32, 34), 9: _Layout("Q8_1", 32, 40),
    10: _Layout("Q2_K", 256, 84), 11: _Layout("Q3_K", 256, 110), 12: _Layout("Q4_K", 256, 144),
    13: _Layout("Q5_K", 256, 176), 14: _Layout("Q6_K", 256, 210), 15: _Layout("Q8_K", 256, 292),
    16: _Layout("IQ2_XXS", 256, 66), 17: _Layout("IQ2_XS", 256, 74), 18: _Layout("IQ3_XXS", 256, 98),
    19: _Layout("IQ1_S", 256, 50), 20: _Layout("IQ4_NL", 32, 18), 21: _Layout("IQ3_S", 256, 110),
    22: _Layout("IQ2_S", 256, 82), 23: _Layout("IQ4_XS", 256, 136), 24: _Layout("I8", 1, 1),
    25: _Layout("I16", 1, 2), 26: _Layout("I32", 1, 4), 27: _Layout("I64", 1, 8), 28: _Layout("F64", 1, 8),
    29: _Layout("IQ1_M", 256, 56), 30: _Layout("BF16", 1, 2), 34: _Layout("TQ1_0", 256, 54),
    35: _Layout("TQ2_0", 256, 66), 39: _Layout("MXFP4", 32, 17),
}  # fmt: skip
_NUMBERS = {layout.name: number for number, layout in _LAYOUTS.items()}
_PLAIN = {name: np.dtype(dtype) for name, dtype in
          {"I8": "i1", "I16": "i2", "I32": "i4", "I64": "i8", "F64": "f8"}.items()}  # fmt: skip
"""Types of tensors that are no block formats."""
_NAMES: dict[DType, str] = {
    **{dtype: name for name, dtype in _PLAIN.items()},
    np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(ml_dtypes.bfloat16): "BF16",
}  # fmt: skip

_UINT32, _INT32, _FLOAT32, _TEXT, _ARRAY, _UINT64, _INT64, _FLOAT64 = 4, 5, 6, 8, 9, 10, 11, 12
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", _UINT32: "I", _INT32: "i", _FLOAT32: "f", 7: "?", _UINT64: "Q", _INT64: "q",
    _FLOAT64: "d",
}  # fmt: skip
"""The types of numbers in the metadata, as characters of :mod:`struct` and NumPy."""
_SCALAR_TYPES = {np.dtype(character): number for number, character in _SCALARS.items()}


class GGUFFormatError(FileFormatError):
    """A file is not a valid GGUF file."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """A tensor of a file.

    Attributes:
        name: Its name.
        shape: Its shape, in NumPy's order: of a weight, (outputs, inputs).
        format: Its type: "F32", "BF16", "Q4_K" and so on. `flowmx.ops.quantization.block_formats` computes with some.
        data: Its bytes, uint8 (rows, bytes of a row), where a row is one vector along the last axis.
    """

    name: str
    shape: Shape
    format: str
    data: Array

    @classmethod
    def quantize(cls, name: str, values: npt.ArrayLike, format: str) -> GGUFTensor:
        """Return a tensor with values in a format, such as "Q8_0".

        Raises:
            DataError: The format is unknown, or its blocks do not fit the last axis.
        """
        if format not in FORMATS:
            raise DataError(f"tensor {name!r}: format is {format!r}, expected one of {', '.join(FORMATS)}")
        array = np.asarray(values, np.float32)
        rows = array.reshape(math.prod(array.shape[:-1]), array.shape[-1] if array.ndim else 1)
        try:
            return cls(name, array.shape, format, FORMATS[format].quantize(rows))
        except ValueError as error:
            raise DataError(f"tensor {name!r}: {error}") from None

    def to_numpy(self) -> Array:
        """Return the values: integers and float64 in their dtype, all else as float32. The array is a copy.

        Raises:
            DataError: The format is not supported.
        """
        if self.format in _PLAIN:
            return self.data.copy().view(_PLAIN[self.format].newbyteorder("<")).reshape(self.shape)
        if self.format not in FORMATS:
            supported = ", ".join([*FORMATS, *_PLAIN])
            raise DataError(f"tensor {self.name!r} is in {self.format}, which is not supported; expected {supported}")
        values = FORMATS[self.format].dequantize(self.data).reshape(self.shape)
        is_view = np.may_share_memory(values, self.data) or not values.flags.writeable
        return values.copy() if is_view else values


class GGUFFile(NamedTuple):
    """The content of a file.

    Attributes:
        metadata: The values by name. Arrays of numbers are NumPy arrays, arrays of texts are lists.
        tensors: The tensors by name, in the file's order.
    """

    metadata: dict[str, Value]
    tensors: dict[str, GGUFTensor]


def load(path: str | os.PathLike[str]) -> GGUFFile:
    """Read a file's metadata, and map its tensors.

    A file may be split into parts: pass the first one, such as ``NAME-00001-of-00003.gguf``. The others are read from
    the same folder.

    Raises:
        GGUFFormatError: The file is damaged, big-endian, or not a GGUF file of version 2 or 3.
        DataError: The file is a part that is not the first, or the parts do not belong together.
        OSError: The file, or another part, cannot be read.
    """
    first, source = _load_part(path), os.fspath(path)
    count = first.metadata.get("split.count", 0)
    if not isinstance(count, int) or count < 2:
        return first
    return _joined(first, source, count)


def _joined(first: GGUFFile, source: str, count: int) -> GGUFFile:
    """Return a file with the tensors of all parts, of which the first one has been read."""
    name = re.fullmatch(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)", source, re.DOTALL)
    if name is None or int(name[4]) != count or first.metadata.get("split.no") != int(name[2]) - 1:
        raise DataError(
            f"{source} is part {first.metadata.get('split.no')} (from 0) of {count}, expected the name "
            f"NAME-NUMBER-of-{count:05}.gguf with the number of the part, from 00001"
        )
    if name[2] != "00001":
        raise DataError(f"{source} is not the first part: pass {name[1]}00001{name[3]}")
    tensors = dict(first.tensors)
    for number in range(1, count):
        part_source = f"{name[1]}{number + 1:05}{name[3]}"
        part = _load_part(part_source)
        if part.metadata.get("split.no") != number or part.metadata.get("split.count") != count:
            raise DataError(f"{part_source} is not part {number} (from 0) of {count}, as its name says")
        if twice := tensors.keys() & part.tensors:
            raise DataError(f"{part_source}: the tensor {min(twice)!r} is also in an earlier part")
        tensors |= part.tensors
    expected = first.metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise DataError(f"{source}: the parts have {len(tensors)} tensors, expected {expected}")
    return GGUFFile(first.metadata, tensors)


def _load_part(path: str | os.PathLike[str]) -> GGUFFile:
    """Read one file."""
    return read_from(path, lambda file: loads(_mapped(file, path), source=os.fspath(path)))


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> GGUFFile:
    """Return the content of a file. Tensors are views of `data`.

    Args:
        data: The content of the file.
        source: The name of the file in errors.

    Raises:
        GGUFFormatError: As for `load`.
    """
    return _read(_Reader(memoryview(data).cast("B"), source))


def save(path: str | os.PathLike[str], metadata: Mapping[str, Value],
         tensors: Mapping[str, npt.ArrayLike | GGUFTensor]) -> None:  # fmt: skip
    """Write a file of version 3 atomically. An existing file is replaced: programs that map it keep its content.

    Args:
        path: The file.
        metadata: The values by name. An int is saved as uint32 if it fits, else as int32, uint64 or int64, a float as
            float32; a NumPy scalar or array keeps its dtype. A list has values of one type, and ints in it are int32 if
            they fit.
        tensors: The tensors by name: `GGUFTensor`, or arrays of float32, float16, bfloat16, float64, or int8 to int64.

    Raises:
        TypeError: The format does not support a value, or a dtype.
        ValueError: A value is out of range, or a tensor has too many dimensions.
        OSError: The file cannot be written.
    """
    supersede_file(path, _chunks(metadata, tensors))


def dumps(metadata: Mapping[str, Value], tensors: Mapping[str, npt.ArrayLike | GGUFTensor]) -> bytes:
    """Return the bytes that `save` writes, with the same errors."""
    return b"".join(_chunks(metadata, tensors))


# -- reading ---------------------------------------------------------------------------------------------------


def _mapped(file: BinaryIO, path: str | os.PathLike[str]) -> memoryview:
    """Return a file's content, mapped; the content of a pipe is read."""
    if not file_size(file.fileno(), path):  # an empty file cannot be mapped
        return memoryview(file.read())
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Info(NamedTuple):
    """The description of a tensor: its data lie from `begin` to `end` after the header."""

    name: str
    shape: Shape
    layout: _Layout
    begin: int
    end: int
    where: int


class _Reader(Reader):
    Error = GGUFFormatError

    def __init__(self, data: memoryview, name: str) -> None:
        super().__init__(*in_memory(data, name))
        self.data = data
        self.values = 0

    def fill(self, buffer: memoryview, what: str) -> None:
        buffer[:] = self.data[self.offset : self.offset + len(buffer)]
        self.offset += len(buffer)

    def count(self, what: str, minimum: int, limit: int) -> int:
        """Read a number of items that take at least `minimum` bytes each."""
        start, count = self.offset, self.number("Q", f"the number of {what}")
        if count > (limit := min(limit, self.remaining // minimum)):
            raise self.error(f"at most {limit} {what}", count, start)
        return count

    def texts(self, count: int, what: str) -> list[str]:
        """Read texts. Vocabularies have hundreds of thousands."""
        data, offset, end, unpack = self.data, self.offset, len(self.data), struct.Struct("<Q").unpack_from
        texts = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + unpack(data, offset)[0]
                if offset > end:
                    self.offset = start
                    self.need(offset - start, what)
                texts.append(str(data[start:offset], "utf-8"))
        except UnicodeDecodeError:
            raise self.error(f"{what} in UTF-8", bytes(data[start : start + 80]), start) from None
        except struct.error:
            self.offset = offset
            self.need(8, f"the length of {what}")
        self.offset = offset
        return texts

    def name(self, what: str, names: Mapping[str, object]) -> str:
        """Read a name that differs from others."""
        start = self.offset
        (name,) = self.texts(1, f"the name of a {what}")
        if name in names:
            raise self.error(f"another name for each {what}", f"{name[:80]!r} twice", start)
        return name

    def value(self, kind: int, what: str, depth: int = 0) -> Value:
        """Read a value of a type."""
        self.values += 1
        if self.values > _MAX_VALUES:
            raise self.error(f"at most {_MAX_VALUES} values and arrays of metadata", "more")
        if kind == _ARRAY:
            return self.array_of(self.number("I", f"the type of {what}"), what, depth)
        if kind == _TEXT:
            return self.texts(1, what)[0]
        number: bool | int | float = self.number(self.scalar(kind, what), what)
        return np.float64(number) if kind == _FLOAT64 else number  # a float that is saved with its type

    def array_of(self, kind: int, what: str, depth: int) -> Value:
        """Read an array of values of a type."""
        if kind == _ARRAY:
            if depth == _MAX_DEPTH:
                raise self.error(f"{what} of at most {_MAX_DEPTH} levels of arrays", "more")
            count = self.count(f"arrays in {what}", 12, _MAX_VALUES)
            return [self.value(_ARRAY, what, depth + 1) for _ in range(count)]
        if kind == _TEXT:
            return self.texts(self.count(f"texts in {what}", 8, self.remaining), what)
        dtype = np.dtype(self.scalar(kind, what))
        return self.array(dtype, (self.count(f"numbers in {what}", dtype.itemsize, self.remaining),), what)

    def scalar(self, kind: int, what: str) -> str:
        """Return the character of a type that was read."""
        if kind not in _SCALARS:
            raise self.error(f"{what} of a type from 0 to {_FLOAT64}", kind, self.offset - 4)
        return _SCALARS[kind]


def _read(reader: _Reader) -> GGUFFile:
    _check_version(reader)
    count = reader.count("tensors", 24, _MAX_TENSORS)
    metadata: dict[str, Value] = {}
    for _ in range(reader.count("metadata entries", 13, _MAX_VALUES)):
        name = reader.name("metadata entry", metadata)
        what = f"metadata {name[:80]!r}"
        metadata[name] = reader.value(reader.number("I", f"the type of {what}"), what)
    alignment = _alignment(reader, metadata)
    infos: dict[str, _Info] = {}
    for _ in range(count):
        name = reader.name("tensor", infos)
        infos[name] = _info(reader, name, alignment)
    start = _padded(reader.offset, alignment)
    _check_places(reader, infos.values(), start)
    data = np.frombuffer(reader.data, np.uint8)
    return GGUFFile(metadata, {name: _tensor(info, data[start:]) for name, info in infos.items()})


def _check_version(reader: _Reader) -> None:
    magic = reader.read(min(4, reader.remaining), "the magic")
    if magic != MAGIC:
        older = magic[::-1] in (b"ggml", b"ggmf", b"ggjt", b"ggla")
        hint = " of an older format: convert the original model again" if older else ""
        raise reader.error(f"a GGUF file, which starts with {MAGIC!r}", f"{magic!r}{hint}", 0)
    version = reader.number("I", "the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        actual = "a big-endian file: convert it to little-endian" if swapped in _VERSIONS else str(version)
        raise reader.error("a little-endian GGUF file of version 2 or 3", actual, 4)


def _alignment(reader: _Reader, metadata: Mapping[str, Value]) -> int:
    value = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if type(value) is not int or value < 1 or value & (value - 1):
        raise reader.error(f"{_ALIGNMENT}, a power of two", repr(value)[:80])
    return value


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _info(reader: _Reader, name: str, alignment: int) -> _Info:
    what, where = f"tensor {name[:80]!r}", reader.offset
    ndim = reader.number("I", f"the number of dimensions of {what}")
    if ndim > _MAX_DIMENSIONS:
        raise reader.error(f"{what} of at most {_MAX_DIMENSIONS} dimensions", ndim, where)
    shape = reader.numbers(f"{ndim}Q", f"the shape of {what}")[::-1]
    number, begin = reader.numbers("IQ", f"the type and offset of {what}")
    if number not in _LAYOUTS:
        raise reader.error(f"{what} of a type among {', '.join(_NUMBERS)}", f"type {number}", where)
    if begin % alignment:
        raise reader.error(f"{what} at a multiple of {alignment} bytes", f"offset {begin}", where)
    layout, columns = _LAYOUTS[number], shape[-1] if shape else 1
    if columns % layout.values:
        expected = f"{what} of {layout.name} with rows of a multiple of {layout.values} values"
        raise reader.error(expected, f"rows of {columns}", where)
    reader.check_size(np.dtype(np.float64), shape, what)
    size = math.prod(shape) // layout.values * layout.nbytes
    return _Info(name, shape, layout, begin, begin + size, where)


def _check_places(reader: _Reader, infos: Iterable[_Info], start: int) -> None:
    """Check that tensors lie inside the file, and do not overlap."""
    size, previous = len(reader.data) - start, ("", 0)
    for info in sorted(infos, key=lambda info: (info.begin, info.end)):
        what = f"tensor {info.name[:80]!r}"
        if info.end > size:
            raise reader.error(f"{what}, {info.end - info.begin} bytes at {start + info.begin}, inside the file",
                               f"a file of {len(reader.data)} bytes", info.where)  # fmt: skip
        if info.begin < previous[1]:
            expected = f"{what} after tensor {previous[0][:80]!r}, from offset {previous[1]} on"
            raise reader.error(expected, f"offset {info.begin}", info.where)
        previous = info.name, info.end


def _tensor(info: _Info, data: Array) -> GGUFTensor:
    columns = info.shape[-1] if info.shape else 1
    rows = (math.prod(info.shape[:-1]), columns // info.layout.values * info.layout.nbytes)
    return GGUFTensor(info.name, info.shape, info.layout.name, data[info.begin : info.end].reshape(rows))


# -- writing ---------------------------------------------------------------------------------------------------


def _chunks(
    metadata: Mapping[str, Value], tensors: Mapping[str, npt.ArrayLike | GGUFTensor]
) -> Iterator[bytes | memoryview]:
    """Yield the file in pieces."""
    stored = {name: _storable(name, tensor) for name, tensor in tensors.items()}
    alignment = metadata.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise DataError(f"{_ALIGNMENT} is {alignment!r}, expected a power of two of at most {1 << 20}")
    header = [MAGIC, struct.pack("<IQQ", _VERSIONS[-1], len(stored), len(metadata))]
    header += [_text(name) + _entry(name, value) for name, value in metadata.items()]
    offset = 0
    for name, tensor in stored.items():
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        header.append(_text(name) + sizes + struct.pack("<IQ", _NUMBERS[tensor.format], offset))
        offset = _padded(offset + tensor.data.nbytes, alignment)
    length = sum(map(len, header))
    yield b"".join(header) + bytes(-length % alignment)
    for tensor in stored.values():
        yield little_endian(tensor.data)
        yield bytes(-tensor.data.nbytes % alignment)


def _storable(name: str, tensor: npt.ArrayLike | GGUFTensor) -> GGUFTensor:
    """Return a tensor to write, checked."""
    if not isinstance(tensor, GGUFTensor):
        array = np.asarray(tensor)
        dtype = array.dtype.newbyteorder("=")
        if dtype not in _NAMES:
            raise TypeError(f"tensor {name!r}: GGUF does not support dtype {array.dtype}, expected one of "
                            f"{', '.join(map(str, _NAMES))}")  # fmt: skip
        data = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        rows = data.reshape(math.prod(array.shape[:-1]), -1) if array.size else data.reshape(0, 1)
        tensor = GGUFTensor(name, array.shape, _NAMES[dtype], rows.view(np.uint8))
    if len(tensor.shape) > _MAX_DIMENSIONS:
        raise ShapeError(f"tensor {name!r} has shape {tensor.shape}, expected at most {_MAX_DIMENSIONS} dimensions")
    if tensor.format not in _NUMBERS:
        raise DataError(f"tensor {name!r} has format {tensor.format!r}, expected one of {', '.join(_NUMBERS)}")
    layout = _LAYOUTS[_NUMBERS[tensor.format]]
    size = math.prod(tensor.shape) // layout.values * layout.nbytes
    if tensor.data.dtype != np.uint8 or tensor.data.nbytes != size:
        raise DataError(f"tensor {name!r} of shape {tensor.shape} and format {tensor.format} has "
                        f"{tensor.data.nbytes} bytes of {tensor.data.dtype}, expected {size} of uint8")  # fmt: skip
    return tensor


def _text(text: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"GGUF: {text!r} is a name or value of type {type(text).__name__}, expected a str")
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _entry(name: str, value: Value) -> bytes:
    kind, content = _packed(name, value)
    return struct.pack("<I", kind) + content


def _packed(name: str, value: Value) -> tuple[int, bytes]:
    """Return the type and the bytes of a value."""
    if isinstance(value, str):
        return _TEXT, _text(value)
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise TypeError(f"metadata {name!r} has an array of shape {value.shape}, expected one dimension")
        kind = _scalar_type(name, value.dtype)
        return _ARRAY, struct.pack("<IQ", kind, len(value)) + bytes(little_endian(value))
    if isinstance(value, list | tuple):
        return _ARRAY, _packed_list(name, value)
    scalar = _scalar(name, value)
    return _scalar_type(name, scalar.dtype), bytes(little_endian(scalar))


def _packed_list(name: str, values: Sequence[Value]) -> bytes:
    """Return an array of texts, of arrays, or of numbers."""
    if values and not isinstance(values[0], str | list | tuple | np.ndarray):
        small = all(type(each) is int and -(1 << 31) <= each < 1 << 31 for each in values)
        numbers = np.array(values, np.int32 if small else None)
        return _packed(name, numbers.astype(np.float32) if numbers.dtype == np.float64 else numbers)[1]
    items = [_packed(name, value) for value in values]
    kinds = {kind for kind, _ in items} or {_TEXT}
    if len(kinds) > 1:
        raise TypeError(f"metadata {name!r} is a list of several types, expected values of the same type")
    return struct.pack("<IQ", kinds.pop(), len(items)) + b"".join(content for _, content in items)


def _scalar(name: str, value: Any) -> Array:
    """Return a number with the dtype in which it is saved."""
    if type(value) is float:
        return np.asarray(value, np.float32)
    if type(value) is int:
        for kind in (_UINT32, _INT32, _UINT64, _INT64):
            limits = np.iinfo(_SCALARS[kind])
            if limits.min <= value <= limits.max:
                return np.asarray(value, _SCALARS[kind])
        raise ValueError(f"metadata {name!r} is {value}, expected an integer of 64 bits")
    return np.asarray(value)


def _scalar_type(name: str, dtype: DType) -> int:
    number = _SCALAR_TYPES.get(dtype.newbyteorder("="))
    if number is None:
        raise TypeError(f"metadata {name!r} is of type {dtype}, expected numbers, texts, or lists of them")
    return number
