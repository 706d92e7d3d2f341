"""The table of a model's layers, with the shapes of their outputs and the sizes of their parameters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from flowmx.errors import StateError
from flowmx.gluon.parameter import Parameter
from flowmx.ndarray import NDArray
from flowmx.symbol import Symbol

if TYPE_CHECKING:
    from flowmx.gluon.base_block import Block

__all__ = ["summary"]

_LINE = "{:>20}  {:>42} {:>15}"


class _Row(NamedTuple):
    layer: str
    shape: str
    size: int
    trainable: int
    shared: int


def summary(block: Block, *inputs: object) -> None:
    """Print the layers of a block, in the order in which a call with these inputs runs them.

    Args:
        block: an initialized block, without hybridized blocks: a compiled block does not call its layers.
        *inputs: arrays.

    Raises:
        RuntimeError: a block is hybridized.
    """
    rows = [_Row("Input", _shapes(inputs), 0, 0, 0)]
    handles = []
    counted: set[Parameter] = set()

    def add_row(layer: Block, _: object, out: object) -> None:
        if not _has_symbols(out):  # otherwise the call only infers the shapes of parameters
            rows.append(_row(layer, out, len(rows), counted))

    def watch(layer: Block) -> None:
        if layer._active:
            raise StateError(f"summary: block {layer.name!r} is hybridized: call hybridize(False) first")
        if not hasattr(layer, "add"):  # a container's layers are listed instead
            handles.append(layer.register_forward_hook(add_row))

    try:
        block.apply(watch)
        block(*inputs)
    finally:
        for handle in handles:
            handle.detach()
    sys.stdout.write("\n".join(_lines(rows)) + "\n")


def _row(block: Block, outputs: object, number: int, counted: set[Parameter]) -> _Row:
    sizes = {param: param.data(param.list_ctx()[0]).size for param in block.params.values()}
    trainable = sum(size for param, size in sizes.items() if param.grad_req != "null")
    shared = sum(size for param, size in sizes.items() if param in counted)
    counted.update(sizes)
    return _Row(f"{type(block).__name__}-{number}", _shapes(outputs), sum(sizes.values()), trainable, shared)


def _has_symbols(nested: object) -> bool:
    """Return whether there are symbols among nested outputs."""
    if isinstance(nested, (list, tuple)):
        return any(_has_symbols(part) for part in nested)
    return isinstance(nested, Symbol)


def _shapes(nested: object) -> str:
    def describe_shapes(value: Any) -> Any:
        return value.shape if isinstance(value, NDArray) else [describe_shapes(part) for part in value or ()]

    shapes = describe_shapes(nested)
    return ", ".join(map(str, shapes)) if isinstance(shapes, list) else str(shapes)


def _lines(rows: list[_Row]) -> list[str]:
    total, trainable, shared = (sum(getattr(row, key) for row in rows) for key in ("size", "trainable", "shared"))
    return [
        "-" * 80,
        _LINE.format("Layer (type)", "Output Shape", "Param #"),
        "=" * 80,
        *(_LINE.format(row.layer, row.shape, row.size) for row in rows),
        "=" * 80,
        "Parameters in forward computation graph, duplicate included",
        f"   Total params: {total}",
        f"   Trainable params: {trainable}",
        f"   Non-trainable params: {total - trainable}",
        f"Shared params in forward computation graph: {shared}",
        f"Unique parameters in model: {total - shared}",
        "-" * 80,
    ]
