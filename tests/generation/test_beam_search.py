"""Beam search finds what a search of all texts finds; samples follow the decoder's distribution."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import flowmx as mx
from flowmx.generation import BeamSearchSampler, BeamSearchScorer, SequenceSampler

SIZE, END = 4, 3


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class Sums:
    """A decoder whose logits depend on the last token and on the sum of all tokens, which is its state."""

    def __init__(self, seed=0, logits=False):
        table = np.random.default_rng(seed).normal(0, 2, (SIZE, 32, SIZE)).astype(np.float32)
        self.table = table if logits else log_softmax(table)

    def __call__(self, tokens, states):
        numbers = tokens.asnumpy().astype(int)
        sums = states[0]["sum"].asnumpy()[:, 0].astype(int) + numbers
        np.testing.assert_array_equal(states[1][0].asnumpy(), states[0]["sum"].asnumpy())
        following = mx.nd.array(sums[:, None])
        return mx.nd.array(self.table[numbers, sums]), [{"sum": following}, (following.copy(),)]


def states(count):
    return [{"sum": mx.nd.zeros((count, 1))}, (mx.nd.zeros((count, 1)),)]


def every_text(table, first, steps, scorer):
    """Return (score, text) of all texts, the best first."""
    texts = []
    for length in range(1, steps + 1):
        for tail in itertools.product(range(SIZE), repeat=length):
            if END in tail[:-1] or (tail[-1] != END and length < steps):
                continue
            total, text = 0.0, [first]
            for token in tail:
                total += table[text[-1], sum(text), token]
                text.append(token)
            penalty = ((scorer.K + length) / (scorer.K + 1)) ** scorer.alpha
            texts.append((total / penalty, text if tail[-1] == END else [*text, END]))
    return sorted(texts, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all_texts(seed, alpha):
    decoder, scorer = Sums(seed), BeamSearchScorer(alpha=alpha, K=5)
    sampler = BeamSearchSampler(40, decoder, END, scorer, max_length=3)
    samples, scores, lengths = (each.asnumpy() for each in sampler(mx.nd.array([0, 2]), states(2)))
    assert samples.dtype == lengths.dtype == np.int32
    for row, first in enumerate([0, 2]):
        best = every_text(decoder.table, first, 3, scorer)
        for beam, (score, text) in enumerate(best[:10]):
            assert samples[row, beam, : lengths[row, beam]].tolist() == text
            assert (samples[row, beam, lengths[row, beam] :] == -1).all()
            np.testing.assert_allclose(scores[row, beam], score, rtol=1e-5)


def narrow_search(table, first, steps, beams, scorer):
    """Return the (score, text) of a beam search that is written with lists."""
    beam = [(0.0, [first])]
    for step in range(1, steps + 1):
        candidates = [each for each in beam if each[1][-1] == END]
        before = ((scorer.K + step - 1) / (scorer.K + 1)) ** scorer.alpha if step > 1 else 1
        for score, text in beam:
            if text[-1] != END:
                for token in range(SIZE):
                    total = score * before + table[text[-1], sum(text), token]
                    candidates.append((total / ((scorer.K + step) / (scorer.K + 1)) ** scorer.alpha, [*text, token]))
        beam = sorted(candidates, reverse=True)[:beams]
    return [(score, text if text[-1] == END else [*text, END]) for score, text in beam]


@pytest.mark.parametrize("beams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_beam_keeps_the_best_of_each_step(seed, beams):
    decoder, scorer = Sums(seed), BeamSearchScorer()
    sampler = BeamSearchSampler(beams, decoder, END, max_length=5)
    samples, scores, lengths = (each.asnumpy() for each in sampler(mx.nd.array([1]), states(1)))
    for beam, (score, text) in enumerate(narrow_search(decoder.table, 1, 5, beams, scorer)):
        assert samples[0, beam, : lengths[0, beam]].tolist() == text
        np.testing.assert_allclose(scores[0, beam], score, rtol=1e-5)


def test_scorers_take_unnormalized_outputs():
    logits = BeamSearchSampler(3, Sums(logits=True), END, BeamSearchScorer(from_logits=False), max_length=4)
    logprobs = BeamSearchSampler(3, Sums(), END, max_length=4)
    one, other = logits(mx.nd.array([0, 1]), states(2)), logprobs(mx.nd.array([0, 1]), states(2))
    np.testing.assert_array_equal(one[0].asnumpy(), other[0].asnumpy())
    np.testing.assert_allclose(one[1].asnumpy(), other[1].asnumpy(), rtol=1e-5)


def test_states_have_the_batch_axis_of_their_layout():
    class Recurrent:
        def state_info(self, batch=0):
            return [{"shape": (1, batch, 1), "__layout__": "LNC"}]

        def __call__(self, tokens, states):
            outputs, (following, _) = sums(tokens, [{"sum": states[0][0]}, (states[0][0],)])
            return outputs, [following["sum"].expand_dims(0)]

    sums = Sums()
    inputs = mx.nd.array([0, 2])
    one = BeamSearchSampler(3, Recurrent(), END, max_length=4)(inputs, [mx.nd.zeros((1, 2, 1))])
    other = BeamSearchSampler(3, sums, END, max_length=4)(inputs, states(2))
    np.testing.assert_array_equal(one[0].asnumpy(), other[0].asnumpy())


def test_samples_follow_the_distribution_and_have_its_scores():
    mx.random.seed(1)
    decoder = Sums(logits=True)
    sampler = SequenceSampler(2000, decoder, END, max_length=2, temperature=2.0)
    samples, scores, lengths = (each.asnumpy() for each in sampler(mx.nd.array([1]), states(1)))
    shares = np.bincount(samples[0, :, 1], minlength=SIZE) / 2000
    np.testing.assert_allclose(shares, np.exp(log_softmax(decoder.table[1, 1] / 2)), atol=0.05)
    logprobs = log_softmax(decoder.table)
    for sample, score, length in zip(samples[0, :50], scores[0, :50], lengths[0, :50], strict=True):
        text = sample[:length].tolist()
        drawn = range(1, min(length, 3))
        expected = sum(logprobs[text[i - 1], sum(text[:i]), text[i]] for i in drawn)
        np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-5)
        assert text[-1] == END
        assert (sample[length:] == -1).all()


def test_top_k_of_one_is_the_most_probable_text():
    sampler = SequenceSampler(3, Sums(logits=True), END, max_length=5, top_k=1)
    samples = sampler(mx.nd.array([0]), states(1))[0].asnumpy()
    assert (samples == samples[:, :1]).all()
    text = [0]
    while len(text) <= 5 and text[-1] != END:
        text.append(int(Sums().table[text[-1], sum(text)].argmax()))
    assert samples[0, 0, : len(text)].tolist() == text


def test_a_seed_repeats_samples():
    sampler, texts = SequenceSampler(8, Sums(logits=True), END, max_length=5), []
    for _ in range(2):
        mx.random.seed(3)
        texts.append(sampler(mx.nd.array([0, 1]), states(2))[0].asnumpy())
    np.testing.assert_array_equal(*texts)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="beam_size is 0, expected 1 or more"):
        BeamSearchSampler(0, Sums(), END)
    with pytest.raises(ValueError, match="eos_id is -1, expected 0 or more"):
        SequenceSampler(1, Sums(), -1)
    with pytest.raises(ValueError, match="temperature is 0, expected more than 0"):
        SequenceSampler(1, Sums(), END, temperature=0)
    with pytest.raises(ValueError, match="top_k is 0"):
        SequenceSampler(1, Sums(), END, top_k=0)
    sampler = BeamSearchSampler(2, Sums(), END)
    with pytest.raises(ValueError, match=r"a state has shape \(3, 1\), expected 2 on axis 0"):
        sampler(mx.nd.array([0, 1]), states(3))
    with pytest.raises(TypeError, match="a state is str"):
        sampler(mx.nd.array([0]), ["hidden"])
    with pytest.raises(ValueError, match=r"inputs has shape \(1, 1\), expected \(batch,\)"):
        sampler(mx.nd.zeros((1, 1)), states(1))
    broken = BeamSearchSampler(2, lambda tokens, states: (mx.nd.zeros((1, SIZE)), states), END)
    with pytest.raises(ValueError, match=r"returned the shape \(1, 4\), expected \(2, vocabulary\)"):
        broken(mx.nd.array([0]), states(1))
