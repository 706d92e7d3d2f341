"""Parts of arrays, by strides or by index arrays: the gradients of views and assignments are made of these operators.

All are linear. A part by strides names no element twice. Index arrays may: the last of what is assigned to one place
stays, so only that has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowmx.ops.arrays.linear import Inferred, InferredTypes, bound
from flowmx.ops.arrays.reshaping import rebuild
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import (
    Array,
    Bound,
    Form,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    family,
    operator,
    required,
)


@family
class _Strided(Operator, hidden=True):
    whole: Shape = required("The shape of the whole array.")
    shape: Shape = required("The shape of the part.")
    offset: int = required("The first element of the part.")
    strides: Shape = required("The strides of the part, in elements.")

    def part(self, run: Run, whole: Array) -> Array:
        """A view of the part of a contiguous array."""
        size = whole.dtype.itemsize
        return run.device.view(
            whole, self.shape, whole.dtype, self.offset * size, tuple([each * size for each in self.strides])
        )


@operator("_part")
class Part(_Strided):
    """A strided part of an array."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], self.part(run, run.xp.ascontiguousarray(inputs[0])))

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_embedded_part", heads[0], **bound(self))]


@operator("_embedded_part")
class EmbeddedPart(_Strided):
    """Zeros with a strided part of them replaced."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.shape], [self.whole]

    def bound(self, xp: Any, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        if xp is not np or given[0][1] != made[0][1]:
            return None
        shape, dtype = self.shape, made[0][1]
        offset, strides = self.offset * dtype.itemsize, tuple([each * dtype.itemsize for each in self.strides])
        view = np.ndarray

        def embed(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            out = outputs[0]
            if not out.flags.c_contiguous:
                self.forward(run, inputs, outputs)
                return
            out.fill(0)
            view(shape, dtype, out, offset, strides)[...] = inputs[0]

        return embed

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        made = run.xp.zeros(self.whole, outputs[0].dtype)
        run.xp.copyto(self.part(run, made), inputs[0])
        run.xp.copyto(outputs[0], made)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_part", heads[0], **bound(self))]


@operator("_without_part")
class WithoutPart(_Strided):
    """An array with zeros in a strided part."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        made = run.xp.array(inputs[0], order="C")
        self.part(run, made)[...] = 0
        run.xp.copyto(outputs[0], made)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return [F.op("_without_part", heads[0], **bound(self))]


@family
class _Chosen(Operator, hidden=True):
    variadic = "num_args"
    num_args: int = required("Number of inputs.", low=1)
    key: str = required("The key, with @ for each index array.")
    whole: Shape = required("The shape of the whole array.")
    shape: Shape = required("The shape of what the key selects.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def onwards(self, F: Any, name: str, inputs: Sequence[Any], head: Any) -> list[Any]:
        """The gradient by another operator of the same key."""
        indexes = [inputs[at] for at in range(1, self.num_args)]
        return [F.op(name, head, *indexes, **bound(self)), *([None] * len(indexes))]


@operator("_without_chosen")
class WithoutChosen(_Chosen):
    """An array with zeros where index arrays say."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole, *shapes[1:]], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
        outputs[0][rebuild(self.key, inputs[1:])] = 0

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return self.onwards(F, "_without_chosen", inputs, heads[0])


@operator("_chosen_last")
class ChosenLast(_Chosen):
    """The elements that index arrays choose of an array; zeros for all but the last choice of each element."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole, *shapes[1:]], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, key = run.xp, rebuild(self.key, inputs[1:])
        number = xp.arange(math.prod(self.shape)).reshape(self.shape)
        last = xp.zeros(self.whole, number.dtype)
        last[key] = number
        outputs[0][...] = xp.where(last[key] == number, inputs[0][key], 0)

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return self.onwards(F, "_assigned", inputs, heads[0])


@operator("_assigned")
class Assigned(_Chosen):
    """Zeros with other elements where index arrays say."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.shape, *shapes[1:]], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = 0
        outputs[0][rebuild(self.key, inputs[1:])] = inputs[0]

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        return self.onwards(F, "_chosen_last", inputs, heads[0])
