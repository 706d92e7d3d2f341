"""Estimates of a network's memory, before any of it is allocated.

The figures are those of the plan that an executor would run, so they are not near what it binds, but equal to it. Left
out are the interpreter and its libraries, scratch memory of kernels, values inside bodies of loops and branches, and
what the training loop itself holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flowmx import devices
from flowmx.devices import Context, Device
from flowmx.graph.graph import Graph
from flowmx.graph.node import Entry, Node
from flowmx.graph.plan import Plan
from flowmx.graph.reports.occupancy import Occupancy
from flowmx.graph.reports.sizes import in_words
from flowmx.graph.reports.unfolded import unfolded

_GRADIENT_STEP = re.compile(r"(.*)_backward\d+")

StateBytes = Callable[[Node], int]


class Layer(NamedTuple):
    """Bytes of one layer.

    Attributes:
        name: the name of its node.
        parameters: of its parameters (those that several layers read count for the first), auxiliary states included.
        activations: of its results and of those of its gradient, if none shared memory.
        at_peak: of those alive when most is alive.
    """

    name: str
    parameters: int
    activations: int
    at_peak: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a bound network takes. Made by :meth:`flowmx.sym.Symbol.memory_estimate`.

    Attributes:
        parameters: of the arguments that are learned.
        auxiliary: of auxiliary states.
        inputs: of the other arguments: those whose shapes were given, and labels.
        gradients: of the gradient arrays.
        optimizer_state: of what the optimizer keeps.
        outputs: of the output arrays.
        heads: of the arrays for the outputs' gradients.
        activations: of all internal values together, as planned.
        by_layer: for each layer.
        by_device: the sum of all on each device.
        plan: what would run; ``plan.explain()`` tells more.
    """

    parameters: int
    auxiliary: int
    inputs: int
    gradients: int
    optimizer_state: int
    outputs: int
    heads: int
    activations: int
    by_layer: tuple[Layer, ...]
    by_device: Mapping[Context | None, int]
    plan: Plan

    @property
    def peak(self) -> int:
        """The most bytes in use at one time: the sum of all, for a bound network gives none of it back."""
        return sum(nbytes for _, nbytes in self._parts())

    def fits(self, where: int | Context | Device) -> bool:
        """Tell whether the network fits into so many bytes, or into a device's free memory.

        Args:
            where: bytes; or a device, of whose memory counts what is free now. Of a network that is placed on several
                devices, this one among them, only the part that is there has to fit.
        """
        if isinstance(where, int):
            return self.peak <= where
        device = where if isinstance(where, Device) else devices.get(where)
        return self.by_device.get(device.context, self.peak) <= device.memory_info()[0]

    def table(self, limit: int | None = None) -> str:
        """The figures as text, of all layers or of the largest ones."""
        lines = [f"{'Training' if self.plan.graph.train else 'Prediction'}, bytes in memory"]
        lines += [f"  {name:24}{in_words(nbytes):>12}" for name, nbytes in self._parts()]
        lines += [f"  {'peak':24}{in_words(self.peak):>12}"]
        if len(self.by_device) > 1:
            lines += [f"  {f'on {where}':24}{in_words(nbytes):>12}" for where, nbytes in self.by_device.items()]
        lines += ["", f"{'Layer':40}{'parameters':>14}{'activations':>14}{'at the peak':>14}"]
        shown = self.by_layer
        if limit is not None and len(shown) > limit:
            largest = set(sorted(shown, key=lambda layer: sum(layer[1:]), reverse=True)[:limit])
            shown = tuple(layer for layer in shown if layer in largest)
        for name, *sizes in shown:
            lines.append(f"{name[:39]:40}{''.join(f'{in_words(nbytes):>14}' for nbytes in sizes)}")
        if len(shown) < len(self.by_layer):
            lines.append(f"... and {len(self.by_layer) - len(shown)} more layers")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _parts(self) -> list[tuple[str, int]]:
        names = (
            "parameters", "auxiliary", "inputs", "gradients", "optimizer_state", "outputs", "heads", "activations",
        )  # fmt: skip
        return [(name.replace("_", " "), getattr(self, name)) for name in names]


def estimate(
    graph: Graph,
    plan: Plan,
    arguments: Sequence[Node],
    auxiliary: Sequence[Node],
    inputs: Collection[str],
    differentiated: Collection[Node],
    state: StateBytes,
) -> MemoryEstimate:
    """Add up what a bound plan takes.

    Args:
        graph: the graph before the passes.
        plan: what was made of it.
        arguments: its variables, without auxiliary states.
        auxiliary: these.
        inputs: the names of arguments that are no parameters.
        differentiated: the arguments that get gradient arrays.
        state: the bytes that an optimizer keeps for a parameter.
    """
    by_device: dict[Context | None, int] = {}

    def summed(entries: Collection[Entry], size: Callable[[Entry], int] = plan.nbytes) -> int:
        """The bytes of arrays, each on its node's device."""
        sizes = [(graph.context(entry.node), size(entry)) for entry in entries]
        for context, nbytes in sizes:
            by_device[context] = by_device.get(context, 0) + nbytes
        return sum(nbytes for _, nbytes in sizes)

    fed = [Entry(node, 0) for node in arguments if node.name in inputs]
    learned = [Entry(node, 0) for node in arguments if node.name not in inputs]
    kept = summed(plan.kept)
    for context, nbytes in plan.arenas.items():
        by_device[context] = by_device.get(context, 0) + nbytes
    return MemoryEstimate(
        parameters=summed(learned),
        auxiliary=summed([Entry(node, 0) for node in auxiliary]),
        inputs=summed(fed),
        gradients=summed([Entry(node, 0) for node in arguments if node in differentiated]),
        optimizer_state=summed(
            [each for each in learned if each.node in differentiated], lambda each: state(each.node)
        ),
        outputs=summed(graph.outputs),
        heads=summed([Entry(node, 0) for node in _heads_read(graph, plan)]),
        activations=plan.arena.size + kept,
        by_layer=tuple(_layers(graph, unfolded(plan), [*(entry.node for entry in learned), *auxiliary])),
        by_device=by_device,
        plan=plan,
    )


def _heads_read(graph: Graph, plan: Plan) -> list[Node]:
    """The variables for gradients of outputs that something reads: losses ignore theirs."""
    read = {entry.node for node in (*plan.forward, *plan.backward) for entry in node.inputs}
    read |= {entry.node for entry in plan.gradients.values()}
    return [head for head in graph.heads if head in read]


def _layers(graph: Graph, plan: Plan, owned: Sequence[Node]) -> list[Layer]:
    """The bytes of each layer, in the order of the forward pass."""
    operators = graph.forward()
    parameters, activations, at_peak = ({node.name: 0 for node in operators} for _ in range(3))

    def add(table: dict[str, int], name: str, nbytes: int) -> None:
        for each in (parameters, activations, at_peak):
            each.setdefault(name, 0)
        table[name] += nbytes

    owner = {entry.node: node for node in reversed(operators) for entry in node.inputs if entry.node.is_variable}
    for variable in owned:
        add(parameters, owner.get(variable, variable).name, plan.nbytes(Entry(variable, 0)))
    for entry in (*plan.place, *plan.kept):
        add(activations, _layer(entry.node), plan.nbytes(entry))
    for entry in plan.kept:
        add(at_peak, _layer(entry.node), plan.nbytes(entry))
    for node, nbytes in _alive_at_peak(plan):
        add(at_peak, _layer(node), nbytes)
    return [Layer(name, parameters[name], activations[name], at_peak[name]) for name in parameters]


def _layer(node: Node) -> str:
    """The layer that a node belongs to: its own name, or for a step of a gradient that of the node it is of."""
    found = _GRADIENT_STEP.fullmatch(node.name)
    return found[1] if found else node.name


def _alive_at_peak(plan: Plan) -> list[tuple[Node, int]]:
    """The values alive at the peak of each arena: the node of each, and its bytes."""
    where, found = Occupancy(plan), []
    at = {node: step for step, node in enumerate(where.steps)}
    for context in plan.arenas:
        _, peak = where.peak(context)
        for place in where.places(context):
            life = plan.lives[place]
            if life.first <= peak <= life.last:
                there = [entry.node for entry in where.members[place] if at[entry.node] <= peak]
                found.append((there[-1] if there else where.node(place), life.size))
    return found
