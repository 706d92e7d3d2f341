"""The table of a model's layers, with the shapes of their outputs and the sizes of their parameters."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from flowmx.errors import StateError
from flowmx.gluon.base import Block
from flowmx.gluon.hybrid import HybridBlock, _kinds
from flowmx.gluon.parameter import Parameter
from flowmx.ndarray import NDArray

__all__ = ["summary"]

_LINE = "{:>20}  {:>42} {:>15}"


class _Row(NamedTuple):
    layer: str
    shape: str
    size: int
    trainable: int
    shared: int


def summary(block: Block, *inputs: Any) -> None:
    """Print the layers of a block, as a call with these inputs goes through them.

    Args:
        block: an initialized block; none in it may be hybridized, since compiled layers are not called one by one.
        *inputs: arrays.

    Raises:
        RuntimeError: a block is hybridized.
    """
    rows = [_Row("Input", _shapes(inputs), 0, 0, 0)]
    handles = []
    seen: set[Parameter] = set()

    def note(each: Block, _: Any, out: Any) -> None:
        if not _kinds((out,))[1]:  # symbols: a call that only finds out the shapes of parameters
            rows.append(_row(each, out, len(rows), seen))

    def watch(each: Block) -> None:
        if isinstance(each, HybridBlock) and each._active:
            raise StateError(f"summary: block {each.name!r} is hybridized: call hybridize(False) first")
        if not hasattr(each, "add"):  # a container is its layers
            handles.append(each.register_forward_hook(note))

    try:
        block.apply(watch)
        block(*inputs)
    finally:
        for handle in handles:
            handle.detach()
    sys.stdout.write("\n".join(_lines(rows)) + "\n")


def _row(block: Block, outputs: Any, number: int, seen: set[Parameter]) -> _Row:
    sizes = {param: param.data(param.list_ctx()[0]).size for param in block.params.values()}
    trainable = sum(size for param, size in sizes.items() if param.grad_req != "null")
    shared = sum(size for param, size in sizes.items() if param in seen)
    seen.update(sizes)
    return _Row(f"{type(block).__name__}-{number}", _shapes(outputs), sum(sizes.values()), trainable, shared)


def _shapes(nested: Any) -> str:
    def of(each: Any) -> Any:
        return each.shape if isinstance(each, NDArray) else [of(part) for part in each or ()]

    found = of(nested)
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


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
