"""The kernel of chains: the composed formulas of their links, as one launch."""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.compiled.chain import Chain
from flowmx.ops.formulas.expressions import Expr, Parameters, instruction_count, placeholder
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.elementwise_source import compute_type, is_exact
from flowmx.ops.kernels.llvm.chain import form_of, formulas, numbers
from flowmx.ops.kernels.llvm.elementwise import FUSED
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Operator, Run

_loops: dict[object, Loop] = {}


def weight(op: Operator, dtype: DType, count: int) -> int | None:
    """Estimate an operator's instructions as a link of a chain; None if it cannot be one.

    Args:
        op: the operator.
        dtype: the dtype of inputs and output.
        count: the number of inputs.
    """
    kernel, real = FUSED.get(op.name), compute_type([dtype])
    if kernel is None or real is None:
        return None
    formula = kernel.formula(Parameters(op), *[placeholder(index) for index in range(count)])
    return instruction_count([formula]) if isinstance(formula, Expr) and is_exact([formula], real) else None


@kernel("gpu", "_chain")
def compute(chain: Chain, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run a chain as one kernel if its arrays allow it, otherwise link by link."""
    loop, numbers = _prepare(chain, outputs[0].dtype)
    if not loop.run(run.xp, numbers, [*inputs, *outputs]):
        chain.forward(run, inputs, outputs)


def _prepare(chain: Chain, dtype: DType) -> tuple[Loop, list[float]]:
    """Return the kernel of a chain and its scalars; cached on the chain."""
    cached: tuple[DType, Loop, list[float]] | None = chain.__dict__.get("_gpu_loop")
    if cached is None or cached[0] != dtype:
        key = (dtype, form_of(chain))
        loop = _loops.get(key)
        if loop is None:
            candidate = Loop(formulas(chain), [dtype] * (chain.count + len(chain.results)))
            loop = _loops.setdefault(key, candidate)
        cached = (dtype, loop, numbers(chain, loop.uniforms))
        object.__setattr__(chain, "_gpu_loop", cached)
    return cached[1], cached[2]
