"""The messages of a session over HTTP: texts are JSON, bytes are msgpack. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from flowmx.comm.errors import CommError
from flowmx.serve.errors import InvalidInput, Overloaded, SessionClosed, Unavailable
from flowmx.serve.formats import FORMATS, JSON, Format
from flowmx.serve.inputs import Array
from flowmx.serve.large_bodies import text_of
from flowmx.serve.replies import Refusal

__all__ = ["MSGPACK", "Message", "error_message", "format_of", "parse", "result_message", "steps_of"]

Message = str | bytes
"""A message: a text is JSON, bytes are msgpack."""
MSGPACK = FORMATS["application/msgpack"]


def format_of(message: Message) -> Format:
    """Return the format of a message."""
    return JSON if isinstance(message, str) else MSGPACK


def parse(message: Message) -> Any:
    """Return the input in a message.

    Raises:
        InvalidInput: it is not valid JSON or msgpack, or exceeds the limits on parsed values.
    """
    form = format_of(message)
    body = message.encode() if isinstance(message, str) else message
    form.scan(body)
    return form.read(body)


def result_message(form: Format, names: Sequence[str], result: Any) -> bytes:
    """Return the message with a result."""
    arrays = result if isinstance(result, list) else [result]
    return bytes(form.write(dict(zip(names, map(np.asarray, arrays), strict=True))))


def error_message(form: Format, error: Exception) -> bytes:
    """Return the message with an error: its text, and the status that HTTP has for it."""
    content: dict[str, object] = {"error": str(error), "status": 500}
    if isinstance(error, (Refusal, CommError)):
        content["status"] = error.status
    elif isinstance(error, InvalidInput):
        content["status"] = 400
    elif isinstance(error, SessionClosed):
        content["status"] = 410
    elif isinstance(error, (Overloaded, Unavailable)):
        content["status"] = 503
        content["retry_after"] = error.retry_after if isinstance(error, Overloaded) else 1.0
    else:
        content["error"] = f"the model failed: {type(error).__name__}"
    if form.is_text:
        return text_of(content, 0)
    packed: bytes = msgpack.packb(content)
    return packed


def steps_of(value: Any) -> Iterator[Any]:
    """Yield the inputs of a stream, which are along the first axis of an array, a list, or each of a dict's values.

    Raises:
        InvalidInput: the value has no first axis, or those of a dict have different lengths.
    """
    if isinstance(value, Mapping):
        columns = {name: list(steps_of(column)) for name, column in value.items()}
        if len({len(column) for column in columns.values()}) != 1:
            raise InvalidInput("the inputs have different numbers of steps, expected equal first axes")
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))
    elif isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
        array: Sequence[Any] | Array = value
        yield from array
    else:
        raise InvalidInput("the inputs have no first axis, expected a list of the inputs of all steps")
