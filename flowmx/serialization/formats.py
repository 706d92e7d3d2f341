"""Array files in any format: MXNet's ``.params``, safetensors, NumPy's, PyTorch's state dicts.

GGUF, the parameters of TVM, and the arrays in pickles are read too.

In safetensors a sparse array ``x`` is saved as the arrays ``x.data`` and ``x.indices``, and ``x.indptr`` for csr. The
metadata entry ``flowmx.sparse`` has the shapes: ``{"x": [3, 4]}``.
"""

from __future__ import annotations

import json
import operator
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy.typing as npt

from flowmx.errors import raised_as_mxnet
from flowmx.ops.registry.operators import Array
from flowmx.semantics import semantics
from flowmx.serialization import gguf, numpy_files, params, pickled_arrays, safetensors, torch, tvm_params
from flowmx.serialization.atomic import read_from
from flowmx.serialization.reading import read_large
from flowmx.serialization.suffixes import format_by_suffix

__all__ = ["Loaded", "is_array_file", "load", "loads", "save"]

Loaded: TypeAlias = dict[str, Array] | list[Array]


def save(path: str | os.PathLike[str], arrays: params.Arrays, format: str | None = None) -> None:
    """Write arrays to a file atomically.

    Args:
        path: The file.
        arrays: The arrays; safetensors needs names.
        format: ``"params"`` (MXNet's), ``"safetensors"``, ``"npz"``, ``"npy"`` or ``"torch"``; None chooses by the
            suffix of the file name.

    Raises:
        ValueError: The format is unknown, or the suffix belongs to an unsupported format.
        TypeError: The format does not support a dtype, or needs names.
        OSError: The file cannot be written.
    """
    format = format or format_by_suffix(path)
    if format == "params":
        # As in MXNet: under npx.set_np it reads and writes only arrays with NumPy shapes.
        params.save(path, arrays, np_shape=semantics.get().shape or None)
    elif format == "safetensors":
        safetensors.save(path, *_split_sparse(arrays))
    elif format in _DENSE_WRITERS:
        _DENSE_WRITERS[format](path, arrays)
    else:
        raise ValueError(
            f"save: format is {format!r}, expected one of 'params', 'safetensors', {str([*_DENSE_WRITERS])[1:-1]}"
        )


_DENSE_WRITERS: dict[str, Callable[[Any, Any], None]] = {
    "npz": numpy_files.save_npz,
    "npy": numpy_files.save_npy,
    "torch": torch.save,
}
"""The writers of formats without sparse arrays."""


@raised_as_mxnet(OSError)
def load(path: str | os.PathLike[str], *, keep_sparse: bool = False) -> Loaded:
    """Read a file of any format, detected from its content. Return a dict if the arrays have names, else a list.

    Args:
        path: The file.
        keep_sparse: Return sparse arrays as `params.SparseParts`. Otherwise those of `.params` files are converted to
            dense arrays, and those of safetensors files stay separate arrays.

    Raises:
        FileFormatError: The file is damaged, or its format is unknown.
        OSError: The file cannot be read.
    """
    if not Path(path).is_file():  # missing, or a pipe, which can be read only once
        return loads(read_large(path), source=os.fspath(path), keep_sparse=keep_sparse)
    start = read_from(path, lambda file: file.read(9))
    if _is_zip(start) or start.startswith(numpy_files.MAGIC):
        return loads(read_large(path), source=os.fspath(path))
    if start.startswith(gguf.MAGIC):
        return _dequantized(gguf.load(path))
    if _is_safetensors(start):
        if not keep_sparse:
            return safetensors.load(path)
        return _join_sparse(*safetensors.load_with_metadata(path), os.fspath(path))
    if start.startswith(tvm_params.MAGIC):
        return tvm_params.load(path)
    if start.startswith(_PICKLES):
        return pickled_arrays.loads(read_large(path), source=os.fspath(path))
    return params.load(path, keep_sparse=keep_sparse)


def is_array_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a file of arrays; zip files are only those of NumPy and PyTorch."""
    if not Path(path).is_file():
        return False
    start = read_from(path, lambda file: file.read(9))
    if _is_zip(start):
        return Path(path).suffix in (".npz", ".pt", ".pth", ".bin")
    return _is_safetensors(start) or start.startswith(
        (_PARAMS, numpy_files.MAGIC, gguf.MAGIC, tvm_params.MAGIC, *_PICKLES)
    )


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>", keep_sparse: bool = False) -> Loaded:
    """Read the content of a file of any format. Arguments and errors are those of `load`."""
    if _is_zip(bytes(data[:9])):
        read = numpy_files.loads_npz if numpy_files.is_npz(data) else torch.loads
        return read(data, source=source)
    if bytes(data[:9]).startswith(numpy_files.MAGIC):
        return [numpy_files.loads_npy(memoryview(data), source=source)]
    if bytes(data[:4]) == gguf.MAGIC:
        return _dequantized(gguf.loads(data, source=source))
    if _is_safetensors(bytes(data[:9])):
        arrays, texts = safetensors.loads_with_metadata(data, source=source)
        return _join_sparse(arrays, texts, source) if keep_sparse else arrays
    if bytes(data[:8]) == tvm_params.MAGIC:
        return tvm_params.loads(data, source=source)
    if bytes(data[:2]) in _PICKLES:
        return pickled_arrays.loads(memoryview(data), source=source)
    return params.loads(data, source=source, keep_sparse=keep_sparse)


_PARAMS = struct.pack("<Q", params.LIST_MAGIC)
_PICKLES = (b"\x80\2", b"\x80\3", b"\x80\4", b"\x80\5")
"""The first bytes of pickles of each protocol."""

_SPARSE = "flowmx.sparse"
_PARTS = {1: ("indices",), 2: ("indptr", "indices")}


def _split_sparse(arrays: params.Arrays) -> tuple[Mapping[str, npt.ArrayLike], dict[str, str] | None]:
    """Replace sparse arrays by their parts. Return the arrays and the metadata with the shapes."""
    if not isinstance(arrays, Mapping) or not any(isinstance(array, params.SparseParts) for array in arrays.values()):
        return cast(Mapping[str, npt.ArrayLike], arrays), None
    flat: dict[str, npt.ArrayLike] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in arrays.items():
        parts: dict[str, npt.ArrayLike]
        if isinstance(value, params.SparseParts):
            shapes[name] = value.shape
            indices = zip(_PARTS[len(value.indices)], value.indices, strict=True)
            parts = {f"{name}.data": value.data, **{f"{name}.{part}": array for part, array in indices}}
        else:
            parts = {name: value}
        for duplicate in parts.keys() & flat.keys():
            raise ValueError(
                f"save: two arrays would have the name {duplicate!r}, because sparse arrays are saved as their parts"
            )
        flat |= parts
    return flat, {_SPARSE: json.dumps(shapes)}


def _join_sparse(arrays: dict[str, Array], texts: Mapping[str, str], source: str) -> Loaded:
    """Replace the parts of sparse arrays by `params.SparseParts`."""
    if _SPARSE not in texts:
        return arrays
    joined: dict[str, Any] = dict(arrays)
    try:
        for name, lengths in json.loads(texts[_SPARSE]).items():
            shape = tuple(map(operator.index, lengths))
            if min(shape) < 0:
                raise ValueError(f"an array of shape {shape}")
            data, indices, indptr = (joined.pop(f"{name}.{part}", None) for part in ("data", "indices", "indptr"))
            if (
                data is None
                or indices is None
                or any(array is not None and array.dtype != "int64" for array in (indices, indptr))
            ):
                raise ValueError(f"{name!r} without data and indices of int64")
            joined[name] = params.SparseParts(shape, data, (indices,) if indptr is None else (indptr, indices))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise safetensors.SafetensorsFormatError(
            source, 8, f"the sparse arrays of the metadata entry {_SPARSE}", str(error)[:200]
        ) from None
    return joined


def _dequantized(content: gguf.GGUFFile) -> dict[str, Array]:
    return {name: tensor.to_numpy() for name, tensor in content.tensors.items()}


def _is_safetensors(start: bytes) -> bool:
    # Byte 8 of a safetensors file is the bracket of its header; in a .params file it is 0.
    return start[8:9] == b"{"


def _is_zip(start: bytes) -> bool:
    return start[:4] == b"PK\x03\x04"
