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
from flowmx.numpy import arguments, calls, conversion, table
from flowmx.numpy.forms import Slot
from flowmx.numpy.rules.complex_numbers import COMPLEX, CONJUGATED, conjugated
from flowmx.numpy.rules.elementwise import ELEMENTWISE
from flowmx.numpy.rules.registry import (
    RULES,
    is_array,
    refuse,
)
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


def known() -> list[str]:
    """The functions that backward passes go through, for the documentation."""
    return sorted({*ELEMENTWISE, *RULES, *MOVING})
