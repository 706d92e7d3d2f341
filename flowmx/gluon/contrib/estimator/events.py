"""The events of a training, as base classes: a handler derives from those that it wants to hear of.

Each method takes the estimator, and keywords that say what happened. What it returns may be awaitable; it is awaited
(in a plain ``fit`` it is run to its end). A true result of ``batch_end`` ends the epoch, one of ``epoch_end`` the
training. Handlers are called in the order of their ``priority``, 0 where they have none, the smallest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["BatchBegin", "BatchEnd", "EpochBegin", "EpochEnd", "EventHandler", "TrainBegin", "TrainEnd"]


class EventHandler:
    """Base of all handlers."""


class TrainBegin(EventHandler):
    """Hears of the beginning of a training."""

    def train_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """The training begins."""


class TrainEnd(EventHandler):
    """Hears of the end of a training."""

    def train_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """The training has ended."""


class EpochBegin(EventHandler):
    """Hears of the beginning of each epoch."""

    def epoch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """An epoch begins."""


class EpochEnd(EventHandler):
    """Hears of the end of each epoch."""

    def epoch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """An epoch has ended; a true result ends the training."""
        return False


class BatchBegin(EventHandler):
    """Hears of each batch before it is computed."""

    def batch_begin(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """A batch (``batch=``) has been read."""


class BatchEnd(EventHandler):
    """Hears of each batch when it is computed."""

    def batch_end(self, estimator: Any, *args: Any, **kwargs: Any) -> Any:
        """A batch (``batch=``, ``pred=``, ``label=``, ``loss=``) has been computed; a true result ends the epoch."""
        return False


def checked(handlers: Any) -> list[EventHandler]:
    """A new list of handlers, from one, several or None.

    Raises:
        ValueError: something is no handler.
    """
    given = [handlers] if isinstance(handlers, EventHandler) else list(handlers or [])
    wrong = [each for each in given if not isinstance(each, EventHandler)]
    if wrong:
        raise ValueError(f"event_handlers holds {wrong[0]!r}, expected event handlers")
    return given


def of_kind(handlers: Sequence[EventHandler], kind: type[EventHandler]) -> list[Any]:
    """Those that hear of a kind of event."""
    return [each for each in handlers if isinstance(each, kind)]
