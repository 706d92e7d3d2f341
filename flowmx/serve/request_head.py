"""The head of a request: its headers, and the parameters of its query. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

from flowmx.serve.replies import Refusal

__all__ = ["Head", "Headers", "media_type_of", "read_head"]

Headers = Mapping[str, str]
_MAX_PARAMETERS = 256


class Head(NamedTuple):
    """The head of a request.

    Attributes:
        headers: a case-insensitive mapping, or one with lower-case names.
        parameters: the parameters of the query; of several with the same name, the last one.
    """

    headers: Headers
    parameters: Mapping[str, str] = {}


def media_type_of(content_type: str) -> str:
    """Return the media type of a Content-Type header, without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def read_head(headers: Headers, query: str) -> Head:
    """Return the head of a request.

    Args:
        headers: its headers.
        query: the part of its address after the question mark, percent-encoded.

    Raises:
        Refusal: 400, the query has too many parameters.
    """
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise Refusal(400, f"the query has more than {_MAX_PARAMETERS} parameters") from None
    return Head(headers, dict(pairs))
