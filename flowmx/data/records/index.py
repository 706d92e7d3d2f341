"""Index files of RecordIO files: in each line a key, a tab and the offset of a record."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from flowmx.errors import raised_as_mxnet
from flowmx.serialization.reading import read_whole

_MOST = 2**63 - 1
"""The largest offset that a file can have."""
_SHOWN = 80


@raised_as_mxnet(OSError)
def read_index(path: str | os.PathLike[str], key_type: Callable[[str], Any] = int) -> list[tuple[Any, int]]:
    """The keys and offsets of an index file.

    Raises:
        ValueError: a line is no key and offset.
        OSError: it can not be read, or is a device.
    """
    found = []
    for number, raw in enumerate(io.BytesIO(read_whole(path)), 1):
        try:
            line = raw.decode().strip()
            if line:
                key, _, offset = line.partition("\t")
                found.append((key_type(key), _offset(offset.split("\t")[0])))
        except ValueError as error:
            shown = raw[:_SHOWN].decode(errors="replace").strip()
            raise ValueError(
                f"line {number} of the index {os.fspath(path)!r} is {shown!r}, expected a key, a tab and an offset of "
                f"0 to {_MOST}"
            ) from error
    return found


def _offset(text: str) -> int:
    offset = int(text)
    if not 0 <= offset <= _MOST:
        raise ValueError(f"an offset of {offset}")
    return offset
