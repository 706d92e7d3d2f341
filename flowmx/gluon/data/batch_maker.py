"""Assembly of one batch, in any process or thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from flowmx import settings
from flowmx.data.codecs import DamagedImageError
from flowmx.errors import MXNetError


class BatchAbandoned(MXNetError):
    """The batch was abandoned."""


_log = logging.getLogger("flowmx.gluon.data")


def _is_skipped(error: BaseException) -> bool:
    return isinstance(error, DamagedImageError) and settings.get().damaged_images == "skip"


def make(
    dataset: Any,
    batchify_fn: Callable[[list[Any]], Any],
    samples: Sequence[object],
    number: int,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Any:
    """Make a batch of samples; an error gets a note with the number of its sample.

    Args:
        dataset: the samples.
        batchify_fn: combines a list of samples into a batch.
        samples: their indices; damaged images are skipped if the setting ``damaged_images`` is "skip".
        number: the batch's number, for messages.
        is_wanted: called before each sample; False abandons the batch.

    Raises:
        BatchAbandoned: the batch was abandoned.
    """
    batch = []
    for sample in samples:
        if not is_wanted():
            raise BatchAbandoned
        try:
            batch.append(dataset[sample])
        except BaseException as error:  # any error of the user's data set gets a note
            error.add_note(f"sample {sample!r} of batch {number}")
            if not _is_skipped(error) or (not batch and sample is samples[-1]):
                raise
            _log.warning("sample %r is skipped in batch %d: %s", sample, number, error)
    try:
        return batchify_fn(batch)
    except BaseException as error:  # any error of the user's data set gets a note
        summary = f"{samples[:8]!r}" if len(samples) <= 8 else f"{samples[:8]!r} and {len(samples) - 8} more"
        error.add_note(f"batchify_fn of batch {number}, with the samples {summary}")
        raise
