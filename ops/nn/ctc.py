"""Connectionist temporal classification: the loss of a labelling whose alignment with the data is not known.

The labels of an example with blanks before, between and behind them are 2·labels + 1 states. A path stays in its
state, goes on to the next one, or over a blank between two different labels. ``alpha[t]`` is the logarithm of
the probability of all paths' prefixes up to step t by the state that they are in; ``beta[t]`` that of their
ends behind it. Each step is done for the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.indexing import whole
from flowmx.ops.nn.common import bound, computing_dtype, expect_rank, expect_shape, unchecked
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, described, operator, option
from flowmx.ops.registry.traits import Precision

_NEVER = -1e30
"""The logarithm of no probability: finite, so that differences of two are a number."""


class _Paths(NamedTuple):
    """The states of a batch and how paths go through them.

    Attributes:
        states: the class that each state emits (batch, states).
        skips: whether a state may be entered from two before it (batch, states).
        ends: whether a path may end in a state (batch, states).
        steps: the lengths of the data (batch,).
        possible: whether the data is long enough for the labels (batch,).
    """

    states: Array
    skips: Array
    ends: Array
    steps: Array
    possible: Array

    def emitted(self, xp: Any, log_softmax: Array) -> Array:
        """The logarithm of what each state emits at each step (time, batch, states)."""
        index = xp.broadcast_to(self.states, (len(log_softmax), *self.states.shape))
        return xp.maximum(xp.take_along_axis(log_softmax, index, axis=2), _NEVER)

    def total(self, xp: Any, last: Array) -> Array:
        """The logarithm of the labelling's probability, from the last alpha (batch,)."""
        return _log_sum(xp, xp.where(self.ends, last, _NEVER).T)


@operator("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss")
class CTCLoss(Operator, skips=True, mirrored=False, precision=Precision.FLOAT32):
    """Connectionist temporal classification (Graves et al., 2006): -log of the labelling's probability.

    Shapes: data (time, batch, classes) before softmax, label (batch, labels), output (batch,). One class is the
    blank: the first, labels then being 1 to classes - 1 and padded with 0; or the last, labels then being 0 to
    classes - 2 and padded with -1. Lengths that are not given: all steps, and the labels before the first
    padding. An example whose data is too short for its labels has loss and gradient 0, as in MXNet.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "label", "data_lengths", "label_lengths")
    input_docs = described(
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
        taken = (True, True, self.use_data_lengths, self.use_label_lengths)
        return tuple(name for name, used in zip(CTCLoss.arguments, taken, strict=True) if used)

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
                f"{self.name}: input label has shape {label}, but data {data} has {time} steps: at least as many are "
                "needed as labels"
            )
        names = self.inputs()[2:]
        lengths = [expect_shape(self, name, shape, (batch,)) for name, shape in zip(names, lengths, strict=True)]
        states = -1 if label[1] == -1 else 2 * label[1] + 1
        return [(time, batch, classes), label, *lengths], [(batch,), (time, batch, states)]

    def infer_type(self, dtypes: list[DType | None]) -> tuple[list[DType | None], list[DType | None]]:
        data = dtypes[0]
        completed = [data, *(data if each is None else each for each in dtypes[1:])]
        return completed, [data, None if data is None else computing_dtype(data)]

    def paths(self, run: Run, inputs: Sequence[Array]) -> _Paths:
        """The states of the batch, from its labels and lengths.

        Raises:
            IndexError: a label is no class.
        """
        xp, given = run.xp, dict(zip(CTCLoss.inputs(self), inputs, strict=True))
        time, batch, classes = given["data"].shape
        label = whole(given["label"])
        first = self.blank_label == "first"
        order = xp.arange(label.shape[1])
        if self.use_label_lengths:
            counts = xp.minimum(whole(given["label_lengths"]), label.shape[1])
        else:
            padded = label <= 0 if first else label < 0
            counts = (xp.cumsum(padded, axis=1) == 0).sum(axis=1)
        used = order < counts[:, None]
        if label.size and ((label[used] < 0) | (label[used] >= classes)).any():
            raise IndexOutOfRange(
                f"{self.name}: labels are from {label[used].min()} to {label[used].max()}, expected 0 to {classes - 1}"
            )
        label = xp.where(used, label, 0)
        steps = xp.full(batch, time)
        if self.use_data_lengths:
            steps = xp.minimum(whole(given["data_lengths"]), time)
        states = xp.full((batch, 2 * label.shape[1] + 1), 0 if first else classes - 1)
        states[:, 1::2] = label
        different = xp.zeros(states.shape, bool)
        different[:, 3::2] = label[:, 1:] != label[:, :-1]
        repeats = (used[:, 1:] & ~different[:, 3::2]).sum(axis=1)
        last, place = 2 * counts[:, None], xp.arange(states.shape[1])
        return _Paths(
            states,
            different,
            (place == last) | ((place == last - 1) & (last > 0)),
            steps,
            (counts + repeats <= steps) & (steps > 0),
        )

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, paths, (out, alpha) = run.xp, self.paths(run, inputs), outputs
        emitted = paths.emitted(xp, _log_softmax(xp, inputs[0].astype(alpha.dtype, copy=False)))
        now = xp.full(alpha.shape[1:], _NEVER, alpha.dtype)
        now[:, 0] = 0  # before the first step, so that it enters state 0 or 1
        skips = xp.where(paths.skips, 0, _NEVER).astype(alpha.dtype)
        for step in range(len(alpha)):
            moved = _moved(xp, now, 0, skips)
            moved += emitted[step]
            now = xp.where((step < paths.steps)[:, None], moved, now)
            alpha[step] = now
        out[...] = xp.where(paths.possible, -paths.total(xp, now), 0)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        named = dict(zip(self.inputs(), list(inputs), strict=True))
        step = F.op("_backward_CTCLoss", head=heads[0], **named, alpha=outputs[1], **bound(self))
        return [step, F.zeros_like(unchecked(inputs, 1)), *[None] * (len(named) - 2)]


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
        emitted = paths.emitted(xp, log_softmax)
        final = xp.where(paths.ends, 0, _NEVER).astype(alpha.dtype)
        skips = xp.where(paths.skips, 0, _NEVER).astype(alpha.dtype)
        beta, share = final, alpha - paths.total(xp, alpha[-1])[:, None]
        for step in reversed(range(len(data))):
            if step + 1 < len(data):
                moved = _moved(xp, beta + emitted[step + 1], 1, skips)
                beta = xp.where((step + 1 < paths.steps)[:, None], moved, final)
            share[step] += beta
        xp.exp(share, out=share)
        grad = xp.exp(log_softmax)
        rows = xp.arange(data.shape[1])
        grad[:, rows, paths.states[:, 0]] -= share[:, :, ::2].sum(axis=2)
        # Label by label, since a class may occur several times in a labelling, but not in one place.
        for place in range(1, share.shape[2], 2):
            grad[:, rows, paths.states[:, place]] -= share[:, :, place]
        running = paths.possible & (xp.arange(len(data))[:, None] < paths.steps)
        out[...] = xp.where(running[..., None], grad * head[:, None], 0)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        raise NotImplementedError  # no second order


def _log_softmax(xp: Any, data: Array) -> Array:
    shifted = data - data.max(axis=2, keepdims=True)
    shifted -= xp.log(xp.exp(shifted).sum(axis=2, keepdims=True))
    return shifted


def _log_sum(xp: Any, terms: Array) -> Array:
    """Log Σ exp over the first axis. Not logaddexp, which is not vectorised as exp and log are."""
    top = terms.max(axis=0)
    terms -= top
    xp.exp(terms, out=terms)
    return top + xp.log(terms.sum(axis=0))


def _moved(xp: Any, now: Array, direction: int, skips: Array) -> Array:
    """The probabilities after one step of all paths: forward in time (0), or backward (1)."""
    terms = xp.full((3, *now.shape), _NEVER, now.dtype)
    terms[0] = now
    if direction == 0:
        terms[1, :, 1:] = now[:, :-1]
        terms[2, :, 2:] = now[:, :-2]
        terms[2] += skips
    else:
        terms[1, :, :-1] = now[:, 1:]
        terms[2, :, :-2] = now[:, 2:] + skips[:, 2:]
    return _log_sum(xp, terms)
