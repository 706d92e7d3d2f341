"""Values that are computed once, such as packed weights, shared by the plans of one graph.

The plans of a graph for several batch sizes, and the runners of a plan, would each have copies of all weights. Two
copies are the same if they are made by steps with the same key, from the same arrays. A copy is made again when an
array that it depends on has a new version: the engine runs no call on the new content before all calls on the old one
have ended, so the memory is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from flowmx import forks
from flowmx.graph.node import Entry, Node
from flowmx.graph.running.steps import Step
from flowmx.ops.registry.kernels import kernel_for
from flowmx.ops.registry.operators import Array

if TYPE_CHECKING:
    from flowmx.graph.running.runner import Runner

__all__ = ["RunnerCopies", "SharedCopies"]

RunSteps = Callable[[Sequence[Step]], None]


class _Copies:
    """The results of one step.

    Attributes:
        arrays: the results.
        sources: the storages that they depend on, which keeps their identities unique.
        versions: the versions of the storages from which the results were computed; None before that.
        users: the runners that read them.
    """

    def __init__(self, arrays: Sequence[Array], sources: tuple[object, ...]) -> None:
        self.arrays = list(arrays)
        self.sources = sources
        self.versions: tuple[object, ...] | None = None
        self.users: WeakSet[Runner] = WeakSet()


class SharedCopies:
    """The shared values of the plans of one graph on one device."""

    def __init__(self) -> None:
        self.lock = forks.lock()
        self._copies: WeakValueDictionary[Hashable, _Copies] = WeakValueDictionary()

    def find(self, key: Hashable, sources: tuple[object, ...], allocate: Callable[[], Sequence[Array]]) -> _Copies:
        """Return the results of a step with a key, for these storages (locked), newly allocated if necessary."""
        whole_key = key, tuple(map(id, sources))
        copies = self._copies.get(whole_key)
        if copies is None:
            copies = self._copies[whole_key] = _Copies(allocate(), sources)
        return copies


class RunnerCopies:
    """The shared values of a runner.

    Args:
        shared: those of the graph.
        runner: the runner.
        variables: the position, in the versions of a call, of each variable by name.

    Raises:
        KeyError: a value depends on another variable.
    """

    def __init__(self, shared: SharedCopies, runner: Runner, variables: Mapping[str, int]) -> None:
        self._shared, self._runner = shared, runner
        separate = set(runner.plan.separate)
        self._steps = [
            (step, _key(runner, step.node, variables), _sources(step.node, variables))
            if separate.issuperset(_outputs(step.node)) else (step, None, ())
            for step in runner.once
        ]  # fmt: skip
        self.entries = {entry for step, key, _ in self._steps if key is not None for entry in _outputs(step.node)}
        """The entries that are bound to shared values."""
        self._copies: dict[Node, _Copies] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the values, each divided by the number of the runners that share it."""
        copies = list(self._copies.values())
        return sum(sum(array.nbytes for array in each.arrays) // max(1, len(each.users)) for each in copies)

    def update(self, versions: tuple[Any, ...], run: RunSteps) -> None:
        """Bind the runner to the values for a call, and compute those that are not current.

        Args:
            versions: the storages of the variables that the values depend on, and their versions.
            run: runs steps in order.
        """
        storages, numbers = versions
        with self._shared.lock:
            steps: list[Step] = []
            stale: list[tuple[_Copies, tuple[object, ...]]] = []
            for step, key, positions in self._steps:
                if key is None:
                    steps.append(step)
                    continue
                copies = self._find(step.node, key, tuple([storages[at] for at in positions]))
                current = tuple([numbers[at] for at in positions])
                if copies.versions != current:
                    copies.versions = None  # until the steps have run
                    steps.append(step)
                    stale.append((copies, current))
            run(steps)
            for copies, current in stale:
                copies.versions = current

    def _find(self, node: Node, key: Hashable, sources: tuple[object, ...]) -> _Copies:
        """Return the values of a step for these storages, and bind the runner to them."""
        copies = self._shared.find(key, sources, partial(self._allocate, node))
        old = self._copies.get(node)
        if old is not copies:
            if old is not None:
                old.users.discard(self._runner)
            copies.users.add(self._runner)
            self._copies[node] = copies
            self._runner.bind(_outputs(node), copies.arrays)
        return copies

    def _allocate(self, node: Node) -> list[Array]:
        graph, device = self._runner.plan.graph, self._runner.device(node)
        return [device.allocate(graph.shapes[entry], graph.dtypes[entry]) for entry in _outputs(node)]


def _outputs(node: Node) -> list[Entry]:
    return [Entry(node, index) for index in range(node.outputs())]


def _key(runner: Runner, node: Node, variables: Mapping[str, int]) -> Hashable:
    """Return the key of a step: equal ones compute equal results from equal variables."""
    graph = runner.plan.graph
    if node.op is None:
        return variables[node.name]
    dtype = graph.dtypes[node.inputs[0]] if node.inputs else None
    kernel = kernel_for(runner.device(node).kernels, node.op.name)
    content = None if kernel is None or kernel.content_key is None else kernel.content_key(node.op, dtype)
    inputs = tuple([(_key(runner, entry.node, variables), entry.index) for entry in node.inputs])
    forms = tuple([(graph.shapes[entry], graph.dtypes[entry]) for entry in _outputs(node)])
    return node.op if content is None else (node.op.name, content), inputs, forms


def _sources(node: Node, variables: Mapping[str, int]) -> tuple[int, ...]:
    """Return the positions of the variables that a step depends on."""
    positions: set[int] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        if each.op is None:
            positions.add(variables[each.name])
        stack += [entry.node for entry in each.inputs]
    return tuple(sorted(positions))
