"""Operators without inputs: constants and ranges. ``ctx`` exists for MXNet's symbol files and is ignored."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flowmx.errors import ParameterError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.arrays.shape_arithmetic import axis_of
from flowmx.ops.registry.dtypes import FLOAT32, DType, element
from flowmx.ops.registry.operators import (
    Array,
    Operator,
    Run,
    Shape,
    ShapeOrNone,
    describe,
    family,
    operator,
    option,
    required,
)

_CTX = "Ignored; exists for MXNet's symbol files."
_DTYPE = "The element type."
_SHAPE = "The shape; in a symbol, 0 or -1 stands for a length to infer from other inputs."


class _Creation(Operator, no_gradient=True):
    arguments = ()
    dtype: DType

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        return [], [self.dtype]


@family
class Fill(_Creation):
    """Base of operators that fill an array with one number."""

    output_doc = "`shape`, dtype `dtype`"
    shape: Shape = option((), _SHAPE, low=-1)
    ctx: str = option("", _CTX)
    dtype: DType = option(FLOAT32, _DTYPE)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [], [self.shape]

    def constant(self) -> float:
        """Return the fill value."""
        return 0

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = element(self.constant(), self.dtype)


@operator("_zeros")
class Zeros(Fill):
    """Zeros."""


@operator("_ones")
class Ones(Fill):
    """Ones."""

    def constant(self) -> float:
        return 1


@operator("_full")
class Full(Fill):
    """One number everywhere."""

    value: float = required("The number.")

    def constant(self) -> float:
        return self.value


@operator("_eye")
class Eye(_Creation):
    """Ones on a diagonal, zeros elsewhere."""

    output_doc = "(N, M), or (N, N) if M is 0, dtype `dtype`"
    N: int = required("Number of rows.", low=1)
    M: int = option(0, "Number of columns; 0 for N.", low=0)
    k: int = option(0, "The diagonal: 0 the main one, above it from 1, below it from -1.")
    ctx: str = option("", _CTX)
    dtype: DType = option(FLOAT32, _DTYPE)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [], [(self.N, self.M or self.N)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.eye(self.N, self.M or self.N, self.k)


@operator("_arange")
class Arange(_Creation):
    """Numbers from ``start`` to before ``stop`` in steps of ``step``, each ``repeat`` times."""

    output_doc = "(n,) with n = ceil((stop - start)/step)·repeat, dtype `dtype`"
    start: float = option(0.0, "The first number, or the end if stop is None.")
    stop: float | None = option(None, "The end, not included.")
    step: float = option(1.0, "The distance between numbers.")
    repeat: int = option(1, "The number of copies of each number.", low=1)
    infer_range: bool = option(False, "If stop is None: infer the length from the use of the output.")
    ctx: str = option("", _CTX)
    dtype: DType = option(FLOAT32, _DTYPE)

    def __post_init__(self) -> None:
        if self.step == 0:
            raise ParameterError("_arange: parameter step is 0, expected a number other than 0")

    def bounds(self) -> tuple[float, float]:
        """Return the first number and the end."""
        return (0.0, self.start) if self.stop is None else (self.start, self.stop)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if self.infer_range and self.stop is None:
            return [], [(-1,)]
        start, stop = self.bounds()
        return [], [(max(0, math.ceil((stop - start) / self.step)) * self.repeat,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out, xp = outputs[0], run.xp
        start = self.start if self.infer_range else self.bounds()[0]
        start, step = _as_elements(out, start, self.step)
        out[...] = start + step * (xp.arange(out.size) // self.repeat)


def _as_elements(out: Array, *values: float) -> tuple[float, ...]:
    """Return numbers converted to an integer dtype of ``out``; unchanged for other dtypes."""
    return tuple([int(element(value, out.dtype)) for value in values]) if out.dtype.kind in "iu" else values


@operator("_linspace")
class Linspace(_Creation):
    """``num`` evenly spaced numbers from ``start`` to ``stop``."""

    output_doc = "(num,), dtype `dtype`"
    start: float = required("The first number.")
    stop: float = required("The last number; with endpoint=False the end, not included.")
    num: int = required("The number of elements.", low=0)
    endpoint: bool = option(True, "Include stop as the last number.")
    ctx: str = option("", _CTX)
    dtype: DType = option(FLOAT32, _DTYPE)

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return [], [(self.num,)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0][...] = run.xp.linspace(self.start, self.stop, self.num, self.endpoint)


@operator("_contrib_arange_like", "arange_like")
class ArangeLike(Operator, no_gradient=True, shapes_only=("data",)):
    """Numbers from ``start``: one for each element of the input, or for each position of an axis."""

    input_docs = describe(data="any shape, any dtype; only its shape and dtype are used")
    output_doc = "The shape of data, or (length of the axis,); the dtype of data"
    start: float = option(0.0, "The first number.")
    step: float = option(1.0, "The distance between numbers.")
    repeat: int = option(1, "The number of copies of each number.", low=1)
    ctx: str = option("", _CTX)
    axis: int | None = option(None, "The axis; None for the input's whole shape.")

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        if shapes[0] is None or self.axis is None:
            return shapes, [shapes[0] if self.axis is None else (-1,)]
        return shapes, [(shapes[0][axis_of(self, self.axis, len(shapes[0]))],)]

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        out = outputs[0]
        start, step = _as_elements(out, self.start, self.step)
        out[...] = (start + step * (run.xp.arange(out.size) // self.repeat)).reshape(out.shape)
