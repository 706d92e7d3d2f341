"""The kernel of chains: the formulas of their links put into each other, as one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.compiled.chain import Chain
from flowmx.ops.formulas.expressions import Expr, Parameters, placeholder, steps
from flowmx.ops.kernels.cuda.elementwise import Loop
from flowmx.ops.kernels.cuda.elementwise_source import computed_in, is_exact
from flowmx.ops.kernels.llvm.chain import form_of, formulas, numbers
from flowmx.ops.kernels.llvm.elementwise import FUSED
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, kernel

_loops: dict[Any, Loop] = {}


def weight(op: Operator, dtype: DType, count: int) -> int | None:
    """About how many instructions an operator takes as a link of a chain; None where it cannot be one.

    Args:
        op: the operator.
        dtype: of its inputs and its output.
        count: how many inputs it has.
    """
    found, real = FUSED.get(op.name), computed_in([dtype])
    if found is None or real is None:
        return None
    made = found.formula(Parameters(op), *[placeholder(at) for at in range(count)])
    return steps([made]) if isinstance(made, Expr) and is_exact([made], real) else None


@kernel("gpu", "_chain")
def compute(chain: Chain, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run a chain as one kernel where its arrays can be walked; else link by link."""
    loop, numbers = _prepared(chain, outputs[0].dtype)
    if not loop.run(run.xp, numbers, [*inputs, *outputs]):
        chain.forward(run, inputs, outputs)


def _prepared(chain: Chain, dtype: DType) -> tuple[Loop, list[float]]:
    """The kernel of a chain, and the numbers that come with each call; remembered with the chain."""
    known: tuple[DType, Loop, list[float]] | None = chain.__dict__.get("_gpu_loop")
    if known is None or known[0] != dtype:
        key = (dtype, form_of(chain))
        loop = _loops.get(key)
        if loop is None:
            made = Loop(formulas(chain), [dtype] * (chain.count + len(chain.results)))
            loop = _loops.setdefault(key, made)
        known = (dtype, loop, numbers(chain, loop.uniforms))
        object.__setattr__(chain, "_gpu_loop", known)
    return known[1], known[2]
