"""From formulas over rows to CUDA C: the CPU's formulas (:mod:`flowmx.ops.kernels.llvm.row_loops`), as kernels.

A team of threads processes a row: a part of a warp, or a whole block. A thread has the same elements in every pass over
the row and may keep them in registers, so memory is read once. The threads' partial results are combined in a fixed
order, so results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluation_order, make, placeholder, uniforms
from flowmx.ops.kernels.cuda.elementwise_source import compute_type, is_exact, lower, memory_type
from flowmx.ops.kernels.cuda.source_kernels import THREADS, Program
from flowmx.ops.kernels.llvm import row_loops
from flowmx.ops.kernels.llvm.row_loops import Formula, Kind
from flowmx.ops.registry.dtypes import DType

_COMMON = """
typedef {real} real;
struct Sum { static __device__ __forceinline__ real of(real a, real b) { return a + b; } };
struct Max { static __device__ __forceinline__ real of(real a, real b) { return b > a ? b : a; } };

// The reduction over all threads of a team; every thread gets the result.
template <typename Op> __device__ __forceinline__ real over_row(real x) {
    #pragma unroll
    for (int by = {lanes} < 32 ? {lanes} / 2 : 16; by; by >>= 1) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, by));
    if ({lanes} > 32) {
        __shared__ real warps[32];
        __syncthreads();  // until all threads have read the previous row's values
        if (!(threadIdx.x & 31)) warps[threadIdx.x >> 5] = x;
        __syncthreads();
        x = warps[0];
        for (int warp = 1; warp < {lanes} / 32; ++warp) x = Op::of(x, warps[warp]);
    }
    return x;
}
"""
_REDUCTIONS = {"sum": ("Sum", "0"), "max": ("Max", "(real)__int_as_float((int)0xff800000)")}
"""The operation and its initial value."""


class Row(row_loops.Row):
    """The row inside a formula.

    Attributes:
        column: the position in the row.
    """

    column = placeholder("column")

    def keep(self, output: int, expr: Expr) -> Expr:
        """Return the expression: the compiler keeps it in a register or recomputes it."""
        return expr


class _WideRow(Row):
    """A row of float64, for which float32 polynomials are not precise enough."""

    exp = staticmethod(lambda x: make("exp", x))
    log = staticmethod(lambda x: make("log", x))


class Form(NamedTuple):
    """The key of a kernel's source, in addition to the formulas.

    Attributes:
        lanes: the threads of a team: a power of two.
        held: the number of units of ``width`` elements that a thread keeps in registers: all of its share, or 0.
        width: elements per access of a thread.
    """

    lanes: int
    held: int
    width: int

    @property
    def threads(self) -> int:
        """The number of threads per block."""
        return max(THREADS, self.lanes)

    @property
    def teams(self) -> int:
        """The number of rows that a block processes at a time."""
        return self.threads // self.lanes


class _Walk(NamedTuple):
    """One pass along the row: the formulas of each element, and the inputs that they read."""

    exprs: Sequence[Expr]
    reads: list[int]


class RowSource:
    """A formula over rows, for arrays of given element types, for C sources.

    Args:
        kind: the arrays, in this order: full, columns, singles; outputs, results. Further values of the formula are
            not computed.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs and results.
        dtypes: the dtypes of all arrays.

    Attributes:
        is_exact: whether C computes it as precisely as the operator's forward.
        uniforms: the scalars of each launch.
    """

    def __init__(self, kind: Kind, formula: Formula, dtypes: Sequence[DType]) -> None:
        real = compute_type(dtypes)
        row = _WideRow() if real == "double" else Row()
        self._real, self._types = real or "float", [memory_type(dtype) for dtype in dtypes]
        # The first index of each kind in the list of arrays.
        self._columns = kind.full
        self._singles = kind.full + kind.columns
        self._outputs = self._singles + kind.singles
        self._results = self._outputs + kind.outputs
        values = formula(Parameters(None), row, *map(placeholder, range(self._outputs)))
        finals = [values] if isinstance(values, Expr) else list(values[: kind.outputs + kind.results])
        self._passes = [each.reductions for each in row.passes]
        self._last, self._final = self._walk_of(finals[: kind.outputs]), finals[kind.outputs :]
        self._walks = [self._walk_of([expr for _, expr, _ in each]) for each in self._passes]
        every = [*finals, *[expr for walk in self._walks for expr in walk.exprs]]
        self.is_exact = real is not None and is_exact(every, real)
        self.uniforms = uniforms(every)

    def _walk_of(self, exprs: Sequence[Expr]) -> _Walk:
        leaves = set(evaluation_order(exprs, ()))
        return _Walk(exprs, [index for index in range(self._singles) if placeholder(index) in leaves])

    def write(self, form: Form) -> Program:
        """Return the kernel; arguments: rows, their length and units, arrays, steps of singles, scalars."""
        singles = range(self._outputs - self._singles)
        fields = ["int64 rows", "int64 length", "int64 units"]
        fields += [f"{name}* array{index}" for index, name in enumerate(self._types)]
        fields += [f"int64 step{index}" for index in singles]
        layout = f"{len(fields)}q{len(self.uniforms)}d"
        fields += [f"double n{index}" for index in range(len(self.uniforms))]
        read = "live ? widened(a.array{array}[row * a.step{at}]) : 0"
        lines = [
            *[f"const real n{index} = (real)a.n{index};" for index in range(len(self.uniforms))],
            f"const int lane = threadIdx.x % {form.lanes}, units = (int)a.units;",
            f"const int64 step = (int64)gridDim.x * {form.teams};",
            f"for (int64 first = (int64)blockIdx.x * {form.teams}; first < a.rows; first += step) {{",
            # Threads without a row participate too: reductions need all threads of a warp.
            f"const int64 row = first + threadIdx.x / {form.lanes}, start = row * a.length;",
            "const bool live = row < a.rows;",
            *[f"const real s{index} = {read.format(array=self._singles + index, at=index)};" for index in singles],
            *self._hold(form),
            *[line for number in range(len(self._passes)) for line in self._reduce(number, form)],
            *self._finish(form),
            "}",
        ]
        common = _COMMON.replace("{real}", self._real).replace("{lanes}", str(form.lanes))
        head = f'extern "C" __global__ void __launch_bounds__({form.threads}) kernel(const Args a)'
        return Program(fields, layout, f"{common}\n{head} {{\n" + "\n".join(lines) + "\n}\n")

    def _register_inputs(self, form: Form) -> list[int]:
        """Return the inputs kept in registers: those that more than one pass reads."""
        walks = [*self._walks, self._last] if form.held else []
        return [index for index in range(self._singles) if sum(index in walk.reads for walk in walks) > 1]

    def _hold(self, form: Form) -> list[str]:
        """Return the code that loads the inputs kept in registers."""
        inputs = self._register_inputs(form)
        packs = [f"Pack<{self._types[index]}, {form.width}> p{index}[{form.held}];" for index in inputs]
        loads = [f"p{index}[held] = {self._load(index, form)};" for index in inputs]
        return [*packs, *_along(form, loads)] if inputs else []

    def _load(self, index: int, form: Form) -> str:
        start = "start + " if index < self._columns else ""
        return f"load<{form.width}>(a.array{index} + {start}(int64)unit * {form.width})"

    def _reduce(self, number: int, form: Form) -> list[str]:
        """Return the code of a pass of reductions."""
        reductions = [
            (f"r{number}_{index}", *_REDUCTIONS[kind]) for index, (kind, _, _) in enumerate(self._passes[number])
        ]

        def combine(values: Sequence[str]) -> Iterator[str]:
            for (name, op, _), value in zip(reductions, values, strict=True):
                yield f"{name} = {op}::of({name}, {value});"

        return [
            *[f"real {name} = {start};" for name, _, start in reductions],
            *_along(form, self._elements(self._walks[number], form, combine)),
            *[f"{name} = over_row<{op}>({name});" for name, op, _ in reductions],
        ]

    def _finish(self, form: Form) -> list[str]:
        """Return the code that computes outputs and results."""
        outputs = range(self._results - self._outputs)
        width = form.width

        def narrow(values: Sequence[str]) -> Iterator[str]:
            for index, value in enumerate(values):
                yield f"narrow((real){value}, y{index}.at[e]);"

        lines = [f"Pack<{self._types[self._outputs + index]}, {width}> y{index};" for index in outputs]
        lines += self._elements(self._last, form, narrow)
        place = f"start + (int64)unit * {width}"
        lines += [f"store<{width}>(a.array{self._outputs + index} + {place}, y{index});" for index in outputs]
        statements, values = lower(self._final, self._names(), self._real, "w")
        results = [f"narrow((real){value}, a.array{self._results + index}[row]);" for index, value in enumerate(values)]
        return [*_along(form, lines), *(["if (live && !lane) {", *statements, *results, "}"] if results else [])]

    def _elements(self, walk: _Walk, form: Form, use: Callable[[Sequence[str]], Iterator[str]]) -> list[str]:
        """Return the loop over the elements of a unit; ``use(values)`` returns the lines that use the pass's values."""
        in_registers, names, width = self._register_inputs(form), self._names(), form.width
        loads, reads = list[str](), list[str]()
        for index in walk.reads:
            if index not in in_registers:
                loads.append(f"const Pack<{self._types[index]}, {width}> p{index} = {self._load(index, form)};")
            reads.append(f"const real x{index} = widened(p{index}{'[held]' if index in in_registers else ''}.at[e]);")
            names[placeholder(index)] = f"x{index}"
        names[Row.column] = f"(real)(unit * {width} + e)"
        statements, values = lower(walk.exprs, names, self._real)
        body = [*reads, *statements, *use(values)]
        return [*loads, "#pragma unroll", f"for (int e = 0; e < {width}; ++e) {{", *body, "}"]

    def _names(self) -> dict[Expr, str]:
        """Return the names of values available in a row: scalars of the call, and results of earlier passes."""
        names: dict[Expr, str] = {uniform: f"n{index}" for index, uniform in enumerate(self.uniforms)}
        names.update({placeholder(index): f"s{index - self._singles}" for index in range(self._singles, self._outputs)})
        for number, reductions in enumerate(self._passes):
            names.update({name: f"r{number}_{index}" for index, (_, _, name) in enumerate(reductions)})
        return names


def _along(form: Form, body: Sequence[str]) -> list[str]:
    """Return the loop over the thread's units of ``width`` elements."""
    if not form.held:
        return [f"for (int unit = lane; live && unit < units; unit += {form.lanes}) {{", *body, "}"]
    return [
        "#pragma unroll",
        f"for (int held = 0; held < {form.held}; ++held) {{",
        f"const int unit = lane + held * {form.lanes};",
        "if (live && unit < units) {", *body, "}", "}",
    ]  # fmt: skip
