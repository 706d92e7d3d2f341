"""Parts of arrays by strides or by index arrays. The gradients of views and assignments consist of these operators.

All are linear. A strided part holds no element twice. Index arrays may repeat an element: the last value assigned to it
is stored, so only that value has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowmx.ops.arrays.linear import Inferred, InferredTypes, parameters_of
from flowmx.ops.arrays.shape_arithmetic import key_from_template
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
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors


@family
class _Strided(Operator, hidden=True):
    whole: Shape = required("The shape of the whole array.")
    shape: Shape = required("The shape of the part.")
    offset: int = required("The first element of the part.")
    strides: Shape = required("The strides of the part, in elements.")

    def part(self, run: Run, whole: Array) -> Array:
        """Return a view of the part of a contiguous array."""
        size = whole.dtype.itemsize
        result: Array = run.device.view(
            whole, self.shape, whole.dtype, self.offset * size, tuple([stride * size for stride in self.strides])
        )
        return result


@operator("_part")
class Part(_Strided):
    """A strided part of an array."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], self.part(run, run.xp.ascontiguousarray(inputs[0])))

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_embedded_part", heads[0], **parameters_of(self))]


@operator("_embedded_part")
class EmbeddedPart(_Strided):
    """Zeros with a strided part replaced by the input."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.shape], [self.whole]

    def bound(self, xp: ArrayNamespace, input_forms: Sequence[Form], output_forms: Sequence[Form]) -> Bound | None:
        if xp is not np or input_forms[0][1] != output_forms[0][1]:
            return None
        shape, dtype = self.shape, output_forms[0][1]
        offset, strides = self.offset * dtype.itemsize, tuple([stride * dtype.itemsize for stride in self.strides])
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
        array = run.xp.zeros(self.whole, outputs[0].dtype)
        run.xp.copyto(self.part(run, array), inputs[0])
        run.xp.copyto(outputs[0], array)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_part", heads[0], **parameters_of(self))]


@operator("_without_part")
class ZeroPart(_Strided):
    """The input with zeros in a strided part."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        array = run.xp.array(inputs[0], order="C")
        self.part(run, array)[...] = 0
        run.xp.copyto(outputs[0], array)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [F.op("_without_part", heads[0], **parameters_of(self))]


@family
class _ByKey(Operator, hidden=True):
    variadic = "num_args"
    num_args: int = required("Number of inputs.", low=1)
    key: str = required("The key, with @ for each index array.")
    whole: Shape = required("The shape of the whole array.")
    shape: Shape = required("The shape of the selected elements.")

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return dtypes, [dtypes[0]]

    def key_gradients(self, F: Functions, name: str, inputs: Tensors, head: Tensor) -> Gradients:
        """Return the gradients: the operator ``name`` with the same key, applied to the head."""
        indexes = [inputs[index] for index in range(1, self.num_args)]
        return [F.op(name, head, *indexes, **parameters_of(self)), *([None] * len(indexes))]


@operator("_without_chosen")
class ZeroByKey(_ByKey):
    """The input with zeros at the elements that a key selects."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole, *shapes[1:]], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        run.xp.copyto(outputs[0], inputs[0])
        outputs[0][key_from_template(self.key, inputs[1:])] = 0

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return self.key_gradients(F, "_without_chosen", inputs, heads[0])


@operator("_chosen_last")
class LastByKey(_ByKey):
    """The elements that a key selects; if an element is selected more than once, zero except for the last time."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.whole, *shapes[1:]], [self.shape]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        xp, key = run.xp, key_from_template(self.key, inputs[1:])
        number = xp.arange(math.prod(self.shape)).reshape(self.shape)
        last = xp.zeros(self.whole, number.dtype)
        last[key] = number
        outputs[0][...] = xp.where(last[key] == number, inputs[0][key], 0)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return self.key_gradients(F, "_assigned", inputs, heads[0])


@operator("_assigned")
class AssignByKey(_ByKey):
    """Zeros with the input at the elements that a key selects."""

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [self.shape, *shapes[1:]], [self.whole]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = 0
        outputs[0][key_from_template(self.key, inputs[1:])] = inputs[0]

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return self.key_gradients(F, "_chosen_last", inputs, heads[0])
