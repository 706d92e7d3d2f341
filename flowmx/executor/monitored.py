"""Execution of a bound graph operator by operator, which shows every value to a monitor.

Passes remove values, and a plan overwrites them. Under a monitor, each operator is a separate operation on separate
arrays, which are passed to a callback once they are enqueued. Nothing here waits, except for values that determine the
shapes of dynamic operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from flowmx import autograd, devices
from flowmx import ndarray as nd
from flowmx.devices import Context, Device
from flowmx.errors import AutogradError
from flowmx.graph.labels import input_labels
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray import functions as F
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import allocate, invoke
from flowmx.ops.registry.operators import Operator, Shape
from flowmx.ops.registry.tensors import Tensors


class Monitor(NamedTuple):
    """A monitor of the values of a graph.

    Attributes:
        callback: called with the name and the array of each value.
        monitor_all: whether inputs of operators are shown too.
        is_active: called to check whether the monitor is enabled.
    """

    callback: Callable[[str, NDArray], object]
    monitor_all: bool = False
    is_active: Callable[[], bool] = lambda: True

    def show_inputs(self, node: Node, inputs: Sequence[NDArray]) -> None:
        """Show the inputs of an operator."""
        if self.monitor_all and node.op is not None:
            for entry, name, array in zip(node.inputs, input_labels(node.op), inputs, strict=True):
                if entry.node.is_variable:
                    self.callback(entry.node.name, array)
                self.callback(f"{node.name}_{name}", array)

    def show_outputs(self, node: Node, outputs: Sequence[NDArray]) -> None:
        """Show the outputs of an operator."""
        for index, array in enumerate(outputs):
            self.callback(node.output_name(index), array)

    def show_gradients(self, node: Node, gradients: Sequence[NDArray | None]) -> None:
        """Show the gradients of an operator's inputs."""
        for index, array in enumerate(gradients):
            if array is not None:
                number = index if len(gradients) > 1 else ""
                self.callback(f"{node.name}_backward_output{number}", array)


def _enqueue_operator(op: Operator, inputs: Sequence[NDArray], device: Device) -> list[NDArray]:
    """Enqueue an operator; return all outputs, including hidden ones."""
    spec = op.spec(tuple([array.shape for array in inputs]), tuple([array.element_type for array in inputs]))
    outputs = [cast("NDArray", allocate(device, *result)) for result in zip(spec.shapes, spec.dtypes, strict=True)]
    invoke(op, inputs, outputs, device)
    return outputs


def _set_shape(op: Operator, shape: Shape | None) -> Operator:
    """Return a creation operator with the inferred shape, if its shape parameter leaves lengths open."""
    if shape is None or "shape" not in op.parameters or shape == op.shape:  # type: ignore[attr-defined]
        return op
    return type(op).create(**{name: getattr(op, name) for name in op.attributes()} | {"shape": shape})


class Monitored:
    """A graph with arrays bound to its variables.

    Args:
        entries: the outputs.
        arrays: by variable.
        grad_nodes: the differentiated variables.
        context_of: returns the device of a node.
        shapes: of every entry.
    """

    def __init__(
        self, entries: Sequence[Entry], arrays: Mapping[Node, NDArray], grad_nodes: Sequence[Node],
        context_of: Callable[[Node], Context], shapes: Mapping[Entry, Shape],
    ) -> None:  # fmt: skip
        self._shapes = shapes
        self._entries = entries
        self._nodes = topological(entries)
        self._arrays = arrays
        self._context_of = context_of
        self._values: dict[Entry, NDArray] = {}
        self._needed: set[Node] = set(grad_nodes)
        for node in self._nodes:
            if (
                node.op is not None
                and not node.op.traits.no_gradient
                and any(e.node in self._needed for e in node.inputs)
            ):
                self._needed.add(node)

    def forward(self, train: bool, monitor: Monitor) -> list[NDArray]:
        """Enqueue the forward pass; return the outputs."""
        self._values = {Entry(node, 0): array for node, array in self._arrays.items()}
        with autograd.pause(train_mode=train):
            for node in self._nodes:
                if node.op is not None:
                    self._compute(node, node.op, monitor)
        return [self._values[entry] for entry in self._entries]

    def _compute(self, node: Node, op: Operator, monitor: Monitor) -> None:
        if not node.inputs:
            op = _set_shape(op, self._shapes.get(Entry(node, 0)))
        context = self._context_of(node)
        states = {*op.updates, *range(node.auxiliary_from(), len(node.inputs))}
        inputs = [
            self._values[entry] if at in states else self._values[entry].as_in_context(context)
            for at, entry in enumerate(node.inputs)
        ]
        monitor.show_inputs(node, inputs)
        outputs = (
            [cast("NDArray", op.compute_eagerly(nd, cast("Tensors", inputs)))]
            if op.traits.dynamic
            else _enqueue_operator(op, inputs, devices.get(context))
        )
        self._values.update({Entry(node, index): array for index, array in enumerate(outputs)})
        monitor.show_outputs(node, outputs)

    def backward(self, heads: Sequence[NDArray | None], train: bool, monitor: Monitor) -> dict[Node, NDArray]:
        """Enqueue the backward pass; return the gradients of the differentiated variables that the outputs depend on.

        Args:
            heads: the gradients of the outputs (None: ones).
            train: whether in training mode.
            monitor: receives the gradients.

        Raises:
            AutogradError: an operator on the path has no gradient.
        """
        sums: dict[Entry, NDArray] = {}

        def add(entry: Entry, gradient: NDArray) -> None:
            gradient = gradient.as_in_context(self._values[entry].context)
            sums[entry] = sums[entry] + gradient if entry in sums else gradient

        with autograd.pause(train_mode=train):
            for entry, head_gradient in zip(self._entries, heads, strict=True):
                add(entry, F.op("ones_like", self._values[entry]) if head_gradient is None else head_gradient)
            for node in reversed(self._nodes):
                partial = [sums.pop(Entry(node, at), None) for at in range(node.visible_outputs())] if node.op else []
                if node not in self._needed or all(gradient is None for gradient in partial):
                    continue
                for entry, gradient in zip(node.inputs, self._differentiate(node, partial, monitor), strict=False):
                    if gradient is not None and entry.node in self._needed:
                        add(entry, gradient)
        return {entry.node: total for entry, total in sums.items() if entry.node.is_variable}

    def _differentiate(
        self, node: Node, heads: Sequence[NDArray | None], monitor: Monitor
    ) -> Sequence[NDArray | None]:  # fmt: skip
        assert node.op is not None
        context = self._context_of(node)
        outputs = [self._values[Entry(node, index)] for index in range(node.outputs())]
        head_gradients = [F.op("zeros_like", outputs[at]) if head is None else head for at, head in enumerate(heads)]
        inputs = [self._values[entry].as_in_context(context) for entry in node.inputs]
        try:
            arguments = [cast("Tensors", arrays) for arrays in (inputs, outputs, head_gradients)]
            gradients = cast("Sequence[NDArray | None]", node.op.gradient(F, *arguments))
        except NotImplementedError:
            raise AutogradError(f"node {node.name!r}: operator {node.op.name} has no gradient") from None
        monitor.show_gradients(node, gradients)
        return gradients
