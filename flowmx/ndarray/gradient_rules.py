"""Gradient rules: the operator calls of a ``gradient`` method, traced once for given shapes and dtypes.

When a backward pass first reaches an operator with certain shapes and dtypes, it calls the ``gradient`` method with
placeholder arrays. The method's calls become the steps of a :class:`Rule`, which later passes run instead.
Gradients work on arrays and symbols alike, so they read no values, and the rule is valid for any content. A gradient
that cannot be traced has no rule, and is called each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flowmx.bounded_tables import make_room
from flowmx.devices import Device
from flowmx.ndarray import functions as F
from flowmx.ndarray.computations import forward_of_call
from flowmx.ndarray.core import BaseArray, allocate
from flowmx.ndarray.recording import Gradient, Notes, State, state
from flowmx.ops.registry.kernels import compiling
from flowmx.ops.registry.operators import Form, Operator
from flowmx.ops.registry.spec import Spec

_MAX_RULES = 4096
"""Maximum number of cached rules of :func:`rule_for`."""


class RuleStep(NamedTuple):
    """One computation of a rule.

    Attributes:
        name: the operator's name.
        forward: the computation; None for a reshape.
        reads: the indices of the input values.
        outputs: shapes and dtypes of the output values.
        op: the operator; None for a reshape.
    """

    name: str
    forward: Callable[..., Any] | None
    reads: tuple[int, ...]
    outputs: tuple[Form, ...]
    op: Operator | None = None


class Rule:
    """A compiled gradient of one operator, for one form of its call (shapes, dtypes, parameters).

    Values are numbered: first the rule's arguments, then the outputs of the steps.

    Attributes:
        sources: the arguments, as positions in (*inputs, *outputs, *heads).
        checked: the positions that the results depend on; these arrays must be unchanged since recording.
        steps: the computations.
        results: for each input of the operator, the value that is its gradient, or None.
        forms: shapes and dtypes of the values.
        views: the values that are reshapes of others.
        light: whether each step takes only microseconds.
        short: whether each step takes less time than handing it to another thread.
        is_late: whether the rule was traced on an event loop while a kernel was still being compiled; it must not run
            on an event loop before the kernel is ready.
        weight: the approximate amount of work, in bytes.
        nbytes: the size of the steps' outputs.
    """

    __slots__ = ("checked", "forms", "is_late", "light", "nbytes", "results", "short", "sources", "steps", "views",
                 "weight")  # fmt: skip

    def __init__(
        self, sources: Sequence[int], checked: Sequence[int], steps: Sequence[RuleStep], results: Sequence[int | None],
        forms: Sequence[Form], light: bool, short: bool, weight: int, is_late: bool = False,
    ) -> None:  # fmt: skip
        self.is_late = is_late
        self.sources, self.checked, self.results = tuple(sources), tuple(checked), tuple(results)
        self.steps, self.forms = tuple(steps), tuple(forms)
        self.light, self.short, self.weight = light, short, weight
        position = len(self.sources)
        views = set()
        for step in self.steps:
            if step.forward is None:
                views.add(position)
            position += len(step.outputs)
        self.views = frozenset(views)
        new = [form for at, form in enumerate(self.forms) if at >= len(self.sources) and at not in views]
        self.nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in new)


class Untraceable(Exception):
    """A gradient makes a call that cannot be traced."""


class _Trace(Notes):
    """The calls of a gradient function on placeholder arrays."""

    def __init__(self, device: Device, arguments: Sequence[BaseArray]) -> None:
        self._device = device
        self.arrays = list(arguments)
        self._at = {id(each): position for position, each in enumerate(arguments)}
        self._at_storage = {id(each.storage): position for position, each in enumerate(arguments)}
        self.steps: list[RuleStep] = []
        self.light = self.short = True
        self.is_late = False
        self.weight = 0

    def note(
        self, op: Operator, inputs: Sequence[BaseArray], spec: Spec, device: Device | None, out: object
    ) -> list[BaseArray]:
        is_special = op.traits.detached or op.updates or op.auxiliary or op.traits.uses_random
        if out is not None or is_special or device is not self._device:
            raise Untraceable
        reads = tuple([self.position(each) for each in inputs])
        forms = tuple(zip(spec.shapes, spec.dtypes, strict=True))
        compiling.missed = False
        forward = forward_of_call(op, spec, self._device, [(each.dims, each.element_type) for each in inputs])
        self.is_late |= compiling.missed
        self.steps.append(RuleStep(op.name, forward, reads, forms, op))
        self.light &= spec.light
        self.short &= spec.short
        self.weight += spec.weight
        outputs = [allocate(self._device, shape, dtype) for shape, dtype in forms]
        for each in outputs:
            self._add(each)
        return outputs

    def refuse(self) -> None:
        raise Untraceable

    def _add(self, array: BaseArray) -> int:
        self._at[id(array)] = self._at_storage[id(array.storage)] = len(self.arrays)
        self.arrays.append(array)
        return len(self.arrays) - 1

    def position(self, array: BaseArray) -> int:
        """Return the index of a value; a reshape of a value that has no index yet is added as a step."""
        position = self._at.get(id(array))
        if position is not None:
            return position
        whole = self._at_storage.get(id(array.storage))
        if whole is None or not _is_whole(array, self.arrays[whole]):
            raise Untraceable
        self.steps.append(RuleStep("reshape", None, (whole,), ((array.dims, array.element_type),)))
        self._at[id(array)] = len(self.arrays)
        self.arrays.append(array)
        return len(self.arrays) - 1


def _is_whole(view: BaseArray, of: BaseArray) -> bool:
    """Return whether a handle shows the same memory as another one, except perhaps in a different shape."""
    if of.strided_view is not None or view.element_type != of.element_type:
        return False
    if view.strided_view is None:
        return True
    offset, strides = view.strided_view
    step, rows = view.element_type.itemsize, list(zip(view.dims, strides, strict=True))
    for length, stride in reversed(rows):
        if length != 1 and stride != step:
            return False
        step *= length
    return offset == 0 and math.prod(view.dims) == math.prod(of.dims)


class _Placeholders(Sequence[Any]):
    """Placeholders for the inputs or the outputs that record which of them a gradient reads."""

    def __init__(self, arrays: Sequence[BaseArray], needed: Sequence[bool]) -> None:
        self._arrays, self._needed = arrays, needed
        self.positions_read: set[int] = set()

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        self.positions_read.add(range(len(self))[index])
        return self._arrays[index]

    def unchecked(self, index: int) -> BaseArray:
        """Return an array of which only the shape and dtype will be read."""
        return self._arrays[index]

    def needs_gradient(self, index: int) -> bool:
        """Return whether the gradient of an input is needed."""
        return self._needed[index]


def learn(
    gradient: Gradient, inputs: Sequence[BaseArray], outputs: Sequence[BaseArray], needed: Sequence[bool],
    has_head: Sequence[bool], device: Device,
) -> Rule | None:  # fmt: skip
    """Trace a gradient and return its rule; None if it makes calls that cannot be traced.

    Args:
        gradient: as :meth:`flowmx.ops.registry.operators.Operator.gradient`.
        inputs: arrays with the shapes and dtypes of the inputs; their content does not matter.
        outputs: arrays with the shapes and dtypes of the outputs.
        needed: for each input, whether its gradient reaches a variable.
        has_head: for each visible output, whether there is a gradient for it.
        device: the device of all arrays.
    """
    ins, outs = ([allocate(device, each.dims, each.element_type) for each in arrays] for arrays in (inputs, outputs))
    heads = [allocate(device, each.dims, each.element_type) for each in outs[: len(has_head)]]
    notes = _Trace(device, [*ins, *outs, *heads])
    placeholders = _Placeholders(ins, needed), _Placeholders(outs, ())
    token = state.set(State(True, state.get().training, True, notes))
    try:
        full = [head if has else F.op("zeros_like", out) for head, out, has in zip(heads, outs, has_head, strict=False)]
        gradients = gradient(F, *placeholders, full)
        results = [
            notes.position(each) if each is not None and is_needed else None
            for each, is_needed in zip(gradients, needed, strict=False)
        ]
    except Exception:  # the call with real arrays raises other errors again
        return None
    finally:
        state.reset(token)
    of_inputs, of_outputs = (each.positions_read for each in placeholders)
    positions = [*of_inputs, *(len(ins) + position for position in of_outputs)]
    return _pruned(notes, len(ins) + len(outs) + len(heads), positions, results)


def positions_read(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], needed: tuple[bool, ...], has_head: tuple[bool, ...],
    device: Device,
) -> Collection[int]:  # fmt: skip
    """Return the positions, in (*inputs, *outputs), that an operator's gradient reads for the needed gradients."""
    key = (device, needed, has_head)
    if key not in spec.rules:
        outputs = [allocate(device, *form) for form in zip(spec.shapes, spec.dtypes, strict=True)]
        spec.rules[key] = learn(op.gradient, inputs, outputs, needed, has_head, device)
    rule = spec.rules[key]
    return range(len(inputs)) if rule is None else rule.checked


_rules: dict[object, Rule | None] = {}


def rule_for(
    name: str, arrays: Sequence[Any], gradient: Gradient, device: Device
) -> Rule | None:  # fmt: skip
    """Return the rule of a function of arrays, written as the gradient of an operator without outputs."""
    key = (name, device, *[(each.dims, each.element_type) for each in arrays])
    try:
        return _rules[key]
    except KeyError:
        make_room(_rules, _MAX_RULES)
        rule = _rules[key] = learn(gradient, arrays, (), (True,) * len(arrays), (), device)
        return rule


def _pruned(notes: _Trace, arguments: int, positions: Sequence[int], results: Sequence[int | None]) -> Rule:
    """Build the rule from a trace, without the steps that no result needs.

    Args:
        notes: the trace.
        arguments: the number of arguments; they are the first values of the trace.
        positions: the arguments that the gradient read.
        results: the gradients' values.
    """
    needed = {each for each in results if each is not None}
    steps: list[tuple[RuleStep, range]] = []
    end = len(notes.arrays)
    for step in reversed(notes.steps):
        outputs = range(end - len(step.outputs), end)
        end = outputs.start
        if not needed.isdisjoint(outputs):
            steps.insert(0, (step, outputs))
            needed.update(step.reads)
    sources = sorted(position for position in needed if position < arguments)
    values = [*sources, *(position for _, outputs in steps for position in outputs)]
    number = {position: index for index, position in enumerate(values)}
    forms = [(notes.arrays[position].dims, notes.arrays[position].element_type) for position in values]
    return Rule(
        sources,
        sorted(needed.intersection(positions)),
        [step._replace(reads=tuple([number[each] for each in step.reads])) for step, _ in steps],
        [None if each is None else number[each] for each in results],
        forms,
        notes.light,
        notes.short,
        notes.weight,
        notes.is_late,
    )
