"""From formulas to instructions, for each primitive of :mod:`flowmx.ops.formulas.expressions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowmx.ops.formulas.expressions import Expr, evaluation_order
from flowmx.ops.kernels.llvm.assembly import Code, Value

_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTRINSICS = {
    "fma": "llvm.fmuladd",
    "abs": "llvm.fabs",
    "sqrt": "llvm.sqrt",
    "rint": "llvm.rint",
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "trunc": "llvm.trunc",
    "copysign": "llvm.copysign",
}
# Comparisons with NaN are false, except "unequal".
_COMPARISONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


def lower(code: Code, outputs: Sequence[Expr], inputs: Mapping[Expr, Value]) -> list[Value]:
    """Add the instructions that compute formulas.

    Args:
        code: the function to add them to.
        outputs: the formulas.
        inputs: the values of inputs, and of numbers that are passed with the call (``uniforms``).
    """
    return lower_side_by_side(code, outputs, [inputs])[0]


def lower_side_by_side(
    code: Code, outputs: Sequence[Expr], inputs: Sequence[Mapping[Expr, Value]]
) -> list[list[Value]]:
    """Compute formulas for several vectors, interleaving their instructions.

    This puts more instructions between an instruction and the one that it waits for: a processor looks ahead only so
    far.

    Args:
        code: as in :func:`lower`.
        outputs: as in :func:`lower`.
        inputs: the values of the inputs, for each vector.
    """
    lanes = [dict(values) for values in inputs]
    for expr in evaluation_order(outputs, lanes[0]):
        for values in lanes:
            values[expr] = _emit(code, expr, [values[arg] for arg in expr.args])
    return [[values[output] for output in outputs] for values in lanes]


def invariants(code: Code, outputs: Sequence[Expr], fixed: Mapping[Expr, Value]) -> dict[Expr, Value]:
    """Compute the parts of formulas that depend on fixed values alone, ahead of a loop over the other values.

    Args:
        code: as in :func:`lower`.
        outputs: as in :func:`lower`.
        fixed: the values that stay the same.

    Returns:
        the fixed values, and those that were computed.
    """
    values = dict(fixed)
    for expr in evaluation_order(outputs, fixed):
        if expr.args and all(arg in values or arg.kind == "number" for arg in expr.args):
            values[expr] = lower(code, [expr], values)[0]
    return values


def _emit(code: Code, expr: Expr, operands: Sequence[Value]) -> Value:
    kind = expr.kind
    if kind == "number":
        return code.constant(expr.value)
    if kind in _BINARY:
        return code.binary(_BINARY[kind], *operands)
    if kind in _INTRINSICS:
        return code.intrinsic(_INTRINSICS[kind], *operands)
    if kind in _COMPARISONS:
        return code.put(code.mask, f"fcmp {_COMPARISONS[kind]} {operands[0]}, {operands[1].name}")
    if kind in ("and", "or", "xor"):
        return code.put(code.mask, f"{kind} {operands[0]}, {operands[1].name}")
    if kind == "neg":
        return code.put(code.vector, f"fneg {operands[0]}")
    if kind == "select":
        return code.choose(*operands)
    if kind == "scale":
        return _scale(code, *operands)
    if kind in ("exponent", "mantissa"):
        return _parts(code, operands[0], kind)
    raise ValueError(f"unknown primitive {kind!r}")


def _bits(code: Code, value: Value) -> Value:
    return code.put(code.integers, f"bitcast {value} to {code.integers}")


def _number(code: Code, bits: Value) -> Value:
    return code.put(code.vector, f"bitcast {bits} to {code.vector}")


def _integer(code: Code, name: str, a: Value, b: int | Value) -> Value:
    other = b if isinstance(b, Value) else code.whole(b)
    return code.put(code.integers, f"{name} {a}, {other.name}")


def _scale(code: Code, x: Value, exponent: Value) -> Value:
    """Return x · 2^exponent, as two factors: 2^exponent may overflow although the product does not."""
    if code.real.name == "float" and "avx512f" in code.features:
        zero, every, current = Value(code.vector, "zeroinitializer"), Value("i16", "-1"), Value("i32", "4")
        return code.call("llvm.x86.avx512.mask.scalef.ps.512", code.vector, x, exponent, zero, every, current)
    # Added to 1.5 · 2^mantissa, an integer stands in the low bits.
    magic = code.constant(1.5 * 2.0**code.real.mantissa)
    whole = _integer(code, "sub", _bits(code, code.put(code.vector, f"fadd {exponent}, {magic.name}")),
                     _bits(code, magic))  # fmt: skip
    first = _integer(code, "ashr", whole, 1)
    for part in (first, _integer(code, "sub", whole, first)):
        power = _integer(code, "shl", _integer(code, "add", part, code.real.bias), code.real.mantissa)
        x = code.put(code.vector, f"fmul {x}, {_number(code, power).name}")
    return x


def _parts(code: Code, x: Value, kind: str) -> Value:
    """Return the exponent or the mantissa of x, the mantissa from √½ to √2."""
    real = code.real
    # Shifted by the bits of √½, the exponent's field counts from there.
    root_half = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}[real.name]
    shifted = _integer(code, "sub", _bits(code, x), root_half)
    exponent = _integer(code, "ashr", shifted, real.mantissa)
    if kind == "exponent":
        return code.put(code.vector, f"sitofp {exponent} to {code.vector}")
    return _number(code, _integer(code, "sub", _bits(code, x), _integer(code, "shl", exponent, real.mantissa)))
