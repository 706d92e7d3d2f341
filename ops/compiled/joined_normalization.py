"""BatchNorm of joined arrays in prediction, without the joined array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, operator, option
from flowmx.ops.registry.traits import BatchWise


@operator("_joined_normalization")
class JoinedNormalization(Operator, hidden=True, keeps_layout=True, batch_wise=BatchWise.ALL):
    """Arrays joined along the channels (axis 1), then scale · x + shift by channel, and optionally ReLU."""

    arguments: ClassVar[tuple[str, ...]] = ()
    num_args: int = option(1, "The number of arrays.", low=1)
    relu: bool = option(False, "Apply ReLU.")

    def inputs(self) -> tuple[str, ...]:
        return (*[f"arg{index}" for index in range(self.num_args)], "scale", "shift")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        parts = [shape for shape in shapes[: self.num_args] if shape is not None]
        if len(parts) < self.num_args:
            return shapes, [None]
        return shapes, [(parts[0][0], sum(shape[1] for shape in parts), *parts[0][2:])]

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, dtypes[:1]

    def pieces(self, inputs: Sequence[Array], out: Array) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield each part with its scale and shift, in shapes that broadcast, and its place in the output."""
        *parts, scale, shift = inputs
        start, vector = 0, (-1, *(1,) * (out.ndim - 2))
        for part in parts:
            channels = slice(start, start + part.shape[1])
            yield part, scale[channels].reshape(vector), shift[channels].reshape(vector), out[:, channels]
            start = channels.stop

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for part, scale, shift, target in self.pieces(inputs, outputs[0]):
            run.xp.multiply(part, scale, out=target)
            run.xp.add(target, shift, out=target)
            if self.relu:
                run.xp.maximum(target, 0, out=target)
