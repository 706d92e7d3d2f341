"""From formulas over rows to CUDA C: the CPU's formulas (:mod:`..loops.rows`), as kernels.

A team of threads takes a row: some of a warp, or a whole block. A thread has the same elements in every pass over the
row and may keep what it read in registers, so that memory is read once. What the threads found is put together in a
fixed order, so that results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from flowmx.ops.formulas.expressions import Expr, Parameters, in_order, make, placeholder, uniforms
from flowmx.ops.kernels.cuda.elementwise_source import computed_in, is_exact, kept, lower
from flowmx.ops.kernels.cuda.program import THREADS, Program
from flowmx.ops.kernels.llvm import rows
from flowmx.ops.kernels.llvm.rows import Formula, Kind
from flowmx.ops.registry.dtypes import DType

_COMMON = """
typedef {real} real;
struct Sum { static __device__ __forceinline__ real of(real a, real b) { return a + b; } };
struct Max { static __device__ __forceinline__ real of(real a, real b) { return b > a ? b : a; } };

// What all threads of a team found, put together: the same number for each of them.
template <typename Op> __device__ __forceinline__ real over_row(real x) {
    #pragma unroll
    for (int by = {lanes} < 32 ? {lanes} / 2 : 16; by; by >>= 1) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, by));
    if ({lanes} > 32) {
        __shared__ real warps[32];
        __syncthreads();  // until nobody reads what the row before left
        if (!(threadIdx.x & 31)) warps[threadIdx.x >> 5] = x;
        __syncthreads();
        x = warps[0];
        for (int warp = 1; warp < {lanes} / 32; ++warp) x = Op::of(x, warps[warp]);
    }
    return x;
}
"""
_REDUCTIONS = {"sum": ("Sum", "0"), "max": ("Max", "(real)__int_as_float((int)0xff800000)")}
"""The operation, and where it starts from."""


class Row(rows.Row):
    """The row inside a formula.

    Attributes:
        column: the place in the row.
    """

    column = placeholder("column")

    def keep(self, output: int, expr: Expr) -> Expr:
        """The expression itself: the compiler keeps it in a register, or it is computed again."""
        return expr


class _WideRow(Row):
    """A row of float64, for which the polynomials are not precise enough."""

    exp = staticmethod(lambda x: make("exp", x))
    log = staticmethod(lambda x: make("log", x))


class Form(NamedTuple):
    """The key of a kernel's source, besides the formulas.

    Attributes:
        lanes: the threads of a team: a power of two.
        held: how many times ``width`` elements a thread keeps, which are then all that it has; 0: none.
        width: how many elements a thread takes at a time.
    """

    lanes: int
    held: int
    width: int

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return max(THREADS, self.lanes)

    @property
    def teams(self) -> int:
        """The number of rows that a block computes at a time."""
        return self.threads // self.lanes


class _Walk(NamedTuple):
    """One walk along the row: what it computes of each element, and which inputs that needs."""

    exprs: Sequence[Expr]
    reads: list[int]


class RowSource:
    """A formula over rows, for arrays of given element types, to be written as C.

    Args:
        kind: the arrays that it takes, in this order: full, columns, singles; outputs, results. What the formula
            gives beyond these is not computed.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs and results.
        dtypes: of all arrays.

    Attributes:
        is_exact: whether C computes it as precisely as the plain forward.
        uniforms: what comes with each launch as a number.
    """

    def __init__(self, kind: Kind, formula: Formula, dtypes: Sequence[DType]) -> None:
        real = computed_in(dtypes)
        row = _WideRow() if real == "double" else Row()
        self._real, self._kept = real or "float", [kept(dtype) for dtype in dtypes]
        # Where in the list of arrays each sort begins.
        self._columns = kind.full
        self._singles = kind.full + kind.columns
        self._outputs = self._singles + kind.singles
        self._results = self._outputs + kind.outputs
        made = formula(Parameters(None), row, *map(placeholder, range(self._outputs)))
        finals = [made] if isinstance(made, Expr) else list(made[: kind.outputs + kind.results])
        self._passes = [each.reductions for each in row.passes]
        self._last, self._found = self._walk_of(finals[: kind.outputs]), finals[kind.outputs :]
        self._walks = [self._walk_of([expr for _, expr, _ in each]) for each in self._passes]
        every = [*finals, *[expr for walk in self._walks for expr in walk.exprs]]
        self.is_exact = real is not None and is_exact(every, real)
        self.uniforms = uniforms(every)

    def _walk_of(self, exprs: Sequence[Expr]) -> _Walk:
        leaves = set(in_order(exprs, ()))
        return _Walk(exprs, [at for at in range(self._singles) if placeholder(at) in leaves])

    def write(self, form: Form) -> Program:
        """The kernel: of rows, of the length of each and how many units it has; arrays; steps of singles; numbers."""
        singles = range(self._outputs - self._singles)
        fields = ["int64 rows", "int64 length", "int64 units"]
        fields += [f"{name}* array{at}" for at, name in enumerate(self._kept)]
        fields += [f"int64 step{at}" for at in singles]
        layout = f"{len(fields)}q{len(self.uniforms)}d"
        fields += [f"double n{at}" for at in range(len(self.uniforms))]
        read = "live ? widened(a.array{array}[row * a.step{at}]) : 0"
        lines = [
            *[f"const real n{at} = (real)a.n{at};" for at in range(len(self.uniforms))],
            f"const int lane = threadIdx.x % {form.lanes}, units = (int)a.units;",
            f"const int64 step = (int64)gridDim.x * {form.teams};",
            f"for (int64 first = (int64)blockIdx.x * {form.teams}; first < a.rows; first += step) {{",
            # Threads without a row go along: all of a warp meet where numbers are put together.
            f"const int64 row = first + threadIdx.x / {form.lanes}, start = row * a.length;",
            "const bool live = row < a.rows;",
            *[f"const real s{at} = {read.format(array=self._singles + at, at=at)};" for at in singles],
            *self._hold(form),
            *[line for number in range(len(self._passes)) for line in self._reduce(number, form)],
            *self._finish(form),
            "}",
        ]
        common = _COMMON.replace("{real}", self._real).replace("{lanes}", str(form.lanes))
        head = f'extern "C" __global__ void __launch_bounds__({form.threads}) kernel(const Args a)'
        return Program(fields, layout, f"{common}\n{head} {{\n" + "\n".join(lines) + "\n}\n")

    def _held(self, form: Form) -> list[int]:
        """The inputs that are kept: those that more than one walk reads."""
        walks = [*self._walks, self._last] if form.held else []
        return [at for at in range(self._singles) if sum(at in walk.reads for walk in walks) > 1]

    def _hold(self, form: Form) -> list[str]:
        """Read what is kept."""
        inputs = self._held(form)
        packs = [f"Pack<{self._kept[at]}, {form.width}> p{at}[{form.held}];" for at in inputs]
        loads = [f"p{at}[held] = {self._load(at, form)};" for at in inputs]
        return [*packs, *_along(form, loads)] if inputs else []

    def _load(self, at: int, form: Form) -> str:
        start = "start + " if at < self._columns else ""
        return f"load<{form.width}>(a.array{at} + {start}(int64)unit * {form.width})"

    def _reduce(self, number: int, form: Form) -> list[str]:
        """A pass: what it finds of the row."""
        found = [(f"r{number}_{at}", *_REDUCTIONS[kind]) for at, (kind, _, _) in enumerate(self._passes[number])]

        def combine(values: Sequence[str]) -> Iterator[str]:
            for (name, op, _), value in zip(found, values, strict=True):
                yield f"{name} = {op}::of({name}, {value});"

        return [
            *[f"real {name} = {start};" for name, _, start in found],
            *_along(form, self._elements(self._walks[number], form, combine)),
            *[f"{name} = over_row<{op}>({name});" for name, op, _ in found],
        ]

    def _finish(self, form: Form) -> list[str]:
        """The outputs and results."""
        outputs = range(self._results - self._outputs)
        width = form.width

        def narrow(values: Sequence[str]) -> Iterator[str]:
            for at, value in enumerate(values):
                yield f"narrow((real){value}, y{at}.at[e]);"

        lines = [f"Pack<{self._kept[self._outputs + at]}, {width}> y{at};" for at in outputs]
        lines += self._elements(self._last, form, narrow)
        place = f"start + (int64)unit * {width}"
        lines += [f"store<{width}>(a.array{self._outputs + at} + {place}, y{at});" for at in outputs]
        made, values = lower(self._found, self._given(), self._real, "w")
        results = [f"narrow((real){value}, a.array{self._results + at}[row]);" for at, value in enumerate(values)]
        return [*_along(form, lines), *(["if (live && !lane) {", *made, *results, "}"] if results else [])]

    def _elements(self, walk: _Walk, form: Form, use: Callable[[Sequence[str]], Iterator[str]]) -> list[str]:
        """Write the loop over the elements of a unit; ``use(values)`` gives the lines that use the walk's values."""
        held, given, width = self._held(form), self._given(), form.width
        loads, reads = list[str](), list[str]()
        for at in walk.reads:
            if at not in held:
                loads.append(f"const Pack<{self._kept[at]}, {width}> p{at} = {self._load(at, form)};")
            reads.append(f"const real x{at} = widened(p{at}{'[held]' if at in held else ''}.at[e]);")
            given[placeholder(at)] = f"x{at}"
        given[Row.column] = f"(real)(unit * {width} + e)"
        made, values = lower(walk.exprs, given, self._real)
        body = [*reads, *made, *use(values)]
        return [*loads, "#pragma unroll", f"for (int e = 0; e < {width}; ++e) {{", *body, "}"]

    def _given(self) -> dict[Expr, str]:
        """Names of the values known in a row: the scalars of the call, and the results of earlier passes."""
        given: dict[Expr, str] = {uniform: f"n{at}" for at, uniform in enumerate(self.uniforms)}
        given.update({placeholder(at): f"s{at - self._singles}" for at in range(self._singles, self._outputs)})
        for number, reductions in enumerate(self._passes):
            given.update({name: f"r{number}_{at}" for at, (_, _, name) in enumerate(reductions)})
        return given


def _along(form: Form, body: Sequence[str]) -> list[str]:
    """Do something for each unit, ``width`` elements, that is the thread's."""
    if not form.held:
        return [f"for (int unit = lane; live && unit < units; unit += {form.lanes}) {{", *body, "}"]
    return [
        "#pragma unroll",
        f"for (int held = 0; held < {form.held}; ++held) {{",
        f"const int unit = lane + held * {form.lanes};",
        "if (live && unit < units) {", *body, "}", "}",
    ]  # fmt: skip
