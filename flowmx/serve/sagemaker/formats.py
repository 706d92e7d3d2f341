"""Formats of bodies that SageMaker's containers read and write for scripts without input_fn or output_fn."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from flowmx.serve.formats import FORMATS, NPY
from flowmx.serve.replies import JSON_TYPE, Refusal
from flowmx.serve.request_head import media_type_of

__all__ = ["CSV", "TEXT_TYPES", "decode", "encode"]

CSV = "text/csv"
TEXT_TYPES = (JSON_TYPE, CSV)
"""Media types whose bodies scripts get as text; they get others as bytes."""


def decode(body: str | bytes, content_type: str, types: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return the array in a body.

    Args:
        body: the text or bytes.
        content_type: its media type.
        types: the supported media types.

    Raises:
        Refusal: 415, the type is not supported; 400, the body is damaged.
    """
    content_type = media_type_of(content_type)
    if content_type not in types:
        raise Refusal(
            415, f"Content-Type is {content_type[:80]!r}, expected {', '.join(types)}; other types need input_fn in "
            "the script",
        )  # fmt: skip
    try:
        if isinstance(body, str):
            return np.array(json.loads(body)) if content_type == JSON_TYPE else _read_csv(body)
        array: npt.NDArray[Any] = FORMATS[NPY.type].read(bytes(body))
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid {content_type}: {error}") from error
    return array


def _read_csv(text: str) -> npt.NDArray[Any]:
    return np.genfromtxt(io.StringIO(text), delimiter=",")


def encode(values: list[Any], accept: str, types: tuple[str, ...]) -> tuple[str | bytes, str]:
    """Return the body with nested lists of numbers, and its media type: the first supported one that is accepted.

    Raises:
        Refusal: 406, no accepted type is supported.
    """
    accepted = [media_type_of(part) for part in accept.split(",")]
    media_type = next((each for each in accepted if each in types), None)
    if media_type is None:
        raise Refusal(
            406, f"Accept is {accept[:80]!r}, expected {', '.join(types)}; other types need output_fn in the script"
        )
    if media_type == JSON_TYPE:
        return json.dumps(values), media_type
    if media_type == CSV:
        text = io.StringIO()
        np.savetxt(text, values, delimiter=",", fmt="%s")
        return text.getvalue(), media_type
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue(), media_type
