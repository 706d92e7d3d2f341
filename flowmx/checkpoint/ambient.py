"""Checkpoints of scripts that say nothing of them: where every ``fit`` writes that is given no folder."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from flowmx.checkpoint.folder import Checkpoints

__all__ = ["ambient", "using"]

_current: ContextVar[Iterator[Checkpoints] | None] = ContextVar("flowmx_checkpoints", default=None)


@contextmanager
def using(folder: str | os.PathLike[str], every: int | None = None, keep: int = 3) -> Iterator[None]:
    """Let ``Module.fit`` write checkpoints, and go on from them, without ``checkpoint=`` of its own.

    The first ``fit`` inside uses the folder, the second ``folder/fit-2``, and so on: a script that is run again finds
    those of each. Data that can not say where it stands is trained on without, and a line in the log says so.

    Args:
        folder: the folder.
        every: write one after so many batches, in addition to those at the ends of epochs.
        keep: the number to keep.

    Raises:
        ValueError: ``every`` or ``keep`` is too small.

    Example:
        >>> with mx.checkpoint.using("run"):
        ...     mod.fit(train, num_epoch=10)
    """
    first = Checkpoints(folder, every, keep)
    others = (Checkpoints(Path(folder) / f"fit-{number}", every, keep) for number in itertools.count(2))
    token = _current.set(itertools.chain([first], others))
    try:
        yield
    finally:
        _current.reset(token)


def ambient() -> Checkpoints | None:
    """The checkpoints of the next ``fit``, where :func:`using` says so."""
    found = _current.get()
    return None if found is None else next(found)
