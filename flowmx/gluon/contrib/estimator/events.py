"""The events of training, as base classes. A handler derives from the events that it handles.

Each method takes the estimator, and keyword arguments that describe the event. If the result is awaitable it is awaited
(a plain ``fit`` runs it to completion). A true result of ``batch_end`` ends the epoch; a true result of ``epoch_end``
ends training. Handlers are called in ascending order of their ``priority`` (default 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowmx.keywords import ChecksKeywords

if TYPE_CHECKING:
    from flowmx.gluon.contrib.estimator.estimator import Estimator

__all__ = ["BatchBegin", "BatchEnd", "EpochBegin", "EpochEnd", "EventHandler", "TrainBegin", "TrainEnd"]


class EventHandler(ChecksKeywords):
    """Base class of all handlers."""


class TrainBegin(EventHandler):
    """Handles the beginning of training."""

    def train_begin(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle the beginning of training."""


class TrainEnd(EventHandler):
    """Handles the end of training."""

    def train_end(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle the end of training."""


class EpochBegin(EventHandler):
    """Handles the beginning of each epoch."""

    def epoch_begin(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle the beginning of an epoch."""


class EpochEnd(EventHandler):
    """Handles the end of each epoch."""

    def epoch_end(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle the end of an epoch; a true result ends training."""
        return False


class BatchBegin(EventHandler):
    """Handles each batch before it is computed."""

    def batch_begin(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle a batch (``batch=``) that has been read."""


class BatchEnd(EventHandler):
    """Handles each batch after it is computed."""

    def batch_end(self, estimator: Estimator, *args: object, **kwargs: Any) -> Any:
        """Handle a computed batch (``batch=``, ``pred=``, ``label=``, ``loss=``); a true result ends the epoch."""
        return False


def check_handlers(handlers: Any) -> list[EventHandler]:
    """Return one handler, several or None as a new list.

    Raises:
        ValueError: an element is not a handler.
    """
    listed = [handlers] if isinstance(handlers, EventHandler) else list(handlers or [])
    wrong = [item for item in listed if not isinstance(item, EventHandler)]
    if wrong:
        raise ValueError(f"event_handlers holds {wrong[0]!r}, expected event handlers")
    return listed


def select_kind(handlers: Sequence[EventHandler], kind: type[EventHandler]) -> list[Any]:
    """Return the handlers of a kind of event."""
    return [handler for handler in handlers if isinstance(handler, kind)]
