"""A plan in words: what was fused, what runs when, where each value lies, what shares its bytes, and why not.

All of it is read off the finished plan, which stays the only judge of what is safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from flowmx.devices import Context
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.reports import unfolded as unfolding
from flowmx.graph.reports.in_place import InPlace
from flowmx.graph.reports.occupancy import Occupancy, label
from flowmx.graph.reports.precision import layers_of
from flowmx.graph.reports.sizes import in_words

_NAMED = 4
"""Number of values listed by name among those whose bytes another one takes over."""


def explain(plan: Plan, limit: int | None = None) -> str:
    """Say what a plan does and why.

    Args:
        plan: the plan, as ``executor.plan`` gives it.
        limit: the most lines of each part, for large plans (0: the totals alone; None: everything).

    Returns:
        the text.
    """
    slices = unfolding.in_words(plan)
    plan = unfolding.unfolded(plan)
    explanation = _Explanation(plan)
    lines = list(explanation.totals())
    parts = {
        "Slices, each through all of these steps before the next": iter(slices),
        "What the passes did": iter(plan.graph.notes),
        "Kept from run to run, or for another device": explanation.kept(),
        "In the user's arrays": explanation.outside(),
        "Views, which are the bytes of what they show": explanation.views(),
        "Steps": explanation.steps(),
    }
    for title, part in parts.items() if limit != 0 else ():
        found = list(part)
        if found:
            lines += ["", f"{title}:", *(f"  {line}" for line in found[:limit])]
        if limit is not None and len(found) > limit:
            lines.append(f"  ... and {len(found) - limit} more lines, which explain() without a limit shows")
    return "\n".join(lines)


class _Explanation:
    """The parts of an explanation."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._where = Occupancy(plan)
        self._steps = self._where.steps
        self._in_place = InPlace(plan)

    def totals(self) -> Iterator[str]:
        """Numbers of steps and bytes, and how these compare."""
        plan, forward = self._plan, self._where.forward
        internal, unshared = plan.internal_bytes(), plan.unshared_bytes()
        kind = "training" if plan.graph.train else "prediction"
        yield f"Plan for {kind}: {len(self._steps)} steps, {forward} forward and {len(self._steps) - forward} backward"
        yield f"Internal values: {in_words(internal)}, {in_words(internal - plan.arena.size)} of it kept"
        yield f"Without sharing: {in_words(unshared)}{_part(internal, unshared)}"
        for context, size in plan.arenas.items():
            bound, step = self._where.peak(context)
            at = self._step(step) if step < len(self._steps) else "the end"
            yield f"Arena{_on(context)}: {in_words(size)}"
            yield f"Lower bound{_on(context)}: {in_words(bound)} alive at {at}{_part(size, bound)}"
        yield f"Places: {len(plan.lives)} for {len(plan.place)} values; views: {len(plan.root)}"
        kinds = layers_of(plan, self._steps)
        if kinds:
            counts = Counter({kind: len(names) for kind, names in kinds.items()})
            counted = ", ".join(f"{count} in {kind}" for kind, count in counts.most_common())
            yield f"Layers by precision: {counted}"
        done = sum(case.is_done for step in range(len(self._steps)) for case in self._in_place.cases(step))
        missed = Counter(case.why_not()[0] for step in range(len(self._steps)) for case in self._in_place.missed(step))
        reasons = ", ".join(f"{reason} {count}" for reason, count in missed.most_common())
        yield f"In place of an input: {done}; not: {sum(missed.values())}" + (f" ({reasons})" if reasons else "")

    def kept(self) -> Iterator[str]:
        """Values with memory of their own."""
        for entry in self._plan.kept:
            yield f"{label(entry)}: {self._size(entry)}{_on(self._plan.graph.context(entry.node))}"

    def outside(self) -> Iterator[str]:
        """Values that are written straight to arrays of the user's."""
        gradients = {entry: node.name for node, entry in self._plan.gradients.items()}
        for entry in sorted(self._plan.external, key=label):
            what = f"the gradient of {gradients[entry]}" if entry in gradients else "an output"
            yield f"{label(entry)}: {self._size(entry)}, {what}"

    def views(self) -> Iterator[str]:
        """Values without a step."""
        for view, root in self._plan.root.items():
            yield f"{label(view)} shows {label(root)}"

    def steps(self) -> Iterator[str]:
        """Each step with where its results lie, and why."""
        before = self._where.before()
        for step, node in enumerate(self._steps):
            phase = "forward" if step < self._where.forward else "backward"
            yield f"{phase:8} {self._step(step)}{self._device(node)}"
            sources = {case.output: case.source for case in self._in_place.cases(step) if case.is_done}
            for index in range(node.outputs()):
                yield f"    {self._placed(Entry(node, index), step, sources, before)}"
            for case in self._in_place.missed(step):
                yield f"    {label(case.output)} is not in place of {label(case.source)}: {case.why_not()[1]}"

    def _placed(self, entry: Entry, step: int, sources: dict[Entry, Entry], before: list[list[int]]) -> str:
        """Describe a value's place: its offset, its last reader, and the values that lay there before."""
        plan = self._plan
        if entry not in plan.place:
            where = "in an array of the user's" if entry in plan.external else "kept"
            return f"{label(entry)}: {self._size(entry)}, {where}"
        place = plan.place[entry]
        last = self._in_place.last_read(entry, step)
        until = "the end" if self._in_place.is_wanted(entry) else f"step {last}"
        text = f"{label(entry)}: {self._size(entry)} at {plan.arena.offsets[place]} until {until}"
        if entry in plan.channels_last:
            text += ", channels-last"
        if entry in sources:
            return f"{text}, in place of {label(sources[entry])}"
        others = [self._where.names(other)[-1] for other in before[place]]
        if len(others) > _NAMED:
            others[_NAMED:] = [f"{len(others) - _NAMED} others"]
        return f"{text}, on bytes of {', '.join(others)}" if others else text

    def _step(self, step: int) -> str:
        node = self._steps[step]
        return f"step {step}, {node.name} ({node.op.name if node.op is not None else ''})"

    def _device(self, node: Node) -> str:
        return _on(self._plan.graph.context(node)) if len(self._plan.arenas) > 1 else ""

    def _size(self, entry: Entry) -> str:
        return in_words(self._plan.nbytes(entry))


def _on(context: Context | None) -> str:
    return "" if context is None else f" on {context}"


def _part(size: int, whole: int) -> str:
    return f" (the plan takes {size / whole:.3f} of it)" if whole else ""
