"""A plan as text: fusion, execution order, the place of each value, memory sharing, and reasons for separate memory.

All of it is read from the finished plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowmx.devices import Context
from flowmx.graph.graph import fixed_variables
from flowmx.graph.node import Entry, Node
from flowmx.graph.reports import unfolded
from flowmx.graph.reports.in_place import InPlace
from flowmx.graph.reports.occupancy import Occupancy, label
from flowmx.graph.reports.precision import layers_of
from flowmx.graph.reports.sizes import format_bytes
from flowmx.ops.kernels.native_steps import reason_to_run_separately

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan

_NAMED = 4
"""The number of values that a list names; it counts the others."""


def explain(plan: Plan, limit: int | None = None) -> str:
    """Explain the decisions of a plan.

    Args:
        plan: the plan, for example ``executor.plan``.
        limit: the maximum number of lines of each part, for large plans (0: only the totals; None: everything).

    Returns:
        the text.
    """
    slices = unfolded.describe_slices(plan)
    plan = unfolded.unfold(plan)
    explanation = _Explanation(plan)
    lines = list(explanation.totals())
    parts = {
        "Slices, each processed by all of these steps before the next": iter(slices),
        "What the passes did": iter(plan.graph.notes),
        "Kept from run to run, or for another device": explanation.separate(),
        "In the user's arrays": explanation.outside(),
        "Views, which share the bytes of other values": explanation.views(),
        "Not part of native runs": explanation.separate_steps(),
        "Steps": explanation.steps(),
    }
    for title, part in parts.items() if limit != 0 else ():
        rows = list(part)
        if rows:
            lines += ["", f"{title}:", *(f"  {line}" for line in rows[:limit])]
        if limit is not None and len(rows) > limit:
            lines.append(f"  ... and {len(rows) - limit} more lines, which explain() without a limit shows")
    return "\n".join(lines)


class _Explanation:
    """The parts of an explanation."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._occupancy = Occupancy(plan)
        self._steps = self._occupancy.steps
        self._in_place = InPlace(plan)

    def totals(self) -> Iterator[str]:
        """Iterate over lines about the numbers of steps and bytes, and their ratios."""
        plan, forward = self._plan, self._occupancy.forward
        internal, unshared = plan.internal_bytes(), plan.unshared_bytes()
        kind = "training" if plan.graph.train else "prediction"
        yield f"Plan for {kind}: {len(self._steps)} steps, {forward} forward and {len(self._steps) - forward} backward"
        yield f"Internal values: {format_bytes(internal)}, {format_bytes(internal - plan.arena.size)} of it kept"
        yield f"Without sharing: {format_bytes(unshared)}{_part(internal, unshared)}"
        for context, size in plan.arenas.items():
            bound, step = self._occupancy.peak(context)
            index = self._step(step) if step < len(self._steps) else "the end"
            yield f"Arena{_on(context)}: {format_bytes(size)}"
            yield f"Lower bound{_on(context)}: {format_bytes(bound)} alive at {index}{_part(size, bound)}"
        yield f"Places: {len(plan.lives)} for {len(plan.place)} values; views: {len(plan.root)}"
        ones = sorted(node.name for node in fixed_variables(self._steps)) if plan.graph.train else []
        if ones:
            more = [f"{len(ones) - _NAMED} others"] if len(ones) > _NAMED else []
            yield f"Set to 1 before a pass (fix_gamma): {', '.join([*ones[:_NAMED], *more])}"
        kinds = layers_of(plan, self._steps)
        if kinds:
            counts = Counter({kind: len(names) for kind, names in kinds.items()})
            counted = ", ".join(f"{count} in {kind}" for kind, count in counts.most_common())
            yield f"Layers by precision: {counted}"
        in_place_count = sum(case.is_done for step in range(len(self._steps)) for case in self._in_place.cases(step))
        missed = Counter(
            case.why_not()[0] for step in range(len(self._steps)) for case in self._in_place.missed_cases(step)
        )
        reasons = ", ".join(f"{reason} {count}" for reason, count in missed.most_common())
        yield f"In place of an input: {in_place_count}; not: {sum(missed.values())}" + (
            f" ({reasons})" if reasons else ""
        )

    def separate(self) -> Iterator[str]:
        """Iterate over lines about values with separate memory."""
        for entry in self._plan.separate:
            yield f"{label(entry)}: {self._size(entry)}{_on(self._plan.graph.context(entry.node))}"

    def separate_steps(self) -> Iterator[str]:
        """Iterate over lines about steps on a CPU that run between native calls, and the reasons."""
        for step, node in enumerate(self._steps):
            context = self._plan.graph.context(node) or self._plan.graph.default
            if node.op is not None and (context is None or context.kernels == "cpu"):
                reason = reason_to_run_separately("cpu", node.op)
                if reason is not None:
                    yield f"{self._step(step)}: {reason}"

    def outside(self) -> Iterator[str]:
        """Iterate over lines about values that are written directly to the user's arrays."""
        gradients = {entry: node.name for node, entry in self._plan.gradients.items()}
        for entry in sorted(self._plan.external, key=label):
            what = f"the gradient of {gradients[entry]}" if entry in gradients else "an output"
            yield f"{label(entry)}: {self._size(entry)}, {what}"

    def views(self) -> Iterator[str]:
        """Iterate over lines about views."""
        for view, root in self._plan.root.items():
            yield f"{label(view)} shows {label(root)}"

    def steps(self) -> Iterator[str]:
        """Iterate over lines about each step and the places of its results."""
        previous = self._occupancy.previous_places()
        for step, node in enumerate(self._steps):
            phase = "forward" if step < self._occupancy.forward else "backward"
            yield f"{phase:8} {self._step(step)}{self._device(node)}"
            sources = {case.output: case.source for case in self._in_place.cases(step) if case.is_done}
            for index in range(node.outputs()):
                yield f"    {self._describe_place(Entry(node, index), step, sources, previous)}"
            for case in self._in_place.missed_cases(step):
                yield f"    {label(case.output)} is not in place of {label(case.source)}: {case.why_not()[1]}"

    def _describe_place(self, entry: Entry, step: int, sources: dict[Entry, Entry], previous: list[list[int]]) -> str:
        """Describe a value's place: its offset, its last reader, and the previous values on its bytes."""
        plan = self._plan
        if entry not in plan.place:
            where = "in an array of the user" if entry in plan.external else "kept"
            return f"{label(entry)}: {self._size(entry)}, {where}"
        place = plan.place[entry]
        last = self._in_place.last_read(entry, step)
        until = "the end" if self._in_place.is_result(entry) else f"step {last}"
        text = f"{label(entry)}: {self._size(entry)} at {plan.arena.offsets[place]} until {until}"
        if entry in plan.channels_last:
            text += ", channels-last"
        if entry in sources:
            return f"{text}, in place of {label(sources[entry])}"
        others = [self._occupancy.names(other)[-1] for other in previous[place]]
        if len(others) > _NAMED:
            others[_NAMED:] = [f"{len(others) - _NAMED} others"]
        return f"{text}, on bytes of {', '.join(others)}" if others else text

    def _step(self, step: int) -> str:
        node = self._steps[step]
        return f"step {step}, {node.name} ({node.op.name if node.op is not None else ''})"

    def _device(self, node: Node) -> str:
        return _on(self._plan.graph.context(node)) if len(self._plan.arenas) > 1 else ""

    def _size(self, entry: Entry) -> str:
        return format_bytes(self._plan.nbytes(entry))


def _on(context: Context | None) -> str:
    return "" if context is None else f" on {context}"


def _part(size: int, whole: int) -> str:
    return f" (the plan takes {size / whole:.3f} of it)" if whole else ""
