"""Errors of predictors."""

from __future__ import annotations

from flowmx.errors import MXNetError

__all__ = ["InvalidInput", "Overloaded", "Unavailable"]


class InvalidInput(MXNetError, ValueError):
    """An input does not fit the model: the message says what was given and what is expected."""


class Overloaded(MXNetError):
    """The queue is full.

    Attributes:
        retry_after: seconds after which there should be room.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(MXNetError):
    """The predictor takes no requests: it is draining, or its model could not be made ready."""
