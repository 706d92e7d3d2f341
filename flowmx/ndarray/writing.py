"""Writes into memory while recording: what the tape keeps of assignments, copies, and operators with ``out``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from flowmx.devices import Device
from flowmx.engine import capture
from flowmx.ndarray import rules, views
from flowmx.ndarray.core import BaseArray, comes_from, invoke, record_written
from flowmx.ndarray.recording import TapeNode
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Operator, Shape, Spec, lookup

Form = tuple[Shape, DType]


def prepare(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], given: Sequence[BaseArray], device: Device
) -> Sequence[BaseArray]:
    """Prepare to write an operator's results into arrays; returns its inputs, copied where a gradient wants them so.

    Raises:
        AutogradError: one of the arrays is a variable.
    """
    wanted = tuple([each._entry is not None for each in inputs])
    for each in given:
        views.refuse_write(each, op.name, any(wanted))
    written = {each._storage for each in given}
    if op.traits.no_gradient or not any(wanted) or all(each._storage not in written for each in inputs):
        return inputs
    heads = (True,) * op.visible_outputs()
    looks_at = rules.positions_looked_at(op, spec, inputs, wanted, heads, device)
    copies: dict[int, BaseArray] = {}
    for position, each in enumerate(inputs):
        if each._storage in written and position in looks_at and id(each) not in copies:
            copies[id(each)] = invoke(lookup("_copy").create(), [each], depth=4)
    return [copies.get(id(each), each) for each in inputs]


def record_copy(source: BaseArray, target: BaseArray) -> None:
    """Put on the tape that an array is copied into another one, wherever that is.

    Raises:
        AutogradError: the other one is a variable.
    """
    entry = source._entry
    views.refuse_write(target, "copyto", entry is not None)
    if entry is None:
        comes_from(target, None, capture(3))
        return
    here = source._storage.device
    if here is target._storage.device:
        record_written(
            "copyto", _gradient_of_assignment, [source], [target], [target], 1, capture(3), _rules_of(source, target)
        )
        return

    def gradient(F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        brought = heads[0].as_in_context(here.context)
        return _gradient_of_assignment(F, inputs, outputs, [brought])

    record_written("copyto", gradient, [source], [target], [target], 1, capture(3))


def record_constant(target: BaseArray, name: str) -> None:
    """Put on the tape that an array is given a content which nothing recorded came into.

    Raises:
        AutogradError: it is a variable.
    """
    views.refuse_write(target, name, False)
    comes_from(target, None, capture(4))


def record_assignment(array: BaseArray, value: Any, target: BaseArray) -> None:
    """Put on the tape that a value is assigned to a part of an array.

    Args:
        array: the array.
        value: an array that broadcasts to the part, or a constant.
        target: a handle on the part that the tape knows nothing of.

    Raises:
        AutogradError: the array is a variable.
    """
    entry = value._entry if isinstance(value, BaseArray) else None
    views.refuse_write(array, "assignment", entry is not None)
    origin = capture(4)
    if entry is not None:
        node = TapeNode(
            "assignment", _gradient_of_assignment, [entry], [value], [target], 1, origin, _rules_of(value, target)
        )
        entry = node
    if target._view == array._view and target._shape == array._shape:
        comes_from(array, entry, origin)
    elif entry is not None or array._past is not None:
        views.share(array).write(target, entry, origin)


def record_choice(array: BaseArray, value: Any, template: str, indexes: Sequence[BaseArray], shape: Shape) -> None:
    """Put on the tape that a value is assigned to what index arrays choose of an array.

    Args:
        array: the array.
        value: an array that broadcasts to what is chosen, or a constant.
        template: the key as text with ``@`` for each index array.
        indexes: the index arrays.
        shape: that of what is chosen.

    Raises:
        AutogradError: the array is a variable.
    """
    given = [value] if isinstance(value, BaseArray) else []
    views.refuse_write(array, "assignment", any(each._entry is not None for each in given))
    choice = _choice(template, array._shape, shape, len(indexes), len(given))
    record_written(
        "assignment", choice.gradient, [array, *given, *indexes], [array], [array], 1, capture(4),
        choice.rules.setdefault((array._dtype, *[(each._shape, each._dtype) for each in (*given, *indexes)]), {}),
    )  # fmt: skip


class _Choice:
    """An assignment by index arrays: of (array, value if it is an array, index arrays)."""

    def __init__(self, template: str, whole: Shape, shape: Shape, indexes: int, values: int) -> None:
        self._key = {"num_args": 1 + indexes, "key": template, "whole": whole, "shape": shape}
        self._values = values
        self.rules: dict[Any, dict[Any, Any]] = {}

    def gradient(self, F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
        """As :meth:`flowmx.ops.registry.operators.Operator.gradient`."""
        first = 1 + self._values
        indexes = [inputs[at] for at in range(first, len(inputs))]
        found = [F.op("_without_chosen", heads[0], *indexes, **self._key) if inputs.wanted(0) else None]
        if self._values:
            wanted = inputs.wanted(1)
            found.append(_like(F, F.op("_chosen_last", heads[0], *indexes, **self._key), inputs, 1) if wanted else None)
        return [*found, *([None] * len(indexes))]


_choice = lru_cache(1024)(_Choice)


def _gradient_of_assignment(F: Any, inputs: Any, outputs: Any, heads: Any) -> list[Any]:
    return [_like(F, heads[0], inputs, 0)]


def _like(F: Any, gradient: Any, inputs: Any, position: int) -> Any:
    """The gradient of a value that was broadcast, and made another dtype."""
    value = inputs.unchecked(position)
    whole = value._shape
    while len(value._shape) > len(gradient._shape):  # lengths of 1 that assignment leaves out
        value = views.reshaped(value, value._shape[1:])
    if value._shape != gradient._shape:
        gradient = F.op("_sum_like", gradient, value)
    if value._dtype != gradient._dtype:
        gradient = F.op("_cast_like", gradient, value)
    return gradient if gradient._shape == whole else views.reshaped(gradient, whole)


@lru_cache(4096)
def _rules(one: Form, other: Form) -> dict[Any, Any]:
    """The gradients of assignments that were learned, for one form."""
    return {}


def _rules_of(value: BaseArray, target: BaseArray) -> dict[Any, Any]:
    return _rules((value._shape, value._dtype), (target._shape, target._dtype))
