"""Files of arrays in any format: MXNet's ``.params``, safetensors, or PyTorch's (which are only read)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, cast

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
        safetensors.save(path, cast(Mapping[str, npt.ArrayLike], arrays))
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
        keep_sparse: Return sparse arrays as `params.Stored`, not dense.

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
    return safetensors.load(path) if _is_safetensors(start) else params.load(path, keep_sparse=keep_sparse)


def loads(data: bytes | bytearray | memoryview, *, source: str = "<bytes>", keep_sparse: bool = False) -> Loaded:
    """The arrays in the content of a file of any of the formats; arguments and errors are those of `load`."""
    if _is_torch(bytes(data[:9])):
        return torch.loads(data, source=source)
    if _is_safetensors(bytes(data[:9])):
        return safetensors.loads(data, source=source)
    return params.loads(data, source=source, keep_sparse=keep_sparse)


def _is_safetensors(start: bytes) -> bool:
    # After the length of safetensors' header comes its bracket; in a .params file there are zeros.
    return start[8:9] == b"{"


def _is_torch(start: bytes) -> bool:
    return start[:4] == b"PK\x03\x04"
