"""The bytes of a plan's arenas that hold no value, to be overwritten as steps are done.

A plan that lets values share memory wrongly often gives right results: what was given up too early is still there. Not
so where all that holds no value is written over: as floating numbers the pattern is NaN.
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
"""Position of the first byte, and of the one after the last."""


class Group(NamedTuple):
    """Steps between which nothing can be said to be free.

    Attributes:
        chains: rows of steps that may run at the same time; a single step where none runs at the same time.
        taken: the bytes that they begin to use, for each device.
        freed: the bytes that hold no value any more once all are done, for each device.
    """

    chains: Sequence[Sequence[Node]]
    taken: Mapping[Context | None, list[ByteRange]]
    freed: Mapping[Context | None, list[ByteRange]]

    def alone(self) -> Node | None:
        """The step, if it runs alone; None where there are several."""
        return self.chains[0][0] if len(self.chains) == 1 else None


def groups(plan: Plan) -> list[Group]:
    """The steps of a plan, with what becomes free.

    A plan that lets nothing share memory keeps its values, and nothing becomes free.
    """
    occupancy = Occupancy(plan)
    contexts, lives, offsets = occupancy.contexts, plan.lives, plan.arena.offsets
    born: list[list[int]] = [[] for _ in range(len(occupancy.steps) + 1)]
    dying: list[list[int]] = [[] for _ in born]
    for place, life in enumerate(lives):
        born[life.first].append(place)
        dying[life.last].append(place)
    alive: dict[Context | None, dict[int, ByteRange]] = {context: {} for context in contexts}
    found, step = [], 0
    for chains in _stages(plan, occupancy.steps):
        now = range(step, step := step + sum(map(len, chains)))
        taken: dict[Context | None, list[ByteRange]] = {}
        freed: dict[Context | None, list[ByteRange]] = {}
        for place in (place for each in now for place in born[each]):
            extent = alive[contexts[place]][place] = (offsets[place], offsets[place] + lives[place].size)
            taken.setdefault(contexts[place], []).append(extent)
        ended = [(contexts[place], alive[contexts[place]].pop(place)) for each in now for place in dying[each]]
        for context, extent in ended if not plan.keeps_values else ():
            freed.setdefault(context, []).extend(without(extent, alive[context].values()))
        found.append(Group(chains, taken, freed))
    return found


def _stages(plan: Plan, steps: Sequence[Node]) -> Iterator[list[list[Node]]]:
    """The steps in rows that may run at the same time, one alone wherever that can be."""
    known = set(steps)
    for stage in (*plan.stages[0], *plan.stages[1]):
        chains = [row for chain in stage if (row := [node for node in chain if node in known])]
        yield from [chains] if len(chains) > 1 else ([[node]] for chain in chains for node in chain)
    if not any(plan.stages):
        yield from ([[node]] for node in steps)


def without(extent: ByteRange, others: Iterable[ByteRange]) -> list[ByteRange]:
    """The parts of a byte range that no other range covers."""
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
    """Wraps forwards so that they overwrite all bytes without living values.

    What becomes free while several steps may run is written over before the next step that runs alone: nobody can
    tell which of several ends last.

    Args:
        plan: the plan that they belong to.
        memory: gives the arena of a device.
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
        waiting: dict[Context | None, list[ByteRange]] = {each: [(0, nbytes)] for each, nbytes in plan.arenas.items()}
        for group in groups(plan):
            for context, taken in group.taken.items():
                waiting[context] = [rest for extent in waiting[context] for rest in without(extent, taken)]
            node = group.alone()
            here = None if node is None else plan.graph.context(node)
            if node is not None and here in waiting and any(plan.nbytes(Entry(node, i)) for i in range(node.outputs())):
                self._fills[node] = (waiting[here], list(group.freed.get(here, ())))
                waiting[here] = []
            for context, freed in group.freed.items():
                if node not in self._fills or context is not here:
                    waiting[context] += freed

    def wrap(self, forward: Forward, node: Node) -> Forward:
        """The forward of a step of the plan, with what is written over before and after it."""
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
