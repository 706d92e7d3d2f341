"""A plan with the steps of its slices instead of the operators that run them, for reports.

Such a plan cannot run: a value in a slice has the size of the slice, while some of its inputs are whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flowmx.graph.node import Entry, Node
from flowmx.graph.planning.arena_packing import Life, Packing
from flowmx.ops.compiled.sliced import Sliced

if TYPE_CHECKING:
    from flowmx.graph.plan import Plan


def sliced_steps(plan: Plan) -> list[tuple[Node, Sliced]]:
    """Return the steps of a plan that run in slices."""
    return [(node, node.op) for node in (*plan.forward, *plan.backward) if isinstance(node.op, Sliced)]


def describe_slices(plan: Plan) -> list[str]:
    """Return descriptions of the regions of a plan that run in slices."""
    return [f"{node.name}: {len(op.plan.steps())} steps, {op.description()}" for node, op in sliced_steps(plan)]


def unfold(plan: Plan) -> Plan:
    """Return the plan with the steps of its slices; the plan itself if nothing runs in slices."""
    return _Unfolding(plan).plan() if sliced_steps(plan) else plan


class _Unfolding:
    """Builds the unfolded plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entries: dict[Entry, Entry] = {}
        self._nodes: dict[Node, Node] = {}
        self._shapes, self._dtypes = dict(plan.graph.shapes), dict(plan.graph.dtypes)
        self._place: dict[Entry, int] = {}
        self._workspace: dict[Node, int] = {}
        self._root: dict[Entry, Entry] = {}
        self._channels_last: set[Entry] = set()
        self._lives: list[Life] = list(plan.lives)
        self._offsets: list[int] = list(plan.arena.offsets)

    def plan(self) -> Plan:
        """Return the unfolded plan."""
        old = self._plan
        once = [self._copy(node) for node in old.once]
        passes: list[list[Node]] = []
        spans: list[tuple[int, int]] = []  # for each step of the old plan, its first and last step in the new one
        steps = 0
        for nodes in (old.forward, old.backward):
            passes.append([])
            for node in nodes:
                if isinstance(node.op, Sliced):
                    passes[-1] += self._slices(node, node.op, steps)
                    count = len(node.op.plan.steps())
                else:
                    passes[-1].append(self._copy(node))
                    count = int(Entry(node, 0) not in old.root)
                if count:
                    spans.append((steps, steps + count - 1))
                    steps += count
        spans.append((steps, steps))  # the end
        for position, life in enumerate(old.lives):
            self._lives[position] = Life(life.size, spans[life.first][0], spans[life.last][1])
        for entry, place in old.place.items():
            self._place[self._entry(entry)] = place
        removed = [old.workspace[node] for node, _ in sliced_steps(old) if node in old.workspace]
        keep = [position for position in range(len(self._lives)) if position not in removed]
        number = {position: index for index, position in enumerate(keep)}
        self._workspace |= {
            self._nodes[node]: position for node, position in old.workspace.items() if position not in removed
        }
        self._root |= {self._entry(view): self._entry(root) for view, root in old.root.items()}
        self._channels_last |= {self._entry(entry) for entry in old.channels_last}
        graph = replace(
            old.graph, outputs=tuple(map(self._entry, old.graph.outputs)), shapes=self._shapes, dtypes=self._dtypes,
            gradients={node: self._entry(entry) for node, entry in old.graph.gradients.items()},
        )  # fmt: skip
        return replace(
            old, graph=graph, once=once, forward=passes[0], backward=passes[1],
            external=frozenset(map(self._entry, old.external)),
            separate=[self._entry(entry) for entry in old.separate], root=self._root,
            place={entry: number[position] for entry, position in self._place.items()},
            workspace={node: number[position] for node, position in self._workspace.items()},
            lives=[self._lives[position] for position in keep],
            arena=Packing([self._offsets[position] for position in keep], old.arena.size),
            channels_last=frozenset(self._channels_last), stages=([], []),
        )  # fmt: skip

    def _entry(self, entry: Entry) -> Entry:
        return self._entries.get(entry, entry)

    def _copy(self, node: Node) -> Node:
        """Return a node that reads the entries that replace its inputs."""
        inputs = tuple(map(self._entry, node.inputs))
        copy = node if inputs == node.inputs else Node(node.op, node.name, inputs, node.attributes, None, node.origin)
        self._nodes[node] = copy
        for index in range(node.outputs()):
            old, new = Entry(node, index), Entry(copy, index)
            self._entries[old] = new
            self._shapes[new], self._dtypes[new] = self._shapes[old], self._dtypes[old]
        return copy

    def _slices(self, node: Node, op: Sliced, first: int) -> list[Node]:
        """Return the steps that an operator runs for each slice."""
        inner: Plan = op.plan
        self._shapes.update(inner.graph.shapes)
        self._dtypes.update(inner.graph.dtypes)
        self._entries.update(
            {variable: self._entry(entry) for variable, entry in zip(op.variables, node.inputs, strict=True)}
        )  # fmt: skip
        nodes = [self._copy(inner_node) for inner_node in op.nodes()]
        base = self._offsets[self._plan.workspace[node]] if node in self._plan.workspace else 0
        start, last = len(self._lives), len(inner.steps()) - 1
        self._lives += [Life(life.size, first + life.first, first + min(life.last, last)) for life in inner.lives]
        self._offsets += [base + offset for offset in inner.arena.offsets]
        self._place |= {self._entry(entry): start + position for entry, position in inner.place.items()}
        self._workspace |= {
            self._nodes[inner_node]: start + position for inner_node, position in inner.workspace.items()
        }
        self._root |= {self._entry(view): self._entry(root) for view, root in inner.root.items()}
        self._channels_last |= {self._entry(entry) for entry in inner.channels_last}
        for index, entry in enumerate(inner.graph.results()):  # a whole result, placed by the operator
            result = self._entry(entry)
            self._entries[Entry(node, index)] = result
            self._shapes[result] = self._shapes[Entry(node, index)]
        return nodes
