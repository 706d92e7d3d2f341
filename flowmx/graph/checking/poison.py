"""Overwrite the bytes of a plan's arenas that hold no value after each step.

A plan that shares memory wrongly often computes correct results, since a value released too early is still there. With
free bytes overwritten, such a plan computes NaN, which the pattern is as a floating-point number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from flowmx.devices import Context
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.reports.occupancy import Occupancy
from flowmx.ops.registry.operators import Array, Run

PATTERN = 0xFF
"""The byte that free memory is filled with."""

Forward = Callable[[Run, Sequence[Array], Sequence[Array]], None]
ByteRange = tuple[int, int]
"""The position of the first byte, and of the one after the last."""


class Group(NamedTuple):
    """Steps between which it is unknown which bytes are free.

    Attributes:
        chains: sequences of steps that may run concurrently; a single step if none do.
        taken: the number of bytes that they start to use, for each device.
        freed: the number of bytes that hold no value once all have run, for each device.
    """

    chains: Sequence[Sequence[Node]]
    taken: Mapping[Context | None, list[ByteRange]]
    freed: Mapping[Context | None, list[ByteRange]]

    def single_step(self) -> Node | None:
        """Return the step if it runs alone, or None."""
        return self.chains[0][0] if len(self.chains) == 1 else None


def groups(plan: Plan) -> list[Group]:
    """Return the steps of a plan, with the bytes that become free.

    A plan without shared memory keeps its values, so nothing becomes free.
    """
    occupancy = Occupancy(plan)
    contexts, lives, offsets = occupancy.contexts, plan.lives, plan.arena.offsets
    born: list[list[int]] = [[] for _ in range(len(occupancy.steps) + 1)]
    dying: list[list[int]] = [[] for _ in born]
    for place, life in enumerate(lives):
        born[life.first].append(place)
        dying[life.last].append(place)
    alive: dict[Context | None, dict[int, ByteRange]] = {context: {} for context in contexts}
    result, step = [], 0
    for chains in _stages(plan, occupancy.steps):
        stage_steps = range(step, step := step + sum(map(len, chains)))
        taken: dict[Context | None, list[ByteRange]] = {}
        freed: dict[Context | None, list[ByteRange]] = {}
        for place in (place for number in stage_steps for place in born[number]):
            extent = alive[contexts[place]][place] = (offsets[place], offsets[place] + lives[place].size)
            taken.setdefault(contexts[place], []).append(extent)
        ended = [
            (contexts[place], alive[contexts[place]].pop(place)) for number in stage_steps for place in dying[number]
        ]
        for context, extent in ended if not plan.keeps_values else ():
            freed.setdefault(context, []).extend(subtract_ranges(extent, alive[context].values()))
        result.append(Group(chains, taken, freed))
    return result


def _stages(plan: Plan, steps: Sequence[Node]) -> Iterator[list[list[Node]]]:
    """Iterate over the steps in concurrent sequences, or one by one where possible."""
    members = set(steps)
    for stage in (*plan.stages[0], *plan.stages[1]):
        chains = [row for chain in stage if (row := [node for node in chain if node in members])]
        yield from [chains] if len(chains) > 1 else ([[node]] for chain in chains for node in chain)
    if not any(plan.stages):
        yield from ([[node]] for node in steps)


def subtract_ranges(extent: ByteRange, others: Iterable[ByteRange]) -> list[ByteRange]:
    """Return the parts of a byte range that no other range covers."""
    rest, (start, stop) = [], extent
    for low, high in sorted(other for other in others if other[0] < stop and other[1] > start):
        if low > start:
            rest.append((start, low))
        start = max(start, high)
    return [*rest, (start, stop)] if start < stop else rest


def fill(memory: Array, ranges: Iterable[ByteRange]) -> None:
    """Overwrite ranges of an arena with :data:`PATTERN`."""
    for start, stop in ranges:
        memory[start:stop] = PATTERN


class Poisoned:
    """Wraps forwards so that they overwrite all bytes that hold no live value.

    Bytes that become free while several steps may run are overwritten before the next step that runs alone, since it is
    unknown which of them ends last.

    Args:
        plan: the plan of the steps.
        memory: returns the arena of a device.
    """

    def __init__(self, plan: Plan, memory: Callable[[Context | None], Array]) -> None:
        self._plan = plan
        self._memory = memory
        self._fills: dict[Node, tuple[list[ByteRange], list[ByteRange]]] = {}
        if not plan.keeps_values:
            self._plan_fills()

    def _plan_fills(self) -> None:
        """Decide which bytes to overwrite before and after each step that runs alone."""
        plan = self._plan
        waiting: dict[Context | None, list[ByteRange]] = {
            context: [(0, nbytes)] for context, nbytes in plan.arenas.items()
        }
        for group in groups(plan):
            for context, taken in group.taken.items():
                waiting[context] = [rest for extent in waiting[context] for rest in subtract_ranges(extent, taken)]
            node = group.single_step()
            context_of_node = None if node is None else plan.graph.context(node)
            if (
                node is not None
                and context_of_node in waiting
                and any(plan.nbytes(Entry(node, i)) for i in range(node.outputs()))
            ):
                self._fills[node] = (waiting[context_of_node], list(group.freed.get(context_of_node, ())))
                waiting[context_of_node] = []
            for context, freed in group.freed.items():
                if node not in self._fills or context is not context_of_node:
                    waiting[context] += freed

    def wrap(self, forward: Forward, node: Node) -> Forward:
        """Wrap the forward of a step so that it overwrites free bytes before and after."""
        if node not in self._fills:
            return forward
        before, after = self._fills[node]
        context = self._plan.graph.context(node)

        def call(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            memory = self._memory(context)
            fill(memory, before)
            forward(run, inputs, outputs)
            fill(memory, after)

        return call
