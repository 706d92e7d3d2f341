"""Index files of RecordIO files: in each line a key, a tab and the offset of a record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowmx.errors import raised_as_mxnet


@raised_as_mxnet(OSError)
def read_index(path: str | os.PathLike[str], key_type: Callable[[str], Any] = int) -> list[tuple[Any, int]]:
    """The keys and offsets of an index file.

    Raises:
        ValueError: a line is no key and offset.
        OSError: it can not be read.
    """
    found = []
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            key, _, offset = line.strip().partition("\t")
            try:
                found.append((key_type(key), int(offset.split("\t")[0])))
            except ValueError as error:
                raise ValueError(
                    f"line {number} of the index {os.fspath(path)!r} is {line.strip()!r}, expected a key, a tab and an "
                    "offset"
                ) from error
    return found
