"""The head of a stranger's first request, looked at before anything is made for its connection. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["Asked", "Head", "asked", "look"]

MOST = 64 << 10
"""Bytes of a head."""
LONGEST = 8 << 10
"""Bytes of a line without an end."""
_END = b"\r\n\r\n"
_METHOD = re.compile(rb"[A-Z-]{1,20}(?: |\Z)")
_HEAD = re.compile(
    rb"[A-Z-]{1,20} [^ \r\n]{1,8190} HTTP/1\.[01]\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}:[^\r\n\0]{0,8190}\r\n){0,128}\r\n"
)
_LINE = re.compile(rb"([A-Z-]+) (?:https?://[^/ ]*)?(/[^ ?#]*)", re.IGNORECASE)
_AUTHORIZATION = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding):[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


class Head(Enum):
    """The state of what came in."""

    PART = auto()
    WHOLE = auto()
    NONE = auto()  # and it becomes none


class Asked(NamedTuple):
    """A request's method, path, and credentials (empty: it has none)."""

    method: str
    path: str
    authorization: str


def look(data: bytes | bytearray) -> Head:
    """Tell whether bytes are the head of a request of HTTP, the beginning of one, or neither."""
    begun = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
    if begun and not _METHOD.match(begun):
        return Head.NONE
    end = begun.find(_END) + len(_END)
    if end >= len(_END):
        return Head.WHOLE if _HEAD.fullmatch(begun, 0, end) and _is_framed(begun[:end]) else Head.NONE
    if len(data) > MOST or len(data) - data.rfind(b"\n") > LONGEST or b"\n\n" in begun:
        return Head.NONE
    return Head.PART


def _is_framed(head: bytes | bytearray) -> bool:
    """Tell whether a head says in at most one way where its body ends."""
    said = _FRAMING.findall(head)
    if not said:
        return True
    name, value = said[0]
    is_length = name.lower() == b"content-length"
    return len(said) == 1 and (value.isdigit() and len(value) < 20 if is_length else value.lower() == b"chunked")


def asked(data: bytes) -> Asked | None:
    """Read a whole head, as far as it is needed to judge who asks; None where it is not plain."""
    head = data[: data.find(_END) + len(_END)].lstrip(b"\r\n")
    line = _LINE.match(head)
    if line is None:
        return None
    found = _AUTHORIZATION.search(head)
    return Asked(*(each.decode("latin-1") for each in (line[1], line[2], found[1] if found else b"")))
