"""A real model in a GGUF file continues texts sensibly (`make models` fetches it)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.text_models import SMOLLM2
from flowmx.generation import PagedDecoder, StepBatch
from flowmx.gluon.model_zoo import from_pretrained
from flowmx.serialization import gguf

pytestmark = pytest.mark.skipif(not SMOLLM2.exists(), reason=f"{SMOLLM2.name} is missing: make models")
PROMPT = ("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis")


@pytest.fixture(scope="module")
def net():
    return from_pretrained(SMOLLM2)


@pytest.fixture(scope="module")
def words():
    return gguf.load(SMOLLM2).metadata["tokenizer.ggml.tokens"]


def step(decoder, tokens, start):
    """Return the logits of the last token; all tokens are of one text, in the first pages."""
    positions = np.arange(start, start + len(tokens), dtype=np.int32)
    table, last = np.arange(4, dtype=np.int32)[None], np.array([len(tokens) - 1], np.int32)
    batch = StepBatch(np.array(tokens, np.int32), positions, positions, np.zeros_like(positions), table, last)
    return decoder.step(batch).asnumpy()[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_prompt_is_continued_sensibly(net, words, dtype):
    decoder, tokens = PagedDecoder(net, 4, 16, dtype), [words.index(word) for word in PROMPT]
    text, logits = list(tokens), step(decoder, tokens, 0)
    for _ in range(2):
        text.append(int(logits.argmax()))
        logits = step(decoder, text[-1:], len(text) - 1)
    assert [words[token] for token in text[len(PROMPT) :]] == ["ĠParis", "."]


def test_chunks_of_a_prompt_have_close_logits(net, words):
    tokens = [words.index(word) for word in PROMPT * 6]
    whole = step(PagedDecoder(net, 4, 16), tokens, 0)
    decoder, scale = PagedDecoder(net, 4, 16), np.abs(whole).max()
    for start, stop in ((0, 7), (7, 8), (8, 29)):
        step(decoder, tokens[start:stop], start)
    assert np.abs(step(decoder, tokens[29:], 29) - whole).max() < 2e-3 * scale


def test_greedy_texts_are_those_of_float32(net, words):
    exact = PagedDecoder(from_pretrained(SMOLLM2, dtype="float32"), 4, 16)
    decoder, tokens = PagedDecoder(net, 4, 16), [words.index(word) for word in PROMPT]
    expected, logits, start = step(exact, tokens, 0), step(decoder, tokens, 0), len(tokens)
    for place in range(start, start + 24):
        assert np.abs(logits - expected).max() < 3e-3 * np.abs(expected).max()
        token = int(expected.argmax())
        assert logits.argmax() == token
        expected, logits = step(exact, [token], place), step(decoder, [token], place)


def test_data_bits_of_other_numbers_are_refused():
    with pytest.raises(ValueError, match=r"data_bits is 12, expected 8 or 16"):
        from_pretrained(SMOLLM2, data_bits=12)
