"""Answers and refusals of a service, independent of any server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["JSON_TYPE", "Refusal", "Reply", "allow", "json_reply"]

JSON_TYPE = "application/json"


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    type: str = JSON_TYPE
    headers: Mapping[str, str] = {}


class Refusal(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = {}, **more: Any) -> None:
        super().__init__(message)
        self.reply = Reply(status, json.dumps({"error": message, **more}).encode(), headers=headers)


def json_reply(status: int, value: Any) -> Reply:
    """Build an answer of JSON."""
    return Reply(status, json.dumps(value).encode())


def allow(method: str, *allowed: str) -> None:
    """Refuse methods but these.

    Raises:
        Refusal: 405.
    """
    if method not in allowed:
        raise Refusal(405, f"the method is {method[:20]}, expected {allowed[0]}", {"Allow": ", ".join(allowed)})
