"""Regression outputs with csr labels."""

from __future__ import annotations

import numpy as np

from flowmx.ops.registry.operators import Array, Run
from flowmx.ops.sparse.content import Csr, to_dense
from flowmx.ops.sparse.dispatch import AnyContent, Call, SparseKernel, run_kernel, sparse_kernel

_NAMES = ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")


@sparse_kernel(*_NAMES, *[f"_backward_{name}" for name in _NAMES])
def _regression(call: Call) -> SparseKernel | None:
    """Return a kernel that converts the label to a dense array, which is no larger than the output."""
    op, shape = call.op, call.shapes[1]
    if call.stypes != ("default", "csr"):
        return None

    def compute(run: Run, data: Array, label: Csr) -> AnyContent:
        out: Array = np.empty(data.shape, data.dtype)
        run_kernel(op, run, [data, to_dense(label, shape)], out)
        return out

    return SparseKernel("default", compute)
