"""Notebook view of an array: shape, dtype, device, and a preview of its content if that is already computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx import markup
from flowmx.engine.scheduler import DONE
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array

if TYPE_CHECKING:
    from flowmx.ndarray.array import NDArray

__all__ = ["html"]

_ROWS, _COLUMNS = 6, 8
_MAX_BYTES = 1 << 20
"""Maximum size in bytes of an array that is copied from another device for a preview."""


def html(array: NDArray) -> str:
    """Format an array as HTML; never waits for its content."""
    about = f"NDArray {'x'.join(map(str, array.shape)) or 'scalar'} {_name(array.element_type)} @{array.context}"
    storage = array.storage
    if not _is_computed(storage):
        return markup.note(f"{about}: pending (await it, or call wait_to_read())")
    if storage.failure is not None:
        error = storage.failure.exception
        return markup.note(f"{about}: failed: {type(error).__name__}: {error}")
    if array.context.device_type not in ("cpu", "cpu_shared", "cpu_pinned") and _bytes(array) > _MAX_BYTES:
        return markup.note(f"{about} (asnumpy() copies it here)")
    return markup.note(about) + _preview(array._host())


def _name(dtype: DType) -> str:
    return str(np.dtype(dtype).name)


def _bytes(array: NDArray) -> int:
    return array.size * int(np.dtype(array.dtype).itemsize)


def _is_computed(storage: Any) -> bool:
    writer = storage.writer
    return (writer is None or writer.state == DONE) and (storage.marks is None or storage.marks.done())


def _preview(content: Array) -> str:
    if not content.size:
        return markup.note("no elements")
    rows, above = content, ""
    if content.ndim > 2:
        above = f"[{', '.join('0' * (content.ndim - 2))}, :, :]"
        rows = content[(0,) * (content.ndim - 2)]
    grid = np.atleast_2d(rows)
    lines = [_cells(grid[i]) for i in _preview_indices(len(grid), _ROWS)]
    if len(grid) > _ROWS:
        lines.insert(_ROWS // 2, ["⋮"] * len(lines[0]))
    return markup.table([], lines, above)


def _cells(row: Array) -> list[str]:
    cells = [_number(row[i]) for i in _preview_indices(len(row), _COLUMNS)]
    if len(row) > _COLUMNS:
        cells.insert(_COLUMNS // 2, "…")
    return cells


def _preview_indices(length: int, most: int) -> Sequence[int]:
    if length <= most:
        return range(length)
    return [*range(most // 2), *range(length - most // 2, length)]


def _number(value: Any) -> str:
    return f"{float(value):.5g}" if np.dtype(value.dtype).kind in "fV" else str(value)
