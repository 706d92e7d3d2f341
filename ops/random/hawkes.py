"""The log likelihood of marked Hawkes processes: computed event by event, for all samples of a batch.

The process of mark k has the intensity λ_k(t) = μ_k + α_k β_k φ_k(t). The state φ_k is the sum over past events of the
mark, each decayed by e^(-β_k·age).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowmx.ops.arrays.indexing import as_integers
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.reduce import widen
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

_NAMES = ("lda", "alpha", "beta", "state", "lags", "marks", "valid_length", "max_time")


class _Hawkes(Operator):
    def complete(self, shapes: Sequence[ShapeOrNone]) -> list[ShapeOrNone]:
        """Return the shapes of the eight inputs of hawkesll, completed."""
        lda, lags = shapes[0], shapes[4]
        samples, marks = lda if lda is not None and len(lda) == 2 else (-1, -1)
        events = lags[1] if lags is not None and len(lags) == 2 else -1
        if samples == -1 and lags is not None:
            samples = lags[0]
        expected = [
            (samples, marks), (marks,), (marks,), (samples, marks), (samples, events), (samples, events), (samples,),
            (samples,),
        ]  # fmt: skip
        return [
            expect_shape(self, *names_and_shapes) for names_and_shapes in zip(_NAMES, shapes, expected, strict=True)
        ]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        # The marks keep their dtype (int32); the other inputs share one dtype.
        index = len(dtypes) - 3
        common = next((dtype for dtype in (*dtypes[:index], *dtypes[index + 1 :]) if dtype is not None), None)
        return [*[common] * index, dtypes[index], common, common], [common] * len(self.outputs())


class _Events:
    """The events in order: the samples that have the event, its mark, and the time since the last one of the mark."""

    def __init__(self, xp: ArrayNamespace, inputs: Sequence[Array]) -> None:
        self.xp = xp
        numbers = [widen(array) for array in (*inputs[:5], *inputs[6:])]
        floats = [array if is_floating(array.dtype) else array.astype(FLOAT32) for array in numbers]
        self.mu, self.alpha, self.beta, state, self.lags, self.valid, self.end = floats
        self.marks = as_integers(inputs[5])
        self.state = xp.array(state)

    def __iter__(self) -> Iterator[tuple[Any, Array, Array, Array]]:
        """Yield the index of samples and marks, α and β, and the times; last, the times to the end for all marks."""
        xp, last = self.xp, self.xp.zeros_like(self.state)
        times = xp.zeros_like(self.end)
        for step in range(self.lags.shape[1]):
            rows = xp.flatnonzero(step < self.valid)
            marks = self.marks[rows, step]
            times[rows] += self.lags[rows, step]
            index = (rows, marks)
            since = times[rows] - last[index]
            last[index] = times[rows]
            yield index, self.alpha[marks], self.beta[marks], since
        yield (slice(None), slice(None)), self.alpha, self.beta, self.end[:, None] - last


@operator("_contrib_hawkesll")
class HawkesLL(_Hawkes, precision=Precision.FLOAT32):
    """The log likelihood (N,) of N samples of marked Hawkes processes up to ``max_time``, and the final states (N, K).

    Shapes: lda (the background intensities μ) and state (N, K), alpha and beta (K,), lags (the times between
    events) and marks (N, T), valid_length (the numbers of events) and max_time (N,). The gradient is that of the
    likelihood with respect to lda, alpha and beta.
    """

    arguments = _NAMES
    input_docs = describe(
        lda="(N, K), float; background intensities",
        alpha="(K,), the dtype of lda; branching ratios",
        beta="(K,), the dtype of lda; decay rates",
        state="(N, K), the dtype of lda",
        lags="(N, T), the dtype of lda; times between events",
        marks="(N, T), int or float; types of events",
        valid_length="(N,), the dtype of lda; numbers of events",
        max_time="(N,), the dtype of lda",
    )
    output_doc = "Log likelihoods (N,) and states (N, K), the dtype of lda"
    output_names = ("output", "out_state")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = self.complete(shapes)
        return completed, [completed[6], completed[3]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, events = run.xp, _Events(run.xp, inputs)
        likelihood = xp.zeros_like(events.end)
        for index, alpha, beta, since in events:
            state, decay = events.state[index], xp.exp(-beta * since)
            compensator = events.mu[index] * since + alpha * state * (1 - decay)
            events.state[index] = state * decay
            if compensator.ndim == 2:
                likelihood -= compensator.sum(axis=1)
            else:
                likelihood[index[0]] += xp.log(events.mu[index] + alpha * beta * state * decay) - compensator
                events.state[index] += 1
        outputs[0][...] = likelihood
        outputs[1][...] = events.state

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [*F.op("_contrib_backward_hawkesll", heads[0], *inputs), *[None] * 5]


@operator("_contrib_backward_hawkesll")
class BackwardHawkesLL(_Hawkes, hidden=True):
    """The gradient of hawkesll's likelihood with respect to lda, alpha and beta."""

    arguments = ("head", *_NAMES)
    output_names = ("lda", "alpha", "beta")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = self.complete(shapes[1:])
        return [completed[6], *completed], completed[:3]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, events = run.xp, _Events(run.xp, inputs[1:])
        mu_gradient, alpha_gradient, beta_gradient, slope = (xp.zeros_like(events.state) for _ in range(4))
        for index, alpha, beta, since in events:
            # The state and its derivative with respect to beta.
            state, by_beta, decay = events.state[index], slope[index], xp.exp(-beta * since)
            mu_gradient[index] -= since
            alpha_gradient[index] -= state * (1 - decay)
            beta_gradient[index] -= alpha * (by_beta * (1 - decay) + state * since * decay)
            events.state[index] = state * decay
            slope[index] = (by_beta - state * since) * decay
            if since.ndim == 1:
                intensity = events.mu[index] + alpha * beta * events.state[index]
                mu_gradient[index] += 1 / intensity
                alpha_gradient[index] += beta * events.state[index] / intensity
                beta_gradient[index] += alpha * (events.state[index] + beta * slope[index]) / intensity
                events.state[index] += 1
        head = widen(inputs[0])[:, None]
        outputs[0][...] = head * mu_gradient
        outputs[1][...] = (head * alpha_gradient).sum(axis=0)
        outputs[2][...] = (head * beta_gradient).sum(axis=0)
