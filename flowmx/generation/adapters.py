"""The low-rank adapters of a decoder: requests with different adapters share its steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray as HostArray

from flowmx.devices import Context
from flowmx.errors import Overloaded
from flowmx.gluon.hybrid import HybridBlock
from flowmx.gluon.lora.layers import dense_layers, replace
from flowmx.gluon.lora.names import sources
from flowmx.gluon.lora.table import TableDense
from flowmx.gluon.lora.weights import AdapterWeights

__all__ = ["AdapterTable", "TableForm"]

_MAX_BYTES = 1 << 30
_RANKS = 8
"""The rank of a table is a multiple of this."""


class TableForm(NamedTuple):
    """The form of a table that a network has.

    Attributes:
        generation: the number of times that the table has grown.
        slots: the number of its slots.
        rank: the rank of each.
    """

    generation: int
    slots: int
    rank: int

    def mask(self, adapters: Sequence[int] | HostArray[np.int32]) -> HostArray[np.float32]:
        """Return the mask of rows for :func:`flowmx.gluon.lora.table.masked`.

        Args:
            adapters: the slot of each row, or -1 for none.
        """
        slots = np.asarray(adapters, np.int32)
        chosen = slots[:, None] == np.arange(self.slots, dtype=np.int32)
        return np.repeat(chosen, self.rank, axis=1).astype(np.float32)


class AdapterTable:
    """The adapters in the layers of a network.

    The layers that an adapter needs are wrapped, and hold all adapters. The table grows when an adapter needs it: then
    the next steps compile their graphs again.

    Args:
        net: the network.
        ctx: the device of its parameters.
        max_bytes: the maximum size of the table in bytes.

    Attributes:
        generation: the number of times that the table has grown.
        is_dirty: whether :meth:`apply` has a table to write.
    """

    def __init__(self, net: HybridBlock, ctx: Context, max_bytes: int = _MAX_BYTES) -> None:
        self._net, self._context, self._max_bytes = net, ctx, max_bytes
        self._adapters: list[AdapterWeights | None] = []
        self._layers: dict[str, TableDense] = {}
        self._rank = 0
        self._is_grown = self.is_dirty = False
        self.generation = 0
        self._lock = threading.Lock()
        """Adapters are added on other threads than the one that pushes steps."""

    @property
    def nbytes(self) -> int:
        """The size of the table in bytes."""
        return sum(layer.nbytes for layer in self._layers.values())

    @property
    def width(self) -> int:
        """The number of columns of the mask."""
        return len(self._adapters) * self._rank

    def add(self, weights: AdapterWeights) -> int:
        """Add an adapter; return its slot. :meth:`apply` makes it effective.

        Raises:
            Overloaded: the table would be larger than ``max_bytes``; then nothing has changed.
        """
        free = [slot for slot, each in enumerate(self._adapters) if each is None]
        count = len(self._adapters) if free else max(1, 2 * len(self._adapters))
        rank = max(self._rank, -(-weights.rank // _RANKS) * _RANKS)
        new = weights.layers.keys() - self._layers.keys()
        with self._lock:
            if not free or rank > self._rank or new:
                self._grow(count, rank, [*self._layers, *sorted(new)])
            slot = free[0] if free else self._adapters.index(None)
            self._adapters[slot] = weights
            self._fill(slot)
            self.is_dirty = True
        return slot

    def apply(self) -> TableForm:
        """Wrap the layers of the network, and push the writing of the table, if it has changed; return its form.

        Only the thread that pushes steps may call this: it changes the network, which a step may compile.
        """
        with self._lock:
            is_grown, is_dirty, self._is_grown, self.is_dirty = self._is_grown, self.is_dirty, False, False
            layers, form = self._layers, TableForm(self.generation, len(self._adapters), self._rank)
        for path, layer in layers.items() if is_grown else ():
            replace(self._net, path, layer)
        for layer in layers.values() if is_dirty else ():
            layer.push(self._context)
        return form

    def remove(self, slot: int) -> None:
        """Free a slot; steps that were pushed before still use its adapter."""
        self._adapters[slot] = None

    def _grow(self, count: int, rank: int, paths: Sequence[str]) -> None:
        """Make a larger table."""
        present, layers = dense_layers(self._net), {}
        for path in paths:
            layer: Any = present[path]
            base = layer.base if isinstance(layer, TableDense) else layer
            layers[path] = TableDense(base, count, rank, len(sources(self._net, path)))
        nbytes = sum(layer.nbytes for layer in layers.values())
        if nbytes > self._max_bytes:
            raise Overloaded(
                f"the table of adapters would have {nbytes} bytes, expected at most {self._max_bytes}: remove an "
                "adapter, or raise max_adapter_bytes", 1.0,
            )  # fmt: skip
        self._layers, self._rank = layers, rank
        self._adapters += [None] * (count - len(self._adapters))
        self.generation += 1
        self._is_grown = True
        for slot in range(len(self._adapters)):
            self._fill(slot)

    def _fill(self, slot: int) -> None:
        weights = self._adapters[slot]
        for path, layer in self._layers.items():
            layer.set(slot, None if weights is None else weights.layers.get(path))
