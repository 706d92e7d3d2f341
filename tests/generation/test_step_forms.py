"""The shapes of steps: few, not much larger than the batches, and all known in advance."""

from __future__ import annotations

import numpy as np
import pytest

from flowmx.generation.step_batch import StepBatch
from flowmx.generation.step_forms import all_forms, forms_of


def _batch(tokens, sequences, pages, rows):
    """Return a batch of these sizes."""
    numbers = np.zeros(tokens, np.int32)
    return StepBatch(
        numbers, numbers, numbers, numbers, np.zeros((sequences, pages), np.int32), np.zeros(rows, np.int32)
    )


@pytest.mark.parametrize(("sequences", "tokens", "pages"), [(1, 1, 1), (16, 272, 128), (40, 100, 1000), (5, 7, 300)])
def test_all_forms_are_known_in_advance(sequences, tokens, pages):
    forms = list(all_forms(sequences, tokens, pages))
    assert len(set(forms)) == len(forms)
    for count in range(1, tokens + 1):
        for several in range(1, min(sequences, count) + 1):
            for rows in {0, 1, several}:
                for width in {1, pages}:
                    assert forms_of(_batch(count, several, width, rows)) in forms


def test_forms_are_few_and_contain_their_batches():
    assert len(list(all_forms(16, 272, 128))) < 40
    for tokens in range(1, 600):
        for sequences in {1, min(tokens, 13), min(tokens, 60)}:
            forms = forms_of(_batch(tokens, sequences, 70, sequences))
            assert tokens <= forms.tokens <= max(2 * tokens - 1, 1)
            assert tokens < 128 or forms.tokens <= 1.25 * tokens
            assert sequences <= forms.rows <= forms.tokens
            assert forms.sequences >= sequences
            assert forms.pages >= 70
