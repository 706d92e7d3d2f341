"""Helpers of the tables and drawings of a symbol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowmx.graph.node import Entry, Node
from flowmx.ops.registry.dtypes import FLOAT32, DType, as_dtype
from flowmx.ops.registry.operators import Shape
from flowmx.symbol import Symbol


def kind(node: Node) -> str:
    """Return the name of a node's operator, or ``null`` for a variable."""
    return "null" if node.op is None else node.op.name


def check_symbol(what: str, symbol: object) -> None:
    """Check that an argument is a symbol.

    Raises:
        TypeError: it is not a symbol.
    """
    if not isinstance(symbol, Symbol):
        raise TypeError(
            f"{what}: symbol is {type(symbol).__name__}, expected a Symbol; for a Gluon block use net.summary(x), or "
            "net(mx.sym.var('data'))"
        )


def shapes_of(what: str, symbol: Symbol, input_shapes: Mapping[str, Sequence[int]]) -> dict[Entry, Shape]:
    """Infer the shapes of all values of a network from the shapes of some inputs.

    Raises:
        ValueError: a shape is unknown.
    """
    if not isinstance(input_shapes, Mapping):
        raise TypeError(f"{what}: shape is {input_shapes!r}, expected a dict of shapes by input: {{'data': (1, 3)}}")
    inner = symbol.get_internals()
    shapes = inner.infer_shape(**input_shapes)[1]
    if shapes is None:
        unknown = [
            name for name, shape in zip(inner.list_outputs(), inner.infer_shape_partial(**input_shapes)[1], strict=True)
            if not shape or min(shape) < 1
        ]  # fmt: skip
        raise ValueError(f"{what}: not enough input shapes: unknown are those of {', '.join(unknown[:5])}")
    return dict(zip(inner.entries, shapes, strict=True))


def dtypes_of(symbol: Symbol, input_dtypes: Mapping[str, object]) -> dict[Entry, DType]:
    """Infer the dtypes of all values of a network from the dtypes of some inputs."""
    inner = symbol.get_internals()
    dtypes = inner.infer_type_partial(**input_dtypes)[1]
    return {
        entry: FLOAT32 if dtype is None else as_dtype(dtype) for entry, dtype in zip(inner.entries, dtypes, strict=True)
    }
