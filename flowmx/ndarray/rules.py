"""Gradient rules: the calls of an operator's ``gradient``, noted once for each form of its call.

The first time that a backward pass meets an operator with inputs of these shapes and dtypes, its ``gradient`` is called
with arrays that only stand for others. What it calls on them is noted as the steps of a :class:`Rule`, which later
passes run without asking again. Gradients are written for arrays and symbols alike, so they look at no values, and a
rule holds for all. Where a gradient does anything that can not be noted, there is no rule, and it is called each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from flowmx.devices import Device
from flowmx.ndarray import functions as F
from flowmx.ndarray.core import BaseArray, allocate, forward_of_call
from flowmx.ndarray.recording import Notes, State, state
from flowmx.ops.registry.operators import Form, Operator, Spec, compiling

_KEPT = 4096
"""Rules of functions that are kept."""


class RuleStep(NamedTuple):
    """One computation of a rule.

    Attributes:
        name: the operator's.
        forward: computes it; None where the value is another one with a new shape.
        reads: which values it takes.
        makes: shapes and dtypes of the values that it adds.
    """

    name: str
    forward: Callable[..., Any] | None
    reads: tuple[int, ...]
    makes: tuple[Form, ...]


class Rule:
    """A compiled gradient of one operator, for one form of its call (shapes, dtypes, parameters).

    Values are numbered: first what comes in, then what the steps make.

    Attributes:
        sources: which of (*inputs, *outputs, *heads) come in.
        checked: which of these the results follow from, so that they must not have been changed since.
        steps: what is computed.
        results: for each input of the operator the value that is its gradient, or None.
        forms: shapes and dtypes of the values.
        views: values that are others with a new shape.
        light: whether all steps take microseconds.
        short: whether each is as short as an operation may be that is not handed to another thread.
        is_late: whether it was learned on an event loop where a kernel of a step was not compiled yet; it must not run
            there before that is.
        weight: about how much there is to do, in bytes.
        nbytes: what the steps make.
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
        made = len(self.sources)
        views = set()
        for step in self.steps:
            if step.forward is None:
                views.add(made)
            made += len(step.makes)
        self.views = frozenset(views)
        new = [form for at, form in enumerate(self.forms) if at >= len(self.sources) and at not in views]
        self.nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in new)


class Unlearnable(Exception):
    """A gradient makes a call that can not be noted."""


class _Noted(Notes):
    """The calls noted while a gradient function runs on placeholder arrays."""

    def __init__(self, device: Device, given: Sequence[BaseArray]) -> None:
        self._device = device
        self.arrays = list(given)
        self._at = {id(each): position for position, each in enumerate(given)}
        self._stored = {id(each._storage): position for position, each in enumerate(given)}
        self.steps: list[RuleStep] = []
        self.light = self.short = True
        self.is_late = False
        self.weight = 0

    def note(
        self, op: Operator, inputs: Sequence[BaseArray], spec: Spec, device: Device | None, out: Any
    ) -> list[BaseArray]:
        odd = op.traits.detached or op.updates or op.auxiliary or op.traits.uses_random
        if out is not None or odd or device is not self._device:
            raise Unlearnable
        reads = tuple([self.position(each) for each in inputs])
        makes = tuple(zip(spec.shapes, spec.dtypes, strict=True))
        compiling.missed = False
        forward = forward_of_call(op, spec, self._device, [(each._shape, each._dtype) for each in inputs])
        self.is_late |= compiling.missed
        self.steps.append(RuleStep(op.name, forward, reads, makes))
        self.light &= spec.light
        self.short &= spec.short
        self.weight += spec.weight
        made = [allocate(self._device, shape, dtype) for shape, dtype in makes]
        for each in made:
            self._add(each)
        return made

    def refuse(self) -> None:
        raise Unlearnable

    def _add(self, array: BaseArray) -> int:
        self._at[id(array)] = self._stored[id(array._storage)] = len(self.arrays)
        self.arrays.append(array)
        return len(self.arrays) - 1

    def position(self, array: BaseArray) -> int:
        """The number of a value; one with a new shape is noted as such."""
        known = self._at.get(id(array))
        if known is not None:
            return known
        whole = self._stored.get(id(array._storage))
        if whole is None or not _is_whole(array, self.arrays[whole]):
            raise Unlearnable
        self.steps.append(RuleStep("reshape", None, (whole,), ((array._shape, array._dtype),)))
        self._at[id(array)] = len(self.arrays)
        self.arrays.append(array)
        return len(self.arrays) - 1


def _is_whole(view: BaseArray, of: BaseArray) -> bool:
    """Tell whether two handles on the same memory show the same elements and differ at most in shape."""
    if of._view is not None or view._dtype != of._dtype:
        return False
    if view._view is None:
        return True
    offset, strides = view._view
    step, rows = view._dtype.itemsize, list(zip(view._shape, strides, strict=True))
    for length, stride in reversed(rows):
        if length != 1 and stride != step:
            return False
        step *= length
    return offset == 0 and math.prod(view._shape) == math.prod(of._shape)


class _Standing(Sequence[Any]):
    """The inputs, or the outputs, as a gradient sees them; notes those that it reads."""

    def __init__(self, arrays: Sequence[BaseArray], wanted: Sequence[bool]) -> None:
        self._arrays, self._wanted = arrays, wanted
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        self.seen.add(range(len(self))[index])
        return self._arrays[index]

    def unchecked(self, index: int) -> BaseArray:
        """An array of which only the shape and dtype will be looked at."""
        return self._arrays[index]

    def wanted(self, index: int) -> bool:
        """Tell whether the gradient of an input is needed."""
        return self._wanted[index]


def learn(
    gradient: Callable[..., Any], inputs: Sequence[BaseArray], outputs: Sequence[BaseArray], wanted: Sequence[bool],
    given: Sequence[bool], device: Device,
) -> Rule | None:  # fmt: skip
    """Learn the rule of a gradient; None where it makes calls that can not be noted.

    Args:
        gradient: as :meth:`flowmx.ops.registry.operators.Operator.gradient`.
        inputs: arrays like the inputs; their content does not matter.
        outputs: arrays like the outputs.
        wanted: for each input whether its gradient leads anywhere.
        given: for each visible output whether there is a gradient of it.
        device: where all of them are.
    """
    ins, outs = ([allocate(device, each._shape, each._dtype) for each in arrays] for arrays in (inputs, outputs))
    heads = [allocate(device, each._shape, each._dtype) for each in outs[: len(given)]]
    notes = _Noted(device, [*ins, *outs, *heads])
    standing = _Standing(ins, wanted), _Standing(outs, ())
    token = state.set(State(True, state.get().training, True, notes))
    try:
        full = [
            head if known else F.op("zeros_like", out) for head, out, known in zip(heads, outs, given, strict=False)
        ]
        found = gradient(F, *standing, full)
        results = [
            notes.position(each) if each is not None and want else None
            for each, want in zip(found, wanted, strict=False)
        ]
    except Exception:  # what else is wrong with it is found where it is called
        return None
    finally:
        state.reset(token)
    seen = [*standing[0].seen, *(len(ins) + position for position in standing[1].seen)]
    return _pruned(notes, len(ins) + len(outs) + len(heads), seen, results)


def positions_looked_at(
    op: Operator, spec: Spec, inputs: Sequence[BaseArray], wanted: tuple[bool, ...], given: tuple[bool, ...],
    device: Device,
) -> Collection[int]:  # fmt: skip
    """Which inputs an operator's gradient looks at, for inputs of which these gradients are wanted."""
    key = (device, wanted, given)
    if key not in spec.rules:
        outputs = [allocate(device, *form) for form in zip(spec.shapes, spec.dtypes, strict=True)]
        spec.rules[key] = learn(op.gradient, inputs, outputs, wanted, given, device)
    rule = spec.rules[key]
    return range(len(inputs)) if rule is None else rule.checked


_rules: dict[Any, Rule | None] = {}


def rule_for(
    name: str, arrays: Sequence[Any], gradient: Callable[..., Any], device: Device
) -> Rule | None:  # fmt: skip
    """The rule of a function of arrays like these, written as a gradient of one operator without outputs."""
    key = (name, device, *[(each._shape, each._dtype) for each in arrays])
    try:
        return _rules[key]
    except KeyError:
        if len(_rules) >= _KEPT:
            _rules.clear()
        made = _rules[key] = learn(gradient, arrays, (), (True,) * len(arrays), (), device)
        return made


def _pruned(notes: _Noted, given: int, seen: Sequence[int], results: Sequence[int | None]) -> Rule:
    """The rule of what was noted, without what no result needs."""
    needed = {each for each in results if each is not None}
    steps: list[tuple[RuleStep, range]] = []
    end = len(notes.arrays)
    for step in reversed(notes.steps):
        made = range(end - len(step.makes), end)
        end = made.start
        if not needed.isdisjoint(made):
            steps.insert(0, (step, made))
            needed.update(step.reads)
    sources = sorted(position for position in needed if position < given)
    kept = [*sources, *(position for _, made in steps for position in made)]
    number = {position: index for index, position in enumerate(kept)}
    forms = [(notes.arrays[position]._shape, notes.arrays[position]._dtype) for position in kept]
    return Rule(
        sources,
        sorted(needed.intersection(seen)),
        [step._replace(reads=tuple([number[each] for each in step.reads])) for step, _ in steps],
        [None if each is None else number[each] for each in results],
        forms,
        notes.light,
        notes.short,
        notes.weight,
        notes.is_late,
    )
