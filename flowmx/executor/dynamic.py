"""Executors of symbols whose shapes follow from the content of arrays, such as what ``boolean_mask`` keeps."""

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

_NOBODY = Monitor(lambda name, array: None)


def is_dynamic(symbol: Symbol) -> bool:
    """Tell whether shapes of a symbol follow from the content of arrays."""
    return any(node.op is not None and node.op.traits.dynamic for node in symbol._nodes())


class DynamicExecutor(UnplannedExecutor):
    """An executor without a plan: each operator is an operation of its own.

    ``forward`` waits for what decides a shape, and makes new ``outputs``; before it there are none.
    """

    reason = "shapes of the symbol follow from the content of arrays"

    def _prepare(self, outputs: Sequence[NDArray]) -> None:
        shapes = {node: bound.shape for node, bound in self._arrays.items()}
        dtypes = {node: bound._dtype for node, bound in self._arrays.items()}
        infer.infer_shapes(self._symbol._nodes(), shapes)
        self._options = replace(options_of(self._device.context.kernels), merge=False)
        self._shapes, self._dtypes = {}, {}
        entries = self._symbol._entries
        self._entries = tuple(entries if core.casting is None else insert_casts(entries, dtypes, core.casting))
        self.outputs = []

    def _watching(self) -> Monitor:
        monitor = self._monitor
        return monitor if monitor is not None and monitor.is_active() else _NOBODY

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[NDArray]:
        self._feed(kwargs)
        self._last_train = is_train
        self.outputs = self._one_by_one().forward(is_train, self._watching())
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        if not self._wanted:
            return
        if self._last_train is None:
            self.forward(is_train)
        heads = self._given(out_grads)
        train = is_train if self._last_train is None else self._last_train
        self._take_gradients(self._one_by_one().backward(heads, train, self._watching()))
