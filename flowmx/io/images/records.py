"""The records of a file that one worker reads, by number, and the labels of a list beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.errors import DataError, raised_as_mxnet
from flowmx.recordio.files import read_index
from flowmx.recordio.source import CHUNK, Source, check_part


class Records:
    """Some records of a file, read by number from any thread.

    Without an index the heads of all records of the part are read first; with one they need not be.

    Args:
        path: the file.
        index: its index.
        part_index: the index of this worker's share, from 0.
        num_parts: the number of shares: of the file's bytes, or of the records where there is an index (as MXNet
            cuts them).

    Raises:
        OSError: a file can not be read.
        RecordFormatError: the file is damaged.
        ValueError: there is no such part, or the index is damaged.
    """

    def __init__(
        self, path: str | os.PathLike[str], index: str | os.PathLike[str] | None, part_index: int, num_parts: int
    ) -> None:
        check_part(part_index, num_parts)
        self.source = Source(path)
        if index:
            offsets = np.array(sorted(offset for _, offset in read_index(index)), np.int64)
            edges = np.append(offsets, self.source.size())
            share = -(-len(offsets) // num_parts)
            own = slice(min(share * part_index, len(offsets)), min(share * (part_index + 1), len(offsets)))
            self.offsets, self._sizes = offsets[own], np.diff(edges)[own]
        else:
            start, stop = self.source.part(part_index, num_parts)
            self.offsets = np.fromiter(self.source.offsets(start, stop), np.int64)
            self._sizes = np.diff(np.append(self.offsets, stop))

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, row: int) -> bytes:
        """The content of a record.

        Raises:
            RecordFormatError: it is damaged, or the index does not fit the file.
        """
        size = int(self._sizes[row])
        return self.source.record(int(self.offsets[row]), size if 0 < size < 1 << 30 else CHUNK)[0]


@raised_as_mxnet(OSError)
def read_labels(path: str | os.PathLike[str], width: int) -> dict[int, Any]:
    """The labels in a list of images (.lst), by the number of the image.

    Raises:
        OSError: it can not be read.
        ValueError: a line with too few numbers.
    """
    found = {}
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split(maxsplit=width + 1)
            if not words:
                continue
            try:
                found[int(words[0])] = np.array([float(word) for word in words[1 : width + 1]], np.float32)
                if len(found[int(words[0])]) < width:
                    raise DataError("too few numbers")
            except ValueError as error:
                raise DataError(
                    f"line {number} of {os.fspath(path)!r} is {line.strip()[:80]!r}, expected the number of an image, "
                    f"{width} label(s) and a path"
                ) from error
    return found
