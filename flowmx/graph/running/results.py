"""Results of a plan: the arrays that they are written to, and the backward pieces after which gradients are complete.

A result in external memory is written directly to its array. Any other result is copied to its array by a *copy-out*, a
step after those of the pass.
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


class CopyOut(NamedTuple):
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
        gradients: the entry of the array of each gradient, by variable; without zero gradients that are requested as
            ``add``.
        copy_outs: the copy steps of the forward pass, and those of the backward pass.
    """

    def __init__(self, plan: Plan, requests: Mapping[Node, str] | None = None) -> None:
        self.plan = plan
        _live[id(self)] = self
        for observe in observers:
            observe(self)
        self.copy_outs: tuple[list[CopyOut], list[CopyOut]] = ([], [])
        self._direct_entries: set[Entry] = set()
        self.outputs = [self._target(entry, entry.node, self.copy_outs[0]) for entry in plan.outputs]
        self.gradients: dict[Node, Entry] = {}
        for node, request in (dict.fromkeys(plan.gradients, "write") if requests is None else requests).items():
            source, adds = plan.gradients.get(node), request == "add"
            if source is not None or not adds:
                self.gradients[node] = self._target(source, node, self.copy_outs[1], adds)

    def _target(self, source: Entry | None, node: Node, copy_outs: list[CopyOut], adds: bool = False) -> Entry:
        """Return the entry of the array for a result."""
        plan = self.plan
        if source in plan.external and source not in plan.root and source not in self._direct_entries and not adds:
            assert source is not None
            self._direct_entries.add(source)
            return source
        target = Entry(Node(None, f"{node.name} result"), 0)
        copy_outs.append(CopyOut(node, target, source, adds))
        return target

    def direct_gradients(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """Return for each node the variables whose gradients it writes directly to their arrays."""
        variables = {target: variable for variable, target in self.gradients.items()}
        return [
            [variables[entry] for index in range(node.outputs()) if (entry := Entry(node, index)) in variables]
            for node in nodes
        ]

    def nbytes(self, variables: Sequence[Node]) -> int:
        """Return the total size of variables, in bytes."""
        return sum(self.plan.nbytes(Entry(node, 0)) for node in variables)

    @cached_property
    def pieces(self) -> list[Piece]:
        """The backward pass, cut after steps that complete many gradients: these are used while others are computed."""
        gradients = self.direct_gradients(self.plan.backward)
        at = pass_pieces.cuts([self.nbytes(variables) for variables in gradients])
        rows = zip(pass_pieces.pieces(self.plan.backward, at), pass_pieces.pieces(gradients, at), strict=True)
        pieces = [
            Piece(set(nodes), [variable for variables in parts for variable in variables]) for nodes, parts in rows
        ]
        direct = {variable for piece in pieces for variable in piece.gradients}
        pieces[-1].gradients.extend(variable for variable in self.gradients if variable not in direct)
        return pieces
