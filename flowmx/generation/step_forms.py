"""The shapes to which the arrays of decode steps are padded: few, so that few graphs are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flowmx.generation.step_batch import StepBatch

__all__ = ["StepForms", "all_forms", "forms_of", "padded"]

_SMALL = 16
"""The maximum number of tokens of a small step, for which all numbers are powers of two."""
_LARGE = 128
"""The number of tokens from which there are four numbers for each power of two; below, there are two."""
_PAGES = 256
"""The minimum number of pages of a sequence. Pages without tokens take no time."""


class StepForms(NamedTuple):
    """The shapes of a step's arrays.

    Attributes:
        tokens: the number of tokens.
        sequences: the number of sequences.
        pages: the number of pages of a sequence.
        rows: the number of rows of logits.
    """

    tokens: int
    sequences: int
    pages: int
    rows: int


def forms_of(batch: StepBatch) -> StepForms:
    """Return the shapes for a batch."""
    sequences, pages = batch.tables.shape
    return _forms(len(batch.tokens), sequences, pages, len(batch.rows))


def all_forms(max_sequences: int, max_tokens: int, max_pages: int) -> Iterator[StepForms]:
    """Iterate over the shapes of all batches within limits, the most frequent ones first.

    Args:
        max_sequences: the maximum number of sequences.
        max_tokens: the maximum number of tokens.
        max_pages: the maximum number of pages of a sequence.
    """
    pages = _PAGES
    while True:
        tokens = 1
        while True:
            most = min(max_sequences, tokens)
            counts = {1, most, *range(_SMALL, most, _SMALL)}
            yield from sorted({_forms(tokens, each, pages, rows) for each in counts for rows in counts if rows <= each})
            if tokens >= max_tokens:
                break
            tokens = padded(tokens + 1)
        if pages >= max_pages:
            return
        pages *= 4


def _forms(tokens: int, sequences: int, pages: int, rows: int) -> StepForms:
    tokens, wide = padded(tokens), _PAGES
    while wide < pages:
        wide *= 4
    if tokens <= _SMALL:
        return StepForms(tokens, max(tokens, sequences), wide, 1 if rows <= 1 else tokens)
    chosen = 1 if rows <= 1 else min(tokens, -(-rows // _SMALL) * _SMALL)
    several = _SMALL
    while several < sequences:
        several *= 4
    return StepForms(tokens, several, wide, chosen)


def padded(count: int) -> int:
    """Return the smallest number of tokens of a form that is at least a count."""
    power = 1 << max(0, count - 1).bit_length()
    if power <= _SMALL:
        return power
    step = power // (8 if power > _LARGE else 4)
    return max(power // 2 + step, -(-count // step) * step)
