"""Layers with the adapters of many requests: each row of a batch has its own adapter, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from flowmx import ndarray as nd
from flowmx.devices import Context
from flowmx.gluon.lora.layers import Wrapped
from flowmx.gluon.lora.weights import LayerWeights
from flowmx.gluon.nn.basic_layers import Dense
from flowmx.gluon.parameter import Parameter
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import Functions, Tensor

__all__ = ["TableDense", "masked"]

_mask: ContextVar[Any] = ContextVar("flowmx_adapters", default=None)
"""The adapters of the rows of the batch that is being computed or traced: see :func:`masked`."""


@contextmanager
def masked(mask: Any) -> Iterator[None]:
    """Add adapters inside the context.

    Args:
        mask: (rows, slots · rank), 1 where a row has the adapter of a slot, else 0; an array or a symbol.
    """
    token = _mask.set(mask)
    try:
        yield
    finally:
        _mask.reset(token)


class TableDense(Wrapped):
    """A layer with a table of adapters: ``base(x) + ((x · Aᵀ) * mask) · Bᵀ`` inside :func:`masked`, else ``base(x)``.

    A and B hold the adapters of all slots, and the mask selects that of each row. So one product serves rows with
    different adapters, and adds exactly 0 to rows without one.

    Args:
        base: a ``Dense`` or ``PackedDense`` layer without an activation.
        slots: the number of adapters.
        rank: the maximum rank of an adapter.
        parts: the number of parts of the outputs, each with its own A and B.

    Attributes:
        nbytes: the size of the table in bytes.

    Raises:
        TypeError: the layer has an activation.
    """

    def __init__(self, base: Dense, slots: int, rank: int, parts: int) -> None:
        super().__init__(base, "table")
        self.slots, self.rank, self.parts = slots, rank, parts
        self._a: Array = np.zeros((parts, slots, rank, self.in_units), np.float32)
        self._b: Array = np.zeros((parts, self.units // parts, slots, rank), np.float32)
        self.nbytes = self._a.nbytes + self._b.nbytes
        self._casts = np.dtype(base.weight.dtype).itemsize == 2
        width = slots * rank
        with self.name_scope():
            for part in range(parts):
                setattr(self, f"table_a{part}", self._add(f"a{part}", (width, self.in_units)))
                setattr(self, f"table_b{part}", self._add(f"b{part}", (self.units // parts, width)))

    def _add(self, name: str, shape: tuple[int, ...]) -> Parameter:
        """Add a parameter without a gradient; only steps with adapters use it."""
        parameter = self.params.get(name, shape=shape, init="zeros", grad_req="null")
        parameter.may_be_unused = True
        return parameter

    def set(self, slot: int, weights: LayerWeights | None) -> None:
        """Set the adapter of a slot, or remove it; :meth:`push` makes it effective."""
        self._a[:, slot] = self._b[:, :, slot] = 0
        if weights is not None:
            self._a[:, slot, : weights.rank] = weights.a
            self._b[:, :, slot, : weights.rank] = weights.b * np.reshape(weights.scales, (-1, 1, 1)).astype(np.float32)

    def push(self, ctx: Context) -> None:
        """Push the writing of the table to a device; steps before read the old values, and steps after the new."""
        for name, parameter in self._reg_params.items():
            values = (self._a if name.startswith("table_a") else self._b)[int(name[-1])]
            array = nd.array(values.reshape(parameter.shape or ()), ctx=ctx)
            if parameter._arrays is None:
                parameter._load_init(array, ctx)
            else:
                parameter.set_data(array)

    def hybrid_forward(self, F: Functions, x: Tensor, **tables: Any) -> Any:  # type: ignore[override]
        out: Any = self.base(x)
        mask = _mask.get()
        if mask is None:
            return out
        data: Any = F.Cast(x, dtype="float32") if self._casts else x
        width, size, pieces = self.slots * self.rank, self.units // self.parts, []
        for part in range(self.parts):
            a, b = tables[f"table_a{part}"], tables[f"table_b{part}"]
            hidden = F.FullyConnected(data, a, no_bias=True, num_hidden=width, flatten=False)
            pieces.append(F.FullyConnected(hidden * mask, b, no_bias=True, num_hidden=size, flatten=False))
        delta = pieces[0] if self.parts == 1 else F.concat(*pieces, dim=-1)
        return out + (F._internal._cast_like(delta, out) if self._casts else delta)

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """Return the parameters of the base: the table is not saved with the network."""
        return self.base._collect_params_with_prefix(prefix)
