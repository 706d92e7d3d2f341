"""Files of arrays in any format: MXNet's ``.params``, safetensors, or PyTorch's (which are only read).

In safetensors a sparse array ``x`` is its parts, the arrays ``x.data`` and ``x.indices``, and ``x.indptr`` of csr; a
text beside the arrays, ``flowmx.sparse``, has the shapes: ``{"x": [3, 4]}``.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy.typing as npt

from flowmx.errors import raised_as_mxnet
from flowmx.semantics import semantics
from flowmx.serialization import params, safetensors, torch
from flowmx.serialization.reading import Array, read_whole

__all__ = ["Loaded", "load", "loads", "save"]

Loaded: TypeAlias = dict[str, Array] | list[Array]


def save(path: str | os.PathLike[str], arrays: params.Arrays, format: str | None = None) -> None:
    """Write arrays to a file, which is replaced as a whole or not at all.

    Args:
        path: The file.
        arrays: The arrays; safetensors needs names.
        format: ``"params"`` or ``"safetensors"``; None goes by the end of the file's name.

    Raises:
        ValueError: There is no such format.
        TypeError: The format has no such dtype, or needs names.
        OSError: The file cannot be written.
    """
    format = format_of(path, format)
    if format == "params":
        # As MXNet: in the mode of npx.set_np it reads and writes arrays of NumPy's shapes alone.
        params.save(path, arrays, np_shape=semantics.get().shape or None)
    elif format == "safetensors":
        safetensors.save(path, *_in_parts(arrays))
    else:
        raise ValueError(f"save: format is {format!r}, expected 'params' or 'safetensors'")


def format_of(path: str | os.PathLike[str], format: str | None) -> str:
    """The format that `save` writes."""
    return format or ("safetensors" if os.fspath(path).endswith(".safetensors") else "params")


@raised_as_mxnet(OSError)
def load(path: str | os.PathLike[str], *, keep_sparse: bool = False) -> Loaded:
    """Read a file of any of the formats, detected from its content: a dict if the arrays have names, else a list.

    Args:
        path: The file.
        keep_sparse: Return sparse arrays as `params.Stored`; otherwise those of `.params` are dense, and those of
            safetensors the arrays that they consist of.

    Raises:
        FileFormatError: The file is damaged, or of another format.
        OSError: The file cannot be read.
    """
    if not Path(path).is_file():  # missing, or a pipe, which can be read but once
        return loads(read_whole(path), source=os.fspath(path), keep_sparse=keep_sparse)
    with Path(path).open("rb") as file:
        start = file.read(9)
    if _is_torch(start):
        return torch.load(path)
    if _is_safetensors(start):
        return _whole(*safetensors.load_with_texts(path), os.fspath(path)) if keep_sparse else safetensors.load(path)
    return params.load(path, keep_sparse=keep_sparse)


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>", keep_sparse: bool = False) -> Loaded:
    """The arrays in the content of a file of any of the formats; arguments and errors are those of `load`."""
    if _is_torch(bytes(data[:9])):
        return torch.loads(data, source=source)
    if _is_safetensors(bytes(data[:9])):
        found, texts = safetensors.loads_with_texts(data, source=source)
        return _whole(found, texts, source) if keep_sparse else found
    return params.loads(data, source=source, keep_sparse=keep_sparse)


_SPARSE = "flowmx.sparse"
_PARTS = {1: ("indices",), 2: ("indptr", "indices")}


def _in_parts(arrays: params.Arrays) -> tuple[Mapping[str, npt.ArrayLike], dict[str, str] | None]:
    """The arrays with the parts of sparse ones in their place, and the text that tells their shapes."""
    if not isinstance(arrays, Mapping) or not any(isinstance(each, params.Stored) for each in arrays.values()):
        return cast(Mapping[str, npt.ArrayLike], arrays), None
    made: dict[str, npt.ArrayLike] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in arrays.items():
        parts: dict[str, npt.ArrayLike]
        if isinstance(value, params.Stored):
            shapes[name] = value.shape
            indices = zip(_PARTS[len(value.indices)], value.indices, strict=True)
            parts = {f"{name}.data": value.data, **{f"{name}.{part}": each for part, each in indices}}
        else:
            parts = {name: value}
        for each in parts.keys() & made.keys():
            raise ValueError(
                f"save: two arrays would have the name {each!r}, since sparse ones are saved as their parts"
            )
        made |= parts
    return made, {_SPARSE: json.dumps(shapes)}


def _whole(found: dict[str, Array], texts: Mapping[str, str], source: str) -> Loaded:
    """The arrays with those that are parts of sparse ones put together."""
    if _SPARSE not in texts:
        return found
    made: dict[str, Any] = dict(found)
    try:
        for name, lengths in json.loads(texts[_SPARSE]).items():
            shape = tuple(map(operator.index, lengths))
            if min(shape) < 0:
                raise ValueError(f"an array of shape {shape}")
            data, indices, indptr = (made.pop(f"{name}.{part}", None) for part in ("data", "indices", "indptr"))
            if (
                data is None
                or indices is None
                or any(each is not None and each.dtype != "int64" for each in (indices, indptr))
            ):
                raise ValueError(f"{name!r} without data and indices of int64")
            made[name] = params.Stored(shape, data, (indices,) if indptr is None else (indptr, indices))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise safetensors.SafetensorsFormatError(
            source, 8, f"sparse arrays as the text {_SPARSE} says", str(error)[:200]
        ) from None
    return made


def _is_safetensors(start: bytes) -> bool:
    # After the length of safetensors' header comes its bracket; in a .params file there are zeros.
    return start[8:9] == b"{"


def _is_torch(start: bytes) -> bool:
    return start[:4] == b"PK\x03\x04"
