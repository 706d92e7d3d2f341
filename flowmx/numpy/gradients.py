"""The gradients of ``mx.np``'s functions, computed with its functions.

:data:`ELEMENTWISE` has a derivative for each argument. :data:`RULES` has functions that return the gradients of all
arguments. ``table.MOVING`` lists the functions that only move elements; one operator computes their gradients. This
module undoes broadcasting and dtype conversion for all of them. ``rules/complex_numbers.py`` has the rules of complex
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx.errors import AutogradError
from flowmx.graph.gradient import Builder, Value
from flowmx.late_binding import late
from flowmx.numpy import arguments, calls, conversion, table
from flowmx.numpy.forms import Slot
from flowmx.numpy.graph_values import Functions, as_np_value
from flowmx.numpy.rules.complex_numbers import COMPLEX, CONJUGATED, apply_conjugated
from flowmx.numpy.rules.elementwise import ELEMENTWISE
from flowmx.numpy.rules.registry import (
    RULES,
    is_array,
    refuse,
)
from flowmx.numpy.table import MOVING
from flowmx.ops.registry.tensors import ArrayNamespace

__all__ = ["ELEMENTWISE", "RULES", "as_head", "call_gradients", "has_gradient", "places_gradient"]


def _functions(F: object) -> Any:
    """Return the namespace for computing a gradient: of arrays, or of the values of a graph."""
    if isinstance(F, Builder):
        return Functions(F)
    return late("numpy")


def has_gradient(function: str) -> bool:
    """Return whether the backward pass supports a function, including functions with a zero gradient."""
    function = table.ALIASES.get(function, function)
    return function in ELEMENTWISE or function in RULES or function in MOVING or function in table.WITHOUT_GRADIENT


def call_gradients(op: object, F: Functions, inputs: Any, outputs: object, heads: Sequence[object]) -> list[Any]:
    """Return the gradients of a call's arrays, like :meth:`flowmx.ops.registry.operators.Operator.gradient`.

    Raises:
        AutogradError: the function has no gradient. In a graph, the backward pass raises the error.
    """
    if not isinstance(F, Builder):
        return _call_gradients(op, F, inputs, outputs, heads)
    try:
        return _call_gradients(op, F, inputs, outputs, heads)
    except AutogradError as error:
        message = str(error)
        return [
            F.op("_np_refused", value, message=message) if value.entry.node in F.needed else None for value in inputs
        ]


def _call_gradients(op: Any, F: Functions, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
    xp = _functions(F)
    function = table.ALIASES.get(op.function, op.function)
    count = op.num_args
    inputs = inputs if not isinstance(F, Builder) else _GraphInputs(inputs, F)
    arrays = [_as_np(inputs.unchecked(index)) for index in range(count)]
    heads = [as_head(head) for head in heads]
    is_complex = any(array.element_type.kind == "c" for array in (*arrays, *heads))
    if function in MOVING:
        gradients = _move_gradients(op, F, arrays, heads, inputs)
    else:
        reader = _CheckedInputs(inputs, arrays)
        args, kwargs = op.call.fill(reader)
        results = [_as_np(output) for output in outputs] if len(heads) > 1 else _as_np(outputs[0])
        head = heads if len(heads) > 1 else heads[0]
        gradients = [None] * count
        if is_complex:
            scatter_to_slots(
                _slots_by_position(op), _complex_gradients(xp, op.function, head, results, args, kwargs), gradients
            )
        elif function in ELEMENTWISE:
            for place, rule in enumerate(ELEMENTWISE[function][: len(op.call.args)]):
                slot = op.call.args[place]
                if isinstance(slot, Slot) and inputs.needs_gradient(slot.number):
                    gradients[slot.number] = rule(xp, head, results, *args)
        elif function in RULES:
            scatter_to_slots(_slots_by_position(op), RULES[function](xp, head, results, *args, **kwargs), gradients)
            if _is_incomplete(gradients, arrays, inputs):
                calls.refusal(f"{op.function}, for this argument,")(F, inputs, outputs, heads)
        else:
            calls.refusal(op.function)(F, inputs, outputs, heads)
    return [
        None if gradient is None or not inputs.needs_gradient(index) else unbroadcast(xp, gradient, arrays[index])
        for index, gradient in enumerate(gradients)
    ]


def _complex_gradients(xp: Any, name: str, head: Any, results: Any, args: Any, kwargs: Mapping[str, object]) -> Any:
    """Return the gradients of a call with complex numbers, one per argument."""
    function = table.ALIASES.get(name, name)
    if function in COMPLEX:
        return COMPLEX[function](xp, head, results, *args, **kwargs)
    if function.startswith("fft."):
        return RULES[function](xp, head, results, *args, **kwargs)
    if function not in CONJUGATED:
        refuse(f"{name} of complex numbers")
    if function in RULES:
        return apply_conjugated(xp, head, lambda head: RULES[function](xp, head, results, *args, **kwargs))
    rules = ELEMENTWISE[function][: len(args)]
    pairs = list(zip(args, rules, strict=False))
    return apply_conjugated(
        xp, head, lambda head: [rule(xp, head, results, *args) if is_array(arg) else None for arg, rule in pairs]
    )


def _is_incomplete(gradients: Sequence[object], arrays: Sequence[Any], inputs: Any) -> bool:
    """Return whether a required gradient is missing."""
    return any(
        gradient is None and arrays[index].element_type.kind in "fc" and inputs.needs_gradient(index)
        for index, gradient in enumerate(gradients)
    )


def blocking_gradient(
    function: str, args: Any, kwargs: Mapping[str, object], arrays: Sequence[Any]
) -> Callable[..., Any] | None:
    """Return the gradient function of a blocking call, for the tape, or None if the function has no gradient.

    Args:
        function: the name of the function.
        args: the arguments of the call.
        kwargs: the keyword arguments of the call.
        arrays: the arguments that the tape has recorded.
    """
    rule = RULES.get(function)
    if rule is None:
        return None

    def gradient(F: Functions, inputs: Any, outputs: Any, heads: Sequence[Any]) -> list[Any]:
        xp = _functions(F)
        results, np_heads = [_as_np(output) for output in outputs], [as_head(head) for head in heads]
        has_several = len(results) > 1 or function in ("linalg.eig", "linalg.lstsq")
        results_of_rule = rule(
            xp, np_heads if has_several else np_heads[0], results if has_several else results[0], *args, **kwargs
        )
        by_array = {id(arg): gradient for arg, gradient in zip(args, results_of_rule, strict=False)}
        pairs = [(by_array.get(id(array)), array) for array in arrays]
        if any(gradient is None and array.element_type.kind in "fc" for gradient, array in pairs):
            calls.refusal(f"{function}, for this argument,")(F, inputs, outputs, heads)
        return [None if gradient is None else unbroadcast(xp, gradient, array) for gradient, array in pairs]

    return gradient


def as_head(head: Any) -> Any:
    """Return a gradient as an array of ``mx.np``, with a new handle, because the array may be the user's."""
    if isinstance(head, Value):
        return as_np_value(head)
    handle = head.without_history()
    handle.history = head.history
    return conversion.to_np(handle)


class _CheckedInputs(Sequence[Any]):
    """The inputs as arrays of ``mx.np``; reading one checks that it was not overwritten."""

    def __init__(self, inputs: Any, arrays: Sequence[Any]) -> None:
        self._inputs, self._arrays = inputs, arrays

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        return _as_np(self._inputs[index])

    def __iter__(self) -> Any:
        return (self[index] for index in range(len(self)))


class _GraphInputs(Sequence[Any]):
    """The inputs of a graph node, with the interface of the tape's inputs."""

    def __init__(self, values: Sequence[Value], builder: Builder) -> None:
        self._values = [as_np_value(value) for value in values]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        return self._values[index]

    def unchecked(self, index: int) -> Any:
        """Return an input."""
        return self._values[index]

    def needs_gradient(self, index: int) -> bool:
        """Return whether the gradient of an input is required."""
        value = self._values[index]
        return value.entry.node in value.builder.needed


def _as_np(array: object) -> Any:
    return as_np_value(array) if isinstance(array, Value) else conversion.to_np(array)


def _slots_by_position(op: Any) -> list[Any]:
    """Return the arguments of a call in NumPy's order, including keywords that are arrays."""
    slots = list(op.call.args)
    for name, value in op.call.kwargs.items():
        if isinstance(value, Slot):
            index = arguments.names_of(op.function).index(name)
            slots += [None] * (index + 1 - len(slots))
            slots[index] = value
    return slots


def scatter_to_slots(slots: Any, gradients: Any, by_input: list[Any]) -> None:
    """Store the gradient of each argument at the number of the input in its slot."""
    for slot, gradient in zip(slots, gradients, strict=False):
        if isinstance(slot, Slot):
            by_input[slot.number] = gradient
        elif isinstance(slot, (list, tuple)) and gradient is not None:
            scatter_to_slots(slot, gradient, by_input)


def unbroadcast(xp: ArrayNamespace, gradient: Any, like: Any) -> Any:
    """Reduce a gradient to the shape and dtype of an array that was broadcast."""
    shape, target = gradient.dims, like.dims
    if gradient.element_type.kind == "c" and like.element_type.kind != "c":
        gradient = xp.real(gradient)
    if shape != target:
        extra = len(shape) - len(target)
        axes = (
            *range(extra),
            *(extra + index for index, n in enumerate(target) if n == 1 and shape[extra + index] != 1),
        )
        if axes:
            gradient = xp.sum(gradient, axis=axes, keepdims=True)
        gradient = (
            xp.reshape(gradient, target) if gradient.size == math.prod(target) else xp.broadcast_to(gradient, target)
        )
    return gradient if gradient.element_type == like.element_type else gradient.astype(like.element_type)


# -- functions that move elements ------------------------------------------------------------------------------

_POSITIONS = {"choose": 0, "take": 1, "take_along_axis": 1, "where": 0}
"""The position of the argument that selects elements; elements of the other arguments are moved."""
_PADS = ("constant", "edge", "wrap", "reflect", "symmetric")


def _move_gradients(op: Any, F: Functions, arrays: Sequence[Any], heads: Sequence[Any], inputs: Any) -> list[Any]:
    if op.function == "pad" and op.call.kwargs.get("mode", [*op.call.args, "constant", "constant"][2]) not in _PADS:
        calls.refusal("pad with this mode")(F, inputs, (), heads)
    selector = _POSITIONS.get(op.function)
    selectors = (
        {arg.number for arg in op.call.args[selector : selector + 1] if isinstance(arg, Slot)}
        if selector is not None
        else ()
    )
    positions: list[object] = []
    sources: list[object] = []
    for index, array in enumerate(arrays):
        if index in selectors:
            sources.append(len(heads) + len(positions))
            positions.append(inputs[index])
        else:
            sources.append(tuple(map(int, array.dims)))
    gradients: list[object] = [None] * len(arrays)
    for index, source in enumerate(sources):
        if not isinstance(source, int) and inputs.needs_gradient(index):
            gradients[index] = F.op(
                "_np_places", *heads, *positions, function=op.function, form=op.form, shapes=repr(tuple(sources)),
                place=index, num_heads=len(heads),
            )  # fmt: skip
    return [None if gradient is None else _as_np(gradient) for gradient in gradients]


def places_gradient(op: Any, F: Functions, inputs: Any, heads: Sequence[Any]) -> list[Any]:
    """Return the gradient of :class:`flowmx.numpy.operator.NumPyPlaces`: the function itself, applied to the head.

    Raises:
        AutogradError: the call moves elements of more than one array, or has more than one result.
    """
    moved = [index for index, source in enumerate(op.sources) if not isinstance(source, int)]
    if op.num_heads > 1 or len(moved) > 1:
        raise AutogradError(f"backward: mx.np.{op.function} has no second-order gradient for several arrays")
    arrays = [heads[0] if not isinstance(source, int) else inputs[source] for source in op.sources]
    gradient = F.op("_np_call", *arrays, function=op.function, form=op.form)
    return [gradient, *([None] * (len(inputs) - 1))]


def differentiable_functions() -> list[str]:
    """Return the functions with a gradient, for the documentation."""
    return sorted({*ELEMENTWISE, *RULES, *MOVING})
