"""PyTorch's files (``torch.save``, 1.6 and newer): a zip with a pickle, and the elements of each tensor beside it.

A pickle may call anything. This one may call what `_KNOWN` lists, which builds tensors and dicts; all else is refused
by name. No torch is needed.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from flowmx.serialization.reading import Array, FileFormatError, read_whole

__all__ = ["TorchFormatError", "load", "loads"]

_SHARED = 16  # parameters may share memory: so many times the file's size may be read
_NOTES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_DTYPES = {
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "BoolStorage": np.dtype(np.uint8),  # not every byte is a bool
    "ByteStorage": np.dtype(np.uint8),
    "CharStorage": np.dtype(np.int8),
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "IntStorage": np.dtype("<i4"),
    "LongStorage": np.dtype("<i8"),
    "ShortStorage": np.dtype("<i2"),
}


class TorchFormatError(FileFormatError):
    """A file is no state dict of PyTorch's; says what was expected and what was found."""


class _Kind(NamedTuple):
    """An element type, in the place of torch's storage classes."""

    name: str


def _tensor(
    elements: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, hooks: Any = None, *more: Any
) -> Array:
    """In the place of ``torch._utils._rebuild_tensor_v2``: a part of a storage."""
    numbers = (offset, *size, *stride)
    if not isinstance(elements, np.ndarray) or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(f"a tensor of offset {offset!r}, shape {size!r} and strides {stride!r}")
    if len(size) != len(stride) or len(size) > 32:
        raise ValueError(f"a tensor of shape {size} and strides {stride}")
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(elements):
        raise ValueError(f"a tensor of shape {size}, strides {stride} and offset {offset} in {len(elements)} elements")
    if math.prod(size) > len(elements):
        raise ValueError(f"a tensor of shape {size}, larger than its {len(elements)} elements")
    bytes_of = [step * elements.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(elements[offset:], size, bytes_of)


def _parameter(data: Any, requires_grad: Any = True, hooks: Any = None, *more: Any) -> Any:
    """In the place of ``torch._utils._rebuild_parameter``."""
    return data


class _Call:
    """One of these functions, without the attributes by which a pickle could change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a state for a function")


class _OrderedDict(OrderedDict[Any, Any]):
    """A dict whose attributes (torch keeps ``_metadata`` there) are dropped."""

    def __setstate__(self, state: Any) -> None:
        pass


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Call(_tensor),
    ("torch._utils", "_rebuild_parameter"): _Call(_parameter),
    **{("torch", name): _Kind(name) for name in _DTYPES},
}


def _check_notes(content: bytes) -> None:
    """Refuse numbers of notes beyond the file's size: the unpickler makes room for all numbers below."""
    for opcode, number, _ in pickletools.genops(content):
        if opcode.name in _NOTES and not (isinstance(number, int) and 0 <= number <= len(content)):
            raise ValueError(f"a note with the number {number}")


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: zipfile.ZipFile, top: str) -> None:
        content = file.read(f"{top}data.pkl")
        _check_notes(content)
        super().__init__(io.BytesIO(content))
        self._file, self._top = file, top
        self._storages: dict[str, Array] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Array:
        if not isinstance(pid, tuple) or len(pid) != 5 or pid[0] != "storage" or not isinstance(pid[1], _Kind):
            raise ValueError(f"a storage {pid!r:.80}")
        key = pid[2]
        if not isinstance(key, str) or not key.isdigit():
            raise ValueError(f"a storage called {key!r:.80}")
        if key not in self._storages:
            dtype = _DTYPES[pid[1].name]
            content = bytearray(self._file.read(f"{self._top}data/{key}"))
            elements = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
            if pid[1].name == "BoolStorage":
                elements = elements != 0
            self._storages[key] = elements
        return self._storages[key]


def load(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Read a file, as :func:`loads` does.

    Raises:
        TorchFormatError: the file is damaged, or holds more than a state dict.
        OSError: the file can not be read.
    """
    return loads(read_whole(path), source=os.fspath(path))


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>") -> dict[str, Array]:
    """The tensors of a state dict by name, in its order; those of dicts in it as ``outer.inner``.

    Numbers, texts and None beside the tensors (an epoch, an optimizer's settings) are left out.

    Args:
        data: the file's content.
        source: what errors call the file.

    Raises:
        TorchFormatError: the data is damaged, or holds more than tensors, dicts, lists and plain values.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            _check(file, len(data))
            names = [name for name in file.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(names) != 1:
                raise TorchFormatError(source, 0, "a file of torch.save, with one data.pkl", f"{file.namelist()[:5]}")
            top = names[0].removesuffix("data.pkl")
            if f"{top}byteorder" in file.namelist() and file.read(f"{top}byteorder") != b"little":
                raise TorchFormatError(source, 0, "little-endian elements", "big-endian ones")
            found = _Unpickler(file, top).load()
    except pickle.UnpicklingError as error:
        raise TorchFormatError(
            source, 0, "tensors and dicts alone",
            f"{error}, which is not called, since a file could run anything by it: in torch, save "
            "model.state_dict() in the place of the model",
        ) from None  # fmt: skip
    except FileFormatError:
        raise
    except Exception as error:  # whatever a damaged pickle or zip leads to
        raise TorchFormatError(source, 0, "a state dict of PyTorch's", f"{type(error).__name__}: {error}") from None
    if not isinstance(found, dict):
        raise TorchFormatError(source, 0, "a dict of tensors (a state dict)", type(found).__name__)
    try:
        return dict(_tensors(found, "", _Budget(len(data))))
    except ValueError as error:
        raise TorchFormatError(source, 0, "a state dict of PyTorch's", str(error)) from None


def _check(file: zipfile.ZipFile, size: int) -> None:
    """Refuse what unpacks to more than the file: torch does not compress."""
    for info in file.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
            raise ValueError(f"{info.filename} is compressed, which torch.save never does")


class _Budget:
    """The room of a file of some size, so that references to one thing many times do not fill the memory."""

    def __init__(self, size: int) -> None:
        self._entries, self._bytes = size, _SHARED * size

    def take(self, count: int) -> None:
        """Count an entry, and the bytes of its copy."""
        self._entries -= 1
        self._bytes -= count
        if min(self._entries, self._bytes) < 0:
            raise ValueError("more tensors than the file has room for")


def _tensors(found: dict[Any, Any], prefix: str, budget: _Budget, depth: int = 0) -> Iterator[tuple[str, Array]]:
    if depth > 20:
        raise ValueError("dicts in dicts more than 20 deep")
    for name, value in found.items():
        budget.take(value.nbytes if isinstance(value, np.ndarray) else 0)
        if isinstance(value, np.ndarray):
            yield f"{prefix}{name}", value.copy()  # tied weights are one storage in the file, and two arrays here
        elif isinstance(value, dict):
            yield from _tensors(value, f"{prefix}{name}.", budget, depth + 1)
