"""Beam search and sampling with any decoder of one step, as in GluonNLP 0.10.

A decoder is ``outputs, states = decoder(step_input, states)``: it takes the last tokens (N,) and states, and returns
the outputs (N, vocabulary) and the next states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray as HostArray

from flowmx import ndarray as nd
from flowmx import random
from flowmx.errors import ArgumentKindError, ParameterError, ShapeError
from flowmx.ndarray import NDArray

__all__ = ["BeamSearchSampler", "BeamSearchScorer", "SequenceSampler"]

States = Any
"""An array, or a nested list, tuple or dict of arrays; None where a decoder has no state."""
Decode = Callable[[NDArray, States], tuple[NDArray, States]]
Samples = tuple[NDArray, NDArray, NDArray]

_IMPOSSIBLE = np.float32(-1e18)
"""The score of a beam that does not exist."""


class BeamSearchScorer:
    """The score of a text: its log-probability divided by a penalty for its length (Wu et al., GNMT, 2016).

    The penalty is ``((K + length) / (K + 1)) ** alpha``.

    Args:
        alpha: the exponent of the penalty; 0 for none.
        K: the number that is added to lengths.
        from_logits: the outputs of the decoder are log-probabilities; otherwise ``log_softmax`` is applied to them.
    """

    def __init__(self, alpha: float = 1.0, K: float = 5.0, from_logits: bool = True) -> None:
        self.alpha, self.K, self.from_logits = alpha, K, from_logits

    def __call__(self, outputs: NDArray, scores: NDArray, step: int | NDArray) -> NDArray:
        """Return the scores (..., vocabulary) of all continuations.

        Args:
            outputs: the outputs (..., vocabulary) of the decoder.
            scores: the scores (...) of the texts so far.
            step: the number of tokens of the continuations, from 1.
        """
        length = int(step.asscalar()) if isinstance(step, NDArray) else step
        logprobs = outputs if self.from_logits else nd.log_softmax(outputs)
        before = self._penalty(length - 1) if length > 1 else 1.0
        total = nd.broadcast_add(logprobs, (scores * before).expand_dims(-1))
        return total / self._penalty(length)

    def _penalty(self, length: int) -> float:
        return float(((self.K + length) / (self.K + 1)) ** self.alpha)


class _Sampler:
    """The loop that both samplers share."""

    def __init__(self, beam_size: int, decoder: Decode, eos_id: int, max_length: int) -> None:
        for name, number, least in (("beam_size", beam_size, 1), ("eos_id", eos_id, 0), ("max_length", max_length, 1)):
            if number < least:
                raise ParameterError(f"{type(self).__name__}: {name} is {number}, expected {least} or more")
        self._beam_size, self._decoder, self._eos_id, self._max_length = beam_size, decoder, eos_id, max_length

    def __call__(self, inputs: NDArray, states: States) -> Samples:
        """Return the samples (batch, beam, length), their scores (batch, beam) and valid lengths (batch, beam).

        Samples begin with ``inputs`` and end with ``eos_id``; -1 follows. Samples and lengths are int32.

        Args:
            inputs: the first tokens (batch,).
            states: the first states: arrays whose first axis is the batch, or the axis N of the layouts in
                ``decoder.state_info(batch)``, if the decoder has it.

        Raises:
            ShapeError: the inputs, a state or the outputs of the decoder have the wrong shape.
            TypeError: a state is not an array.
        """
        if inputs.ndim != 1:
            raise ShapeError(f"{type(self).__name__}: inputs has shape {inputs.shape}, expected (batch,)")
        batch, beams = inputs.shape[0], self._beam_size
        describe = getattr(self._decoder, "state_info", None)
        layouts = describe(batch) if describe is not None else None
        rows = np.repeat(np.arange(batch), beams)
        states = _take(states, rows, layouts, batch)
        samples = inputs.asnumpy().astype(np.int32)[rows].reshape(batch, beams, 1)
        lengths, alive = np.ones((batch, beams), np.int32), np.ones((batch, beams), bool)
        scores = self._first_scores(batch)
        for step in range(1, self._max_length + 1):
            last = nd.array(np.maximum(samples[:, :, -1], 0).reshape(-1), dtype="int32", ctx=inputs.context)
            outputs, states = self._decoder(last, states)
            if outputs.ndim != 2 or outputs.shape[0] != batch * beams:
                raise ShapeError(
                    f"{type(self).__name__}: the decoder returned the shape {outputs.shape}, expected "
                    f"({batch * beams}, vocabulary)"
                )
            origins, tokens, scores = self._choose(outputs, scores, alive, step)
            if not np.array_equal(origins, np.broadcast_to(np.arange(beams), origins.shape)):
                states = _take(states, (origins + np.arange(batch)[:, None] * beams).reshape(-1), layouts)
            lengths = np.take_along_axis(lengths + alive, origins, axis=1)
            samples = np.take_along_axis(samples, origins[:, :, None], axis=1)
            samples = np.concatenate([samples, tokens[:, :, None]], axis=2)
            alive = np.take_along_axis(alive, origins, axis=1) & (tokens != self._eos_id)
            if not alive.any():
                break
        else:
            last_tokens = np.where(alive, self._eos_id, -1).astype(np.int32)
            samples, lengths = np.concatenate([samples, last_tokens[:, :, None]], axis=2), lengths + alive
        context = inputs.context
        return (
            nd.array(samples, dtype="int32", ctx=context),
            nd.array(scores, dtype="float32", ctx=context),
            nd.array(lengths, dtype="int32", ctx=context),
        )

    def _first_scores(self, batch: int) -> HostArray[np.float32]:
        return np.zeros((batch, self._beam_size), np.float32)

    def _choose(
        self, outputs: NDArray, scores: HostArray[np.float32], alive: HostArray[np.bool_], step: int
    ) -> tuple[HostArray[np.int64], HostArray[np.int32], HostArray[np.float32]]:
        """Return the beams that go on, their next tokens (-1 for finished ones), and their scores."""
        raise NotImplementedError


class BeamSearchSampler(_Sampler):
    """Finds the most probable texts by beam search.

    Args:
        beam_size: the number of texts that are kept for each input.
        decoder: see the module; its outputs are log-probabilities, unless the scorer has ``from_logits=False``.
        eos_id: the token that ends a text.
        scorer: scores the texts (default: ``BeamSearchScorer(alpha=1.0, K=5)``).
        max_length: the maximum number of steps; texts that have not ended then get ``eos_id``.

    Raises:
        ValueError: a number is too small.

    Example:
        >>> table = mx.nd.log_softmax(mx.nd.array([[0, 5, 1], [1, 0, 5], [0, 0, 0]]))
        >>> sampler = BeamSearchSampler(2, lambda tokens, states: (table.take(tokens), states), eos_id=2)
        >>> samples, scores, lengths = sampler(mx.nd.array([0]), mx.nd.zeros((1, 1)))
        >>> samples[0, 0].asnumpy().tolist()
        [0, 1, 2]
    """

    def __init__(
        self, beam_size: int, decoder: Decode, eos_id: int,
        scorer: Callable[[NDArray, NDArray, int], NDArray] | None = None, max_length: int = 100,
    ) -> None:  # fmt: skip
        super().__init__(beam_size, decoder, eos_id, max_length)
        self._scorer = BeamSearchScorer() if scorer is None else scorer

    def _first_scores(self, batch: int) -> HostArray[np.float32]:
        scores = super()._first_scores(batch)
        scores[:, 1:] = _IMPOSSIBLE  # all beams are equal in the beginning: only the first one is continued
        return scores

    def _choose(
        self, outputs: NDArray, scores: HostArray[np.float32], alive: HostArray[np.bool_], step: int
    ) -> tuple[HostArray[np.int64], HostArray[np.int32], HostArray[np.float32]]:
        batch, beams = scores.shape
        size = outputs.shape[1]
        current = nd.array(scores, ctx=outputs.context)
        following = self._scorer(outputs.reshape((batch, beams, size)), current, step).asnumpy()
        following = np.where(alive[:, :, None], following, _IMPOSSIBLE).reshape(batch, -1)
        candidates = np.concatenate([following, np.where(alive, _IMPOSSIBLE, scores)], axis=1)
        best = np.argsort(-candidates, axis=1, kind="stable")[:, :beams]
        is_finished = best >= beams * size
        origins = np.where(is_finished, best - beams * size, best // size)
        tokens = np.where(is_finished, -1, best % size).astype(np.int32)
        return origins, tokens, np.take_along_axis(candidates, best, axis=1).astype(np.float32)


class SequenceSampler(_Sampler):
    """Draws texts from the distribution of a decoder.

    Scores are the log-probabilities of the texts, before the temperature. ``mx.random.seed`` repeats the texts.

    Args:
        beam_size: the number of texts for each input.
        decoder: see the module; its outputs are logits.
        eos_id: the token that ends a text.
        max_length: the maximum number of steps; texts that have not ended then get ``eos_id``.
        temperature: divides the logits.
        top_k: draw from the most probable tokens only (default: all).

    Raises:
        ValueError: a number is too small.
    """

    def __init__(
        self, beam_size: int, decoder: Decode, eos_id: int, max_length: int = 100, temperature: float = 1.0,
        top_k: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(beam_size, decoder, eos_id, max_length)
        if not temperature > 0:
            raise ParameterError(f"SequenceSampler: temperature is {temperature}, expected more than 0")
        if top_k is not None and top_k < 1:
            raise ParameterError(f"SequenceSampler: top_k is {top_k}, expected 1 or more, or None")
        self._temperature, self._top_k = temperature, top_k

    def _choose(
        self, outputs: NDArray, scores: HostArray[np.float32], alive: HostArray[np.bool_], step: int
    ) -> tuple[HostArray[np.int64], HostArray[np.int32], HostArray[np.float32]]:
        batch, beams = scores.shape
        if self._top_k is not None and self._top_k < outputs.shape[1]:
            mask = nd.topk(outputs, k=self._top_k, ret_typ="mask")
            outputs = nd.where(mask, outputs, nd.full(outputs.shape, -99999.0, ctx=outputs.context))
        drawn = random.multinomial(nd.softmax(outputs / self._temperature), dtype="int32")
        logprobs = nd.pick(nd.log_softmax(outputs), drawn).asnumpy().reshape(batch, beams)
        tokens = np.where(alive, drawn.asnumpy().reshape(batch, beams), -1).astype(np.int32)
        origins = np.broadcast_to(np.arange(beams), (batch, beams))
        return origins, tokens, (scores + np.where(alive, logprobs, 0)).astype(np.float32)


def _take(states: States, rows: HostArray[np.int64], layouts: Any, batch: int | None = None) -> States:
    """Return the chosen rows of each state along its batch axis, whose size must be ``batch``, if given."""
    if states is None:
        return None
    if isinstance(states, NDArray):
        axis = str(layouts["__layout__"]).find("N") if layouts else 0
        if axis < 0 or axis >= states.ndim or (batch is not None and states.shape[axis] != batch):
            raise ShapeError(f"a state has shape {states.shape}, expected {batch} on axis {axis}, the batch")
        return nd.take(states, nd.array(rows, dtype="int32", ctx=states.context), axis=axis)
    if isinstance(states, Mapping):
        return {name: _take(each, rows, layouts[name] if layouts else None, batch) for name, each in states.items()}
    if isinstance(states, list | tuple):
        parts = [_take(each, rows, layouts[i] if layouts else None, batch) for i, each in enumerate(states)]
        return parts if isinstance(states, list) else tuple(parts)
    raise ArgumentKindError(
        f"a state is {type(states).__name__}, expected an NDArray, or a list, tuple or dict of arrays"
    )
