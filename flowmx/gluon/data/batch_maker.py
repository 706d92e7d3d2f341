"""Making one batch, in whichever process or thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.errors import MXNetError


class Unwanted(MXNetError):
    """The batch was abandoned."""


def make(
    dataset: Any,
    batchify_fn: Callable[[list[Any]], Any],
    samples: list[Any],
    number: int,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Any:
    """A batch of these samples; an error has a note that says of which sample it is.

    Args:
        dataset: the samples.
        batchify_fn: puts them together.
        samples: their indices.
        number: the batch's number, for messages.
        is_wanted: asked before each sample.

    Raises:
        Unwanted: it is not wanted.
    """
    found = []
    for sample in samples:
        if not is_wanted():
            raise Unwanted
        try:
            found.append(dataset[sample])
        except BaseException as error:
            error.add_note(f"sample {sample!r} of batch {number}")
            raise
    try:
        return batchify_fn(found)
    except BaseException as error:
        shown = f"{samples[:8]!r}" if len(samples) <= 8 else f"{samples[:8]!r} and {len(samples) - 8} more"
        error.add_note(f"batchify_fn of batch {number}, with the samples {shown}")
        raise
