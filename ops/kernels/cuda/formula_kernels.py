"""Kernels of elementwise operators and update rules: the formulas of the CPU's loops, as CUDA kernels.

Each kernel is one launch; the operator's forward takes one launch per function. 16-bit elements are computed in
float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.formulas.expressions import Parameters, evaluate, placeholder
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.llvm import elementwise
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import Kernel, load_kernels, register_kernel
from flowmx.ops.registry.operators import Array, Operator, Run


class FormulaKernel(Kernel):
    """The kernel of an operator with a formula.

    Args:
        of: the CPU's kernel, which has the formula.
    """

    def __init__(self, of: elementwise.Fused) -> None:
        self._of = of
        self._loops: dict[object, Loop | None] = {}

    def loop(self, op: object, dtypes: Sequence[DType], count: int) -> Loop | None:
        """Return the loop for an operator, or None.

        Args:
            op: the operator, or another object with its parameters.
            dtypes: the dtypes of inputs, outputs and updated inputs.
            count: the number of inputs.
        """
        variant = self._of.variant
        key = (tuple(dtypes), count, None if variant is None else variant(op))
        try:
            return self._loops[key]
        except KeyError:
            return self._loops.setdefault(key, self._make(op, dtypes, count))

    def _make(self, op: object, dtypes: Sequence[DType], count: int) -> Loop | None:
        formulas_ = self._of.formula(Parameters(op), *[placeholder(position) for position in range(count)])
        if formulas_ is None:
            return None
        loop = Loop(formulas_ if isinstance(formulas_, tuple) else (formulas_,), dtypes)
        return loop if loop.is_exact else None

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the outputs."""
        if not self.run(op, run.xp, inputs, outputs):
            op.forward(run, inputs, outputs)

    def try_compute(self, xp: object, p: object, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute with the parameters of any object; return False, without effect, if the fallback must run."""
        return self.run(p, xp, inputs, outputs)

    def run(self, op: object, xp: object, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Launch the kernel; return False, without effect, if the fallback must run."""
        arrays = [*inputs, *outputs, *[inputs[position] for position in self._of.updates]]
        loop = self.loop(op, [array.dtype for array in arrays], len(inputs))
        if loop is None:
            return False
        cached = op.__dict__.get("_gpu_numbers")
        if cached is None or cached[0] is not loop:
            cached = (loop, [evaluate(uniform, lambda name: getattr(op, name)) for uniform in loop.uniforms])
            object.__setattr__(op, "_gpu_numbers", cached)
        return loop.run(xp, cached[1], arrays)


KERNELS: dict[str, FormulaKernel] = {}
"""The kernels by operator name."""

load_kernels("cpu")  # whose modules fill the table of formulas
for _name, _of in elementwise.FUSED.items():
    KERNELS[_name] = FormulaKernel(_of)
    register_kernel("gpu", _name, KERNELS[_name])
