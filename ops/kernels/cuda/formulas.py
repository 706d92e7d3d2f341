"""The kernels of elementwise operators and of update rules: the formulas of the CPU's loops, as CUDA kernels.

Each is one launch, where the plain forward takes one for every function in it. Elements of 16 bits are computed with
in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.formulas.expressions import Parameters, evaluate, placeholder
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.llvm import elementwise
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, kernel


class Fused:
    """The kernel of an operator by a formula.

    Args:
        of: the same for the CPU, which has the formula.
    """

    def __init__(self, of: elementwise.Fused) -> None:
        self._of = of
        self._loops: dict[Any, Loop | None] = {}

    def loop(self, op: Any, dtypes: Sequence[DType], count: int) -> Loop | None:
        """The loop for an operator; None where there is none.

        Args:
            op: the operator, or what has its parameters.
            dtypes: of its inputs, its outputs and of the inputs that it updates.
            count: how many inputs it has.
        """
        variant = self._of.variant
        key = (tuple(dtypes), count, None if variant is None else variant(op))
        try:
            return self._loops[key]
        except KeyError:
            return self._loops.setdefault(key, self._make(op, dtypes, count))

    def _make(self, op: Any, dtypes: Sequence[DType], count: int) -> Loop | None:
        made = self._of.formula(Parameters(op), *[placeholder(position) for position in range(count)])
        if made is None:
            return None
        loop = Loop(made if isinstance(made, tuple) else (made,), dtypes)
        return loop if loop.is_exact else None

    def __call__(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The kernel: compute into the outputs."""
        if not self.run(op, run.xp, inputs, outputs):
            op.forward(run, inputs, outputs)

    def compute(self, xp: Any, p: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute with parameters of any owner; False, and nothing is done, where a plain forward must do it."""
        return self.run(p, xp, inputs, outputs)

    def run(self, op: Any, xp: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Launch it; False, and nothing is done, where a plain forward must do it."""
        arrays = [*inputs, *outputs, *[inputs[position] for position in self._of.updates]]
        loop = self.loop(op, [array.dtype for array in arrays], len(inputs))
        if loop is None:
            return False
        known = op.__dict__.get("_gpu_numbers")
        if known is None or known[0] is not loop:
            known = (loop, [evaluate(uniform, lambda name: getattr(op, name)) for uniform in loop.uniforms])
            object.__setattr__(op, "_gpu_numbers", known)
        return loop.run(xp, known[1], arrays)


KERNELS: dict[str, Fused] = {}
"""By the operators' names."""

for _name, _of in elementwise.FUSED.items():
    KERNELS[_name] = Fused(_of)
    kernel("gpu", _name)(KERNELS[_name])
