"""A plan with the steps of its slices in the place of the operators that run them, to be told of as one.

Nothing runs such a plan: a value in a slice is as large as its slice, and what its step reads of the whole is larger.
"""

from __future__ import annotations

from dataclasses import replace

from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.planning.memory import Life, Packing
from flowmx.ops.compiled.sliced import Sliced


def sliced(plan: Plan) -> list[tuple[Node, Sliced]]:
    """The steps of a plan that run in slices."""
    return [(node, node.op) for node in (*plan.forward, *plan.backward) if isinstance(node.op, Sliced)]


def in_words(plan: Plan) -> list[str]:
    """The regions of a plan that run in slices, and how."""
    return [f"{node.name}: {len(op.plan.steps())} steps, {op.told()}" for node, op in sliced(plan)]


def unfolded(plan: Plan) -> Plan:
    """The plan with the steps of its slices; itself where nothing runs in slices."""
    return _Unfolding(plan).plan() if sliced(plan) else plan


class _Unfolding:
    """The parts of such a plan."""

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
        """Make it."""
        old = self._plan
        once = [self._copied(node) for node in old.once]
        passes: list[list[Node]] = []
        spans: list[tuple[int, int]] = []  # for each step of the plan, its first and its last step here
        steps = 0
        for nodes in (old.forward, old.backward):
            passes.append([])
            for node in nodes:
                if isinstance(node.op, Sliced):
                    passes[-1] += self._slices(node, node.op, steps)
                    counted = len(node.op.plan.steps())
                else:
                    passes[-1].append(self._copied(node))
                    counted = int(Entry(node, 0) not in old.root)
                if counted:
                    spans.append((steps, steps + counted - 1))
                    steps += counted
        spans.append((steps, steps))  # the end
        for at, life in enumerate(old.lives):
            self._lives[at] = Life(life.size, spans[life.first][0], spans[life.last][1])
        for entry, place in old.place.items():
            self._place[self._entry(entry)] = place
        gone = [old.workspace[node] for node, _ in sliced(old) if node in old.workspace]
        keep = [at for at in range(len(self._lives)) if at not in gone]
        number = {at: index for index, at in enumerate(keep)}
        self._workspace |= {self._nodes[node]: at for node, at in old.workspace.items() if at not in gone}
        self._root |= {self._entry(view): self._entry(root) for view, root in old.root.items()}
        self._channels_last |= {self._entry(entry) for entry in old.channels_last}
        graph = replace(
            old.graph, outputs=tuple(map(self._entry, old.graph.outputs)), shapes=self._shapes, dtypes=self._dtypes,
            gradients={node: self._entry(entry) for node, entry in old.graph.gradients.items()},
        )  # fmt: skip
        return replace(
            old, graph=graph, once=once, forward=passes[0], backward=passes[1],
            external=frozenset(map(self._entry, old.external)),
            kept=[self._entry(entry) for entry in old.kept], root=self._root,
            place={entry: number[at] for entry, at in self._place.items()},
            workspace={node: number[at] for node, at in self._workspace.items()},
            lives=[self._lives[at] for at in keep],
            arena=Packing([self._offsets[at] for at in keep], old.arena.size),
            channels_last=frozenset(self._channels_last), stages=([], []),
        )  # fmt: skip

    def _entry(self, entry: Entry) -> Entry:
        return self._entries.get(entry, entry)

    def _copied(self, node: Node) -> Node:
        """A node that reads what stands for its inputs."""
        inputs = tuple(map(self._entry, node.inputs))
        made = node if inputs == node.inputs else Node(node.op, node.name, inputs, node.attributes, None, node.origin)
        self._nodes[node] = made
        for index in range(node.outputs()):
            old, new = Entry(node, index), Entry(made, index)
            self._entries[old] = new
            self._shapes[new], self._dtypes[new] = self._shapes[old], self._dtypes[old]
        return made

    def _slices(self, node: Node, op: Sliced, first: int) -> list[Node]:
        """The steps that an operator runs for each slice."""
        inner: Plan = op.plan
        self._shapes.update(inner.graph.shapes)
        self._dtypes.update(inner.graph.dtypes)
        self._entries.update(
            {made: self._entry(entry) for made, entry in zip(op.variables, node.inputs, strict=True)}
        )  # fmt: skip
        nodes = [self._copied(each) for each in op.nodes()]
        base = self._offsets[self._plan.workspace[node]] if node in self._plan.workspace else 0
        start, last = len(self._lives), len(inner.steps()) - 1
        self._lives += [Life(life.size, first + life.first, first + min(life.last, last)) for life in inner.lives]
        self._offsets += [base + offset for offset in inner.arena.offsets]
        self._place |= {self._entry(entry): start + at for entry, at in inner.place.items()}
        self._workspace |= {self._nodes[each]: start + at for each, at in inner.workspace.items()}
        self._root |= {self._entry(view): self._entry(root) for view, root in inner.root.items()}
        self._channels_last |= {self._entry(entry) for entry in inner.channels_last}
        for index, entry in enumerate(inner.graph.wanted()):  # it lies whole, where the operator puts it
            made = self._entry(entry)
            self._entries[Entry(node, index)] = made
            self._shapes[made] = self._shapes[Entry(node, index)]
        return nodes
