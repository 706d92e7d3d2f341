"""Memory estimates of a network, before it is allocated.

The figures are those of the plan that an executor would run, so they equal what it binds. They exclude the interpreter
and its libraries, scratch memory of kernels, values inside bodies of loops and branches, and memory of the training
loop.
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
from flowmx.graph.reports.sizes import format_bytes
from flowmx.graph.reports.unfolded import unfold

_GRADIENT_STEP = re.compile(r"(.*)_backward\d+")

StateBytes = Callable[[Node], int]


class Layer(NamedTuple):
    """Bytes of one layer.

    Attributes:
        name: the name of its node.
        parameters: the size of its parameters, including auxiliary states (shared ones count for their first reader).
        activations: the size of its results and of those of its gradient, as if none shared memory.
        at_peak: the size of those that are alive at the peak.
    """

    name: str
    parameters: int
    activations: int
    at_peak: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a bound network, computed by :meth:`flowmx.sym.Symbol.memory_estimate`.

    Attributes:
        parameters: the size of the trained arguments.
        auxiliary: the size of the auxiliary states.
        inputs: the size of the other arguments: those whose shapes were passed, and labels.
        gradients: the size of the gradient arrays.
        optimizer_state: the size of the optimizer state.
        outputs: the size of the output arrays.
        heads: the size of the arrays for the outputs' gradients.
        activations: the size of all internal values together, as planned.
        by_layer: the size of each layer.
        by_device: the total size on each device.
        plan: the plan; see ``plan.explain()``.
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
        """Maximum number of bytes in use at one time: the sum of all, since a bound network releases nothing."""
        return sum(nbytes for _, nbytes in self._parts())

    def fits(self, where: int | Context | Device) -> bool:
        """Return whether the network fits into a number of bytes, or into a device's free memory.

        Args:
            where: bytes, or a device whose currently free memory counts. If the network is placed on several devices
                including this one, only the part on this device counts.
        """
        if isinstance(where, int):
            return self.peak <= where
        device = where if isinstance(where, Device) else devices.get(where)
        return self.by_device.get(device.context, self.peak) <= device.memory_info()[0]

    def table(self, limit: int | None = None) -> str:
        """Return the figures as text, for all layers or for the largest ones."""
        lines = [f"{'Training' if self.plan.graph.train else 'Prediction'}, bytes in memory"]
        lines += [f"  {name:24}{format_bytes(nbytes):>12}" for name, nbytes in self._parts()]
        lines += [f"  {'peak':24}{format_bytes(self.peak):>12}"]
        if len(self.by_device) > 1:
            lines += [f"  {f'on {where}':24}{format_bytes(nbytes):>12}" for where, nbytes in self.by_device.items()]
        lines += ["", f"{'Layer':40}{'parameters':>14}{'activations':>14}{'at the peak':>14}"]
        shown = self.by_layer
        if limit is not None and len(shown) > limit:
            largest = set(sorted(shown, key=lambda layer: sum(layer[1:]), reverse=True)[:limit])
            shown = tuple(layer for layer in shown if layer in largest)
        for name, *sizes in shown:
            lines.append(f"{name[:39]:40}{''.join(f'{format_bytes(nbytes):>14}' for nbytes in sizes)}")
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
    """Add up the memory of a bound plan, in bytes.

    Args:
        graph: the graph before the passes.
        plan: its plan.
        arguments: its variables, without auxiliary states.
        auxiliary: the auxiliary states.
        inputs: the names of arguments that are not parameters.
        differentiated: the arguments with gradient arrays.
        state: returns the size of an optimizer's state for a parameter, in bytes.
    """
    by_device: dict[Context | None, int] = {}

    def sum_bytes(entries: Collection[Entry], size: Callable[[Entry], int] = plan.nbytes) -> int:
        """Return the size of arrays in bytes, each on its node's device."""
        sizes = [(graph.context(entry.node), size(entry)) for entry in entries]
        for context, nbytes in sizes:
            by_device[context] = by_device.get(context, 0) + nbytes
        return sum(nbytes for _, nbytes in sizes)

    input_entries = [Entry(node, 0) for node in arguments if node.name in inputs]
    parameters = [Entry(node, 0) for node in arguments if node.name not in inputs]
    separate = sum_bytes(plan.separate)
    for context, nbytes in plan.arenas.items():
        by_device[context] = by_device.get(context, 0) + nbytes
    return MemoryEstimate(
        parameters=sum_bytes(parameters),
        auxiliary=sum_bytes([Entry(node, 0) for node in auxiliary]),
        inputs=sum_bytes(input_entries),
        gradients=sum_bytes([Entry(node, 0) for node in arguments if node in differentiated]),
        optimizer_state=sum_bytes(
            [entry for entry in parameters if entry.node in differentiated], lambda entry: state(entry.node)
        ),
        outputs=sum_bytes(graph.outputs),
        heads=sum_bytes([Entry(node, 0) for node in _heads_read(graph, plan)]),
        activations=plan.arena.size + separate,
        by_layer=tuple(_layers(graph, unfold(plan), [*(entry.node for entry in parameters), *auxiliary])),
        by_device=by_device,
        plan=plan,
    )


def _heads_read(graph: Graph, plan: Plan) -> list[Node]:
    """Return the variables for gradients of outputs that are read: losses ignore theirs."""
    read = {entry.node for node in (*plan.forward, *plan.backward) for entry in node.inputs}
    read |= {entry.node for entry in plan.gradients.values()}
    return [head for head in graph.heads if head in read]


def _layers(graph: Graph, plan: Plan, variables: Sequence[Node]) -> list[Layer]:
    """Return the size of each layer in bytes, in the order of the forward pass."""
    operators = graph.forward()
    parameters, activations, at_peak = ({node.name: 0 for node in operators} for _ in range(3))

    def add(table: dict[str, int], name: str, nbytes: int) -> None:
        for other in (parameters, activations, at_peak):
            other.setdefault(name, 0)
        table[name] += nbytes

    owner = {entry.node: node for node in reversed(operators) for entry in node.inputs if entry.node.is_variable}
    for variable in variables:
        add(parameters, owner.get(variable, variable).name, plan.nbytes(Entry(variable, 0)))
    for entry in (*plan.place, *plan.separate):
        add(activations, _layer(entry.node), plan.nbytes(entry))
    for entry in plan.separate:
        add(at_peak, _layer(entry.node), plan.nbytes(entry))
    for node, nbytes in _alive_at_peak(plan):
        add(at_peak, _layer(node), nbytes)
    return [Layer(name, parameters[name], activations[name], at_peak[name]) for name in parameters]


def _layer(node: Node) -> str:
    """Return the layer of a node: its name, or for a gradient step the name of the forward node."""
    match = _GRADIENT_STEP.fullmatch(node.name)
    return match[1] if match else node.name


def _alive_at_peak(plan: Plan) -> list[tuple[Node, int]]:
    """Return the values alive at the peak of each arena, as pairs of node and bytes."""
    occupancy, result = Occupancy(plan), []
    positions = {node: step for step, node in enumerate(occupancy.steps)}
    for context in plan.arenas:
        _, peak = occupancy.peak(context)
        for place in occupancy.places(context):
            life = plan.lives[place]
            if life.first <= peak <= life.last:
                nodes = [entry.node for entry in occupancy.members[place] if positions[entry.node] <= peak]
                result.append((nodes[-1] if nodes else occupancy.node(place), life.size))
    return result
