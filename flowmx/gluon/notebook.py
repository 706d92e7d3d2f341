"""HTML of a block for notebooks: a table of its layers and their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowmx import markup

if TYPE_CHECKING:
    from flowmx.gluon.base_block import Block
    from flowmx.gluon.parameter import Parameter

__all__ = ["html"]

_ROWS = 60


def html(block: Block) -> str:
    """Return the HTML of a block."""
    sizes = [_size(param) for param in block.collect_params().values()]
    total = sum(size for size in sizes if size is not None)
    unknown = sizes.count(None)
    more = f" and those of {unknown} arrays whose shapes are not known yet" if unknown else ""
    compiled = ", hybridized" if getattr(block, "_active", False) else ""
    about = f"{type(block).__name__} {block.name}: {total:,} parameters{more}{compiled}"
    rows = [_row("", block, 0), *_rows(block, 1)]
    return markup.table(["layer", "type", "shapes", "parameters"], markup.shorten(rows, _ROWS), about)


def _rows(block: Block, depth: int) -> Iterator[list[str]]:
    for name, child in block._children.items():
        yield _row(name, child, depth)
        yield from _rows(child, depth + 1)


def _row(name: str, block: Block, depth: int) -> list[str]:
    params = list(block._reg_params.items())
    shapes = ", ".join(f"{key} {_lengths(param)}" for key, param in params)
    sizes = [_size(param) for _, param in params]
    count = "" if not params else "?" if None in sizes else f"{sum(size or 0 for size in sizes):,}"
    return ["  " * depth + (name or block.name), type(block).__name__, shapes, count]


def _lengths(parameter: Parameter) -> str:
    return "x".join(str(length) if length > 0 else "?" for length in parameter.shape or (0,))


def _size(parameter: Parameter) -> int | None:
    """Return the number of elements; None if the shape is not known yet."""
    shape = parameter.shape
    return None if shape is None or any(length <= 0 for length in shape) else math.prod(shape)
