"""Sampling: from the logits of a step to the next token of each sequence.

A token is a function of the logits, the settings, the request's seed and the number of the token. It does not depend on
the other requests of a batch, nor on whether a guess was verified in the same step.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray as HostArray

__all__ = ["Choice", "Constraint", "Sampler", "Sampling"]

Floats = HostArray[np.float32]
_MAX_TOP = 128
"""The maximum number of alternatives with log-probabilities."""
_SEEDS = 1 << 64


@dataclass(frozen=True)
class Sampling:
    """The settings of the choice of tokens.

    Args:
        temperature: divides the logits; 0 always chooses the most probable token.
        top_k: keep this number of most probable tokens; 0 keeps all.
        top_p: keep the most probable of these whose probabilities sum to at least this fraction (Holtzman et al., The
            Curious Case of Neural Text Degeneration, 2020). Tokens below ``min_p`` do not count.
        min_p: keep the tokens with at least this fraction of the highest probability (Nguyen et al., Turning Up the
            Heat: Min-p Sampling for Creative and Coherent LLM Outputs, 2024).
        repetition_penalty: divides the positive logits of tokens in the prompt or the text, and multiplies the negative
            ones (Keskar et al., CTRL, 2019).
        frequency_penalty: subtracted from a logit for each occurrence of its token in the text.
        presence_penalty: subtracted from a logit if its token is in the text.
        logit_bias: added to the logits of tokens, by number.
        seed: the seed of the request; None for a random one.
        logprobs: the number of most probable tokens whose log-probabilities are returned with each token; None returns
            no log-probabilities. They are those of the model, before penalties and temperature.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting is not a number.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}, expected a number from {low} to {high}")
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, expected {low} to {high}")
        for name in ("top_k", "seed", "logprobs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
                raise TypeError(f"{name} is {value!r}, expected an integer")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}, expected 0 for all tokens, or a number of tokens")
        if self.top_p == 0 or self.repetition_penalty == 0:
            raise ValueError("top_p and repetition_penalty are above 0; temperature=0 chooses the most probable token")
        if self.logprobs is not None and not 0 <= self.logprobs <= _MAX_TOP:
            raise ValueError(f"logprobs is {self.logprobs}, expected 0 to {_MAX_TOP}")
        biases: Iterable[tuple[object, float]] = self.logit_bias.items()
        for token, bias in biases:
            if not isinstance(token, (int, np.integer)) or not math.isfinite(bias):
                raise ValueError(f"logit_bias has {token!r}: {bias!r}, expected finite numbers by number of a token")


_RANGES = (
    ("temperature", 0.0, 1e3), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0), ("repetition_penalty", 0.0, 1e3),
    ("frequency_penalty", -100.0, 100.0), ("presence_penalty", -100.0, 100.0),
)  # fmt: skip


class Choice(NamedTuple):
    """A chosen token.

    Attributes:
        number: its number in the vocabulary.
        logprob: the logarithm of its probability, if log-probabilities were requested.
        top: the numbers and log-probabilities of the most probable tokens, as many as were requested.
        is_last: whether nothing may follow it.
    """

    number: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    is_last: bool = False


class Constraint(Protocol):
    """Restricts the tokens of one request; see :class:`flowmx.generation.schemas.SchemaState`."""

    def allowed(self, text: Sequence[int], count: int) -> HostArray[np.bool_]:
        """Return whether each of so many tokens may follow a text."""

    def completes(self, number: int) -> bool:
        """Add a token to the text of the last call of :meth:`allowed`; return whether nothing may follow."""


class Sampler:
    """The choice of the tokens of one request.

    Args:
        sampling: the settings.
        prompt: the tokens of the prompt.

    Attributes:
        seed: the seed, which is random if the settings have none.
        constraint: restricts the tokens, or None.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int] = ()) -> None:
        self._sampling, self._prompt = sampling, prompt
        self.constraint: Constraint | None = None
        self.seed = (secrets.randbits(63) if sampling.seed is None else int(sampling.seed)) % _SEEDS
        self._has_penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (
            1.0, 0.0, 0.0,
        )  # fmt: skip

    def choose(self, logits: Floats, text: Sequence[int]) -> Choice:
        """Choose the token that follows a text.

        Args:
            logits: float32 (vocabulary,); not changed.
            text: the tokens generated so far.

        Raises:
            ValueError: the logits are NaN, or no token is possible.
            SchemaError: no token fits the schema, or it takes too much work to find one.
        """
        scores = self._adjusted(logits, text)
        if self.constraint is not None:
            scores = np.where(self.constraint.allowed(text, len(logits)), scores, np.float32(-np.inf))
        best = int(np.argmax(scores))
        if not np.isfinite(scores[best]):
            raise ValueError(f"the highest logit is {scores[best]}, expected finite logits of at least one token")
        number = best if self._sampling.temperature == 0 else self._draw(scores, float(scores[best]), len(text))
        choice = self._with_logprobs(logits, number)
        if self.constraint is not None and self.constraint.completes(number):
            return choice._replace(is_last=True)
        return choice

    def _adjusted(self, logits: Floats, text: Sequence[int]) -> Floats:
        """Return the logits with penalties and biases."""
        sampling = self._sampling
        if not self._has_penalties and not sampling.logit_bias:
            return logits
        scores = logits.copy()
        if self._has_penalties:
            numbers, counts = np.unique(np.asarray(text, np.int64), return_counts=True)
            if sampling.repetition_penalty != 1.0:
                repeated = np.union1d(numbers, np.asarray(self._prompt, np.int64))
                values = scores[repeated]
                penalty = np.float32(sampling.repetition_penalty)
                scores[repeated] = np.where(values > 0, values / penalty, values * penalty)
            scores[numbers] -= (counts * sampling.frequency_penalty + sampling.presence_penalty).astype(np.float32)
        for token, bias in sampling.logit_bias.items():
            if not 0 <= token < len(scores):
                raise ValueError(f"logit_bias has the token {token}, expected 0 to {len(scores) - 1}")
            scores[token] += np.float32(bias)
        return scores

    def _draw(self, scores: Floats, highest: float, count: int) -> int:
        """Draw a token at random."""
        weights = np.exp((scores - np.float32(highest)) / np.float32(self._sampling.temperature))
        numbers = self._candidates(weights)
        chosen = weights if numbers is None else weights[numbers]
        sums = np.cumsum(chosen, dtype=np.float64)
        index = int(np.searchsorted(sums, _uniform(self.seed, count) * sums[-1], side="right"))
        index = min(index, len(sums) - 1)
        return index if numbers is None else int(numbers[index])

    def _candidates(self, weights: Floats) -> HostArray[np.intp] | None:
        """Return the tokens to draw from, by number; None for all. Tokens of equal probability stay together."""
        sampling = self._sampling
        threshold = np.float32(sampling.min_p) * weights.max() if sampling.min_p else np.float32(0)
        if 0 < sampling.top_k < len(weights):
            threshold = max(threshold, np.partition(weights, -sampling.top_k)[-sampling.top_k])
        if sampling.top_p < 1.0:
            weights_left = np.sort(weights[weights >= threshold])[::-1]
            sums = np.cumsum(weights_left, dtype=np.float64)
            threshold = weights_left[min(int(np.searchsorted(sums, sampling.top_p * sums[-1])), len(weights_left) - 1)]
        if threshold > 0:
            return np.flatnonzero(weights >= threshold)
        return None if self.constraint is None else np.flatnonzero(weights)

    def _with_logprobs(self, logits: Floats, number: int) -> Choice:
        count = self._sampling.logprobs
        if count is None:
            return Choice(number)
        highest = float(logits.max())
        normalizer = highest + math.log(float(np.exp(logits - np.float32(highest)).sum(dtype=np.float64)))
        top = _largest(logits, min(count, len(logits))) if count else ()
        return Choice(
            number, float(logits[number]) - normalizer,
            tuple((int(each), float(logits[each]) - normalizer) for each in top),
        )  # fmt: skip


def _largest(values: Floats, count: int) -> HostArray[np.intp]:
    """Return the indices of the largest values, the largest first; equal values by index."""
    if count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        indices = np.flatnonzero(values >= threshold)
    else:
        indices = np.arange(len(values))
    order = np.lexsort((indices, -values[indices]))
    return indices[order[:count]]


def _uniform(seed: int, count: int) -> float:
    """Return a number from 0 to 1, the same for the same seed and count."""
    key = np.array([seed, count], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())
