"""Connectionist temporal classification: the loss of a labelling whose alignment with the data is unknown.

The labels of a sample with blanks before, between and after them are 2·labels + 1 states. A path stays in its
state, moves to the next one, or skips a blank between two different labels. ``alpha[t]`` is the log-probability
of all path prefixes up to step t, by their last state; ``beta[t]`` is that of the path suffixes after it. Each step
is computed for the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.indexing import as_integers
from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.nn.common import computing_dtype, expect_rank, expect_shape, non_defaults
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Precision

_NEVER = -1e30
"""The logarithm of probability 0; finite, so that differences are not NaN."""


class _Paths(NamedTuple):
    """The states of a batch and the possible paths through them.

    Attributes:
        states: the class that each state emits (batch, states).
        skips: whether a state may be entered from two states before it (batch, states).
        ends: whether a path may end in a state (batch, states).
        steps: the lengths of the data (batch,).
        possible: whether the data is long enough for the labels (batch,).
    """

    states: Array
    skips: Array
    ends: Array
    steps: Array
    possible: Array

    def emissions(self, xp: ArrayNamespace, log_softmax: Array) -> Array:
        """Return the log-probability of each state's class at each step (time, batch, states)."""
        index = xp.broadcast_to(self.states, (len(log_softmax), *self.states.shape))
        return xp.maximum(xp.take_along_axis(log_softmax, index, axis=2), _NEVER)

    def total(self, xp: ArrayNamespace, last: Array) -> Array:
        """Return the logarithm of the labelling's probability, from the last alpha (batch,)."""
        return _log_sum(xp, xp.where(self.ends, last, _NEVER).T)


@operator("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss")
class CTCLoss(Operator, skips=True, mirrored=False, precision=Precision.FLOAT32):
    """Connectionist temporal classification (Graves et al., 2006): -log of the labelling's probability.

    Shapes: data (time, batch, classes) before softmax, label (batch, labels), output (batch,). One class is the
    blank: the first, with labels from 1 to classes - 1 and padding 0; or the last, with labels from 0 to
    classes - 2 and padding -1. The lengths default to all steps, and to the labels before the first padding.
    A sample whose data is too short for its labels has loss and gradient 0, as in MXNet.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "label", "data_lengths", "label_lengths")
    input_docs = describe(
        data="(time, batch, classes), float; before softmax",
        label="(batch, labels), int or float; class indices",
        data_lengths="(batch,), int or float; only with use_data_lengths",
        label_lengths="(batch,), int or float; only with use_label_lengths",
    )
    output_doc = "(batch,), the dtype of data"
    output_names: ClassVar[tuple[str, ...]] = ("output0", "alpha")
    outputs_visible = 1
    use_data_lengths: bool = option(False, "Take the data's lengths from the input data_lengths (batch,).")
    use_label_lengths: bool = option(False, "Take the labels' lengths from the input label_lengths (batch,).")
    blank_label: Literal["first", "last"] = option("first", "The class of the blank: the first or the last.")

    def inputs(self) -> tuple[str, ...]:
        flags = (True, True, self.use_data_lengths, self.use_label_lengths)
        return tuple(name for name, flag in zip(CTCLoss.arguments, flags, strict=True) if flag)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        data, label, *lengths = shapes
        expect_rank(self, "data", data, 3, 3)
        expect_rank(self, "label", label, 2, 2)
        time, batch, classes = data or (-1, -1, -1)
        if classes == 0:
            raise ShapeError(f"{self.name}: input data has shape {data}, expected at least 1 class, for the blank")
        if batch == -1 and label is not None:
            batch = label[0]
        label = expect_shape(self, "label", label, (batch, -1))
        assert label is not None
        if time != -1 and label[1] > time:
            raise ShapeError(
                f"{self.name}: input label has shape {label}, but data {data} has only {time} steps; it needs at least "
                "one step per label"
            )
        names = self.inputs()[2:]
        lengths = [expect_shape(self, name, shape, (batch,)) for name, shape in zip(names, lengths, strict=True)]
        states = -1 if label[1] == -1 else 2 * label[1] + 1
        return [(time, batch, classes), label, *lengths], [(batch,), (time, batch, states)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        data = dtypes[0]
        in_dtypes = [data, *(data if dtype is None else dtype for dtype in dtypes[1:])]
        return in_dtypes, [data, None if data is None else computing_dtype(data)]

    def paths(self, run: Run, inputs: Sequence[Array]) -> _Paths:
        """Return the states of the batch, from its labels and lengths.

        Raises:
            IndexError: a label is out of range.
        """
        xp, by_name = run.xp, dict(zip(CTCLoss.inputs(self), inputs, strict=True))
        time, batch, classes = by_name["data"].shape
        label = as_integers(by_name["label"])
        first = self.blank_label == "first"
        order = xp.arange(label.shape[1])
        if self.use_label_lengths:
            counts = xp.minimum(as_integers(by_name["label_lengths"]), label.shape[1])
        else:
            is_padding = label <= 0 if first else label < 0
            counts = (xp.cumsum(is_padding, axis=1) == 0).sum(axis=1)
        valid = order < counts[:, None]
        if label.size and ((label[valid] < 0) | (label[valid] >= classes)).any():
            low, high = label[valid].min(), label[valid].max()
            raise IndexOutOfRange(f"{self.name}: labels are from {low} to {high}, expected 0 to {classes - 1}")
        label = xp.where(valid, label, 0)
        steps = xp.full(batch, time)
        if self.use_data_lengths:
            steps = xp.minimum(as_integers(by_name["data_lengths"]), time)
        states = xp.full((batch, 2 * label.shape[1] + 1), 0 if first else classes - 1)
        states[:, 1::2] = label
        different = xp.zeros(states.shape, bool)
        different[:, 3::2] = label[:, 1:] != label[:, :-1]
        repeats = (valid[:, 1:] & ~different[:, 3::2]).sum(axis=1)
        last, state = 2 * counts[:, None], xp.arange(states.shape[1])
        return _Paths(
            states,
            different,
            (state == last) | ((state == last - 1) & (last > 0)),
            steps,
            (counts + repeats <= steps) & (steps > 0),
        )

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, paths, (out, alpha) = run.xp, self.paths(run, inputs), outputs
        emissions = paths.emissions(xp, _log_softmax(xp, inputs[0].astype(alpha.dtype, copy=False)))
        current = xp.full(alpha.shape[1:], _NEVER, alpha.dtype)
        current[:, 0] = 0  # before the first step, so that it enters state 0 or 1
        skips = xp.where(paths.skips, 0, _NEVER).astype(alpha.dtype)
        for step in range(len(alpha)):
            next_alpha = _advance(xp, current, 0, skips)
            next_alpha += emissions[step]
            current = xp.where((step < paths.steps)[:, None], next_alpha, current)
            alpha[step] = current
        out[...] = xp.where(paths.possible, -paths.total(xp, current), 0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        by_name = dict(zip(self.inputs(), list(inputs), strict=True))
        step = F.op("_backward_CTCLoss", head=heads[0], **by_name, alpha=outputs[1], **non_defaults(self))
        return [step, F.zeros_like(shape_of(inputs, 1)), *[None] * (len(by_name) - 2)]


@operator("_backward_CTCLoss")
class BackwardCTCLoss(CTCLoss, hidden=True, skips=False):
    """Gradient of CTCLoss for its data: softmax minus the probability of each class on the paths."""

    arguments = ("head", *CTCLoss.arguments, "alpha")
    output_names: ClassVar[tuple[str, ...]] = ("data_grad",)

    def inputs(self) -> tuple[str, ...]:
        return ("head", *super().inputs(), "alpha")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[1]]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        return dtypes, [dtypes[1]]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, head, data, alpha, out = run.xp, inputs[0], inputs[1], inputs[-1], outputs[0]
        if not len(data):
            return
        paths = self.paths(run, inputs[1:-1])
        log_softmax = _log_softmax(xp, data.astype(alpha.dtype, copy=False))
        emissions = paths.emissions(xp, log_softmax)
        final = xp.where(paths.ends, 0, _NEVER).astype(alpha.dtype)
        skips = xp.where(paths.skips, 0, _NEVER).astype(alpha.dtype)
        beta, share = final, alpha - paths.total(xp, alpha[-1])[:, None]
        for step in reversed(range(len(data))):
            if step + 1 < len(data):
                previous = _advance(xp, beta + emissions[step + 1], 1, skips)
                beta = xp.where((step + 1 < paths.steps)[:, None], previous, final)
            share[step] += beta
        xp.exp(share, out=share)
        grad = xp.exp(log_softmax)
        rows = xp.arange(data.shape[1])
        grad[:, rows, paths.states[:, 0]] -= share[:, :, ::2].sum(axis=2)
        # One label at a time: a class may occur several times in a labelling, but once per position.
        for state in range(1, share.shape[2], 2):
            grad[:, rows, paths.states[:, state]] -= share[:, :, state]
        running = paths.possible & (xp.arange(len(data))[:, None] < paths.steps)
        out[...] = xp.where(running[..., None], grad * head[:, None], 0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        raise NotImplementedError  # there is no second derivative


def _log_softmax(xp: ArrayNamespace, data: Array) -> Array:
    logs: Array = data - data.max(axis=2, keepdims=True)
    logs -= xp.log(xp.exp(logs).sum(axis=2, keepdims=True))
    return logs


def _log_sum(xp: ArrayNamespace, terms: Array) -> Array:
    """Return log Σ exp over the first axis. logaddexp is slower: it is not vectorized like exp and log."""
    top = terms.max(axis=0)
    terms -= top
    xp.exp(terms, out=terms)
    result: Array = top + xp.log(terms.sum(axis=0))
    return result


def _advance(xp: ArrayNamespace, current: Array, direction: int, skips: Array) -> Array:
    """Return the log-probabilities after one step of all paths: forward in time (0), or backward (1)."""
    terms = xp.full((3, *current.shape), _NEVER, current.dtype)
    terms[0] = current
    if direction == 0:
        terms[1, :, 1:] = current[:, :-1]
        terms[2, :, 2:] = current[:, :-2]
        terms[2] += skips
    else:
        terms[1, :, :-1] = current[:, 1:]
        terms[2, :, :-2] = current[:, 2:] + skips[:, 2:]
    return _log_sum(xp, terms)
