"""Updates of many weights by one launch, with the formulas of the update rules.

Most weights are small, so one launch per weight would cost more than the update. A launch updates as many weights as
its arguments can describe; a block of threads works on a piece of one weight. 16-bit weights with a float32 copy are
updated in the same pass: copy and weight get the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flowmx.devices.cuda.memory import address_of
from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, placeholder
from flowmx.ops.kernels.cuda.elementwise_source import Formulas, lower
from flowmx.ops.kernels.cuda.source_kernels import Program
from flowmx.ops.kernels.llvm.elementwise import FUSED, in_memory_order
from flowmx.ops.optimizers.updates import WeightUpdate, batched_update
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Run

_ARGUMENTS = 4000
"""The maximum size of a launch's arguments in bytes."""
_MAX_WEIGHTS = 96
_PIECE = 8192
"""Elements per block."""


Weight = tuple[Sequence[Array], Sequence[float]]
"""The arrays of a weight's update, inputs first, and its scalars."""


class BatchedFormulas(Formulas):
    """Formulas for the arrays of many weights.

    Args:
        outputs: the formulas, of placeholders 0, 1, ...
        dtypes: the dtypes of the inputs, then of the outputs.
    """

    def __init__(self, outputs: Sequence[Expr], dtypes: Sequence[DType]) -> None:
        super().__init__(outputs, dtypes)
        self._width = 16 // max(dtype.itemsize for dtype in dtypes)
        self._limit = min(_MAX_WEIGHTS, (_ARGUMENTS - 16) // (8 * (2 + len(dtypes) + len(self.uniforms))))
        self._program = self._write()

    def run(self, xp: object, weights: Sequence[Weight]) -> bool:
        """Update weights; return False, without effect, if the kernel cannot be compiled."""
        parts = [weights[start : start + self._limit] for start in range(0, len(weights), self._limit)]
        return all(self._launch(xp, part) for part in parts)

    def _launch(self, xp: object, weights: Sequence[Weight]) -> bool:
        missing: list[float] = [0] * (self._limit - len(weights))
        sizes = [arrays[0].size for arrays, _ in weights]
        first, blocks = [], 0
        for size in sizes:
            first.append(blocks)
            blocks += -(-size // _PIECE)
        words: list[float] = [len(weights), *first, *missing, *sizes, *missing]
        for index in range(len(self._types)):
            words += [*(address_of(arrays[index]) for arrays, _ in weights), *missing]
        for index in range(len(self.uniforms)):
            words += [*(numbers[index] for _, numbers in weights), *missing]
        return self._program.launch(xp, blocks, words)

    # -- source text -----------------------------------------------------------------------------------

    def _write(self) -> Program:
        most, count = self._limit, len(self._types)
        fields = ["int64 count", f"int64 first[{most}]", f"int64 size[{most}]"]
        fields += [f"{name}* array{index}[{most}]" for index, name in enumerate(self._types)]
        fields += [f"double number{index}[{most}]" for index in range(len(self.uniforms))]
        layout = f"{1 + (2 + count) * most}q{len(self.uniforms) * most}d"
        return Program(fields, layout, f"{self._formulas()}\n{self._kernel()}")

    def _formulas(self) -> str:
        """Return a C function from elements and scalars to results."""
        inputs, real = len(self._types) - len(self._outputs), self._real
        names: dict[Expr, str] = {uniform: f"n[{index}]" for index, uniform in enumerate(self.uniforms)}
        names.update({placeholder(index): f"x[{index}]" for index in range(inputs)})
        lines, results = lower(self._outputs, names, real)
        stores = [f"y[{index}] = {value};" for index, value in enumerate(results)]
        head = f"__device__ __forceinline__ void step(const {real}* x, const {real}* n, {real}* y)"
        return f"{head} {{\n" + "\n".join([*lines, *stores]) + "\n}\n"

    def _kernel(self) -> str:
        count, real, width = len(self._types), self._real, self._width
        inputs, numbers = count - len(self._outputs), max(1, len(self.uniforms))
        addresses = " | ".join([f"(int64)array{index}" for index in range(count)])
        lines = [
            "int which = 0;",
            "while (which + 1 < a.count && (int64)blockIdx.x >= a.first[which + 1]) ++which;",
            *[f"{name}* array{index} = a.array{index}[which];" for index, name in enumerate(self._types)],
            f"{real} n[{numbers}];",
            *[f"n[{index}] = ({real})a.number{index}[which];" for index in range(len(self.uniforms))],
            f"int64 start = ((int64)blockIdx.x - a.first[which]) * {_PIECE};",
            f"int64 stop = start + {_PIECE} < a.size[which] ? start + {_PIECE} : a.size[which];",
            f"{real} x[{inputs}], y[{count - inputs}];",
            f"int64 whole = (({addresses}) & 15) ? start : stop - (stop - start) % {width};",
            f"for (int64 i = start + (int64)threadIdx.x * {width}; i < whole; i += (int64)blockDim.x * {width}) {{",
            *[f"Pack<{name}, {width}> p{index};" for index, name in enumerate(self._types)],
            *[f"p{index} = load<{width}>(array{index} + i);" for index in range(inputs)],
            "#pragma unroll",
            f"for (int lane = 0; lane < {width}; ++lane) {{",
            *[f"x[{index}] = widened(p{index}.at[lane]);" for index in range(inputs)],
            "step(x, n, y);",
            *[f"narrow(y[{index - inputs}], p{index}.at[lane]);" for index in range(inputs, count)],
            "}",
            *[f"store<{width}>(array{index} + i, p{index});" for index in range(inputs, count)],
            "}",
            "for (int64 i = whole + threadIdx.x; i < stop; i += blockDim.x) {",
            *[f"x[{index}] = widened(array{index}[i]);" for index in range(inputs)],
            "step(x, n, y);",
            *[f"narrow(y[{index - inputs}], array{index}[i]);" for index in range(inputs, count)],
            "}",
        ]  # fmt: skip
        head = 'extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Args a)'
        return f"{head} {{\n" + "\n".join(lines) + "\n}\n"


_kernels: dict[object, BatchedFormulas | None] = {}


def _kernel_of(item: WeightUpdate) -> BatchedFormulas | None:
    """Return the kernel for a weight and all others with the same kind of update, or None."""
    fused = FUSED.get(item.rule.name)
    if fused is None or fused.variant is None:
        return None
    dtypes = tuple([array.dtype for array in _arrays(item)])
    key = (item.rule.name, fused.variant(item.p), item.mixed, dtypes)
    if key not in _kernels:
        formulas = fused.formula(
            Parameters(item.p), *[placeholder(index) for index in range(2 + len(item.rule.states))]
        )
        # With a float32 copy the new weight is written to both.
        kernel = BatchedFormulas((*formulas, formulas[0]) if item.mixed else formulas, dtypes)
        _kernels[key] = kernel if kernel.is_exact else None
    return _kernels[key]


def _arrays(item: WeightUpdate) -> list[Array]:
    """Return the arrays of an update: those read, then those written."""
    weight, grad, *states = item.inputs
    if not item.mixed:
        return [weight, grad, *states, item.out, *states]
    copy = states.pop()
    return [copy, grad, *states, copy, *states, item.out]


@batched_update("gpu")
def update(run: Run, items: Sequence[WeightUpdate]) -> list[WeightUpdate]:
    """Update weights with one launch per kind of update; return the weights that no kernel supports."""
    remaining: list[WeightUpdate] = []
    groups: dict[BatchedFormulas, list[tuple[WeightUpdate, Weight]]] = {}
    for item in items:
        arrays = _arrays(item)
        kernel = _kernel_of(item) if arrays[0].size and in_memory_order(arrays) else None
        if kernel is None:
            remaining.append(item)
        else:
            numbers = [evaluate(uniform, partial(getattr, item.p)) for uniform in kernel.uniforms]
            groups.setdefault(kernel, []).append((item, (arrays, numbers)))
    for kernel, members in groups.items():
        if not kernel.run(run.xp, [weight for _, weight in members]):
            remaining += [item for item, _ in members]
    return remaining
