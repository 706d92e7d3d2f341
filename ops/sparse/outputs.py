"""Regression outputs with labels in csr."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowmx.ops.registry.operators import Run
from flowmx.ops.sparse.content import Array, Csr, to_dense
from flowmx.ops.sparse.ways import Call, Raw, Way, run_kernel, way

_NAMES = ("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput")


@way(*_NAMES, *[f"_backward_{name}" for name in _NAMES])
def _regression(call: Call) -> Way | None:
    """Compute it with the label made dense, which is no larger than the output."""
    op, shape = call.op, call.shapes[1]
    if call.stypes != ("default", "csr"):
        return None

    def compute(run: Run, data: Array, label: Csr) -> Raw:
        out: np.ndarray[Any, Any] = np.empty(data.shape, data.dtype)
        run_kernel(op, run, [data, to_dense(label, shape)], out)
        return out

    return Way("default", compute)
