"""Operators that repeat elements: tile, repeat."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.arrays.linear import Inferred, Linear, linear
from flowmx.ops.arrays.shape_arithmetic import axis_of, length_product
from flowmx.ops.registry.operators import Array, Run, Shape, ShapeOrNone, describe, option, required
from flowmx.ops.registry.traits import BatchWise, Passing


@linear("tile")
class Tile(Linear, moves=True, passing=Passing.ALIKE, input_named=True, batch_wise=BatchWise.FIRST):
    """The input repeated ``reps`` times along each axis."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data times `reps`, axis by axis, the dtype of data"
    reps: Shape = required("The number of copies along each axis; matched from the right.", low=0)

    def _pairs(self, shape: Shape) -> list[tuple[int, int]]:
        ndim = max(len(shape), len(self.reps))
        lengths = (1,) * (ndim - len(shape)) + shape
        return list(zip((1,) * (ndim - len(self.reps)) + self.reps, lengths, strict=True))

    def mixes_batch(self, inputs: Sequence[Shape]) -> bool:
        return len(self.reps) > len(inputs[0])

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None:
            return shapes, [None]
        return shapes, [tuple(length_product(*pair) for pair in self._pairs(shapes[0]))]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.tile(inputs[0], self.reps)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        pairs = self._pairs(out.shape)
        blocks = head.reshape([n for pair in pairs for n in pair])
        out[...] = blocks.sum(axis=tuple(range(0, 2 * len(pairs), 2))).reshape(out.shape)


@linear("repeat")
class Repeat(Linear, moves=True, passing=Passing.ALIKE, input_named=True, batch_wise=BatchWise.FIRST):
    """Each element repeated ``repeats`` times along an axis, or in the flattened input."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape of data with the axis `repeats` times as long, or flat if axis is None; the dtype of data"
    repeats: int = required("The number of copies of each element.", low=0)
    axis: int | None = option(None, "The axis; None for the flattened input.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        shape = shapes[0]
        if shape is None:
            return shapes, [(-1,) if self.axis is None else None]
        if self.axis is None:
            return shapes, [(length_product(*shape, self.repeats),)]
        axis = axis_of(self, self.axis, len(shape))
        return shapes, [(*shape[:axis], length_product(shape[axis], self.repeats), *shape[axis + 1 :])]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.repeat(inputs[0], self.repeats, self.axis)

    def apply_transpose(self, run: Run, head: Array, others: Sequence[Array], out: Array) -> None:
        axis = out.ndim - 1 if self.axis is None else self.axis % out.ndim
        copies = head.reshape(*out.shape[: axis + 1], self.repeats, *out.shape[axis + 1 :])
        out[...] = copies.sum(axis=axis + 1)
