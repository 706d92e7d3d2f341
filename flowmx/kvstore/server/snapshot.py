"""A server's state as one file: a frame of the wire, as ``docs/wire.md`` describes it, replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from flowmx.comm.errors import WireError
from flowmx.comm.frames import Message, Tensor, decode, encode
from flowmx.comm.limits import GIB, Limits
from flowmx.errors import MXNetError
from flowmx.kvstore.server.protocol import Record
from flowmx.kvstore.server.wire import pack_record, unpack_record
from flowmx.serialization.atomic import replace_file

__all__ = ["Snapshot", "SnapshotError", "capture", "load", "save"]

Captured: TypeAlias = tuple[dict[str, Any], list[Tensor]]

FORMAT = 1
_LIMITS = Limits(header=GIB, containers=1 << 26, items=1 << 28, tensors=1 << 24, tensor=1 << 44, total=1 << 46)


class SnapshotError(MXNetError, ValueError):
    """A file is no snapshot of a server, or damaged."""


class Snapshot(NamedTuple):
    """Content of a snapshot.

    Attributes:
        records: the parts.
        common: the configuration, with its version.
    """

    records: list[Record]
    common: tuple[int, Any]


def capture(record: Record) -> Captured:
    """A record as it is now; what becomes of the value afterwards does not change it."""
    tensors: list[Tensor] = []
    return pack_record(record, tensors), tensors


def save(path: str | os.PathLike[str], records: Iterable[Captured], common: tuple[int, Any]) -> None:
    """Write a snapshot: after a crash the file holds the old one or the new.

    Raises:
        OSError: the file can not be written.
    """
    found = list(records)
    header = {"format": FORMAT, "records": [packed for packed, _ in found], "common": list(common)}
    replace_file(path, encode(Message(header, [tensor for _, tensors in found for tensor in tensors])))


def load(path: str | os.PathLike[str]) -> Snapshot:
    """Read a snapshot.

    Raises:
        SnapshotError: the file is none, or damaged.
        OSError: it can not be read.
    """
    try:
        header, tensors = decode([Path(path).read_bytes()], _LIMITS)
        if header.get("format") != FORMAT:
            raise SnapshotError(f"{path}: a snapshot of format {header.get('format')}, expected {FORMAT}")
        left = list(tensors)
        records = [unpack_record(found, left) for found in header["records"]]
        version, config = header["common"]
        return Snapshot(records, (int(version), config))
    except (WireError, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{path} is no snapshot of a server, or damaged: {error}") from error
