"""Bodies of forms (``multipart/form-data``): their parts, by name. This module does no I/O."""

from __future__ import annotations

from email.message import Message
from email.parser import HeaderParser
from typing import NamedTuple

from flowmx.serve.errors import InvalidInput

__all__ = ["FORM", "Part", "parts"]

FORM = "multipart/form-data"
_MAX_PARTS = 256
_MAX_HEADER = 8192


class Part(NamedTuple):
    """A field or file of a form.

    Attributes:
        name: the name of the field.
        content_type: its content type, or "".
        body: its bytes.
    """

    name: str
    content_type: str
    body: bytes


def parts(body: bytes, content_type: str) -> list[Part]:
    """Return the parts of a form.

    Args:
        body: the body of the request.
        content_type: its Content-Type, with the boundary.

    Raises:
        InvalidInput: the body is not a form, or has too many parts.
    """
    boundary = _parsed(f"Content-Type: {content_type}").get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise InvalidInput(f"Content-Type is {content_type[:80]!r}, expected {FORM}; boundary=...")
    return [_part(chunk) for chunk in _chunks(body, b"--" + boundary.encode("latin-1", "replace"))]


def _chunks(body: bytes, delimiter: bytes) -> list[bytes]:
    """Return the parts: what is between delimiters at the beginning of a line, up to the one that ends with ``--``."""
    chunks = (b"\r\n" + body).split(b"\r\n" + delimiter, _MAX_PARTS + 1)[1:]
    for index, chunk in enumerate(chunks):
        if chunk.startswith(b"--"):
            return chunks[:index]
    count = f"{_MAX_PARTS} parts or more" if len(chunks) > _MAX_PARTS else "no end"
    raise InvalidInput(
        f"the form has {count}, expected fewer than {_MAX_PARTS} parts and {delimiter.decode('latin-1')}-- last"
    )


def _part(chunk: bytes) -> Part:
    head, separator, content = chunk.partition(b"\r\n\r\n")
    if not separator or len(head) > _MAX_HEADER:
        raise InvalidInput(f"a part of the form has no header, or one above {_MAX_HEADER} bytes")
    headers = _parsed(head.lstrip().decode("utf-8", "replace"))
    name = headers.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise InvalidInput('a part of the form has no name, expected Content-Disposition: form-data; name="data"')
    return Part(name, headers.get("Content-Type", ""), content)


def _parsed(headers: str) -> Message:
    return HeaderParser().parsestr(headers)
