"""Optimizer updates with row_sparse gradients: only the stored rows are updated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowmx.ops.kernels.llvm import row_updates as loops
from flowmx.ops.registry.operators import Array, Run, Shape
from flowmx.ops.sparse.content import INDEX, Rows, to_dense
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, run_kernel, sparse_kernel

if TYPE_CHECKING:
    from flowmx.ops.registry.operators import Operator

_LAZY = ("sgd_update", "sgd_mom_update", "adam_update", "mp_sgd_update", "mp_sgd_mom_update")
"""Updates with a parameter ``lazy_update``: whether to update only the rows of the gradient."""
_BY_ROWS = ("ftrl_update", "_sparse_adagrad_update", "_contrib_group_adagrad_update")


def store_all_rows(content: Rows, shape: Shape) -> Rows:
    """Return the content with all rows stored, in order."""
    if len(content.indices) == shape[0]:
        return content
    return Rows(to_dense(content, shape), np.arange(shape[0], dtype=INDEX))


@sparse_kernel(*_LAZY, *_BY_ROWS)
def _update(call: Call) -> SparseKernel | None:
    op, stypes = call.op, call.stypes
    if stypes[1] != "row_sparse" or "csr" in stypes or (op.name == "ftrl_update" and not call.common_stype):
        return None
    shape = call.shapes[0]
    is_lazy = getattr(op, "lazy_update", True)

    def compute(run: Run, weight: AnyContent, grad: Rows, *states: AnyContent) -> AnyContent:
        arrays = [_elements(content) for content in (weight, *states)]
        target = arrays[0] if call.in_place else arrays[0].copy()
        if is_lazy:
            rows = grad.indices
            if loops.update(op, rows, [target, grad.data, *arrays[1:]]):
                return target if isinstance(weight, np.ndarray) else Rows(target, weight.indices)
            parts = [array[rows] for array in arrays]
            out = parts[0] if _works_in_place(op) else np.empty_like(parts[0])
            if len(rows):
                run_kernel(op, run, [parts[0], grad.data, *parts[1:]], out)
            target[rows] = out
            for state, part in zip(arrays[1:], parts[1:], strict=True):
                state[rows] = part
        else:
            run_kernel(op, run, [arrays[0], to_dense(grad, shape), *arrays[1:]], target)
        return target if isinstance(weight, np.ndarray) else Rows(target, weight.indices)

    return SparseKernel(stypes[0], compute)


def _elements(content: Any) -> Array:
    return content if isinstance(content, np.ndarray) else content.data


def _works_in_place(op: Operator) -> bool:
    return (0, 0) in op.traits.in_place
