"""Operators of two arrays, and of an array and a number; each row of the table defines up to four operators.

A row such as ``sub`` defines ``broadcast_sub`` (arrays that broadcast), ``elemwise_sub`` (arrays of the same shape),
``_minus_scalar`` (an array and a number) and ``_rminus_scalar`` (a number and an array). Comparisons return 1 and 0 in
the dtype of the inputs, as in MXNet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import Inferred, InferredTypes
from flowmx.ops.formulas.activations import smooth_l1
from flowmx.ops.formulas.array_formula import ArrayFormula
from flowmx.ops.registry.dtypes import DType, element, is_floating
from flowmx.ops.registry.operators import Array, Operator, Run, ShapeOrNone, describe, lookup, operator, option
from flowmx.ops.registry.tensors import ArrayNamespace, Functions, Gradients, Tensor, Tensors, UfuncCall
from flowmx.ops.registry.traits import BatchWise, Neutral, Precision, Quantization

_INT64: DType = np.dtype(np.int64)
_FLOAT64: DType = np.dtype(np.float64)

Operand = Array | np.generic | float
Derivative = Callable[[Functions, Any, Any, Any, Tensor], Any]


class Row(NamedTuple):
    """A function of two operands; in the scalar operators ``a`` or ``b`` is a number."""

    name: str
    function: Callable[..., Any]
    """Called as ``function(xp, a, b, out)``."""
    left: Derivative | None
    """The gradient of a, as a function of (F, a, b, y, g), before broadcasting is undone."""
    right: Derivative | None
    """The gradient of b."""
    needs: str
    """The letters of a, b and y that the derivatives read (the others may have been changed)."""
    doc: str
    broadcast: tuple[str, ...]
    elementwise: tuple[str, ...] = ()
    scalar: tuple[str, ...] = ()
    reversed_scalar: tuple[str, ...] = ()
    onnx: str = ""
    """The operator of ONNX, as in :class:`Operator`."""
    precision: Precision = Precision.WIDEST
    """The precision for two arrays, and for an array and a number unless it is WIDEST."""
    reversed_precision: Precision | None = None
    neutral: Neutral | None = None
    factor: Callable[[float], float] | None = None
    """The factor that a is multiplied by if b is a number."""
    quantized: str = ""
    """The corresponding operator on quantized arrays of the same shape."""


@dataclass(frozen=True, slots=True)
class Ufunc:
    """A ufunc of the array namespace, as the function of a row."""

    name: str

    def __call__(self, xp: ArrayNamespace, a: Operand, b: Operand, out: Array) -> None:
        getattr(xp, self.name)(a, b, out=out, casting="unsafe")


# Ufuncs that keep integer dtypes.
_KEEP_INTEGERS = {"add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "greater", "greater_equal",
                  "less", "less_equal"}  # fmt: skip


def _ufunc_name(function: Callable[..., Any]) -> str | None:
    """Return the name of the ufunc that computes a row's function for floats, or None."""
    if isinstance(function, Ufunc):
        return function.name
    return {_divide: "divide", power: "power"}.get(function)


def _ufunc_call(row: Row, xp: ArrayNamespace, dtype: DType, number: float | None = None) -> UfuncCall | None:
    """Return a row as one ufunc and its number, for floats, or for integers if the ufunc keeps their dtype."""
    name = _ufunc_name(row.function)
    keeps_integers = dtype.kind in "iu" and name in _KEEP_INTEGERS
    if name is None or not (dtype.kind == "f" or keeps_integers):
        return None
    if number is None:
        return getattr(xp, name), None
    value = element(number, dtype)
    # A 0-d array is the fastest for NumPy. CuPy would allocate it on a device, when pushed.
    return getattr(xp, name), np.asarray(value) if xp is np else value


def _divide(xp: ArrayNamespace, a: Operand, b: Operand, out: Array) -> None:
    if is_floating(out.dtype):
        xp.divide(a, b, out=out, casting="unsafe")
        return
    # Integers round towards zero. A number divided by 0 is infinity, converted as in C; an element divided by 0 is 0.
    quotient_by_zero = element(math.inf, out.dtype) if isinstance(a, np.generic) else 0
    divisor = xp.where(xp.equal(b, 0), 1, b)
    out[...] = xp.where(xp.equal(b, 0), quotient_by_zero, xp.trunc(xp.true_divide(a, divisor)))


def power(xp: ArrayNamespace, a: Operand, b: Operand, out: Array) -> None:
    """Write a to the power b; integers beyond 32 bits (64 for int64), and 1/0, are converted as in C."""
    fits = isinstance(b, (int, np.integer)) and 0 <= int(b) * out.dtype.itemsize <= 3  # 24 bits
    if fits or out.dtype.kind not in "iu":
        xp.power(a, b, out=out, casting="unsafe")
        return
    with np.errstate(all="ignore"):
        floats = xp.power(xp.asarray(a, np.float64), xp.asarray(b, np.float64))
        integers = xp.power(xp.asarray(a).astype(np.int64), xp.maximum(xp.asarray(b), 0).astype(np.int64))
        limit = 2.0**63 if out.dtype.itemsize == 8 or out.dtype == np.uint32 else 2.0**31
        is_exact = xp.logical_and(xp.asarray(b) >= 0, abs(floats) < limit)
        out[...] = xp.where(is_exact, integers.astype(out.dtype), floats.astype(out.dtype))


def _mod(xp: ArrayNamespace, a: Operand, b: Operand, out: Array) -> None:
    # The result has the sign of the divisor, as in MXNet and NumPy; it is 0 for a divisor of 0.
    xp.copyto(out, xp.where(xp.equal(b, 0), 0, xp.mod(a, xp.where(xp.equal(b, 0), 1, b))), casting="unsafe")


def _nonzero(a: Any) -> Any:
    """Return numbers with 0 replaced by 1."""
    return a + (a == 0)


def _log(F: Functions, a: Tensor | float) -> Tensor | float:
    """Return the logarithm of a power's base; 0 for a base of 0, whose powers do not depend on the exponent."""
    if isinstance(a, float):
        return math.log(a) if a > 0 else 0.0 if a == 0 else math.nan
    return F.log(_nonzero(a))


def _base(a: Any, b: Any) -> Any:
    """Return the base in a power's derivative; not 0 where the exponent is 0, since the derivative is 0 there."""
    if isinstance(b, float):
        return a if b else _nonzero(a)
    return a + (a == 0) * (b == 0)


def _unless_zero_divisor(g: Any, b: Any) -> Any:
    """Return a gradient, set to 0 where the divisor is 0."""
    return (g if b else g * 0.0) if isinstance(b, float) else g * (b != 0)


TABLE = [
    Row("add", Ufunc("add"), lambda F, a, b, y, g: g, lambda F, a, b, y, g: g, "", "a + b",
        ("broadcast_add", "broadcast_plus"), ("elemwise_add", "_add", "_plus", "_Plus", "_grad_add"),
        ("_plus_scalar", "_PlusScalar"), onnx="Add", neutral=Neutral(-0.0, (0, 1)),
        quantized="_contrib_quantized_elemwise_add"),
    Row("sub", Ufunc("subtract"), lambda F, a, b, y, g: g, lambda F, a, b, y, g: -g, "", "a - b",
        ("broadcast_sub", "broadcast_minus"), ("elemwise_sub", "_sub", "_minus", "_Minus"),
        ("_minus_scalar", "_MinusScalar"), ("_rminus_scalar", "_RMinusScalar"), onnx="Sub",
        neutral=Neutral(0.0)),
    Row("mul", Ufunc("multiply"), lambda F, a, b, y, g: g * b, lambda F, a, b, y, g: g * a, "ab", "a · b",
        ("broadcast_mul",), ("elemwise_mul", "_mul", "_Mul"), ("_mul_scalar", "_MulScalar"), onnx="Mul",
        neutral=Neutral(1.0, (0, 1)), factor=lambda b: b, quantized="_contrib_quantized_elemwise_mul"),
    Row("div", _divide, lambda F, a, b, y, g: g / b, lambda F, a, b, y, g: -(g * y) / b, "by", "a / b",
        ("broadcast_div",), ("elemwise_div", "_div", "_Div"), ("_div_scalar", "_DivScalar"),
        ("_rdiv_scalar", "_RDivScalar"), onnx="Div", reversed_precision=Precision.FLOAT32,
        neutral=Neutral(1.0, kinds="f"), factor=lambda b: 1 / b if b else 0.0),
    Row("mod", _mod, lambda F, a, b, y, g: _unless_zero_divisor(g, b),
        lambda F, a, b, y, g: -_unless_zero_divisor(g * F.floor(a / _nonzero(b)), b), "ab",
        "a mod b, with the sign of b",
        ("broadcast_mod",), ("_mod", "_Mod"), ("_mod_scalar", "_ModScalar"), ("_rmod_scalar", "_RModScalar"),
        onnx="Mod"),
    Row("power", power, lambda F, a, b, y, g: g * b * _base(a, b) ** (b - 1.0),
        lambda F, a, b, y, g: g * y * _log(F, a), "aby", "a to the power b", ("broadcast_power",),
        ("_power", "_Power"), ("_power_scalar", "_PowerScalar"), ("_rpower_scalar", "_RPowerScalar"), "Pow",
        Precision.FLOAT32, Precision.FLOAT32, Neutral(1.0, kinds="f", itemsize=4)),
    Row("maximum", Ufunc("maximum"), lambda F, a, b, y, g: g * (a >= b), lambda F, a, b, y, g: g * (a < b), "ab",
        "the larger of a and b", ("broadcast_maximum",), ("_maximum", "_Maximum"),
        ("_maximum_scalar", "_MaximumScalar"), onnx="Max"),
    Row("minimum", Ufunc("minimum"), lambda F, a, b, y, g: g * (a <= b), lambda F, a, b, y, g: g * (a > b), "ab",
        "the smaller of a and b", ("broadcast_minimum",), ("_minimum", "_Minimum"),
        ("_minimum_scalar", "_MinimumScalar"), onnx="Min"),
    Row("hypot", Ufunc("hypot"), lambda F, a, b, y, g: g * a / _nonzero(y),
        lambda F, a, b, y, g: g * b / _nonzero(y), "aby", "√(a² + b²)",
        ("broadcast_hypot",), ("_hypot", "_Hypot"), ("_hypot_scalar", "_HypotScalar"), precision=Precision.FLOAT32),
    Row("equal", Ufunc("equal"), None, None, "", "1 where a = b", ("broadcast_equal",), ("_equal", "_Equal"),
        ("_equal_scalar", "_EqualScalar"), onnx="Equal"),
    Row("not_equal", Ufunc("not_equal"), None, None, "", "1 where a ≠ b", ("broadcast_not_equal",),
        ("_not_equal", "_Not_Equal"), ("_not_equal_scalar", "_NotEqualScalar")),
    Row("greater", Ufunc("greater"), None, None, "", "1 where a > b", ("broadcast_greater",),
        ("_greater", "_Greater"), ("_greater_scalar", "_GreaterScalar"), onnx="Greater"),
    Row("greater_equal", Ufunc("greater_equal"), None, None, "", "1 where a ≥ b", ("broadcast_greater_equal",),
        ("_greater_equal", "_Greater_Equal"), ("_greater_equal_scalar", "_GreaterEqualScalar"), onnx="GreaterOrEqual"),
    Row("lesser", Ufunc("less"), None, None, "", "1 where a < b", ("broadcast_lesser",), ("_lesser", "_Lesser"),
        ("_lesser_scalar", "_LesserScalar"), onnx="Less"),
    Row("lesser_equal", Ufunc("less_equal"), None, None, "", "1 where a ≤ b", ("broadcast_lesser_equal",),
        ("_lesser_equal", "_Lesser_Equal"), ("_lesser_equal_scalar", "_LesserEqualScalar"), onnx="LessOrEqual"),
    Row("logical_and", Ufunc("logical_and"), None, None, "", "1 where both are not 0", ("broadcast_logical_and",),
        ("_logical_and", "_Logical_And"), ("_logical_and_scalar", "_LogicalAndScalar"), onnx="And"),
    Row("logical_or", Ufunc("logical_or"), None, None, "", "1 where one is not 0", ("broadcast_logical_or",),
        ("_logical_or", "_Logical_Or"), ("_logical_or_scalar", "_LogicalOrScalar"), onnx="Or"),
    Row("logical_xor", Ufunc("logical_xor"), None, None, "", "1 where exactly one is not 0",
        ("broadcast_logical_xor",), ("_logical_xor", "_Logical_Xor"), ("_logical_xor_scalar", "_LogicalXorScalar"),
        onnx="Xor"),
]  # fmt: skip


def broadcast_shapes(op: Operator, first: ShapeOrNone, second: ShapeOrNone) -> ShapeOrNone:
    """Return the shape that two shapes broadcast to, with -1 for unknown lengths.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    if first is None or second is None:
        return None
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    result = []
    for a, b in zip(longer, padded, strict=True):
        if a != b and 1 not in (a, b) and -1 not in (a, b):
            raise ShapeError(
                f"{op.name}: shapes {first} and {second} do not broadcast: each axis must be equal, or 1 in one of them"
            )
        result.append(b if a == 1 else a if b == 1 else max(a, b))
    return tuple(result)


def sum_to(F: Functions, gradient: Tensor, inputs: Tensors, position: int) -> Tensor:
    """Undo broadcasting: sum a gradient to the shape of its input."""
    # Only the shape is read, so the input may have been changed.
    like = getattr(inputs, "unchecked", inputs.__getitem__)(position)
    shape = getattr(gradient, "shape", None)
    if shape is not None and shape == getattr(like, "shape", None):
        return gradient
    return F.op("_sum_like", gradient, like)


class Pair(Operator, keeps_layout=True, in_place=((0, 0), (1, 0)), batch_wise=BatchWise.ALL):
    """Base of operators of two arrays."""

    arguments = ("lhs", "rhs")


class Broadcasting(Pair):
    """Base of operators of two arrays that broadcast."""

    input_docs = describe(
        lhs="any shape, any dtype",
        rhs="a shape that broadcasts with that of lhs, the dtype of lhs",
    )
    output_doc = "The broadcast shape, the dtype of lhs"

    def infer_shape(self, shapes: list[ShapeOrNone]) -> Inferred:
        return shapes, [broadcast_shapes(self, shapes[0], shapes[1])]


class Scalar(Operator, keeps_layout=True, in_place=((0, 0),), batch_wise=BatchWise.ALL):
    """Base of operators of an array and a number."""

    input_docs = describe(data="any shape, any dtype")
    output_doc = "The shape and dtype of data; int64 for bool, and float64 for integers with is_int=False"
    scalar: float
    is_int: bool
    number_first = False
    """Whether the number is the left operand."""

    def infer_type(self, dtypes: list[DType | None]) -> InferredTypes:
        dtype = dtypes[0]
        if dtype is None or is_floating(dtype):
            return dtypes, dtypes
        if self.is_int:
            return dtypes, [_INT64 if dtype.kind == "b" else dtype]
        return dtypes, [_FLOAT64]


def _number(op: Scalar, x: Array) -> np.generic | float:
    """Return the scalar in the array's dtype; unchanged if integers become float64."""
    if not is_floating(x.dtype) and not op.is_int:
        return op.scalar
    number: np.generic = element(op.scalar, _INT64 if x.dtype.kind == "b" else x.dtype)
    return number


def _gradient(
    row: Row,
    side: str,
    F: Functions,
    a: Tensor | float | None,
    b: Tensor | float | None,
    outputs: Tensors,
    head: Tensor,
) -> Tensor:
    """Return the gradient of the left or the right operand, before broadcasting is undone."""
    derivative = row.left if side == "left" else row.right
    assert derivative is not None
    result: Tensor = derivative(F, a, b, outputs[0] if "y" in row.needs else None, head)
    return result


def _operand(row: Row, inputs: Tensors, position: int, name: str) -> Tensor | None:
    """Return an operand if the derivatives read it, else None."""
    return inputs[position] if name in row.needs else None


def _array_methods(row: Row, broadcasts: bool) -> dict[str, object]:
    """Return the methods of an operator of two arrays."""

    def forward(self: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, inputs[0], inputs[1], outputs[0])

    def gradient(self: Operator, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        a, b = _operand(row, inputs, 0, "a"), _operand(row, inputs, 1, "b")
        gradients = [_gradient(row, side, F, a, b, outputs, heads[0]) for side in ("left", "right")]
        if not broadcasts:
            return gradients
        return [sum_to(F, gradient, inputs, position) for position, gradient in enumerate(gradients)]

    def as_ufunc(self: Operator, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        return _ufunc_call(row, xp, dtype)

    return {"forward": forward, "gradient": gradient, "as_ufunc": as_ufunc}


def _scalar_methods(row: Row) -> dict[str, object]:
    """Return the methods of an operator of an array and a number."""

    def forward(self: Scalar, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, inputs[0], _number(self, inputs[0]), outputs[0])

    def gradient(self: Scalar, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [_gradient(row, "left", F, _operand(row, inputs, 0, "a"), self.scalar, outputs, heads[0])]

    def as_ufunc(self: Scalar, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        return _ufunc_call(row, xp, dtype, self.scalar) if self.is_int or is_floating(dtype) else None

    methods: dict[str, object] = {"forward": forward, "gradient": gradient, "as_ufunc": as_ufunc}
    if (factor := row.factor) is not None:
        methods["multiplier"] = lambda self, shape: factor(self.scalar)
    return methods


def _reversed_methods(row: Row) -> dict[str, object]:
    """Return the methods of an operator of a number and an array."""

    def forward(self: Scalar, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        row.function(run.xp, _number(self, inputs[0]), inputs[0], outputs[0])

    def gradient(self: Scalar, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        return [_gradient(row, "right", F, self.scalar, _operand(row, inputs, 0, "b"), outputs, heads[0])]

    def as_ufunc(self: Scalar, xp: ArrayNamespace, dtype: DType) -> UfuncCall | None:
        call = _ufunc_call(row, xp, dtype, self.scalar) if self.is_int or is_floating(dtype) else None
        if call is None:
            return None
        function, number = call
        return lambda x, n, out: function(n, x, out=out), number

    return {"forward": forward, "gradient": gradient, "as_ufunc": as_ufunc, "number_first": True}


def _make(
    row: Row, names: tuple[str, ...], base: type[Operator], doc: str, methods: Mapping[str, object], **traits: object
) -> None:
    """Register one of a row's operators, if it has names."""
    if not names:
        return
    body: dict[str, object] = {"__doc__": doc, "__module__": __name__, "onnx": row.onnx, **methods}
    if row.left is None:
        del body["gradient"]
    if base is Scalar:
        body["__annotations__"] = {"scalar": float, "is_int": bool}
        body["scalar"] = option(1.0, "The number.")
        body["is_int"] = option(True, "Keep integer dtypes; otherwise integers become float64.")
    operator(names[0], *names[1:])(type(names[0], (base,), body, no_gradient=row.left is None, **traits))


def _register(row: Row) -> None:
    """Register the operators of a row."""
    arrays, scalar = row.precision, None if row.precision is Precision.WIDEST else row.precision
    _make(row, row.broadcast, Broadcasting, f"Elementwise {row.doc}, with broadcasting.", _array_methods(row, True),
          precision=arrays, neutral=row.neutral)  # fmt: skip
    quantized = Quantization(row.quantized) if row.quantized else None
    _make(row, row.elementwise, Pair, f"Elementwise {row.doc}, for arrays of the same shape.",
          _array_methods(row, False), precision=arrays, neutral=row.neutral, quantized=quantized)  # fmt: skip
    _make(row, row.scalar, Scalar, f"Elementwise {row.doc}, where b is a number.", _scalar_methods(row),
          precision=scalar, neutral=row.neutral)  # fmt: skip
    _make(row, row.reversed_scalar, Scalar, f"Elementwise {row.doc}, where a is a number.", _reversed_methods(row),
          precision=row.reversed_precision)  # fmt: skip


for _row in TABLE:
    _register(_row)

SUMS = (lookup("elemwise_add"), lookup("broadcast_add"))
"""The operators that add two arrays."""
PRODUCTS = (lookup("elemwise_mul"), lookup("broadcast_mul"))
"""The operators that multiply two arrays."""


_SMOOTH_L1 = ArrayFormula(smooth_l1)


@operator("smooth_l1")
class SmoothL1(Operator, precision=Precision.FLOAT32, batch_wise=BatchWise.ALL):
    """Elementwise smooth L1: (σx)²/2 where |x| < 1/σ², |x| - 1/(2σ²) elsewhere."""

    scalar: float = option(1.0, "σ.")

    def forward(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _SMOOTH_L1.run(run.xp, _SMOOTH_L1.numbers(self, inputs[0].dtype), inputs, outputs)

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        s2 = self.scalar**2
        return [heads[0] * F.clip(inputs[0] * s2, a_min=-1.0, a_max=1.0)]
