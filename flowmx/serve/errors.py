"""Errors of predictors."""

from __future__ import annotations

from flowmx.errors import MXNetError, Overloaded

__all__ = ["InvalidInput", "Overloaded", "SessionClosed", "Unavailable"]


class InvalidInput(MXNetError, ValueError):
    """An input does not match the model; the message states the actual and the expected input."""


class Unavailable(MXNetError):
    """The predictor accepts no requests: it is draining, or its model failed to warm up."""


class SessionClosed(MXNetError):
    """A call of a session that is closed; the message names the session and the reason."""
