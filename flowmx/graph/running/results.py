"""Results of a plan: the arrays that they go to, and the pieces of the backward pass after which gradients are there.

Pure. A result that the plan writes into memory from outside is written straight into the array for it. Any other is
brought there by an *ending*, a step after those of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning import handover

_live: WeakValueDictionary[int, Results] = WeakValueDictionary()


observers: list[Callable[[Results], None]] = []
"""Called with the results of each plan that comes into use."""


def live() -> list[Results]:
    """The results of all plans that are in use."""
    # Their references are copied at once, while other threads may compile.
    return [each for reference in _live.valuerefs() if (each := reference()) is not None]


class Ending(NamedTuple):
    """A step that brings a result to the array for it.

    Attributes:
        node: whose result it is: an operator's, or the gradient of a variable.
        target: the entry to put the array under.
        source: the value; None: zeros.
        adds: True where it is added to the content of the array.
    """

    node: Node
    target: Entry
    source: Entry | None
    adds: bool = False


class Piece(NamedTuple):
    """A part of a backward pass: its nodes, and the variables whose gradients are there after it."""

    nodes: set[Node]
    gradients: list[Node]


class Results:
    """The results of a plan.

    Args:
        plan: whose.
        requests: ``write`` or ``add`` for each variable whose gradient is handed out; by default all that the plan
            makes are written.

    Attributes:
        outputs: for each output the entry to put its array under.
        gradients: likewise for gradients, by variable; none where there is nothing to add.
        endings: of the forward and of the backward pass.
    """

    def __init__(self, plan: Plan, requests: Mapping[Node, str] | None = None) -> None:
        self.plan = plan
        _live[id(self)] = self
        for observe in observers:
            observe(self)
        self.endings: tuple[list[Ending], list[Ending]] = ([], [])
        self._straight: set[Entry] = set()
        self.outputs = [self._target(entry, entry.node, self.endings[0]) for entry in plan.outputs]
        self.gradients: dict[Node, Entry] = {}
        for node, request in (dict.fromkeys(plan.gradients, "write") if requests is None else requests).items():
            source, adds = plan.gradients.get(node), request == "add"
            if source is not None or not adds:
                self.gradients[node] = self._target(source, node, self.endings[1], adds)

    def _target(self, source: Entry | None, node: Node, endings: list[Ending], adds: bool = False) -> Entry:
        """The entry to put the array for a result under."""
        plan = self.plan
        if source in plan.external and source not in plan.root and source not in self._straight and not adds:
            assert source is not None
            self._straight.add(source)
            return source
        target = Entry(Node(None, f"{node.name} handed out"), 0)
        endings.append(Ending(node, target, source, adds))
        return target

    def handed_over(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """For each node, the variables whose gradients it writes straight into the arrays for them."""
        made = {target: variable for variable, target in self.gradients.items()}
        return [
            [made[entry] for index in range(node.outputs()) if (entry := Entry(node, index)) in made] for node in nodes
        ]

    def nbytes(self, variables: Sequence[Node]) -> int:
        """Bytes of some variables."""
        return sum(self.plan.nbytes(Entry(node, 0)) for node in variables)

    @cached_property
    def pieces(self) -> list[Piece]:
        """The backward pass, cut where it makes many gradients: the first are used while the others are computed."""
        found = self.handed_over(self.plan.backward)
        at = handover.cuts([self.nbytes(variables) for variables in found])
        rows = zip(handover.pieces(self.plan.backward, at), handover.pieces(found, at), strict=True)
        cut = [Piece(set(nodes), [variable for variables in made for variable in variables]) for nodes, made in rows]
        straight = {variable for piece in cut for variable in piece.gradients}
        cut[-1].gradients.extend(variable for variable in self.gradients if variable not in straight)
        return cut
