"""Checkpoints of scripts that do not configure any: the default folders of ``fit``."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from flowmx.checkpoint.folder import Checkpoints
from flowmx.scopes import Value, frame_scope

__all__ = ["ambient", "scope", "using"]

_current: ContextVar[Value[Iterator[Checkpoints] | None]]
_current = ContextVar("flowmx_checkpoints", default=Value(None))  # noqa: B039


@contextmanager
def scope(folder: str | os.PathLike[str], every: int | None = None, keep: int = 3) -> Iterator[None]:
    """Make ``Module.fit`` write checkpoints and resume from them, without the argument ``checkpoint=``.

    The first ``fit`` in the block uses the folder, the second ``folder/fit-2``, and so on, so that a script that runs
    again resumes each of them. Data without a ``state()`` is trained without checkpoints, with a message in
    the log.

    Args:
        folder: the folder.
        every: the number of batches between checkpoints, in addition to those at the ends of epochs.
        keep: the number of checkpoints to keep.

    Raises:
        ValueError: ``every`` or ``keep`` is too small.

    Example:
        >>> with mx.checkpoint.scope("run"):
        ...     mod.fit(train, num_epoch=10)
    """
    first = Checkpoints(folder, every, keep)
    others = (Checkpoints(Path(folder) / f"fit-{number}", every, keep) for number in itertools.count(2))
    with frame_scope(_current, Value(itertools.chain([first], others))):
        yield


using = scope
"""An alias of :func:`scope`."""


def ambient() -> Checkpoints | None:
    """Return the checkpoints of the next ``fit`` under :func:`scope`, or None."""
    sequence = _current.get().value
    return None if sequence is None else next(sequence)
