"""Helpers of tables and drawings of a symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import FLOAT32, DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol


def kind(node: Node) -> str:
    """The name of a node's operator, ``null`` for a variable."""
    return "null" if node.op is None else node.op.name


def check_symbol(what: str, symbol: object) -> None:
    """Refuse what is no symbol.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(f"{what}: symbol is {type(symbol).__name__}, expected a Symbol")


def shapes_of(what: str, symbol: Symbol, given: Mapping[str, Sequence[int]]) -> dict[Entry, Shape]:
    """The shape of everything in a network, given those of some inputs.

    Raises:
        ValueError: they are not enough.
    """
    inner = symbol.get_internals()
    found = inner.infer_shape(**given)[1]
    if found is None:
        unknown = [
            name for name, shape in zip(inner.list_outputs(), inner.infer_shape_partial(**given)[1], strict=True)
            if not shape or min(shape) < 1
        ]  # fmt: skip
        raise ValueError(f"{what}: the shapes given are not enough: unknown are those of {', '.join(unknown[:5])}")
    return dict(zip(inner._entries, found, strict=True))


def dtypes_of(symbol: Symbol, given: Mapping[str, Any]) -> dict[Entry, DType]:
    """The dtype of everything in a network, given those of some inputs."""
    inner = symbol.get_internals()
    found = inner.infer_type_partial(**given)[1]
    return {
        entry: FLOAT32 if dtype is None else as_dtype(dtype) for entry, dtype in zip(inner._entries, found, strict=True)
    }
