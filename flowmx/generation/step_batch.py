"""The tokens of one decode step: what a scheduler hands to a decoder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["StepBatch"]


class StepBatch(NamedTuple):
    """The tokens of one step, of several sequences.

    T tokens, S sequences, at most P pages per sequence, R rows of logits; all arrays are int32. The tokens of a
    sequence are consecutive and in order.

    Attributes:
        tokens: (T,), numbers in the vocabulary.
        positions: (T,), the place of each token in its sequence.
        slots: (T,), where the key and value of each token are written: ``page * page_size + offset``.
        sequences: (T,), the row of `tables` of each token's sequence.
        tables: (S, P), the pages of each sequence, padded with 0.
        rows: (R,), the tokens, by index into `tokens`, whose logits are computed.
        adapters: (T,), the slot of each token's adapter, or -1; None if no token has one.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    slots: NDArray[np.int32]
    sequences: NDArray[np.int32]
    tables: NDArray[np.int32]
    rows: NDArray[np.int32]
    adapters: NDArray[np.int32] | None = None
