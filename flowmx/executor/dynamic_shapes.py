"""Executors of symbols whose shapes depend on the content of arrays, such as the output of ``boolean_mask``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flowmx.executor.monitored import Monitor
from flowmx.executor.unplanned import UnplannedExecutor
from flowmx.graph import infer
from flowmx.graph.casts import insert_casts
from flowmx.graph.compiler import options_of
from flowmx.ndarray import core
from flowmx.ndarray.array import NDArray
from flowmx.symbol.symbol import Symbol

_NO_MONITOR = Monitor(lambda name, array: None)


def is_dynamic(symbol: Symbol) -> bool:
    """Return whether shapes of a symbol depend on the content of arrays."""
    return any(node.op is not None and node.op.traits.dynamic for node in symbol.nodes())


class DynamicExecutor(UnplannedExecutor):
    """An executor without a plan: each operator is a separate operation.

    ``forward`` waits for the values that determine shapes, and creates new ``outputs``, which do not exist before.
    """

    reason = "shapes of the symbol depend on the content of arrays"

    def _prepare(self, outputs: Sequence[NDArray]) -> None:
        shapes = {node: bound.shape for node, bound in self._arrays.items()}
        dtypes = {node: bound.element_type for node, bound in self._arrays.items()}
        infer.infer_shapes(self._symbol.nodes(), shapes)
        self._options = replace(options_of(self._device.context.kernels), merge=False)
        self._shapes, self._dtypes = {}, {}
        entries = self._symbol.entries
        self._entries = tuple(entries if core.casting is None else insert_casts(entries, dtypes, core.casting))
        self.outputs = []

    def _active_monitor(self) -> Monitor:
        monitor = self._monitor
        return monitor if monitor is not None and monitor.is_active() else _NO_MONITOR

    def forward(self, is_train: bool = False, **kwargs: object) -> list[NDArray]:
        self._feed(kwargs)
        self._last_train = is_train
        self.outputs = self._operator_runner().forward(is_train, self._active_monitor())
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        if not self._grad_nodes:
            return
        if self._last_train is None:
            self.forward(is_train)
        heads = self._head_gradients(out_grads)
        train = is_train if self._last_train is None else self._last_train
        self._write_gradients(self._operator_runner().backward(heads, train, self._active_monitor()))
