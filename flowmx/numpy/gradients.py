"""The gradients of ``mx.np``'s functions, in terms of its functions.

Three tables: :data:`ELEMENTWISE` has a derivative for each argument; :data:`RULES` has functions that give the gradient
of each argument; ``table.MOVING`` names those that only move elements, which one operator serves. What is broadcast, or
converted to another dtype, is undone here for all of them. They hold for real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowmx.errors import AutogradError
from flowmx.graph.gradient import Builder, Value
from flowmx.numpy import arguments, calls, conversion, rules_fft, rules_orders, rules_series, table  # noqa: F401 (they register rules)
from flowmx.numpy.forms import Slot
from flowmx.numpy.rules import (
    RULES,
    Rule,
    count_of,
    for_matrices,
    is_array,
    kept,
    masked,
    part,
    refuse,
    rule,
    spread,
    transposed,
    typed,
)
from flowmx.numpy.rules_complex import COMPLEX, CONJUGATED, conjugated
from flowmx.numpy.table import MOVING
from flowmx.numpy.values import Functions, valued

__all__ = ["ELEMENTWISE", "RULES", "has_gradient", "headed", "of", "of_places"]


def _functions(F: Any) -> Any:
    """The functions that a gradient is written in: of arrays, or of the values of a graph."""
    if isinstance(F, Builder):
        return Functions(F)
    import flowmx.numpy

    return flowmx.numpy


def has_gradient(function: str) -> bool:
    """Tell whether backward passes go through a function (or find that no gradient can flow)."""
    function = table.RENAMED.get(function, function)
    return function in ELEMENTWISE or function in RULES or function in MOVING or function in table.WITHOUT_GRADIENT


def of(op: Any, F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
    """The gradients of a call's arrays, as :meth:`flowmx.ops.registry.operators.Operator.gradient`.

    Raises:
        AutogradError: the function has none. In a graph the backward pass raises it, if there is one.
    """
    if not isinstance(F, Builder):
        return _of(op, F, inputs, outputs, heads)
    try:
        return _of(op, F, inputs, outputs, heads)
    except AutogradError as error:
        message = str(error)
        return [F.op("_np_refused", each, message=message) if each.entry.node in F.needed else None for each in inputs]


def _of(op: Any, F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
    np = _functions(F)
    function = table.RENAMED.get(op.function, op.function)
    count = op.num_args
    inputs = inputs if not isinstance(F, Builder) else _Values(inputs, F)
    arrays = [_faced(inputs.unchecked(index)) for index in range(count)]
    heads = [headed(each) for each in heads]
    is_complex = any(each._dtype.kind == "c" for each in (*arrays, *heads))
    if function in MOVING:
        found = _moved(op, F, arrays, heads, inputs)
    else:
        read = _Read(inputs, arrays)
        args, kwargs = op.call.fill(read)
        results = [_faced(each) for each in outputs] if len(heads) > 1 else _faced(outputs[0])
        head = heads if len(heads) > 1 else heads[0]
        found = [None] * count
        if is_complex:
            _sort_out(_places(op), _of_complex(np, op.function, head, results, args, kwargs), found)
        elif function in ELEMENTWISE:
            for place, rule in enumerate(ELEMENTWISE[function][: len(op.call.args)]):
                slot = op.call.args[place]
                if isinstance(slot, Slot) and inputs.wanted(slot.number):
                    found[slot.number] = rule(np, head, results, *args)
        elif function in RULES:
            _sort_out(_places(op), RULES[function](np, head, results, *args, **kwargs), found)
            if _lost(found, arrays, inputs):
                calls.refusal(f"{op.function}, for this argument,")(F, inputs, outputs, heads)
        else:
            calls.refusal(op.function)(F, inputs, outputs, heads)
    return [
        None if each is None or not inputs.wanted(index) else matched(np, each, arrays[index])
        for index, each in enumerate(found)
    ]


def _of_complex(np: Any, name: str, head: Any, results: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The gradients of a call with complex numbers, by its arguments."""
    function = table.RENAMED.get(name, name)
    if function in COMPLEX:
        return COMPLEX[function](np, head, results, *args, **kwargs)
    if function.startswith("fft."):
        return RULES[function](np, head, results, *args, **kwargs)
    if function not in CONJUGATED:
        refuse(f"{name} of complex numbers")
    if function in RULES:
        return conjugated(np, head, lambda head: RULES[function](np, head, results, *args, **kwargs))
    rules = ELEMENTWISE[function][: len(args)]
    pairs = list(zip(args, rules, strict=False))
    return conjugated(
        np, head, lambda head: [rule(np, head, results, *args) if is_array(each) else None for each, rule in pairs]
    )


def _lost(found: list[Any], arrays: Sequence[Any], inputs: Any) -> bool:
    """Tell whether a gradient is missing that somebody wants."""
    return any(each is None and arrays[at]._dtype.kind in "fc" and inputs.wanted(at) for at, each in enumerate(found))


def of_waiting(function: str, args: Any, kwargs: dict[str, Any], arrays: Sequence[Any]) -> Callable[..., Any] | None:
    """The gradient of a call that was waited for, as the tape takes it; None where the function has none.

    Args:
        function: its name.
        args: the arguments of the call.
        kwargs: those by keyword.
        arrays: those of them that the tape knows.
    """
    made = RULES.get(function)
    if made is None:
        return None

    def gradient(F: Any, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
        np = _functions(F)
        results, given = [_faced(each) for each in outputs], [headed(each) for each in heads]
        several = len(results) > 1 or function in ("linalg.eig", "linalg.lstsq")
        found = made(np, given if several else given[0], results if several else results[0], *args, **kwargs)
        by_array = {id(each): one for each, one in zip(args, found, strict=False)}
        gradients = [by_array.get(id(each)) for each in arrays]
        if any(one is None and each._dtype.kind in "fc" for one, each in zip(gradients, arrays, strict=True)):
            calls.refusal(f"{function}, for this argument,")(F, inputs, outputs, heads)
        pairs = zip(gradients, arrays, strict=True)
        return [None if one is None else matched(np, one, each) for one, each in pairs]

    return gradient


def headed(head: Any) -> Any:
    """A gradient as an array of ``mx.np``, by a handle of its own, since it may be the user's."""
    if isinstance(head, Value):
        return valued(head)
    made = head._plain()
    made._past = head._past
    return conversion.face(made)


class _Read(Sequence[Any]):
    """The inputs as arrays of ``mx.np``."""

    def __init__(self, inputs: Any, arrays: Sequence[Any]) -> None:
        self._inputs, self._arrays = inputs, arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return _faced(self._inputs[index])

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))


class _Values(Sequence[Any]):
    """The inputs of a node of a graph, as the tape gives an operator's."""

    def __init__(self, values: Sequence[Value], builder: Builder) -> None:
        self._values = [valued(each) for each in values]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def unchecked(self, index: int) -> Any:
        """An input."""
        return self._values[index]

    def wanted(self, index: int) -> bool:
        """Tell whether somebody wants its gradient."""
        value = self._values[index]
        return value.entry.node in value.builder.needed


def _faced(array: Any) -> Any:
    return valued(array) if isinstance(array, Value) else conversion.face(array)


def _places(op: Any) -> list[Any]:
    """The arguments of a call in NumPy's order, those given by name too."""
    places = list(op.call.args)
    for name, value in op.call.kwargs.items():
        if isinstance(value, Slot):
            at = arguments.names_of(op.function).index(name)
            places += [None] * (at + 1 - len(places))
            places[at] = value
    return places


def _sort_out(places: Any, gradients: Any, found: list[Any]) -> None:
    """Put gradients where the slots of the arguments say."""
    for place, gradient in zip(places, gradients, strict=False):
        if isinstance(place, Slot):
            found[place.number] = gradient
        elif isinstance(place, (list, tuple)) and gradient is not None:
            _sort_out(place, gradient, found)


def matched(np: Any, gradient: Any, like: Any) -> Any:
    """A gradient in the shape and dtype of the array that it is of: summed where that was broadcast."""
    shape, wanted = gradient._shape, like._shape
    if gradient._dtype.kind == "c" and like._dtype.kind != "c":
        gradient = np.real(gradient)
    if shape != wanted:
        extra = len(shape) - len(wanted)
        axes = (*range(extra), *(extra + at for at, n in enumerate(wanted) if n == 1 and shape[extra + at] != 1))
        if axes:
            gradient = np.sum(gradient, axis=axes, keepdims=True)
        gradient = (
            np.reshape(gradient, wanted) if gradient.size == math.prod(wanted) else np.broadcast_to(gradient, wanted)
        )
    return gradient if gradient._dtype == like._dtype else gradient.astype(like._dtype)


# -- functions that move elements ------------------------------------------------------------------------------

_POSITIONS = {"choose": 0, "take": 1, "take_along_axis": 1, "where": 0}
"""The argument that says which elements are meant; all others are moved."""
_PADS = ("constant", "edge", "wrap", "reflect", "symmetric")


def _moved(op: Any, F: Any, arrays: Sequence[Any], heads: Sequence[Any], inputs: Any) -> list[Any]:
    if op.function == "pad" and op.call.kwargs.get("mode", [*op.call.args, "constant", "constant"][2]) not in _PADS:
        calls.refusal("pad with this mode")(F, inputs, (), heads)
    place = _POSITIONS.get(op.function)
    chosen = (
        {each.number for each in op.call.args[place : place + 1] if isinstance(each, Slot)} if place is not None else ()
    )
    positions: list[Any] = []
    given: list[Any] = []
    for index, each in enumerate(arrays):
        if index in chosen:
            given.append(len(heads) + len(positions))
            positions.append(inputs[index])
        else:
            given.append(tuple(map(int, each._shape)))
    found: list[Any] = [None] * len(arrays)
    for index, each in enumerate(given):
        if not isinstance(each, int) and inputs.wanted(index):
            found[index] = F.op(
                "_np_places", *heads, *positions, function=op.function, form=op.form, shapes=repr(tuple(given)),
                place=index, num_heads=len(heads),
            )  # fmt: skip
    return [None if each is None else _faced(each) for each in found]


def of_places(op: Any, F: Any, inputs: Any, heads: Sequence[Any]) -> list[Any]:
    """The gradient of :class:`flowmx.numpy.operator.NumPyPlaces`: the function itself, of the head and zeros.

    Raises:
        AutogradError: the call has more than one array of numbers, or more than one result.
    """
    numbers = [index for index, each in enumerate(op.given) if not isinstance(each, int)]
    if op.num_heads > 1 or len(numbers) > 1:
        raise AutogradError(f"backward: mx.np.{op.function} has no gradient of second order for several arrays here")
    arrays = [heads[0] if not isinstance(each, int) else inputs[each] for each in op.given]
    made = F.op("_np_call", *arrays, function=op.function, form=op.form)
    return [made, *([None] * (len(inputs) - 1))]


# -- elementwise functions -------------------------------------------------------------------------------------

_LN2, _LN10 = math.log(2), math.log(10)


ELEMENTWISE: dict[str, tuple[Rule, ...]] = {
    "absolute": (lambda np, g, r, x: g * np.sign(x),),
    "fabs": (lambda np, g, r, x: g * np.sign(x),),
    "add": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: g),
    "subtract": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g),
    "multiply": (lambda np, g, r, x, y: g * y, lambda np, g, r, x, y: g * x),
    "true_divide": (lambda np, g, r, x, y: g / y, lambda np, g, r, x, y: -g * r / y),
    "power": (
        lambda np, g, r, x, y: g * y * np.power(x, y - 1),
        lambda np, g, r, x, y: g * r * np.log(np.where(_positive(x), x, 1.0) if is_array(x) else x),
    ),
    "float_power": (lambda np, g, r, x, y: g * y * np.power(x, y - 1), lambda np, g, r, x, y: g * r * np.log(x)),
    "remainder": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g * np.floor_divide(x, y)),
    "fmod": (lambda np, g, r, x, y: g, lambda np, g, r, x, y: -g * np.trunc(x / y)),
    "maximum": (lambda np, g, r, x, y: g * (x >= y), lambda np, g, r, x, y: g * (x < y)),
    "minimum": (lambda np, g, r, x, y: g * (x <= y), lambda np, g, r, x, y: g * (x > y)),
    "fmax": (lambda np, g, r, x, y: g * (r == x), lambda np, g, r, x, y: g * (r != x)),
    "fmin": (lambda np, g, r, x, y: g * (r == x), lambda np, g, r, x, y: g * (r != x)),
    "hypot": (lambda np, g, r, x, y: g * x / r, lambda np, g, r, x, y: g * y / r),
    "arctan2": (
        lambda np, g, r, x, y: g * y / (x * x + y * y),
        lambda np, g, r, x, y: -g * x / (x * x + y * y),
    ),
    "copysign": (lambda np, g, r, x, y: g * np.sign(x) * np.sign(r), lambda np, g, r, x, y: g * 0),
    "ldexp": (lambda np, g, r, x, y: g * np.exp2(y), lambda np, g, r, x, y: g * r * _LN2),
    "logaddexp": (lambda np, g, r, x, y: g * np.exp(x - r), lambda np, g, r, x, y: g * np.exp(y - r)),
    "logaddexp2": (lambda np, g, r, x, y: g * np.exp2(x - r), lambda np, g, r, x, y: g * np.exp2(y - r)),
    "negative": (lambda np, g, r, x: -g,),
    "positive": (lambda np, g, r, x: g,),
    "conjugate": (lambda np, g, r, x: g,),
    "real": (lambda np, g, r, x: g,),
    "exp": (lambda np, g, r, x: g * r,),
    "exp2": (lambda np, g, r, x: g * r * _LN2,),
    "expm1": (lambda np, g, r, x: g * (r + 1),),
    "log": (lambda np, g, r, x: g / x,),
    "log2": (lambda np, g, r, x: g / (x * _LN2),),
    "log10": (lambda np, g, r, x: g / (x * _LN10),),
    "log1p": (lambda np, g, r, x: g / (x + 1),),
    "sqrt": (lambda np, g, r, x: g * 0.5 / r,),
    "cbrt": (lambda np, g, r, x: g / (3 * r * r),),
    "square": (lambda np, g, r, x: g * 2 * x,),
    "reciprocal": (lambda np, g, r, x: -g * r * r,),
    "sin": (lambda np, g, r, x: g * np.cos(x),),
    "cos": (lambda np, g, r, x: -g * np.sin(x),),
    "tan": (lambda np, g, r, x: g * (r * r + 1),),
    "arcsin": (lambda np, g, r, x: g / np.sqrt(1 - x * x),),
    "arccos": (lambda np, g, r, x: -g / np.sqrt(1 - x * x),),
    "arctan": (lambda np, g, r, x: g / (x * x + 1),),
    "sinh": (lambda np, g, r, x: g * np.cosh(x),),
    "cosh": (lambda np, g, r, x: g * np.sinh(x),),
    "tanh": (lambda np, g, r, x: g * (1 - r * r),),
    "arcsinh": (lambda np, g, r, x: g / np.sqrt(x * x + 1),),
    "arccosh": (lambda np, g, r, x: g / np.sqrt(x * x - 1),),
    "arctanh": (lambda np, g, r, x: g / (1 - x * x),),
    "deg2rad": (lambda np, g, r, x: g * (math.pi / 180),),
    "rad2deg": (lambda np, g, r, x: g * (180 / math.pi),),
    "sinc": (lambda np, g, r, x: g * np.where(x == 0, 0.0, (np.cos(x * math.pi) - r) / np.where(x == 0, 1.0, x)),),
    "angle": (lambda np, g, r, x, *others: g * 0,),
    "imag": (lambda np, g, r, x: g * 0,),
    "nan_to_num": (lambda np, g, r, x, *others: g * (r == x),),
}
"""For each function the derivative for each argument, of (functions, gradient of the result, result, *arguments)."""


def _positive(x: Any) -> Any:
    return x > 0


# -- the others ------------------------------------------------------------------------------------------------


@rule("sum")
def _sum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    return (masked(np, spread(np, g, x, axis), where),)


@rule("nansum")
def _nansum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (spread(np, g, x, axis) * (x == x),)


@rule("mean")
def _mean(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    if where is not None:
        refuse("mean with where=")
    return (spread(np, typed(g, x) / max(1, count_of(x, axis)), x, axis),)


@rule("prod")
def _prod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, where: Any = None, **others: Any) -> Any:
    return (masked(np, spread(np, g * r, x, axis) / x, where),)


@rule("nanprod")
def _nanprod(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (np.where(x == x, spread(np, g * r, x, axis) / x, 0.0),)


@rule("max", "min", "nanmax", "nanmin")
def _extreme(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    return (spread(np, g, x, axis) * (x == kept(np, r, x, axis)),)


@rule("ptp")
def _ptp(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    high, low = (f(x, axis=axis, keepdims=True) for f in (np.max, np.min))
    return (kept(np, g, x, axis) * ((x == high).astype(x.dtype) - (x == low).astype(x.dtype)),)


@rule("var")
def _var(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    centred = x - np.mean(x, axis=axis, keepdims=True)
    return (kept(np, g, x, axis) * centred * (2 / (count_of(x, axis) - others.get("correction", ddof))),)


@rule("std")
def _std(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, ddof: Any = 0, **others: Any) -> Any:
    centred = x - np.mean(x, axis=axis, keepdims=True)
    scale = 1 / (count_of(x, axis) - others.get("correction", ddof))
    return (kept(np, g / r, x, axis) * centred * scale,)


@rule("cumsum")
def _cumsum(np: Any, g: Any, r: Any, x: Any, axis: Any = None, *_: Any, **others: Any) -> Any:
    along = 0 if axis is None else axis
    return (np.reshape(np.flip(np.cumsum(np.flip(g, along), along), along), x.shape),)


@rule("average")
def _average(np: Any, g: Any, r: Any, x: Any, axis: Any = None, weights: Any = None, *_: Any, **others: Any) -> Any:
    if others.get("returned"):
        g, r = g[0], r[0]
    if weights is None:
        return _mean(np, g, r, x, axis)
    if weights.shape != x.shape:
        weights_whole = np.reshape(weights, tuple(n if at == axis % x.ndim else 1 for at, n in enumerate(x.shape)))
    else:
        weights_whole = weights
    total = np.sum(np.broadcast_to(weights_whole, x.shape), axis=axis, keepdims=True)
    head = kept(np, g, x, axis)
    of_weights = head * (x - kept(np, r, x, axis)) / total
    if weights.shape != x.shape:
        others_axes = tuple(at for at in range(x.ndim) if at != axis % x.ndim)
        of_weights = np.sum(of_weights, axis=others_axes)
    return head * weights_whole / total, None, of_weights


@rule("sort")
def _sort(np: Any, g: Any, r: Any, x: Any, axis: Any = -1, *_: Any, **others: Any) -> Any:
    if axis is None:
        return (np.reshape(np.take(g, np.argsort(np.argsort(np.ravel(x), kind="stable"))), x.shape),)
    order = np.argsort(np.argsort(x, axis=axis, kind="stable"), axis=axis)
    return (np.take_along_axis(g, order, axis=axis),)


@rule("clip")
def _clip(np: Any, g: Any, r: Any, x: Any, low: Any = None, high: Any = None, **others: Any) -> Any:
    low, high = (others.get(a, others.get(b, c)) for a, b, c in (("a_min", "min", low), ("a_max", "max", high)))
    inside = x == x
    inside = inside if low is None else inside & (x >= low)
    return (g * (inside if high is None else inside & (x <= high)),)


@rule("reshape")
def _reshape(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    return (np.reshape(g, x.shape),)


@rule("trace", "linalg.trace")
def _trace(np: Any, g: Any, r: Any, x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, **others: Any) -> Any:
    axis1, axis2 = axis1 % x.ndim, axis2 % x.ndim
    unit = np.eye(x.shape[axis1], x.shape[axis2], offset, dtype=x.dtype)
    return (np.moveaxis(np.reshape(g, (*g.shape, 1, 1)) * unit, (-2, -1), (axis1, axis2)),)


@rule("diff")
def _diff(np: Any, g: Any, r: Any, x: Any, n: int = 1, axis: int = -1, **others: Any) -> Any:
    if others:
        refuse("diff with prepend= or append=")
    axis %= x.ndim
    for _ in range(n):
        g = -np.diff(np.pad(g, tuple((1, 1) if at == axis else (0, 0) for at in range(x.ndim))), axis=axis)
    return (g,)


@rule("ediff1d")
def _ediff1d(np: Any, g: Any, r: Any, x: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    def length(of: Any) -> int:
        return 0 if of is None else math.prod(of.shape) if is_array(of) else len(of) if hasattr(of, "__len__") else 1

    first, count = length(to_begin), max(0, x.size - 1)
    made = -np.diff(np.pad(part(g, slice(first, first + count)), (1, 1))) if count else np.reshape(x, -1) * 0
    ends = [
        None if of is None else part(g, slice(0, first) if of is to_begin else slice(first + count, None))
        for of in (to_end, to_begin)
    ]
    return np.reshape(part(made, slice(0, x.size)), x.shape), *[
        np.reshape(e, of.shape) if is_array(of) else None for e, of in zip(ends, (to_end, to_begin), strict=True)
    ]


# -- products --------------------------------------------------------------------------------------------------


@rule("matmul", "linalg.matmul")
def _matmul(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    a = np.expand_dims(x, 0) if x.ndim == 1 else x
    b = np.expand_dims(y, 1) if y.ndim == 1 else y
    if x.ndim == 1:
        g = np.expand_dims(g, -1 if y.ndim == 1 else -2)
    if y.ndim == 1:
        g = np.expand_dims(g, -1)
    of_x, of_y = np.matmul(g, np.swapaxes(b, -1, -2)), np.matmul(np.swapaxes(a, -1, -2), g)
    if x.ndim == 1:
        of_x = np.reshape(np.sum(of_x, axis=tuple(range(of_x.ndim - 2))), x.shape)
    if y.ndim == 1:
        of_y = np.reshape(np.sum(of_y, axis=tuple(range(of_y.ndim - 2))), y.shape)
    return of_x, of_y


@rule("dot")
def _dot(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    if not is_array(y):
        return (g * y,)
    if not is_array(x):
        return None, g * x
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(np, g, r, x, y, ((x.ndim - 1,), (max(0, y.ndim - 2),)))


@rule("inner")
def _inner(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    if x.ndim == 0 or y.ndim == 0:
        return g * y, g * x
    return _tensordot(np, g, r, x, y, ((x.ndim - 1,), (y.ndim - 1,)))


@rule("vdot")
def _vdot(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return np.reshape(g * np.ravel(y), x.shape), np.reshape(g * np.ravel(x), y.shape)


@rule("outer", "linalg.outer")
def _outer(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    return (
        np.reshape(np.matmul(g, np.ravel(y)), x.shape),
        np.reshape(np.matmul(np.transpose(g), np.ravel(x)), y.shape),
    )


@rule("tensordot", "linalg.tensordot")
def _tensordot(np: Any, g: Any, r: Any, x: Any, y: Any, axes: Any = 2) -> Any:
    if isinstance(axes, int):
        left, right = tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    else:
        first, second = axes
        left = tuple(at % x.ndim for at in ((first,) if isinstance(first, int) else first))
        right = tuple(at % y.ndim for at in ((second,) if isinstance(second, int) else second))
    free_x = [at for at in range(x.ndim) if at not in left]
    free_y = [at for at in range(y.ndim) if at not in right]
    count = len(free_x)
    of_x = np.tensordot(g, y, (tuple(range(count, g.ndim)), tuple(free_y)))
    # Its axes are the free ones of x, then those that were summed, in the order of y's.
    places = [*free_x, *(left[right.index(at)] for at in sorted(right))]
    of_x = np.transpose(of_x, tuple(places.index(at) for at in range(x.ndim)))
    of_y = np.tensordot(x, g, (tuple(free_x), tuple(range(count))))
    places = [*(right[left.index(at)] for at in sorted(left)), *free_y]
    return of_x, np.transpose(of_y, tuple(places.index(at) for at in range(y.ndim)))


@rule("vecdot", "linalg.vecdot")
def _vecdot(np: Any, g: Any, r: Any, x: Any, y: Any, axis: int = -1) -> Any:
    g = np.expand_dims(g, axis)
    return g * y, g * x


@rule("kron")
def _kron(np: Any, g: Any, r: Any, x: Any, y: Any) -> Any:
    ndim = max(x.ndim, y.ndim)
    a, b = ((1,) * (ndim - each.ndim) + each.shape for each in (x, y))
    pairs = np.reshape(g, tuple(n for pair in zip(a, b, strict=True) for n in pair))
    odd, even = tuple(range(1, 2 * ndim, 2)), tuple(range(0, 2 * ndim, 2))
    whole_x = np.reshape(x, tuple(n for one in a for n in (one, 1)))
    whole_y = np.reshape(y, tuple(n for one in b for n in (1, one)))
    return np.reshape(np.sum(pairs * whole_y, axis=odd), x.shape), np.reshape(
        np.sum(pairs * whole_x, axis=even), y.shape
    )


@rule("cross", "linalg.cross")
def _cross(np: Any, g: Any, r: Any, x: Any, y: Any, **axes: Any) -> Any:
    if axes or x.shape[-1] != 3 or y.shape[-1] != 3:
        refuse("cross of vectors of two numbers, or along another axis")
    return np.cross(y, g), np.cross(g, x)


@rule("einsum")
def _einsum(np: Any, g: Any, r: Any, subscripts: Any, *operands: Any, **others: Any) -> Any:
    if not isinstance(subscripts, str):
        refuse("einsum without subscripts as text")
    text = _without_ellipses(subscripts.replace(" ", ""), [each.ndim for each in operands])
    left, arrow, result = text.partition("->")
    names = left.split(",")
    if not arrow:
        result = "".join(sorted(one for one in set(left) - {","} if left.count(one) == 1))
    found: list[Any] = []
    for index, name in enumerate(names):
        others_names = [one for at, one in enumerate(names) if at != index]
        rest = [one for at, one in enumerate(operands) if at != index]
        sizes = dict(zip(name, operands[index].shape, strict=True))
        lost = "".join(one for one in dict.fromkeys(name) if one not in result + "".join(others_names))
        # Of a letter twice the gradient is a diagonal: it is computed for one, and spread by unit matrices.
        once = "".join(dict.fromkeys(name))
        terms, arrays = [result, *others_names], [g, *rest]
        if lost:
            terms.append(lost)
            arrays.append(np.ones(tuple(sizes[one] for one in lost), dtype=g.dtype))
        spread, free = "", [one for one in _LETTERS if one not in left + result]
        for at, one in enumerate(name):
            if one in name[:at]:
                other = free.pop()
                terms.append(one + other)
                arrays.append(np.eye(sizes[one], dtype=g.dtype))
                spread += other
            else:
                spread += one
        made = np.einsum(f"{','.join(terms)}->{spread if spread != once else name}", *arrays)
        found.append(made)
    return None, *found


def _without_ellipses(text: str, ndims: Sequence[int]) -> str:
    """The subscripts of an einsum with letters in place of dots, the same for axes that are broadcast together."""
    if "." not in text:
        return text
    left, arrow, result = text.partition("->")
    names = left.split(",")
    counts = [ndim - len(name.replace(".", "")) if "." in name else 0 for name, ndim in zip(names, ndims, strict=True)]
    letters = [one for one in _LETTERS if one not in text][: max(counts)]
    spelled = [name.replace("...", "".join(letters[len(letters) - n :])) for name, n in zip(names, counts, strict=True)]
    if not arrow:
        once = sorted(one for one in set(left) - {",", "."} if left.count(one) == 1)
        result = "..." + "".join(once)
    return f"{','.join(spelled)}->{result.replace('...', ''.join(letters))}"


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


# -- linear algebra --------------------------------------------------------------------------------------------


@rule("linalg.inv")
def _inv(np: Any, g: Any, r: Any, x: Any) -> Any:
    back = transposed(np, r)
    return (-np.matmul(np.matmul(back, g), back),)


@rule("linalg.det")
def _det(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (for_matrices(np, g * r) * transposed(np, np.linalg.inv(x)),)


@rule("linalg.slogdet")
def _slogdet(np: Any, g: Any, r: Any, x: Any) -> Any:
    return (for_matrices(np, g[1]) * transposed(np, np.linalg.inv(x)),)


@rule("linalg.solve")
def _solve(np: Any, g: Any, r: Any, a: Any, b: Any) -> Any:
    of_b = np.linalg.solve(transposed(np, a), g)
    if b.ndim == 1:
        return -np.expand_dims(of_b, -1) * np.expand_dims(r, -2), of_b
    return -np.matmul(of_b, transposed(np, r)), of_b


@rule("linalg.cholesky")
def _cholesky(np: Any, g: Any, r: Any, x: Any, **others: Any) -> Any:
    if others.get("upper"):
        refuse("linalg.cholesky with upper=True")
    half = np.tril(np.matmul(transposed(np, r), g))
    half = half - 0.5 * half * np.eye(x.shape[-1], dtype=x.dtype)
    back = np.linalg.inv(r)
    made = np.matmul(np.matmul(transposed(np, back), half), back)
    return (0.5 * (made + transposed(np, made)),)


@rule("linalg.eigh")
def _eigh(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    (of_w, of_v), (w, v) = g, r
    unit = np.eye(x.shape[-1], dtype=x.dtype)
    gaps = np.expand_dims(w, -2) - np.expand_dims(w, -1) + unit
    inner = np.matmul(transposed(np, v), of_v) * ((1 - unit) / gaps) + np.expand_dims(of_w, -2) * unit
    made = np.matmul(np.matmul(v, inner), transposed(np, v))
    return (0.5 * (made + transposed(np, made)),)


@rule("linalg.eigvalsh")
def _eigvalsh(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    v = np.linalg.eigh(x)[1]
    return (np.matmul(v * np.expand_dims(g, -2), transposed(np, v)),)


@rule("linalg.norm", "linalg.vector_norm", "linalg.matrix_norm")
def _norm(np: Any, g: Any, r: Any, x: Any, ord: Any = None, axis: Any = None, *_: Any, **others: Any) -> Any:
    along = (axis,) if isinstance(axis, int) else axis
    is_vector = x.ndim == 1 if along is None else len(along) == 1
    head, result = kept(np, g, x, axis), kept(np, r, x, axis)
    if ord in (None, "fro") or (ord == 2 and is_vector):
        return (head * x / np.where(result == 0, 1.0, result),)
    if is_vector and ord == 1:
        return (head * np.sign(x),)
    if is_vector and ord in (math.inf, -math.inf):
        return (head * np.sign(x) * (np.abs(x) == result),)
    if is_vector and isinstance(ord, (int, float)) and ord != 0:
        return (head * np.sign(x) * np.power(np.abs(x) / result, ord - 1),)
    if is_vector:
        refuse(f"linalg.norm with ord={ord!r}")
    rows, columns = (x.ndim - 2, x.ndim - 1) if along is None else (each % x.ndim for each in along)
    if ord in (1, -1, math.inf, -math.inf):  # the largest, or smallest, sum of a column or row
        sums = np.sum(np.abs(x), axis=rows if abs(ord) == 1 else columns, keepdims=True)
        return (head * np.sign(x) * (sums == result),)
    # The others are of singular values: of the last two axes, which are then moved to their places.
    moved = np.moveaxis(x, (rows, columns), (-2, -1))
    u, s, v = np.linalg.svd(moved, full_matrices=False)
    weights = s * 0 + 1 if ord == "nuc" else s == (np.max if ord == 2 else np.min)(s, axis=-1, keepdims=True)
    lost = np.matmul(u * np.expand_dims(weights, -2), v)
    return (np.moveaxis(np.moveaxis(head, (rows, columns), (-2, -1)) * lost, (-2, -1), (rows, columns)),)


@rule("linalg.svd")
def _svd(np: Any, g: Any, r: Any, x: Any, full_matrices: bool = True, compute_uv: bool = True, **_: Any) -> Any:
    if not compute_uv:
        return _svdvals(np, g, r, x)
    if full_matrices and x.shape[-2] != x.shape[-1]:
        refuse("linalg.svd with full_matrices=True of a matrix that is not square")
    (of_u, of_s, of_v), (u, s, v) = g, r
    count = s.shape[-1]
    unit = np.eye(count, dtype=x.dtype)
    row, column = np.expand_dims(s, -2), np.expand_dims(s, -1)
    gaps = (1 - unit) / ((row - column) * (row + column) + unit)
    left, right = np.matmul(transposed(np, u), of_u), np.matmul(v, transposed(np, of_v))
    inner = (
        (left - transposed(np, left)) * gaps * row
        + column * (right - transposed(np, right)) * gaps
        + np.expand_dims(of_s, -2) * unit
    )
    found = np.matmul(np.matmul(u, inner), v)
    if x.shape[-2] > count:
        found = found + np.matmul((of_u - np.matmul(u, left)) / row, v)
    if x.shape[-1] > count:
        found = found + np.matmul(u / row, of_v - np.matmul(transposed(np, right), v))
    return (found,)


@rule("linalg.svdvals")
def _svdvals(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    u, _s, v = np.linalg.svd(x, full_matrices=False)
    return (np.matmul(u * np.expand_dims(g, -2), v),)


@rule("linalg.qr")
def _qr(np: Any, g: Any, r: Any, x: Any, mode: str = "reduced", **_: Any) -> Any:
    rows, columns = x.shape[-2:]
    if mode not in ("reduced", "complete") or (mode == "complete" and rows > columns):
        refuse(f"linalg.qr with mode={mode!r}")
    (of_q, of_r), (q, upper) = g, r
    wide = columns > rows
    if wide:  # of the first columns, and of the others by what they are in terms of them
        first, last = (..., slice(0, rows)), (..., slice(rows, None))
        of_rest = part(of_r, last)
        of_q = of_q + np.matmul(part(x, last), transposed(np, of_rest))
        of_r, upper = part(of_r, first), part(upper, first)
    inner = np.matmul(upper, transposed(np, of_r)) - np.matmul(transposed(np, of_q), q)
    both = np.tril(inner) + transposed(np, np.tril(inner, -1))
    found = np.matmul(of_q + np.matmul(q, both), transposed(np, np.linalg.inv(upper)))
    return (np.concatenate([found, np.matmul(q, of_rest)], axis=-1) if wide else found,)


@rule("linalg.pinv")
def _pinv(np: Any, g: Any, r: Any, x: Any, *_: Any, **others: Any) -> Any:
    back, head = transposed(np, r), transposed(np, g)
    of_rows = np.matmul(head - np.matmul(x, np.matmul(r, head)), np.matmul(r, back))
    of_columns = np.matmul(np.matmul(back, r), head - np.matmul(np.matmul(head, r), x))
    return of_rows + of_columns - np.matmul(np.matmul(back, g), back), None


@rule("linalg.tensorinv")
def _tensorinv(np: Any, g: Any, r: Any, x: Any, ind: int = 2) -> Any:
    size = math.prod(x.shape[:ind])
    back, head = (np.reshape(each, (size, size)) for each in (r, g))
    return (np.reshape(-np.matmul(np.matmul(transposed(np, back), head), transposed(np, back)), x.shape),)


@rule("linalg.tensorsolve")
def _tensorsolve(np: Any, g: Any, r: Any, a: Any, b: Any, axes: Any = None) -> Any:
    axes = () if axes is None else (axes,) if isinstance(axes, int) else tuple(each % a.ndim for each in axes)
    order = (*(at for at in range(a.ndim) if at not in axes), *axes)
    turned = np.transpose(a, order)
    size = b.size
    of_b = np.linalg.solve(transposed(np, np.reshape(turned, (size, size))), np.reshape(g, (size, 1)))
    of_a = -np.matmul(of_b, np.reshape(r, (1, size)))
    places = tuple(order.index(at) for at in range(a.ndim))
    return np.transpose(np.reshape(of_a, turned.shape), places), np.reshape(of_b, b.shape)


@rule("linalg.multi_dot")
def _multi_dot(np: Any, g: Any, r: Any, arrays: Any, *_: Any) -> Any:
    found = []
    first, last = arrays[0].ndim == 1, arrays[-1].ndim == 1
    whole = [*arrays]
    if first:
        whole[0] = np.expand_dims(whole[0], 0)
    if last:
        whole[-1] = np.expand_dims(whole[-1], 1)
    head = np.reshape(g, (whole[0].shape[0], whole[-1].shape[1]))
    for at, each in enumerate(whole):
        made = head
        for one in whole[:at]:
            made = np.matmul(transposed(np, one), made)
        for one in reversed(whole[at + 1 :]):
            made = np.matmul(made, transposed(np, one))
        found.append(np.reshape(made, arrays[at].shape))
        del each
    return (found,)


@rule("linalg.matrix_power")
def _matrix_power(np: Any, g: Any, r: Any, x: Any, n: int) -> Any:
    # Of x^n the part for each factor; of a negative power that of the inverse's.
    base = np.linalg.inv(x) if n < 0 else x
    found = None
    for at in range(abs(n)):
        left, right = (transposed(np, np.linalg.matrix_power(base, count)) for count in (at, abs(n) - 1 - at))
        part = np.matmul(np.matmul(left, g), right)
        found = part if found is None else found + part
    if found is None:
        return (x * 0,)
    return (found if n > 0 else -np.matmul(np.matmul(transposed(np, base), found), transposed(np, base)),)


@rule("polyval")
def _polyval(np: Any, g: Any, r: Any, p: Any, x: Any) -> Any:
    if not is_array(p) or not is_array(x):
        refuse("polyval of a list")
    count = p.shape[0]
    powers = [np.power(x, count - 1 - at) for at in range(count)]
    of_p = np.stack([np.sum(g * each) for each in powers])
    of_x = g * 0
    for at in range(count - 1):
        of_x = of_x + g * part(p, at) * powers[at + 1] * (count - 1 - at)
    return of_p, of_x


def known() -> list[str]:
    """The functions that backward passes go through, for the documentation."""
    return sorted({*ELEMENTWISE, *RULES, *MOVING})
