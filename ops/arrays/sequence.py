"""Operators on sequences of different lengths: data of the shape (time, batch, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.indexing import as_integers
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear
from flowmx.ops.registry.dtypes import DType, element
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, merge, option
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import Passing

_LENGTHS = "Read the lengths from the second input; otherwise all sequences are full."
_AXIS = "The axis of time, 0 or 1."


class _Sequence(Linear):
    arguments = ("data", "sequence_length")
    input_docs = describe(
        data="(time, batch, ...) or, for axis 1, (batch, time, ...), any dtype",
        sequence_length="(batch,), int or float; only with use_sequence_length",
    )
    output_doc = "The shape and dtype of data"
    use_sequence_length: bool
    axis: int

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.use_sequence_length else self.arguments[:1]

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape of the output."""
        return shape

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        if len(data) < 2:
            raise ShapeError(f"{self.name}: data has shape {data}, expected at least 2 axes (time, batch)")
        if not self.use_sequence_length:
            return shapes, [self.output_shape(data)]
        batch = (data[1 - self.axis],)
        lengths = merge(shapes[1], batch)
        if lengths is False:
            raise ShapeError(f"{self.name}: sequence_length has shape {shapes[1]}, expected {batch}")
        return [data, lengths], [self.output_shape(data)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def grid(self, run: Run, shape: Shape, others: Sequence[Array]) -> tuple[Array, Array]:
        """Return the times and the lengths, as arrays that broadcast to (time, batch)."""
        times = run.xp.arange(shape[self.axis])[:, None]
        if self.use_sequence_length:
            return times, self.check_lengths(as_integers(others[0]), len(times))[None, :]
        return times, run.xp.full((1, shape[1 - self.axis]), shape[self.axis])

    def check_lengths(self, lengths: Array, longest: int) -> Array:
        """Return the lengths after a check that none exceeds the axis of time.

        Raises:
            IndexOutOfRange: a length is too large.
        """
        if lengths.size and lengths.max() > longest:
            raise IndexOutOfRange(
                f"{self.name}: sequence_length is up to {lengths.max()}, expected at most {longest}, "
                f"the length of axis {self.axis}"
            )
        return lengths

    def time_major(self, x: Array) -> Array:
        """Return the data as (time, batch, ...)."""
        return x.swapaxes(0, 1) if self.axis else x


@linear("SequenceMask")
class SequenceMask(_Sequence):
    """The sequences with ``value`` after their end."""

    use_sequence_length: bool = option(False, _LENGTHS)
    value: float = option(0.0, "The value after the end.")
    axis: int = option(0, _AXIS, low=0, high=1)

    def __post_init__(self) -> None:
        if not self.use_sequence_length:
            self.with_traits(passing=Passing.ALWAYS)

    def check_lengths(self, lengths: Array, longest: int) -> Array:
        return lengths  # a longer sequence is not masked

    def _mask(self, run: Run, x: Array, others: Sequence[Array], value: float, out: Array) -> None:
        times, lengths = self.grid(run, x.shape, others)
        is_valid = times < lengths
        data = self.time_major(x)
        is_valid = is_valid.reshape(*is_valid.shape, *((1,) * (x.ndim - 2)))
        self.time_major(out)[...] = run.xp.where(is_valid, data, element(value, data.dtype))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._mask(run, inputs[0], inputs[1:], self.value, outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        self._mask(run, head, others, 0.0, out)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        # Only the linear part has a transpose; the value has no gradient.
        linear_part = type(self).create(use_sequence_length=self.use_sequence_length, axis=self.axis)
        return Linear.gradient(cast("Linear", linear_part), F, inputs, outputs, heads)


@linear("SequenceLast")
class SequenceLast(_Sequence):
    """The last element of each sequence: shape (batch, ...)."""

    output_doc = "(batch, ...), the dtype of data"
    use_sequence_length: bool = option(False, _LENGTHS)
    axis: int = option(0, _AXIS, low=0, high=1)

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[1 - self.axis], *shape[2:])

    def _ends(self, run: Run, shape: Shape, others: Sequence[Array]) -> tuple[Array, Array]:
        lengths = self.grid(run, shape, others)[1]
        return run.xp.maximum(lengths[0], 1) - 1, run.xp.arange(lengths.shape[1])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.time_major(inputs[0])[self._ends(run, inputs[0].shape, inputs[1:])]

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        self.time_major(out)[self._ends(run, out.shape, others)] = head


@linear("SequenceReverse")
class SequenceReverse(_Sequence):
    """The sequences in reverse order of time; elements after their end stay in place."""

    use_sequence_length: bool = option(False, _LENGTHS)
    axis: int = option(0, _AXIS, low=0, high=1)

    def _reverse(self, run: Run, x: Array, others: Sequence[Array], out: Array) -> None:
        times, lengths = self.grid(run, x.shape, others)
        origin = run.xp.where(times < lengths, lengths - 1 - times, times)
        self.time_major(out)[...] = self.time_major(x)[origin, run.xp.arange(origin.shape[1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._reverse(run, inputs[0], inputs[1:], outputs[0])

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        self._reverse(run, head, others, out)
