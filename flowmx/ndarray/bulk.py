"""Bulks: parts of a backward pass that run as one operation of the engine.

Rules (``rules.py``) are put into a :class:`Bulk` with the arrays that they read. What they compute for each other
are :class:`Value` objects, which the engine knows nothing of: only what the tape kept is tagged as read, and only what
somebody may ask for, the gradients of variables, as written. So a gradient costs what its arithmetic does.

An error is dealt with for each part by itself, as if each were an operation of its own: what was computed from it
carries it on, and nothing else does.
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
from flowmx.ndarray.core import BaseArray, Storage, allocate, run_on
from flowmx.ndarray.references import HELD, TAKEN
from flowmx.ndarray.rules import Rule
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Run, Shape

MOST_PARTS = 32
"""Parts after which a bulk is pushed, so that it may begin."""
MOST_WEIGHT = 1 << 23
"""Bytes to move after which it is pushed: big gradients are handed over while others are computed."""

_SHORT_WEIGHT = MOST_WEIGHT * 3 // 2
"""Bytes to move up to which a bulk of short parts is short: also one that has just become large enough."""
_LIGHT_WEIGHT = 1 << 21
"""Bytes to move up to which a bulk of light parts is light."""


class Value:
    """A gradient on its way between the parts of bulks.

    Attributes:
        array: its content, once it is computed.
        owned: whether nobody outside can see the memory.
        handle: the array that somebody outside sees in its place, if any.
        failure: why it could not be computed.
    """

    __slots__ = ("_dtype", "_shape", "array", "device", "failure", "handle", "owned")

    def __init__(self, device: Device, shape: Shape, dtype: DType, owned: bool) -> None:
        self.device, self._shape, self._dtype, self.owned = device, shape, dtype, owned
        self.array: Any = None
        self.handle: BaseArray | None = None
        self.failure: Failure | None = None

    def _read(self) -> Any:
        return self.array


Cell = Value | BaseArray
Part = tuple[Callable[..., None], Sequence[Cell], Any, Sequence[Any]]
"""A function called as ``function(run, cells, more, targets)``: what it reads, and the values or storages it sets."""


class Bulk:
    """Parts of a backward pass, in the order in which they run.

    Args:
        device: where all their arrays are.
        train: whether they run in training mode.
        origin: the user's line.
        order: what all bulks of a pass on this device write, so that they run one after the other.

    Attributes:
        nbytes: what they make.
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
        """True if it takes little enough to run at its push."""
        return self._is_light and self._weight <= _LIGHT_WEIGHT

    @property
    def short(self) -> bool:
        """True if to hand it to another thread does not pay."""
        return self._is_short and self._weight <= _SHORT_WEIGHT

    @property
    def is_full(self) -> bool:
        """True if the bulk is large enough to be pushed."""
        return len(self._parts) >= MOST_PARTS or self._weight >= MOST_WEIGHT

    def parts(self) -> list[Part]:
        """Its parts so far."""
        return [part for part in self._parts if part is not None]

    def compute(self, rule: Rule, cells: Sequence[Cell]) -> list[Cell | None]:
        """Add a rule; returns what will be the gradients, one for each input of its operator."""
        values: dict[int, Value] = {}
        found: list[Cell | None] = []
        count = len(rule.sources)
        for at in rule.results:
            if at is None:
                found.append(None)
                continue
            cell = cells[at] if at < count else values.get(at)
            if cell is None:
                cell = values[at] = Value(self.device, *rule.forms[at], at not in rule.views)
            elif type(cell) is Value and cell in found:
                cell.owned = False  # several go on with it
            found.append(cell)
        if values:
            self._add(run_rule, cells, (rule, tuple(values)), tuple(values.values()))
            self._is_light &= rule.light and not rule.is_late
            self._is_short &= rule.short
            self._weight += rule.weight
            self.nbytes += rule.nbytes
        return found

    def store(self, value: Cell, target: BaseArray) -> None:
        """Add that a total becomes the content of a gradient buffer of its shape and dtype."""
        self._add(store_total, (value,), target, (target._storage,))
        self._writes[target._storage] = None
        if target._view is not None:
            self._reads[target._storage] = None

    def add_to(self, value: Cell, target: BaseArray, rule: Rule) -> None:
        """Add that a total is added to a gradient buffer, by the rule of a sum."""
        self._add(add_total, (target, value), rule, (target._storage,))
        self._writes[target._storage] = None
        self._is_light &= rule.light and not rule.is_late
        self._is_short &= rule.short
        self._weight += rule.weight

    def show(self, value: Value) -> BaseArray:
        """The value as an array outside of the bulk, which replaces it from now on."""
        if value.handle is None:
            value.handle = allocate(self.device, value._shape, value._dtype)
            storage = value.handle._storage
            storage.shared = True
            self._add(_show, (value,), None, (storage,))
            self._writes[storage] = None
        return value.handle

    def _add(self, function: Callable[..., None], cells: Sequence[Cell], more: Any, targets: Sequence[Any]) -> None:
        for cell in cells:
            if type(cell) is not Value:
                self._reads[cast("BaseArray", cell)._storage] = None
        self._parts.append((function, cells, more, targets))

    def push(self) -> None:
        """Enqueue it."""
        if not self._parts:
            return
        run = run_on(self.device, self._train)
        op = Operation(
            _compute, (), tuple(self._reads), tuple(self._writes), self.device.compute, "backward", self._origin,
            self.nbytes, self.light,
        )  # fmt: skip
        op.arguments = (run, self._parts, op)
        op.bulkable, op.settles, op.short = False, True, self.short
        engine.enqueue(op)
        if op.state == DONE:
            op.arguments = ()  # they hold the operation


def _compute(run: Run, parts: list[Part | None], op: Operation) -> None:
    """The operation: run part by part; each is released when it is done."""
    careful = engine.poisoned
    for index, part in enumerate(parts):
        assert part is not None
        parts[index] = None
        if careful:
            _settle(run, part, op)
            continue
        function, cells, more, targets = part
        try:
            function(run, cells, more, targets)
        except Exception as error:
            careful = True
            _fail(failure_of(error, _named(op, error)), targets, op)


def _settle(run: Run, part: Part, op: Operation) -> None:
    """Run a part where something has failed before."""
    function, cells, more, targets = part
    order = op.writes[0]  # fails where a bulk before this one was broken off as a whole
    failure = next((found for cell in cells if (found := _failure(cell)) is not None), order.failure)
    if failure is None:
        try:
            function(run, cells, more, targets)
        except Exception as error:
            failure = failure_of(error, _named(op, error))
    if failure is not None:
        _fail(failure, targets, op)
        return
    for target in targets:
        target.failure = None


def _failure(cell: Cell) -> Failure | None:
    return cell.failure if isinstance(cell, Value) else cell._storage.failure


def _fail(failure: Failure, targets: Sequence[Any], op: Operation) -> None:
    """Give the error of a part to everything that the part writes."""
    for target in targets:
        if isinstance(target, Value):
            target.failure = failure
    engine.poison(failure, tuple([each for each in targets if isinstance(each, Variable)]), op)


def _named(op: Operation, error: Exception) -> Operation:
    """The operation under the name of the operator that raised an error."""
    return named(op, getattr(error, _NAME, op.name))


def named(op: Operation, name: str) -> Operation:
    """The operation under another name, as failures tell it."""
    made = Operation(_compute, (), (), (), op.actor, name, op.origin)
    made.serial = op.serial
    return made


_NAME = "_flowmx_operator"


# -- parts -------------------------------------------------------------------------------------------------


def run_rule(run: Run, cells: Sequence[Cell], more: tuple[Rule, Sequence[int]], targets: Sequence[Value]) -> None:
    """Compute a rule's steps on what the cells hold, and give the values their results."""
    rule, results = more
    values = [cell._read() for cell in cells]
    new = run.device.allocate
    name = ""
    try:
        for name, forward, reads, makes in rule.steps:  # noqa: B007
            if forward is None:
                values.append(values[reads[0]].reshape(makes[0][0]))
                continue
            outputs = [new(shape, dtype) for shape, dtype in makes]
            forward(run, [values[at] for at in reads], outputs)
            values += outputs
    except Exception as error:
        error.__dict__.setdefault(_NAME, name)
        raise
    rule.is_late = False  # it ran where it could wait for all that it needs
    for value, at in zip(targets, results, strict=True):
        value.array = values[at]


def store_total(run: Run, cells: Sequence[Cell], target: BaseArray, targets: Sequence[Storage]) -> None:
    """The target gets the value's memory, or its content where somebody else uses the memory of one of them."""
    value, storage = cells[0], targets[0]
    if isinstance(value, Value) and value.owned and target._view is None:
        array, value.array = value.array, None
        if sys.getrefcount(array) <= TAKEN and (storage.array is None or sys.getrefcount(storage.array) <= HELD):
            storage.array = array
            return
        value.array = array
    run.device.copy(value._read(), target._written())


def add_total(run: Run, cells: Sequence[Cell], rule: Rule, targets: Sequence[Storage]) -> None:
    """Add the total to the target by the rule of a sum."""
    target, value = cells
    step = rule.steps[0]
    assert step.forward is not None
    array = cast("BaseArray", target)._written()
    step.forward(run, [array, value._read()], [array])


def _show(run: Run, cells: Sequence[Value], _: None, targets: Sequence[Storage]) -> None:
    value = cells[0]
    targets[0].array = value.array if value.owned else value.array.copy()
