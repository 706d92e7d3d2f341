"""Results of a plan: the arrays that they are written to, and the backward pieces after which gradients are complete.

A result in external memory is written directly to its array. Any other result is copied there by an *ending*, a step
after those of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from flowmx.graph.node import Entry, Node
from flowmx.graph.planning import pass_pieces

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan

_live: WeakValueDictionary[int, Results] = WeakValueDictionary()


observers: list[Callable[[Results], None]] = []
"""Called with the results of each plan that comes into use."""


def live() -> list[Results]:
    """Return the results of all plans in use."""
    # valuerefs() copies the references in one step: other threads may compile.
    return [results for reference in _live.valuerefs() if (results := reference()) is not None]


class Ending(NamedTuple):
    """A step that copies a result to its array.

    Attributes:
        node: the operator of the result, or the variable of the gradient.
        target: the entry of the array.
        source: the value (None: zeros).
        adds: whether it is added to the content of the array.
    """

    node: Node
    target: Entry
    source: Entry | None
    adds: bool = False


class Piece(NamedTuple):
    """A part of a backward pass: its nodes, and the variables whose gradients are complete after it."""

    nodes: set[Node]
    gradients: list[Node]


class Results:
    """The results of a plan.

    Args:
        plan: the plan.
        requests: ``write`` or ``add`` for each variable whose gradient is returned (default: write all of the plan).

    Attributes:
        outputs: the entry of the array of each output.
        gradients: likewise for gradients, by variable; without those that add nothing.
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
        """Return the entry of the array for a result."""
        plan = self.plan
        if source in plan.external and source not in plan.root and source not in self._straight and not adds:
            assert source is not None
            self._straight.add(source)
            return source
        target = Entry(Node(None, f"{node.name} handed out"), 0)
        endings.append(Ending(node, target, source, adds))
        return target

    def direct_gradients(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Return for each node the variables whose gradients it writes directly to their arrays."""
        variables = {target: variable for variable, target in self.gradients.items()}
        return [
            [variables[entry] for index in range(node.outputs()) if (entry := Entry(node, index)) in variables]
            for node in nodes
        ]

    def nbytes(self, variables: Sequence[Node]) -> int:
        """Return the bytes of variables."""
        return sum(self.plan.nbytes(Entry(node, 0)) for node in variables)

    @cached_property
    def pieces(self) -> list[Piece]:
        """The backward pass, cut after steps that complete many gradients: these are used while others are computed."""
        gradients = self.direct_gradients(self.plan.backward)
        at = pass_pieces.cuts([self.nbytes(variables) for variables in gradients])
        rows = zip(pass_pieces.pieces(self.plan.backward, at), pass_pieces.pieces(gradients, at), strict=True)
        cut = [Piece(set(nodes), [variable for variables in parts for variable in variables]) for nodes, parts in rows]
        straight = {variable for piece in cut for variable in piece.gradients}
        cut[-1].gradients.extend(variable for variable in self.gradients if variable not in straight)
        return cut
