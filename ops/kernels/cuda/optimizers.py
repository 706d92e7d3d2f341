"""Updates of many weights by one launch, by the formulas of the update rules.

What a launch costs would else be paid for every weight, of which most are small. A launch takes as many weights as its
arguments hold; a block of threads works on a piece of one weight. Weights of 16 bits with a float32 copy are updated in
the same pass, the copy and the weight from one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, placeholder
from flowmx.ops.kernels.cuda.elementwise_source import Formulas, lower
from flowmx.ops.kernels.cuda.program import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, in_memory_order
from flowmx.ops.optimizers.updates import One, together
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run

_ARGUMENTS = 4000
"""Bytes of a launch's arguments, at most."""
_MOST = 96
_PIECE = 8192
"""Elements of a block's piece."""


Weight = tuple[Sequence[Array], Sequence[float]]
"""The arrays of a weight's update, inputs first, and the numbers that come with it."""


class Together(Formulas):
    """Formulas for the arrays of many weights.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: of the inputs and then of the outputs.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        super().__init__(outputs, dtypes)
        self._width = 16 // max(dtype.itemsize for dtype in dtypes)
        self._most = min(_MOST, (_ARGUMENTS - 16) // (8 * (2 + len(dtypes) + len(self.uniforms))))
        self._program = self._write()

    def run(self, xp: Any, weights: Sequence[Weight]) -> bool:
        """Update weights; False, and nothing is done, where the kernel cannot be compiled."""
        parts = [weights[start : start + self._most] for start in range(0, len(weights), self._most)]
        return all(self._launch(xp, part) for part in parts)

    def _launch(self, xp: Any, weights: Sequence[Weight]) -> bool:
        missing: list[float] = [0] * (self._most - len(weights))
        sizes = [arrays[0].size for arrays, _ in weights]
        first, blocks = [], 0
        for size in sizes:
            first.append(blocks)
            blocks += -(-size // _PIECE)
        words: list[float] = [len(weights), *first, *missing, *sizes, *missing]
        for at in range(len(self._kept)):
            words += [*(arrays[at].data.ptr for arrays, _ in weights), *missing]
        for at in range(len(self.uniforms)):
            words += [*(numbers[at] for _, numbers in weights), *missing]
        return self._program.launch(xp, blocks, words)

    # -- text ------------------------------------------------------------------------------------------

    def _write(self) -> Program:
        most, count = self._most, len(self._kept)
        fields = ["int64 count", f"int64 first[{most}]", f"int64 size[{most}]"]
        fields += [f"{name}* array{at}[{most}]" for at, name in enumerate(self._kept)]
        fields += [f"double number{at}[{most}]" for at in range(len(self.uniforms))]
        layout = f"{1 + (2 + count) * most}q{len(self.uniforms) * most}d"
        return Program(fields, layout, f"{self._formulas()}\n{self._kernel()}")

    def _formulas(self) -> str:
        """A function from the elements and numbers to the results."""
        inputs, real = len(self._kept) - len(self._outputs), self._real
        given: dict[Expr, str] = {uniform: f"n[{at}]" for at, uniform in enumerate(self.uniforms)}
        given.update({placeholder(at): f"x[{at}]" for at in range(inputs)})
        lines, results = lower(self._outputs, given, real)
        stores = [f"y[{at}] = {value};" for at, value in enumerate(results)]
        head = f"__device__ __forceinline__ void step(const {real}* x, const {real}* n, {real}* y)"
        return f"{head} {{\n" + "\n".join([*lines, *stores]) + "\n}\n"

    def _kernel(self) -> str:
        count, real, width = len(self._kept), self._real, self._width
        inputs, numbers = count - len(self._outputs), max(1, len(self.uniforms))
        addresses = " | ".join([f"(int64)array{at}" for at in range(count)])
        lines = [
            "int which = 0;",
            "while (which + 1 < a.count && (int64)blockIdx.x >= a.first[which + 1]) ++which;",
            *[f"{name}* array{at} = a.array{at}[which];" for at, name in enumerate(self._kept)],
            f"{real} n[{numbers}];",
            *[f"n[{at}] = ({real})a.number{at}[which];" for at in range(len(self.uniforms))],
            f"int64 start = ((int64)blockIdx.x - a.first[which]) * {_PIECE};",
            f"int64 stop = start + {_PIECE} < a.size[which] ? start + {_PIECE} : a.size[which];",
            f"{real} x[{inputs}], y[{count - inputs}];",
            f"int64 whole = (({addresses}) & 15) ? start : stop - (stop - start) % {width};",
            f"for (int64 i = start + (int64)threadIdx.x * {width}; i < whole; i += (int64)blockDim.x * {width}) {{",
            *[f"Pack<{name}, {width}> p{at};" for at, name in enumerate(self._kept)],
            *[f"p{at} = load<{width}>(array{at} + i);" for at in range(inputs)],
            "#pragma unroll",
            f"for (int lane = 0; lane < {width}; ++lane) {{",
            *[f"x[{at}] = widened(p{at}.at[lane]);" for at in range(inputs)],
            "step(x, n, y);",
            *[f"narrow(y[{at - inputs}], p{at}.at[lane]);" for at in range(inputs, count)],
            "}",
            *[f"store<{width}>(array{at} + i, p{at});" for at in range(inputs, count)],
            "}",
            "for (int64 i = whole + threadIdx.x; i < stop; i += blockDim.x) {",
            *[f"x[{at}] = widened(array{at}[i]);" for at in range(inputs)],
            "step(x, n, y);",
            *[f"narrow(y[{at - inputs}], array{at}[i]);" for at in range(inputs, count)],
            "}",
        ]  # fmt: skip
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Args a)'
        return f"{head} {{\n" + "\n".join(lines) + "\n}\n"


_made: dict[Any, Together | None] = {}


def _together(one: One) -> Together | None:
    """The kernel for a weight and all others that are updated alike; None where there is none."""
    found = FUSED.get(one.rule.name)
    if found is None or found.variant is None:
        return None
    dtypes = tuple([array.dtype for array in _arrays(one)])
    key = (one.rule.name, found.variant(one.p), one.mixed, dtypes)
    if key not in _made:
        made = found.formula(Parameters(one.p), *[placeholder(at) for at in range(2 + len(one.rule.states))])
        # With a float32 copy the new weight goes to both.
        kernel = Together((*made, made[0]) if one.mixed else made, dtypes)
        _made[key] = kernel if kernel.is_exact else None
    return _made[key]


def _arrays(one: One) -> list[Array]:
    """The arrays of an update: what it reads, then what it writes."""
    weight, grad, *states = one.inputs
    if not one.mixed:
        return [weight, grad, *states, one.out, *states]
    copy = states.pop()
    return [copy, grad, *states, copy, *states, one.out]


@together("gpu")
def update(run: Run, ones: Sequence[One]) -> list[One]:
    """Update weights by as few launches as there are kinds of them; gives back those that no kernel takes."""
    left: list[One] = []
    groups: dict[Together, list[tuple[One, Weight]]] = {}
    for one in ones:
        arrays = _arrays(one)
        kernel = _together(one) if arrays[0].size and in_memory_order(arrays) else None
        if kernel is None:
            left.append(one)
        else:
            numbers = [evaluate(uniform, lambda name, p=one.p: getattr(p, name)) for uniform in kernel.uniforms]  # type: ignore[misc]
            groups.setdefault(kernel, []).append((one, (arrays, numbers)))
    for kernel, members in groups.items():
        if not kernel.run(run.xp, [weight for _, weight in members]):
            left += [one for one, _ in members]
    return left
