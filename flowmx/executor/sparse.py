"""Executors of symbols with sparse values.

A plan has only dense arrays. If a value or a gradient is sparse, each operator is a call on arrays, which selects its
implementation by storage types, and the gradients come from a tape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from flowmx import ndarray as nd
from flowmx.executor.executor import check_bound
from flowmx.executor.monitored import Monitor
from flowmx.executor.unplanned import UnplannedExecutor
from flowmx.graph import storage_types
from flowmx.graph.casts import infer_outputs
from flowmx.graph.node import Entry, Node, topological
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.backward import BackwardPass, leaves_of
from flowmx.ndarray.core import invoke
from flowmx.ndarray.creation import empty
from flowmx.ndarray.recording import Leaf, Scope, TapeNode
from flowmx.ops.registry.tensors import Functions, Tensors


class SparseExecutor(UnplannedExecutor):
    """An executor without a plan, whose arguments, values, outputs and gradients may be sparse."""

    reason = "values of the symbol are sparse"

    def _prepare(self, outputs: Sequence[NDArray]) -> None:
        shapes = {node: bound.shape for node, bound in self._arrays.items()}
        dtypes = {node: bound.element_type for node, bound in self._arrays.items()}
        self._entries, self._shapes, self._dtypes = infer_outputs(self._symbol.entries, shapes, dtypes, core.casting)
        for node, bound in self._arrays.items():
            check_bound(node, bound, self._shapes[Entry(node, 0)], self._dtypes[Entry(node, 0)], self._device_of(node))
        self._nodes = topological(self._entries)
        variable_stypes = {node: bound.stype for node, bound in self._arrays.items()}
        stypes = storage_types.infer_storage_types(self._nodes, variable_stypes, self._shapes)
        self.outputs = [
            empty(self._shapes[entry], self._device_of(entry.node).context, self._dtypes[entry], stypes[entry])
            for entry in self._entries
        ]
        self._recorded: list[NDArray] = []
        """The outputs of the last forward pass, if it was recorded: in training."""

    # -- running ---------------------------------------------------------------------------------------

    def forward(self, is_train: bool = False, **kwargs: object) -> list[NDArray]:
        self._feed(kwargs)
        self._last_train = is_train
        self._compute(is_train, bool(self._grad_nodes) and is_train)
        return self.outputs

    def _compute(self, train: bool, records: bool) -> None:
        """Enqueue the forward pass into the outputs."""
        monitor = self._monitor if self._monitor is not None and self._monitor.is_active() else None
        with Scope(records, train):
            results = self._run(monitor)
        with Scope(False, train):
            for result, output in zip(results, self.outputs, strict=True):
                result.copyto(output)
        self._recorded = results if records else []

    def _run(self, monitor: Monitor | None) -> list[NDArray]:
        """Enqueue the operators; return the outputs."""
        values: dict[Entry, NDArray] = {}
        for node in self._nodes:
            if node.op is None:
                values[Entry(node, 0)] = self._variable(node)
                continue
            context = self._device_of(node).context
            states = {*node.op.updates, *range(node.auxiliary_from(), len(node.inputs))}
            inputs = [
                values[entry] if at in states else values[entry].as_in_context(context)
                for at, entry in enumerate(node.inputs)
            ]
            if monitor is not None:
                monitor.show_inputs(node, inputs)
            result = (
                node.op.compute_eagerly(nd, cast("Tensors", inputs))
                if node.op.traits.dynamic
                else invoke(node.op, inputs, None, self._device_of(node))
            )
            outputs = [result] if isinstance(result, NDArray) else list(result)
            values.update({Entry(node, index): array for index, array in enumerate(outputs)})
            if monitor is not None:
                monitor.show_outputs(node, outputs)
                _watch_gradient(monitor, node, outputs)
        return [values[entry] for entry in self._entries]

    def _variable(self, node: Node) -> NDArray:
        """Return a separate handle on the array of a variable, whose gradient goes to the user's buffer."""
        handle = self._arrays[node].without_history()
        if node in self._grad_nodes:
            handle.history = Leaf(self._gradient(node), self._requests[node.name])
        return handle

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        if not self._grad_nodes:
            return
        if self._last_train is None:
            self._last_train = is_train
        if not self._recorded:
            self._compute(self._last_train, True)
        heads = self._head_gradients(out_grads)
        positions = [at for at, output in enumerate(self._recorded) if output.tape_entry is not None]
        reached: set[object] = set()
        if positions:
            tops = [self._recorded[at] for at in positions]
            reached = {id(leaf.grad) for leaf in leaves_of(tops)}
            backward_pass = BackwardPass(True, False, self._last_train, stores=True)
            if not backward_pass.run(tops, [heads[at] for at in positions]):
                backward_pass.store()
        for node in self._grad_nodes:
            target = self._gradient(node)
            if id(target) not in reached and self._requests[node.name] == "write":
                target[:] = 0


def _watch_gradient(monitor: Monitor, node: Node, outputs: Sequence[NDArray]) -> None:
    """Show the gradients of a recorded operator's inputs."""
    entry = outputs[0].tape_entry if outputs else None
    if entry is None or not isinstance(entry.node, TapeNode):
        return
    inner = entry.node.gradient

    def gradient(F: Functions, inputs: Any, outputs: Any, heads: Any) -> Sequence[NDArray | None]:
        gradients = cast("Sequence[NDArray | None]", inner(F, inputs, outputs, heads))
        monitor.show_gradients(node, gradients)
        return gradients

    entry.node.gradient = gradient
    entry.node.rules = None


def is_sparse(symbol: Any, arrays: Mapping[str, NDArray], gradients: Mapping[str, NDArray]) -> bool:
    """Return whether a value of a symbol or a gradient is sparse with these arrays."""
    bound = [*arrays.values(), *gradients.values()]
    if any(array.stype != "default" for array in bound):
        return True
    nodes = symbol.nodes()
    if not storage_types.may_be_sparse(nodes, {}):
        return False
    shapes = {node: arrays[node.name].shape for node in nodes if node.op is None}
    dtypes = {node: arrays[node.name].element_type for node in nodes if node.op is None}
    _, all_shapes, _ = infer_outputs(symbol.entries, shapes, dtypes, None)
    return any(stype != "default" for stype in storage_types.infer_storage_types(nodes, {}, all_shapes).values())
