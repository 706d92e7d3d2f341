"""Errors of requests for text, in the form that clients of OpenAI's API read."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flowmx.errors import MXNetError
from flowmx.serve.replies import Reply

__all__ = ["BadRequest", "error_reply", "error_value"]


class BadRequest(MXNetError, ValueError):
    """A request cannot be answered as it stands.

    Attributes:
        field: the name of the field that is wrong; None if it is the whole body.
        status: the HTTP status.
    """

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status


_TYPES = {400: "invalid_request_error", 404: "invalid_request_error", 503: "overloaded_error"}
_CODES = {404: "model_not_found"}


def error_value(status: int, message: str, field: str | None = None) -> dict[str, object]:
    """Return the JSON value of an error."""
    kind, code = _TYPES.get(status, "server_error"), _CODES.get(status)
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def error_reply(status: int, message: str, field: str | None = None, headers: Mapping[str, str] = {}) -> Reply:
    """Return the reply to a request that is refused or failed."""
    return Reply(status, json.dumps(error_value(status, message, field)).encode(), headers=headers)
