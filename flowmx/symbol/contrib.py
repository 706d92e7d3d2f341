"""``mx.sym.contrib``: the operators ``_contrib_*`` as functions on symbols."""

from __future__ import annotations

from typing import cast

from flowmx.ops.random.zipfian import candidates
from flowmx.ops.registry.namespaces import prefixed_attributes
from flowmx.ops.registry.tensors import Functions, Tensor
from flowmx.symbol import functions
from flowmx.symbol.control_flow import cond, foreach, while_loop
from flowmx.symbol.optimizer_updates import adamw_update, mp_adamw_update
from flowmx.symbol.symbol import Symbol

__all__ = ["adamw_update", "cond", "foreach", "mp_adamw_update", "rand_zipfian", "while_loop"]


def rand_zipfian(true_classes: Symbol, num_sampled: int, range_max: int) -> tuple[Symbol, Symbol, Symbol]:
    """Draw ``num_sampled`` classes below ``range_max`` by about Zipf's law, like ``mx.nd.contrib.rand_zipfian``."""
    results = candidates(cast("Functions", functions), cast("Tensor", true_classes), num_sampled, range_max)
    return cast("tuple[Symbol, Symbol, Symbol]", results)


__getattr__, __dir__ = prefixed_attributes(functions, "_contrib_", __all__)
__all__ += sorted({*__dir__()} - {*__all__})
