"""Operators on sequences of different lengths: data of the shape (time, batch, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from flowmx.errors import IndexOutOfRange, ShapeError
from flowmx.ops.arrays.indexing import whole
from flowmx.ops.arrays.linear import Inferred, InferredTypes, Linear, linear
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, described, merge, option
from flowmx.ops.registry.traits import Passing

_LENGTHS = "Take the lengths from the second input; else all are full."
_AXIS = "The axis of time, 0 or 1."


class _Sequence(Linear):
    arguments = ("data", "sequence_length")
    input_docs = described(
        data="(time, batch, ...) or, for axis 1, (batch, time, ...), any dtype",
        sequence_length="(batch,), int or float; only with use_sequence_length",
    )
    output_doc = "The shape and dtype of data"
    use_sequence_length: bool
    axis: int

    def inputs(self) -> tuple[str, ...]:
        return self.arguments if self.use_sequence_length else self.arguments[:1]

    def made(self, shape: Shape) -> Shape:
        """The output's shape."""
        return shape

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        data = shapes[0]
        if data is None:
            return shapes, [None]
        if len(data) < 2:
            raise ShapeError(f"{self.name}: data has shape {data}, expected at least 2 axes (time, batch)")
        if not self.use_sequence_length:
            return shapes, [self.made(data)]
        batch = (data[1 - self.axis],)
        lengths = merge(shapes[1], batch)
        if lengths is False:
            raise ShapeError(f"{self.name}: sequence_length has shape {shapes[1]}, expected {batch}")
        return [data, lengths], [self.made(data)]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def grid(self, run: Run, shape: Shape, others: Sequence[Array]) -> tuple[Array, Array]:
        """The times and the lengths, as arrays that broadcast to (time, batch)."""
        times = run.xp.arange(shape[self.axis])[:, None]
        if self.use_sequence_length:
            return times, self.checked(whole(others[0]), len(times))[None, :]
        return times, run.xp.full((1, shape[1 - self.axis]), shape[self.axis])

    def checked(self, lengths: Array, longest: int) -> Array:
        """The lengths, none of which may lie behind the end.

        Raises:
            IndexError: one does.
        """
        if lengths.size and lengths.max() > longest:
            raise IndexOutOfRange(
                f"{self.name}: sequence_length is up to {lengths.max()}, expected at most {longest}, "
                f"the length of axis {self.axis}"
            )
        return lengths

    def timed(self, x: Array) -> Array:
        """The data as (time, batch, ...)."""
        return x.swapaxes(0, 1) if self.axis else x


@linear("SequenceMask")
class SequenceMask(_Sequence):
    """The sequences with ``value`` from their end on."""

    use_sequence_length: bool = option(False, _LENGTHS)
    value: float = option(0.0, "The value behind the end.")
    axis: int = option(0, _AXIS, low=0, high=1)

    def __post_init__(self) -> None:
        if not self.use_sequence_length:
            self.with_traits(passing=Passing.ALWAYS)

    def checked(self, lengths: Array, longest: int) -> Array:
        return lengths  # what is longer is whole

    def _mask(self, run: Run, x: Array, others: Sequence[Array], value: float, out: Array) -> None:
        times, lengths = self.grid(run, x.shape, others)
        inside = times < lengths
        timed = self.timed(x)
        inside = inside.reshape(*inside.shape, *((1,) * (x.ndim - 2)))
        self.timed(out)[...] = run.xp.where(inside, timed, timed.dtype.type(value))

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._mask(run, inputs[0], inputs[1:], self.value, outputs[0])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        self._mask(run, head, others, 0.0, out)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        # The transpose belongs to the linear part, without the value.
        plain = type(self).create(use_sequence_length=self.use_sequence_length, axis=self.axis)
        return Linear.gradient(cast("Linear", plain), F, inputs, outputs, heads)


@linear("SequenceLast")
class SequenceLast(_Sequence):
    """The last element of each sequence: shape (batch, ...)."""

    output_doc = "(batch, ...), the dtype of data"
    use_sequence_length: bool = option(False, _LENGTHS)
    axis: int = option(0, _AXIS, low=0, high=1)

    def made(self, shape: Shape) -> Shape:
        return (shape[1 - self.axis], *shape[2:])

    def _ends(self, run: Run, shape: Shape, others: Sequence[Array]) -> tuple[Array, Array]:
        lengths = self.grid(run, shape, others)[1]
        return run.xp.maximum(lengths[0], 1) - 1, run.xp.arange(lengths.shape[1])

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = self.timed(inputs[0])[self._ends(run, inputs[0].shape, inputs[1:])]

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        out[...] = 0
        self.timed(out)[self._ends(run, out.shape, others)] = head


@linear("SequenceReverse")
class SequenceReverse(_Sequence):
    """The sequences in reverse order of time; what lies behind their end stays in place."""

    use_sequence_length: bool = option(False, _LENGTHS)
    axis: int = option(0, _AXIS, low=0, high=1)

    def _reverse(self, run: Run, x: Array, others: Sequence[Array], out: Array) -> None:
        times, lengths = self.grid(run, x.shape, others)
        origin = run.xp.where(times < lengths, lengths - 1 - times, times)
        self.timed(out)[...] = self.timed(x)[origin, run.xp.arange(origin.shape[1])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._reverse(run, inputs[0], inputs[1:], outputs[0])

    def transposed(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        self._reverse(run, head, others, out)
