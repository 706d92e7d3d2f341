"""A small layer: a matrix product and an activation, each in a native call."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.kernels.recording import expect_calls
from flowmx.ops.nn.dense import Dense
from flowmx.ops.registry.kernels import Kernel, kernel_for, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Run


class DenseKernel(Kernel):
    """The kernel of a layer: the kernels of its parts."""

    records_calls = True

    def compute(self, op: Dense, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the layer."""
        op.forward(run, inputs, outputs)

    def bind(self, op: Dense, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return the kernels of the parts, specialized for arrays of these shapes and dtypes."""
        bound = []
        for part, forms in zip(op.parts, (in_forms, out_forms), strict=True):
            kernel = kernel_for("cpu", part.name)
            function = None if kernel is None or kernel.bind is None else kernel.bind(part, forms, out_forms)
            bound.append(function or part.forward)
        product, activation = bound

        def forward(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            with expect_calls():
                product(run, inputs, outputs)
            with expect_calls():
                activation(run, outputs, outputs)

        return forward


register_kernel("cpu", "_dense", DenseKernel())
