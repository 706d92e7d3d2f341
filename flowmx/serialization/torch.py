"""PyTorch's state dicts (``torch.save``, 1.6 and newer): a zip with a pickle and the elements of each tensor.

A pickle can call any function. Here it can only call those in `_FUNCTIONS`, which build tensors and dicts; other calls
raise an error that names the function. PyTorch is not required.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from flowmx.ops.registry.operators import Array
from flowmx.serialization import plain_pickle
from flowmx.serialization.archives import Archive, NewArchive, read_entry
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.numpy_files import as_dense
from flowmx.serialization.plain_pickle import Name, ObjectRecord
from flowmx.serialization.reading import FileFormatError, read_large
from flowmx.shape_limits import ShapeError, read_shape

__all__ = ["TorchFormatError", "load", "loads", "save"]

_MAX_SHARING = 16  # parameters may share memory: the limit on the size of all tensors is this multiple of the file size
_DTYPES = {
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "BoolStorage": np.dtype(np.uint8),  # bytes may have values other than 0 and 1
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "IntStorage": np.dtype("<i4"),
    "LongStorage": np.dtype("<i8"),
    "ShortStorage": np.dtype("<i2"),
}


_STORAGES = {dtype: name for name, dtype in _DTYPES.items() if name != "BoolStorage"} | {np.dtype(bool): "BoolStorage"}


class TorchFormatError(FileFormatError):
    """A file is not a valid state dict of PyTorch."""


def _tensor(
    elements: object,
    offset: object,
    size: object,
    stride: object,
    requires_grad: object = False,
    hooks: object = None,
    *extra: object,
) -> Array:
    """Return a view of a storage, as ``torch._utils._rebuild_tensor_v2``."""
    if not isinstance(elements, np.ndarray):
        raise ValueError(f"a tensor over a {type(elements).__name__}")
    try:
        size = read_shape(size, elements.itemsize)
    except ShapeError as error:
        raise ValueError(f"a tensor whose shape {error}") from None
    if not isinstance(stride, tuple) or len(stride) != len(size) or not all(map(_is_step, (offset, *stride))):
        raise ValueError(f"a tensor of shape {size} with invalid strides or offset")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(elements):
        raise ValueError(f"a tensor of shape {size}, strides {stride} and offset {offset} in {len(elements)} elements")
    if math.prod(size) > len(elements):
        raise ValueError(f"a tensor of shape {size}, larger than its {len(elements)} elements")
    byte_strides = [step * elements.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(elements[offset:], size, byte_strides)


def _is_step(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _parameter(data: object, requires_grad: object = True, hooks: object = None, *extra: object) -> Any:
    """Return the data of a parameter, as ``torch._utils._rebuild_parameter``."""
    return data


def _ordered_dict(*items: object) -> dict[object, Any]:
    """Return an empty dict, which the pickle fills. Its attributes, such as ``_metadata``, are dropped."""
    if items:
        raise ValueError("an OrderedDict with arguments")
    return {}


_FUNCTIONS: dict[Name, Callable[..., object]] = {
    Name("collections", "OrderedDict"): _ordered_dict,
    Name("torch._utils", "_rebuild_tensor_v2"): _tensor,
    Name("torch._utils", "_rebuild_parameter"): _parameter,
}


class _Storages:
    """The storages of an archive, read on demand."""

    def __init__(self, file: Archive, top: str) -> None:
        self._file, self._top = file, top
        self._arrays: dict[str, Array] = {}

    def find(self, identifier: object) -> Array:
        """Return the elements of the storage with a persistent identifier."""
        match identifier:
            case ("storage", Name("torch", kind), str(key), _, _) if kind in _DTYPES and key.isdigit():
                return self._read(kind, key)
        raise ValueError("a persistent identifier that is not a storage")

    def _read(self, kind: str, key: str) -> Array:
        if key not in self._arrays:
            dtype = _DTYPES[kind]
            content = np.frombuffer(read_entry(self._file, f"{self._top}data/{key}"), np.uint8).copy()
            elements = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
            self._arrays[key] = elements != 0 if kind == "BoolStorage" else elements
        return self._arrays[key]


# -- writing -----------------------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], arrays: Mapping[str, npt.ArrayLike]) -> None:
    """Write a state dict that ``torch.load(path, weights_only=True)`` reads.

    Raises:
        TypeError: the arrays have no names, an array is sparse, or PyTorch does not support its dtype.
        OSError: the file cannot be written.
    """
    if not isinstance(arrays, Mapping):
        raise TypeError("save: a state dict of PyTorch needs names, expected a dict of arrays")
    with NewArchive() as archive:
        tensors = [_as_tensor(name, value) for name, value in arrays.items()]
        archive.add("archive/data.pkl", _pickle(dict(zip(arrays, tensors, strict=True))))
        archive.add("archive/byteorder", b"little")
        for number, value in enumerate(tensors):
            archive.add(f"archive/data/{number}", value)
        archive.add("archive/version", b"3\n")
    replace_file(path, archive.pieces)


def _as_tensor(name: str, value: object) -> Array:
    array = as_dense(name, value, "PyTorch's state dicts")
    if array.dtype not in _STORAGES:
        raise TypeError(
            f"save: {name!r} has dtype {array.dtype}, which PyTorch does not support; write a .safetensors file"
        )
    return array


def _pickle(tensors: Mapping[str, Array]) -> bytes:
    """Return the pickle (protocol 2) of a dict of tensors with separate storages."""
    items = b"".join(_text(name) + _rebuild_call(number, value) for number, (name, value) in enumerate(tensors.items()))
    return b"\x80\x02}(" + items + b"u."


def _rebuild_call(number: int, value: Array) -> bytes:
    """Return the call of ``_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)``."""
    kind = _name("torch", _STORAGES[value.dtype])
    storage = b"(" + _text("storage") + kind + _text(str(number)) + _text("cpu") + _int(value.size) + b"tQ"
    strides = [math.prod(value.shape[axis + 1 :]) for axis in range(value.ndim)]
    hooks = _name("collections", "OrderedDict") + b")R"
    arguments = storage + _int(0) + _ints(value.shape) + _ints(strides) + b"\x89" + hooks
    return _name("torch._utils", "_rebuild_tensor_v2") + b"(" + arguments + b"tR"


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _int(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def _ints(values: Iterable[int]) -> bytes:
    return b"(" + b"".join(map(_int, values)) + b"t"


# -- reading -----------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file, as :func:`loads`.

    Raises:
        TorchFormatError: the file is damaged, or is not a state dict.
        OSError: the file cannot be read.
    """
    return loads(read_large(path), source=os.fspath(path))


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """Return the tensors of a state dict by name, in order. Tensors in nested dicts are named ``outer.inner``.

    Other values, such as an epoch number or optimizer settings, are dropped.

    Args:
        data: the content of the file.
        source: the name of the file in errors.

    Raises:
        TorchFormatError: the data is damaged, or contains anything but tensors, dicts, lists and plain values.
    """
    try:
        with Archive(data) as file:
            _check(file, len(data))
            names = [name for name in file.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(names) != 1:
                raise TorchFormatError(source, 0, "a file of torch.save, with one data.pkl", f"{file.namelist()[:5]}")
            top = names[0].removesuffix("data.pkl")
            if f"{top}byteorder" in file.namelist() and file.read(f"{top}byteorder") != b"little":
                raise TorchFormatError(source, 0, "little-endian elements", "big-endian ones")
            content = plain_pickle.loads(file.read(f"{top}data.pkl"), _FUNCTIONS, _Storages(file, top).find)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle or zip can raise any exception
        raise TorchFormatError(source, 0, "a PyTorch state dict", f"{type(error).__name__}: {error}") from None
    try:
        if not isinstance(content, dict):
            _refuse_calls(content)
            raise TorchFormatError(source, 0, "a dict of tensors (a state dict)", type(content).__name__)
        return dict(_tensors(content, "", _Budget(len(data))))
    except _UnsupportedCall as error:
        raise TorchFormatError(
            source, 0, "only tensors and dicts",
            f"{error}, which is not called because a file could run any code: in torch, save "
            "model.state_dict() instead of the model",
        ) from None  # fmt: skip
    except ValueError as error:
        raise TorchFormatError(source, 0, "a PyTorch state dict", str(error)) from None


def _check(file: zipfile.ZipFile, size: int) -> None:
    """Reject entries that are larger than the file; torch does not compress."""
    for info in file.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
            raise ValueError(f"{info.filename} is compressed, which torch.save never does")


class _Budget:
    """The limits on the tensors of a file, so that many references to one storage do not fill the memory."""

    def __init__(self, size: int) -> None:
        self._entries, self._bytes = size, _MAX_SHARING * size

    def take(self, count: int) -> None:
        """Count an entry and the bytes of its copy."""
        self._entries -= 1
        self._bytes -= count
        if min(self._entries, self._bytes) < 0:
            raise ValueError("more tensors than a file of this size can have")


class _UnsupportedCall(ValueError):
    """A call of a function that is not in `_FUNCTIONS`."""


def _refuse_calls(value: object) -> None:
    if isinstance(value, ObjectRecord | Name):
        name = value.cls if isinstance(value, ObjectRecord) else value
        raise _UnsupportedCall(f"{name.module}.{name.name}")


def _tensors(
    content: Mapping[Any, object], prefix: str, budget: _Budget, depth: int = 0
) -> Iterator[tuple[str, Array]]:
    if depth > 20:
        raise ValueError("dicts nested more than 20 deep")
    for name, value in content.items():
        budget.take(value.nbytes if isinstance(value, np.ndarray) else 0)
        if isinstance(value, np.ndarray):
            yield f"{prefix}{name}", value.copy()  # tied weights share a storage in the file but become two arrays
        elif isinstance(value, ObjectRecord | Name):
            _refuse_calls(value)
        elif isinstance(value, dict):
            yield from _tensors(value, f"{prefix}{name}.", budget, depth + 1)
