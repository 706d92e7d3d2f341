"""Sampling: settings, distributions against an independent computation, and seeds."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowmx.generation.sampling import Sampler, Sampling

LOGITS = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


def candidates(probabilities, top_k, top_p, min_p):
    """Return the tokens that remain, by the definitions."""
    tokens = {n for n, p in enumerate(probabilities) if p >= np.float32(min_p) * np.float32(max(probabilities))}
    ranked = sorted(tokens, key=lambda n: -probabilities[n])
    ranked = ranked[: top_k or None]
    total, sums, result = sum(probabilities[n] for n in ranked), 0.0, []
    for n in ranked:
        result.append(n)
        sums += probabilities[n]
        if sums >= top_p * total:
            break
    return result


def draws(count=300, logits=LOGITS, text=(), **sampling):
    return Counter(Sampler(Sampling(seed=seed, **sampling)).choose(logits, text).number for seed in range(count))


@settings(max_examples=60, deadline=None)
@given(
    st.permutations([1.0, 2.1, 4.3, 8.7, 17.0, 33.0]), st.integers(0, 7), st.sampled_from([0.3, 0.6, 0.93, 1.0]),
    st.sampled_from([0.0, 0.1, 0.4]),
)  # fmt: skip
def test_only_the_tokens_that_the_settings_keep_are_drawn(weights, top_k, top_p, min_p):
    probabilities = np.array(weights, np.float64) / sum(weights)
    logits = np.log(probabilities).astype(np.float32)
    expected = candidates(probabilities, top_k, top_p, min_p)
    drawn = draws(120, logits, top_k=top_k, top_p=top_p, min_p=min_p, temperature=1.0)
    assert set(drawn) <= set(expected)
    assert max(expected, key=lambda n: probabilities[n]) in drawn


def test_frequencies_are_the_probabilities_at_the_temperature():
    for temperature in (1.0, 0.5, 2.0):
        weights = np.exp(LOGITS / temperature)
        drawn = draws(4000, temperature=temperature)
        np.testing.assert_allclose([drawn[n] / 4000 for n in range(5)], weights / weights.sum(), atol=0.03)


def test_temperature_zero_chooses_the_most_probable_token():
    assert draws(temperature=0) == {0: 300}


def test_a_seed_repeats_a_text_and_no_seed_does_not():
    def text(sampler):
        tokens = []
        for _ in range(30):
            tokens.append(sampler.choose(LOGITS, tokens).number)
        return tokens

    assert text(Sampler(Sampling(seed=5))) == text(Sampler(Sampling(seed=5)))
    assert text(Sampler(Sampling(seed=5))) != text(Sampler(Sampling(seed=6)))
    unseeded = Sampler(Sampling())
    assert text(unseeded) == text(Sampler(Sampling(seed=unseeded.seed)))
    assert unseeded.seed != Sampler(Sampling()).seed


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"repetition_penalty": 2.0}, [1.0, -4.0, 0.5, 3.0]),  # tokens 0 of the prompt, 1 and 2 of the text
        ({"frequency_penalty": 0.5}, [2.0, -2.5, 0.0, 3.0]),
        ({"presence_penalty": 0.5}, [2.0, -2.5, 0.5, 3.0]),
        ({"logit_bias": {0: 5, 3: -1}}, [7.0, -2.0, 1.0, 2.0]),
    ],
)
def test_penalties_and_biases_change_the_logits(sampling, expected):
    logits = np.array([2.0, -2.0, 1.0, 3.0], np.float32)
    before = logits.copy()
    choice = Sampler(Sampling(temperature=0, logprobs=4, **sampling), prompt=[0]).choose(logits, [1, 2, 2])
    assert choice.number == int(np.argmax(expected))
    np.testing.assert_array_equal(logits, before)
    tokens = draws(200, logits, [1, 2, 2], **sampling)
    alone = draws(200, np.array(expected, np.float32), [1, 2, 2]) if "repetition_penalty" not in sampling else None
    assert alone is None or tokens == alone


def test_log_probabilities_are_those_of_the_model():
    choice = Sampler(Sampling(seed=0, logprobs=2, temperature=0.1, logit_bias={1: 50})).choose(LOGITS, [])
    assert choice.number == 1
    assert choice.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [number for number, _ in choice.top] == [0, 1]
    assert [logprob for _, logprob in choice.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)
    assert Sampler(Sampling(logprobs=0)).choose(LOGITS, []).top == ()


@pytest.mark.parametrize(
    ("sampling", "error", "message"),
    [
        ({"temperature": -1}, ValueError, "temperature is -1, expected 0.0 to"),
        ({"temperature": "hot"}, TypeError, "temperature is 'hot', expected a number"),
        ({"temperature": math.nan}, ValueError, "temperature is nan"),
        ({"top_p": 0}, ValueError, "top_p and repetition_penalty are above 0"),
        ({"top_p": 1.1}, ValueError, "top_p is 1.1"),
        ({"top_k": -1}, ValueError, "top_k is -1"),
        ({"top_k": 1.5}, TypeError, "top_k is 1.5, expected an integer"),
        ({"seed": "a"}, TypeError, "seed is 'a'"),
        ({"logprobs": 200}, ValueError, "logprobs is 200"),
        ({"logit_bias": {0: math.inf}}, ValueError, "expected finite numbers"),
    ],
)
def test_settings_out_of_range(sampling, error, message):
    with pytest.raises(error, match=message):
        Sampling(**sampling)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(value):
    with pytest.raises(ValueError, match="the highest logit is"):
        Sampler(Sampling()).choose(np.full(5, value, np.float32), [])


def test_a_bias_on_a_token_that_does_not_exist():
    with pytest.raises(ValueError, match="logit_bias has the token 9, expected 0 to 4"):
        Sampler(Sampling(logit_bias={9: 1})).choose(LOGITS, [])
