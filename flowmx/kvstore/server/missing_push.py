"""Missing pushes: a failed push keeps its number, so that its round ends, with an error instead of a sum."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowmx.comm.errors import Refused

__all__ = ["MAX_REASON", "MissingPush", "check_round", "find_missing"]

MAX_REASON = 1000
"""Maximum number of characters of a reason."""


class MissingPush(NamedTuple):
    """Placeholder for a gradient that its worker could not push.

    Attributes:
        why: names the worker, the key and the reason.
    """

    why: str


def find_missing(gradients: Any) -> MissingPush | None:
    """Return the first missing push of a round; None without one."""
    return next((gradient for gradient in gradients if isinstance(gradient, MissingPush)), None)


def check_round(failure: str) -> None:
    """Check that the last round did not fail.

    Raises:
        Refused: the last round failed.
    """
    if failure:
        raise Refused(failure, "round_failed")
