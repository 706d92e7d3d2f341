"""The log likelihood of marked Hawkes processes, events of all samples of a batch at a time.

A process of the mark k has the intensity λ_k(t) = μ_k + α_k β_k φ_k(t), where the state φ_k counts the past
events of the mark, each fading as e^(-β_k·age).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flowmx.ops.arrays.indexing import whole
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.math.reduce import wide
from flowmx.ops.nn.common import expect_shape
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, operator
from flowmx.ops.registry.traits import Precision

_NAMES = ("lda", "alpha", "beta", "state", "lags", "marks", "valid_length", "max_time")


class _Hawkes(Operator):
    def complete(self, shapes: Sequence[ShapeOrNone]) -> list[ShapeOrNone]:
        """The shapes of the eight inputs of hawkesll."""
        lda, lags = shapes[0], shapes[4]
        samples, marks = lda if lda is not None and len(lda) == 2 else (-1, -1)
        events = lags[1] if lags is not None and len(lags) == 2 else -1
        if samples == -1 and lags is not None:
            samples = lags[0]
        expected = [
            (samples, marks), (marks,), (marks,), (samples, marks), (samples, events), (samples, events), (samples,),
            (samples,),
        ]  # fmt: skip
        return [expect_shape(self, *each) for each in zip(_NAMES, shapes, expected, strict=True)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        # The marks are int32; all else has one dtype.
        at = len(dtypes) - 3
        known = next((dtype for dtype in (*dtypes[:at], *dtypes[at + 1 :]) if dtype is not None), None)
        return [*[known] * at, dtypes[at], known, known], [known] * len(self.outputs())


class _Walk:
    """The events one after the other: for each, the samples that have it, its mark, the time since the last one."""

    def __init__(self, xp: Any, inputs: Sequence[Array]) -> None:
        self.xp = xp
        numbers = [wide(each) for each in (*inputs[:5], *inputs[6:])]
        floats = [each if is_floating(each.dtype) else each.astype(FLOAT32) for each in numbers]
        self.mu, self.alpha, self.beta, state, self.lags, self.valid, self.end = floats
        self.marks = whole(inputs[5])
        self.state = xp.array(state)

    def __iter__(self) -> Iterator[tuple[Any, Array, Array, Array]]:
        """Index of samples and marks, α and β of the marks, and the times; at last the time to the end, for all."""
        xp, last = self.xp, self.xp.zeros_like(self.state)
        now = xp.zeros_like(self.end)
        for step in range(self.lags.shape[1]):
            rows = xp.flatnonzero(step < self.valid)
            marks = self.marks[rows, step]
            now[rows] += self.lags[rows, step]
            at = (rows, marks)
            since = now[rows] - last[at]
            last[at] = now[rows]
            yield at, self.alpha[marks], self.beta[marks], since
        yield (slice(None), slice(None)), self.alpha, self.beta, self.end[:, None] - last


@operator("_contrib_hawkesll")
class HawkesLL(_Hawkes, precision=Precision.FLOAT32):
    """The log likelihood (N,) of N samples of marked Hawkes processes up to ``max_time``, and the states (N, K) there.

    Shapes: lda (the background intensities μ) and state (N, K), alpha and beta (K,), lags (the times between
    events) and marks (N, T), valid_length (the numbers of events) and max_time (N,). The gradient is that of the
    likelihood by lda, alpha and beta.
    """

    arguments = _NAMES
    input_docs = described(
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
        xp, walk = run.xp, _Walk(run.xp, inputs)
        likelihood = xp.zeros_like(walk.end)
        for at, alpha, beta, since in walk:
            state, fading = walk.state[at], xp.exp(-beta * since)
            missed = walk.mu[at] * since + alpha * state * (1 - fading)
            walk.state[at] = state * fading
            if missed.ndim == 2:
                likelihood -= missed.sum(axis=1)
            else:
                likelihood[at[0]] += xp.log(walk.mu[at] + alpha * beta * state * fading) - missed
                walk.state[at] += 1
        outputs[0][...] = likelihood
        outputs[1][...] = walk.state

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [*F.op("_contrib_backward_hawkesll", heads[0], *inputs), *[None] * 5]


@operator("_contrib_backward_hawkesll")
class BackwardHawkesLL(_Hawkes, hidden=True):
    """The gradient of hawkesll's likelihood by lda, alpha and beta."""

    arguments = ("head", *_NAMES)
    output_names = ("lda", "alpha", "beta")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        completed = self.complete(shapes[1:])
        return [completed[6], *completed], completed[:3]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, walk = run.xp, _Walk(run.xp, inputs[1:])
        of_mu, of_alpha, of_beta, slope = (xp.zeros_like(walk.state) for _ in range(4))
        for at, alpha, beta, since in walk:
            # The state and its derivative by beta.
            state, by_beta, fading = walk.state[at], slope[at], xp.exp(-beta * since)
            of_mu[at] -= since
            of_alpha[at] -= state * (1 - fading)
            of_beta[at] -= alpha * (by_beta * (1 - fading) + state * since * fading)
            walk.state[at] = state * fading
            slope[at] = (by_beta - state * since) * fading
            if since.ndim == 1:
                intensity = walk.mu[at] + alpha * beta * walk.state[at]
                of_mu[at] += 1 / intensity
                of_alpha[at] += beta * walk.state[at] / intensity
                of_beta[at] += alpha * (walk.state[at] + beta * slope[at]) / intensity
                walk.state[at] += 1
        head = wide(inputs[0])[:, None]
        outputs[0][...] = head * of_mu
        outputs[1][...] = (head * of_alpha).sum(axis=0)
        outputs[2][...] = (head * of_beta).sum(axis=0)
