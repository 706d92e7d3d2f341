"""Check the head of a first request before any object is created for its connection. This module does no I/O."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

__all__ = ["HeadState", "RequestHead", "classify", "parse_head"]

MAX_HEAD = 64 << 10
"""The maximum size of a head, in bytes."""
MAX_LINE = 8 << 10
"""The maximum length of an incomplete line, in bytes."""
_END = b"\r\n\r\n"
_METHOD = re.compile(rb"[A-Z-]{1,20}(?: |\Z)")
_HEAD = re.compile(
    rb"[A-Z-]{1,20} [^ \r\n]{1,8190} HTTP/1\.[01]\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}:[^\r\n\0]{0,8190}\r\n){0,128}\r\n"
)
_LINE = re.compile(rb"([A-Z-]+) (?:https?://[^/ ]*)?(/[^ ?#]*)", re.IGNORECASE)
_AUTHORIZATION = re.compile(rb"\r\nauthorization:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_FRAMING = re.compile(rb"\r\n(content-length|transfer-encoding):[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


class HeadState(Enum):
    """The state of a partly received request head."""

    PARTIAL = auto()
    COMPLETE = auto()
    INVALID = auto()  # more bytes cannot make it valid


class RequestHead(NamedTuple):
    """A request's method, path, and Authorization header (empty if it has none)."""

    method: str
    path: str
    authorization: str


def classify(data: bytes | bytearray) -> HeadState:
    """Return whether bytes are a complete HTTP request head, the beginning of one, or neither."""
    head = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
    if head and not _METHOD.match(head):
        return HeadState.INVALID
    end = head.find(_END) + len(_END)
    if end >= len(_END):
        is_valid = _HEAD.fullmatch(head, 0, end) and _has_one_length(head[:end])
        return HeadState.COMPLETE if is_valid else HeadState.INVALID
    if len(data) > MAX_HEAD or len(data) - data.rfind(b"\n") > MAX_LINE or b"\n\n" in head:
        return HeadState.INVALID
    return HeadState.PARTIAL


def _has_one_length(head: bytes | bytearray) -> bool:
    """Return whether a head states the length of its body at most once, and in a valid form."""
    headers = _FRAMING.findall(head)
    if not headers:
        return True
    name, value = headers[0]
    is_length = name.lower() == b"content-length"
    return len(headers) == 1 and (value.isdigit() and len(value) < 20 if is_length else value.lower() == b"chunked")


def parse_head(data: bytes) -> RequestHead | None:
    """Parse the parts of a complete head that authentication needs; return None if its request line is not plain."""
    head = data[: data.find(_END) + len(_END)].lstrip(b"\r\n")
    line = _LINE.match(head)
    if line is None:
        return None
    match = _AUTHORIZATION.search(head)
    return RequestHead(*(part.decode("latin-1") for part in (line[1], line[2], match[1] if match else b"")))
