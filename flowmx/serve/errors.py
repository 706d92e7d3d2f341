"""Errors of predictors."""

from __future__ import annotations

from flowmx.errors import MXNetError

__all__ = ["InvalidInput", "Overloaded", "Unavailable"]


class InvalidInput(MXNetError, ValueError):
    """An input does not match the model; the message states the actual and the expected input."""


class Overloaded(MXNetError):
    """The queue is full.

    Attributes:
        retry_after: seconds until the queue should have room.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(MXNetError):
    """The predictor accepts no requests: it is draining, or its model failed to warm up."""
