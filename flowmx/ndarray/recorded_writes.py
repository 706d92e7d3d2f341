"""Tape nodes for writes into existing arrays: assignments, copies, and operators with ``out``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from flowmx.devices import Device
from flowmx.engine import capture
from flowmx.ndarray import gradient_rules, views
from flowmx.ndarray.core import BaseArray, invoke, record_written, set_tape_entry
from flowmx.ndarray.recording import GradientRules, TapeNode
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape, lookup
from flowmx.ops.registry.spec import Spec
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors

Form = tuple[Shape, DType]


def prepare(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], targets: Sequence[BaseArray], device: Device
) -> Sequence[BaseArray]:
    """Prepare writing an operator's results into arrays; returns its inputs, copied if a gradient needs them unchanged.

    Raises:
        AutogradError: one of the arrays is a variable.
    """
    needed = tuple([each.tape_entry is not None for each in inputs])
    for each in targets:
        views.refuse_write(each, op.name, any(needed))
    written = {each.storage for each in targets}
    if op.traits.no_gradient or not any(needed) or all(each.storage not in written for each in inputs):
        return inputs
    heads = (True,) * op.visible_outputs()
    positions = gradient_rules.positions_read(op, spec, inputs, needed, heads, device)
    copies: dict[int, BaseArray] = {}
    for position, each in enumerate(inputs):
        if each.storage in written and position in positions and id(each) not in copies:
            copies[id(each)] = invoke(lookup("_copy").create(), [each], depth=4)
    return [copies.get(id(each), each) for each in inputs]


def record_copy(source: BaseArray, target: BaseArray) -> None:
    """Record a copy into another array, on any device.

    Raises:
        AutogradError: the target is a variable.
    """
    entry = source.tape_entry
    views.refuse_write(target, "copyto", entry is not None)
    if entry is None:
        set_tape_entry(target, None, capture(3))
        return
    here = source.storage.device
    if here is target.storage.device:
        record_written(
            "copyto", _gradient_of_assignment, [source], [target], [target], 1, capture(3), _rules_of(source, target)
        )
        return

    def gradient(F: Functions, inputs: object, outputs: object, heads: Any) -> Gradients:
        head = heads[0].as_in_context(here.context)
        return _gradient_of_assignment(F, inputs, outputs, [head])

    record_written("copyto", gradient, [source], [target], [target], 1, capture(3))


def record_constant(target: BaseArray, name: str) -> None:
    """Record that an array is overwritten with values that do not depend on recorded ones.

    Raises:
        AutogradError: the array is a variable.
    """
    views.refuse_write(target, name, False)
    set_tape_entry(target, None, capture(4))


def record_assignment(array: BaseArray, value: Any, target: BaseArray) -> None:
    """Record an assignment to a part of an array.

    Args:
        array: the array.
        value: an array that broadcasts to the part, or a constant.
        target: a handle on the part, without history.

    Raises:
        AutogradError: the array is a variable.
    """
    entry = value.tape_entry if isinstance(value, BaseArray) else None
    views.refuse_write(array, "assignment", entry is not None)
    origin = capture(4)
    if entry is not None:
        node = TapeNode(
            "assignment", _gradient_of_assignment, [entry], [value], [target], 1, origin, _rules_of(value, target)
        )
        entry = node
    if target.strided_view == array.strided_view and target.dims == array.dims:
        set_tape_entry(array, entry, origin)
    elif entry is not None or array.history is not None:
        views.share(array).write(target, entry, origin)


def record_selection(
    array: BaseArray, value: object, template: str, indexes: Sequence[BaseArray], shape: Shape
) -> None:
    """Record an assignment to the elements that index arrays select.

    Args:
        array: the array.
        value: an array that broadcasts to the selection, or a constant.
        template: the key as text with ``@`` for each index array.
        indexes: the index arrays.
        shape: the shape of the selection.

    Raises:
        AutogradError: the array is a variable.
    """
    values = [value] if isinstance(value, BaseArray) else []
    views.refuse_write(array, "assignment", any(each.tape_entry is not None for each in values))
    choice = _selection_assignment(template, array.dims, shape, len(indexes), len(values))
    form = (array.element_type, *[(other.dims, other.element_type) for other in (*values, *indexes)])
    record_written(
        "assignment", choice.gradient, [array, *values, *indexes], [array], [array], 1, capture(4),
        choice.rules.setdefault(form, {}),
    )  # fmt: skip


class _SelectionAssignment:
    """An assignment by index arrays; its inputs are the array, the value if it is an array, and the index arrays."""

    def __init__(self, template: str, whole: Shape, shape: Shape, indexes: int, values: int) -> None:
        self._key = {"num_args": 1 + indexes, "key": template, "whole": whole, "shape": shape}
        self._values = values
        self.rules: dict[object, GradientRules] = {}

    def gradient(self, F: Functions, inputs: Any, outputs: object, heads: Tensors) -> Gradients:
        """Compute the gradients; see :meth:`flowmx.ops.registry.operators.Operator.gradient`."""
        first = 1 + self._values
        indexes = [inputs[at] for at in range(first, len(inputs))]
        gradients = [F.op("_without_chosen", heads[0], *indexes, **self._key) if inputs.needs_gradient(0) else None]
        if self._values:
            is_needed = inputs.needs_gradient(1)
            gradients.append(
                _sum_to_input(F, F.op("_chosen_last", heads[0], *indexes, **self._key), inputs, 1)
                if is_needed
                else None
            )
        return [*gradients, *([None] * len(indexes))]


_selection_assignment = lru_cache(1024)(_SelectionAssignment)


def _gradient_of_assignment(F: Functions, inputs: object, outputs: object, heads: Tensors) -> Gradients:
    return [_sum_to_input(F, heads[0], inputs, 0)]


def _sum_to_input(F: Functions, gradient: Any, inputs: Any, position: int) -> Any:
    """Sum and cast a gradient to the shape and dtype of an input that was broadcast and cast."""
    value = inputs.unchecked(position)
    whole = value.dims
    while len(value.dims) > len(gradient.dims):  # leading axes of length 1, which assignments drop
        value = views.reshape_view(value, value.dims[1:])
    if value.dims != gradient.dims:
        gradient = F.op("_sum_like", gradient, value)
    if value.element_type != gradient.element_type:
        gradient = F.op("_cast_like", gradient, value)
    return gradient if gradient.dims == whole else views.reshape_view(gradient, whole)


@lru_cache(4096)
def _rules(one: Form, other: Form) -> GradientRules:
    """Return the cache of gradient rules of assignments, for shapes and dtypes."""
    return {}


def _rules_of(value: BaseArray, target: BaseArray) -> GradientRules:
    return _rules((value.dims, value.element_type), (target.dims, target.element_type))
