"""Operators of two inputs that act on each element: arithmetic, comparisons, logic; with arrays and with numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flowmx.contrib.onnx.node_export import NodeExport, Value
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.contrib.onnx.table import Unsupported, exports, imports
from flowmx.ops.registry.operators import registered
from flowmx.symbol import Symbol

ARITHMETIC = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
}
COMPARISONS = {
    "equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual", "lesser": "Less",
    "lesser_equal": "LessOrEqual", "not_equal": "",
}  # fmt: skip
LOGIC = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
WRITTEN = {"_plus_scalar": "add", "_minus_scalar": "sub", "_rminus_scalar": "sub"}


def _names(stem: str) -> list[str]:
    """Names of the registered operators of a stem: on two arrays, with a scalar on the right, and on the left."""
    plain = {"add": "_plus_scalar", "sub": "_minus_scalar"}.get(stem, f"_{stem}_scalar")
    swapped = {"sub": "_rminus_scalar"}.get(stem, f"_r{stem}_scalar")
    known = registered()
    return [name for name in (f"broadcast_{stem}", f"elemwise_{stem}", f"_{stem}", plain, swapped) if name in known]


def _pair(n: NodeExport) -> tuple[Value, Value]:
    """The two sides, one of which may be a number."""
    if len(n.inputs) == 2:
        return n.inputs[0], n.inputs[1]
    number = np.asarray(n.op.scalar).astype(n.dtype())
    if n.op.name in SWAPPED:
        return number, n.inputs[0]
    return n.inputs[0], number


SWAPPED = {"_rminus_scalar", "_rdiv_scalar", "_rmod_scalar", "_rpower_scalar"}


def _export_all(table: dict[str, str], write: Callable[[NodeExport, str], str]) -> None:
    for stem, kind in table.items():
        exports(*_names(stem))(lambda n, kind=kind: write(n, kind))  # type: ignore[misc]


def _arithmetic(n: NodeExport, kind: str) -> str:
    return n.add(kind, *_pair(n))


def _comparison(n: NodeExport, kind: str) -> str:
    return n.truth(n.add(kind, *_pair(n)) if kind else n.add("Not", n.add("Equal", *_pair(n))))


def _logic(n: NodeExport, kind: str) -> str:
    conditions: list[Value] = [n.condition(at) for at in range(len(n.inputs))]
    if len(conditions) == 1:
        conditions.append(np.asarray(bool(n.op.scalar)))
    return n.truth(n.add(kind, *conditions))


_export_all(ARITHMETIC, _arithmetic)
_export_all(COMPARISONS, _comparison)
_export_all(LOGIC, _logic)


@exports("broadcast_mod", "_mod", "_mod_scalar", "_rmod_scalar")
def _mod(n: NodeExport) -> str:
    """The remainder has the divisor's sign; ONNX's own does for ints alone."""
    left, right = _pair(n)
    if n.dtype().kind in "iu":
        return n.add("Mod", left, right)
    return n.add("Sub", left, n.add("Mul", n.add("Floor", n.add("Div", left, right)), right))


@exports("broadcast_hypot", "_hypot", "_hypot_scalar")
def _hypot(n: NodeExport) -> str:
    left, right = _pair(n)
    return n.add("Sqrt", n.add("Add", n.add("Mul", left, left), n.add("Mul", right, right)))


@exports("add_n")
def _sum(n: NodeExport) -> str:
    return n.add("Sum", *n.inputs)


# -- reading ---------------------------------------------------------------------------------------------------

# The stem; the operator with a number on the right, and on the left.
NUMBERED = {
    "Add": ("add", "_plus_scalar", "_plus_scalar"),
    "Sub": ("sub", "_minus_scalar", "_rminus_scalar"),
    "Mul": ("mul", "_mul_scalar", "_mul_scalar"),
    "Div": ("div", "_div_scalar", "_rdiv_scalar"),
    "Pow": ("power", "_power_scalar", "_rpower_scalar"),
    "Mod": ("mod", "_mod_scalar", "_rmod_scalar"),
    "Equal": ("equal", "_equal_scalar", "_equal_scalar"),
    "Greater": ("greater", "_greater_scalar", "_lesser_scalar"),
    "GreaterOrEqual": ("greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
    "Less": ("lesser", "_lesser_scalar", "_greater_scalar"),
    "LessOrEqual": ("lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
    "And": ("logical_and", "_logical_and_scalar", "_logical_and_scalar"),
    "Or": ("logical_or", "_logical_or_scalar", "_logical_or_scalar"),
    "Xor": ("logical_xor", "_logical_xor_scalar", "_logical_xor_scalar"),
}
CONDITIONS = {"And", "Or", "Xor"}


@imports(*NUMBERED)
def _import_pair(n: NodeImport) -> Symbol:
    stem, right, left = NUMBERED[n.kind]
    if n.kind == "Mod" and n.attr("fmod", 0):
        return _remainder(n)
    for name, number, other in ((right, n.scalar(1), 0), (left, n.scalar(0), 1)):
        if number is not None:
            return n.make(name, n.symbol(other), scalar=number)
    pair = [n.symbol(0), n.symbol(1)]
    if n.kind in CONDITIONS:
        pair = [n.as_number(each) for each in pair]
    elementwise = f"elemwise_{stem}"
    return n.make(elementwise if elementwise in registered() and n.alike() else f"broadcast_{stem}", *pair)


def _remainder(n: NodeImport) -> Symbol:
    """C's remainder, with the sign of the dividend."""
    left, right = n.symbol(0), n.symbol(1)
    size = n.make("broadcast_mod", n.make("abs", left), n.make("abs", right))
    return n.make("elemwise_mul", n.make("sign", left), size) if n.alike() else _refuse_remainder()


def _refuse_remainder() -> Symbol:
    raise Unsupported("its attribute fmod is 1, expected inputs of the same shape with it")


@imports("Sum", "Mean")
def _import_sum(n: NodeImport) -> Symbol:
    parts = n.symbols()
    if n.alike():
        total = n.make("add_n", *parts) if len(parts) > 1 else parts[0]
    else:
        total = parts[0]
        for part in parts[1:]:
            total = n.make("broadcast_add", total, part)
    if n.kind == "Mean":
        return n.make("_div_scalar", total, scalar=len(parts))
    return total if len(parts) > 1 else n.make("_copy", total)


@imports("Max", "Min")
def _import_extreme(n: NodeImport) -> Symbol:
    stem = {"Max": "maximum", "Min": "minimum"}[n.kind]
    numbers = [n.scalar(at) for at in range(len(n))]
    arrays = [n.symbol(at) for at, number in enumerate(numbers) if number is None]
    total = arrays[0]
    for each in arrays[1:]:
        total = n.make(f"broadcast_{stem}", total, each)
    for number in numbers:
        total = total if number is None else n.make(f"_{stem}_scalar", total, scalar=number)
    return total if len(n) > 1 else n.make("_copy", total)


@exports("where")
def _where(n: NodeExport) -> str:
    condition = n.condition(0)
    if n.rank(0) < n.rank(1):  # one condition for each row
        ones = (1,) * (n.rank(1) - 1)
        condition = n.reshape(condition, n.dims(0), (*n.dims(0), *ones))
    return n.add("Where", condition, n.inputs[1], n.inputs[2])


@imports("Where")
def _import_where(n: NodeImport) -> Symbol:
    if n.alike():
        return n.make("where", *n.symbols())
    condition = n.make("_not_equal_scalar", n.symbol(0), scalar=0)
    sides = n.symbols()[1:]
    shape = n.make("broadcast_add", *[n.make("zeros_like", each) for each in sides])
    flags = n.make("Cast", n.make("zeros_like", condition), dtype=n.dtype(1).name)
    shape = n.make("broadcast_add", shape, flags)
    condition = n.make("broadcast_add", n.make("Cast", condition, dtype=n.dtype(1).name), shape)
    return n.make("where", condition, *[n.make("broadcast_add", each, shape) for each in sides])
