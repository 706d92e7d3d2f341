"""Index files of RecordIO files: a line has a key, a tab and the offset of a record."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from flowmx.errors import raised_as_mxnet
from flowmx.serialization.reading import read_whole

_MAX_OFFSET = 2**63 - 1
"""The largest offset that a file can have."""
_EXCERPT_BYTES = 80


@raised_as_mxnet(OSError)
def read_index(path: str | os.PathLike[str], key_type: Callable[[str], Any] = int) -> list[tuple[Any, int]]:
    """Read the keys and offsets of an index file.

    Raises:
        ValueError: a line is not a key and an offset.
        OSError: the file cannot be read, or is a device.
    """
    entries = []
    for number, raw in enumerate(io.BytesIO(read_whole(path)), 1):
        try:
            line = raw.decode().strip()
            if line:
                key, _, offset = line.partition("\t")
                entries.append((key_type(key), _offset(offset.split("\t")[0])))
        except ValueError as error:
            excerpt = raw[:_EXCERPT_BYTES].decode(errors="replace").strip()
            raise ValueError(
                f"line {number} of the index {os.fspath(path)!r} is {excerpt!r}, expected a key, a tab and an offset "
                f"of 0 to {_MAX_OFFSET}"
            ) from error
    return entries


def _offset(text: str) -> int:
    offset = int(text)
    if not 0 <= offset <= _MAX_OFFSET:
        raise ValueError(f"an offset of {offset}")
    return offset
