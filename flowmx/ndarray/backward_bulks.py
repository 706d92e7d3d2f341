"""Bulks: parts of a backward pass that run as one operation of the engine.

A :class:`Bulk` holds rules (``gradient_rules.py``) and the arrays that they read. The engine does not track
intermediate results (:class:`Value`), only reads of the arrays that the tape saved and writes of variables' gradients.
So a gradient costs little more than its arithmetic.

Errors affect only parts that depend on a failed part, as if the parts were separate operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from flowmx.devices import Device
from flowmx.engine import Origin
from flowmx.engine.failure import Failure, failure_of
from flowmx.engine.runtime import engine
from flowmx.engine.scheduler import DONE, Operation, Variable
from flowmx.ndarray.computations import run_on
from flowmx.ndarray.core import BaseArray, Storage, allocate
from flowmx.ndarray.gradient_rules import Rule
from flowmx.ndarray.reference_counts import REFERENCES_OF_ATTRIBUTE, REFERENCES_OF_LOCAL
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Run, Shape

MAX_PARTS = 32
"""Number of parts at which a bulk is pushed, so that it can start."""
MAX_WEIGHT = 1 << 23
"""Bytes to move at which a bulk is pushed, so that large gradients are stored while others are computed."""

_SHORT_WEIGHT = MAX_WEIGHT * 3 // 2
"""Maximum bytes to move of a short bulk. A bulk of short parts that has just become full is still short."""
_LIGHT_WEIGHT = 1 << 21
"""Maximum bytes to move of a light bulk."""


class Value:
    """An intermediate gradient, passed between the parts of bulks.

    Attributes:
        array: the content, once computed.
        owned: whether nothing else refers to the memory.
        handle: the array that replaces the value outside the bulk, if any.
        failure: the failure of its computation, or None.
    """

    __slots__ = ("array", "device", "dims", "element_type", "failure", "handle", "owned")

    def __init__(self, device: Device, shape: Shape, dtype: DType, owned: bool) -> None:
        self.device, self.dims, self.element_type, self.owned = device, shape, dtype, owned
        self.array: Any = None
        self.handle: BaseArray | None = None
        self.failure: Failure | None = None

    def raw(self) -> Any:
        return self.array


Cell = Value | BaseArray
Part = tuple[Callable[..., None], Sequence[Cell], Any, Sequence[Any]]
"""A function called as ``function(run, cells, more, targets)``, and its arguments after ``run``."""


class Bulk:
    """Parts of a backward pass, in execution order.

    Args:
        device: the device of all arrays.
        train: whether the parts run in training mode.
        origin: the user's line.
        order: a variable that all bulks of a pass on this device write, so that they run in order.

    Attributes:
        nbytes: the size of the results.
    """

    def __init__(self, device: Device, train: bool, origin: Origin, order: Variable) -> None:
        self.device = device
        self._train, self._origin, self._order = train, origin, order
        self._parts: list[Part | None] = []
        self._reads: dict[Storage, None] = {}
        self._writes: dict[Variable, None] = {order: None}
        self._is_light = self._is_short = True
        self._weight = self.nbytes = 0

    @property
    def light(self) -> bool:
        """Whether the bulk is short enough to run when pushed."""
        return self._is_light and self._weight <= _LIGHT_WEIGHT

    @property
    def short(self) -> bool:
        """Whether handing the bulk to another thread costs more than it saves."""
        return self._is_short and self._weight <= _SHORT_WEIGHT

    @property
    def is_full(self) -> bool:
        """Whether the bulk is large enough to be pushed."""
        return len(self._parts) >= MAX_PARTS or self._weight >= MAX_WEIGHT

    def parts(self) -> list[Part]:
        """Return the parts added so far."""
        return [part for part in self._parts if part is not None]

    def compute(self, rule: Rule, cells: Sequence[Cell]) -> list[Cell | None]:
        """Add a rule; return the cells of its gradients, one for each input of its operator."""
        values: dict[int, Value] = {}
        gradients: list[Cell | None] = []
        count = len(rule.sources)
        for at in rule.results:
            if at is None:
                gradients.append(None)
                continue
            cell = cells[at] if at < count else values.get(at)
            if cell is None:
                cell = values[at] = Value(self.device, *rule.forms[at], at not in rule.views)
            elif type(cell) is Value and cell in gradients:
                cell.owned = False  # several inputs share it
            gradients.append(cell)
        if values:
            self._add(run_rule, cells, (rule, tuple(values)), tuple(values.values()))
            self._is_light &= rule.light and not rule.is_late
            self._is_short &= rule.short
            self._weight += rule.weight
            self.nbytes += rule.nbytes
        return gradients

    def store(self, value: Cell, target: BaseArray) -> None:
        """Add a part that stores a total in a gradient buffer of the same shape and dtype."""
        self._add(store_total, (value,), target, (target.storage,))
        self._writes[target.storage] = None
        if target.strided_view is not None:
            self._reads[target.storage] = None

    def add_to(self, value: Cell, target: BaseArray, rule: Rule) -> None:
        """Add a part that adds a total to a gradient buffer, by the rule of a sum."""
        self._add(add_total, (target, value), rule, (target.storage,))
        self._writes[target.storage] = None
        self._is_light &= rule.light and not rule.is_late
        self._is_short &= rule.short
        self._weight += rule.weight

    def show(self, value: Value) -> BaseArray:
        """Return an array that stands for the value outside the bulk."""
        if value.handle is None:
            value.handle = allocate(self.device, value.dims, value.element_type)
            storage = value.handle.storage
            storage.shared = True
            self._add(_show, (value,), None, (storage,))
            self._writes[storage] = None
        return value.handle

    def _add(
        self, function: Callable[..., None], cells: Sequence[Cell], more: object, targets: Sequence[object]
    ) -> None:
        for cell in cells:
            if type(cell) is not Value:
                self._reads[cast("BaseArray", cell).storage] = None
        self._parts.append((function, cells, more, targets))

    def push(self) -> None:
        """Enqueue the bulk as one operation."""
        if not self._parts:
            return
        run = run_on(self.device, self._train)
        op = Operation(
            _compute, (), tuple(self._reads), tuple(self._writes), self.device.compute, "backward", self._origin,
            self.nbytes, self.light,
        )  # fmt: skip
        op.arguments = (run, self._parts, op)
        op.bulkable, op.handles_failures, op.short = False, True, self.short
        engine.enqueue(op)
        if op.state == DONE:
            op.arguments = ()  # break the reference cycle: they contain the operation


def _compute(run: Run, parts: list[Part | None], op: Operation) -> None:
    """Run the parts in order, releasing each when it is done."""
    careful = engine.poisoned
    for index, part in enumerate(parts):
        assert part is not None
        parts[index] = None
        if careful:
            _run_after_failure(run, part, op)
            continue
        function, cells, more, targets = part
        try:
            function(run, cells, more, targets)
        except Exception as error:  # operators may raise anything
            careful = True
            _fail(failure_of(error, _named(op, error)), targets, op)


def _run_after_failure(run: Run, part: Part, op: Operation) -> None:
    """Run a part; if an input failed, its targets fail instead."""
    function, cells, more, targets = part
    order = op.writes[0]  # it has a failure if an earlier bulk was aborted as a whole
    failure = next((cause for cell in cells if (cause := _failure(cell)) is not None), order.failure)
    if failure is None:
        try:
            function(run, cells, more, targets)
        except Exception as error:  # operators may raise anything
            failure = failure_of(error, _named(op, error))
    if failure is not None:
        _fail(failure, targets, op)
        return
    for target in targets:
        target.failure = None


def _failure(cell: Cell) -> Failure | None:
    return cell.failure if isinstance(cell, Value) else cell.storage.failure


def _fail(failure: Failure, targets: Sequence[object], op: Operation) -> None:
    """Assign the failure of a part to all its targets."""
    for target in targets:
        if isinstance(target, Value):
            target.failure = failure
    engine.poison(failure, tuple([target for target in targets if isinstance(target, Variable)]), op)


def _named(op: Operation, error: Exception) -> Operation:
    """Copy the operation with the name of the operator that raised an error."""
    return named(op, getattr(error, _NAME, op.name))


def named(op: Operation, name: str) -> Operation:
    """Copy the operation with another name, for failures."""
    copy = Operation(_compute, (), (), (), op.actor, name, op.origin)
    copy.serial = op.serial
    return copy


_NAME = "_flowmx_operator"


# -- parts -------------------------------------------------------------------------------------------------


def run_rule(run: Run, cells: Sequence[Cell], more: tuple[Rule, Sequence[int]], targets: Sequence[Value]) -> None:
    """Run a rule's steps on the contents of the cells, and set the results of the values."""
    rule, results = more
    values = [cell.raw() for cell in cells]
    new = run.device.allocate
    name = ""
    try:
        for name, forward, reads, forms, _ in rule.steps:  # noqa: B007
            if forward is None:
                values.append(values[reads[0]].reshape(forms[0][0]))
                continue
            outputs = [new(shape, dtype) for shape, dtype in forms]
            forward(run, [values[at] for at in reads], outputs)
            values += outputs
    except Exception as error:  # operators may raise anything
        error.__dict__.setdefault(_NAME, name)
        raise
    rule.is_late = False  # the kernels are compiled now
    for value, at in zip(targets, results, strict=True):
        value.array = values[at]


def store_total(run: Run, cells: Sequence[Cell], target: BaseArray, targets: Sequence[Storage]) -> None:
    """Move the value's memory to the target, or copy the content if either memory has other users."""
    value, storage = cells[0], targets[0]
    if isinstance(value, Value) and value.owned and target.strided_view is None:
        array, value.array = value.array, None
        if sys.getrefcount(array) <= REFERENCES_OF_LOCAL and (
            storage.array is None or sys.getrefcount(storage.array) <= REFERENCES_OF_ATTRIBUTE
        ):
            storage.array = array
            return
        value.array = array
    run.device.copy(value.raw(), target.raw_for_writing())


def add_total(run: Run, cells: Sequence[Cell], rule: Rule, targets: Sequence[Storage]) -> None:
    """Add the total to the target by the rule of a sum."""
    target, value = cells
    step = rule.steps[0]
    assert step.forward is not None
    array = cast("BaseArray", target).raw_for_writing()
    step.forward(run, [array, value.raw()], [array])


def _show(run: Run, cells: Sequence[Value], _: None, targets: Sequence[Storage]) -> None:
    value = cells[0]
    targets[0].array = value.array if value.owned else value.array.copy()
