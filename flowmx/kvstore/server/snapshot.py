"""A server's state as one file: a frame in the wire format (see ``docs/wire.md``), replaced as a whole.

The header contains the name of the job, its number of servers, and its *generation*: a job that resumes from the files
of another one has the next higher generation. Each record has its generation and its range of the key's elements, so
that a job with any number of servers can resume from the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowmx.comm.errors import WireError
from flowmx.comm.frames import Message, Tensor, decode, encode, view
from flowmx.comm.limits import GIB, Limits
from flowmx.errors import MXNetError
from flowmx.kvstore.server.protocol import Record
from flowmx.kvstore.server.wire import count_of, pack_record, unpack_record
from flowmx.kvstore.shards import Range
from flowmx.serialization.atomic import replace_file
from flowmx.serialization.scratch import sync_directory

__all__ = ["SavedRecord", "Snapshot", "SnapshotError", "capture", "load", "save"]

Captured: TypeAlias = tuple[dict[str, Any], list[Tensor]]

FORMAT = 2
_LIMITS = Limits(header=GIB, containers=1 << 26, items=1 << 28, tensors=1 << 24, tensor=1 << 44, total=1 << 46)


class SnapshotError(MXNetError, ValueError):
    """A file is not a snapshot of a server, is damaged, or does not fit the job that resumes from it."""


class SavedRecord(NamedTuple):
    """A record in a file.

    Attributes:
        record: the record of the part.
        generation: the number of its job, counted from the first that used the folder; 0 in files of format 1.
        range: the elements of its key, where they are known.
    """

    record: Record
    generation: int = 0
    range: Range | None = None


@dataclass
class Snapshot:
    """The content of a file.

    Attributes:
        records: the parts.
        common: the configuration, with its version.
        job: the name of the job; empty in files of format 1.
        servers: the number of its servers; 0 if unknown.
        generation: the number of the job, counted from the first that used the folder.
    """

    records: list[SavedRecord] = field(default_factory=list)
    common: tuple[int, Any] = (0, None)
    job: str = ""
    servers: int = 0
    generation: int = 0


def capture(record: Record) -> Captured:
    """Encode a record; later changes of the value do not affect the result."""
    tensors: list[Tensor] = []
    return pack_record(record, tensors), tensors


def save(
    path: str | os.PathLike[str], captured: Iterable[tuple[Captured, int, Range | None]], snapshot: Snapshot
) -> None:
    """Write a file atomically: after a crash it has the old content or the new content.

    The old file is not modified, since servers map it and read it lazily.

    Args:
        path: the file.
        captured: the records, each with its generation and range.
        snapshot: the other fields of the file.

    Raises:
        OSError: the file cannot be written.
    """
    packed, tensors = [], []
    for (header, parts), generation, span in captured:
        packed.append([header, generation, None if span is None else [span.start, span.stop, list(span.shape)]])
        tensors += parts
    header = {
        "format": FORMAT, "records": packed, "common": list(snapshot.common), "job": snapshot.job,
        "servers": snapshot.servers, "generation": snapshot.generation,
    }  # fmt: skip
    target = Path(path)
    scratch = target.with_name(f".flowmx-{target.name}.tmp")
    try:
        scratch.unlink(missing_ok=True)
        replace_file(scratch, encode(Message(header, tensors)))
        scratch.replace(target)
    except BaseException:  # cleanup, also when interrupted
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def load(path: str | os.PathLike[str], borrow: bool = False) -> Snapshot:
    """Read a file.

    Args:
        path: the file.
        borrow: make values read-only views of the file, without loading them.

    Raises:
        SnapshotError: the file is not a snapshot, or is damaged.
        OSError: the file cannot be read.
    """
    try:
        header, tensors = _frame(path) if borrow else decode([Path(path).read_bytes()], _LIMITS)
        if header.get("format") not in (1, FORMAT):
            raise SnapshotError(f"{path} has the snapshot format {header.get('format')}, expected {FORMAT}")
        tensors_left, is_first_format = list(tensors), header["format"] == 1
        records = [
            SavedRecord(unpack_record(packed, tensors_left), count_of(generation), _range(span))
            for packed, generation, span in (
                [entry, 0, None] if is_first_format else entry for entry in header["records"]
            )
        ]
        version, config = header["common"]
        common = (int(version), config)
        if is_first_format:
            return Snapshot(records, common)
        return Snapshot(
            records, common, str(header["job"]), count_of(header["servers"]), count_of(header["generation"])
        )  # fmt: skip
    except (WireError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(
            f"{path} is not a snapshot of a server, or is damaged: {error}. Remove it, or use another folder"
        ) from error


def _frame(path: str | os.PathLike[str]) -> Message:
    """Return the message in a file; its tensors are views of the file."""
    mapped: Any = np.memmap(path, np.uint8, "r") if Path(path).stat().st_size else np.empty(0, np.uint8)
    return view(mapped.data, _LIMITS)


def _range(value: Any) -> Range | None:
    if value is None:
        return None
    start, stop, shape = value
    return Range(count_of(start), count_of(stop), tuple(map(count_of, shape)))
