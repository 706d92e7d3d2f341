"""Fused kernels that reduce: an array is a sequence of rows, and a formula may use sums and maxima of its row.

Such a formula is written as passes over a row::

    def softmax(p, row, x):
        top = row.max(x * p.scale)
        e = row.keep(0, exp(x * p.scale - top))
        return e / row.sum(e)

Each ``max``, ``sum`` or ``sums`` is a pass; it returns one number for the row. ``keep`` stores an
output already in the next pass, and later passes read it again. The last pass computes the outputs that
the formula returns. An array of shape (outer, length, inner) is reduced over ``length``. With an inner of 1, a
vector holds neighbors of one row; otherwise each lane holds another row. A row may also consist of several
parts, as a channel of a batch of images does: an array of shape (parts, outer, length) is reduced over the first axis
too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, parameter, placeholder, primitives, uniforms
from flowmx.ops.kernels.llvm import math_functions, team
from flowmx.ops.kernels.llvm.assembly import FLOAT, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.elementwise import float_type_of
from flowmx.ops.kernels.llvm.lowering import invariants, lower
from flowmx.ops.kernels.recording import use_memory
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array

Formula = Callable[..., Any]

_TASK = 1 << 14
"""The approximate number of elements of a task."""
_TWO_TASKS = 1 << 15
_SLOTS = 4
_MAX_CALLS = 1024
"""Maximum number of prepared calls that a formula caches, by the form of the arrays."""
_Prepared = tuple[Program, bytes, tuple[int, int, int] | None, bool]
"""A prepared call on arrays of the same shape: the program, its words without the arrays, the shape of the tasks'
partial totals, whether several threads take part."""


class Kind(NamedTuple):
    """The arrays of a row kernel."""

    full: int = 1
    """The number of inputs with an element for each element of the rows."""
    columns: int = 0
    """The number of inputs with an element for each position in a row (gamma)."""
    singles: int = 0
    """The number of inputs with an element for each row (a mean)."""
    outputs: int = 1
    """The number of outputs with an element for each element of the rows."""
    results: int = 0
    """The number of outputs with an element for each row."""
    totals: int = 0
    """The number of outputs that are sums over rows: an element for each position in a row (gamma's gradient)."""


class _Pass(NamedTuple):
    """One pass over a row."""

    reductions: list[tuple[str, Expr, Expr]]
    """The kind (max or sum), the formula, and the name of the result."""
    stores: list[tuple[int, Expr]]

    def formulas(self) -> list[Expr]:
        """Return all formulas that the pass computes."""
        return [expr for _, expr, _ in self.reductions] + [expr for _, expr in self.stores]

    def slots(self) -> int:
        """Return the number of independent accumulators; with one, each cheap step would wait for the step before."""
        return 1 if "scale" in primitives(self.formulas()) else _SLOTS


class Row:
    """The row inside a formula.

    Attributes:
        length: the number of elements.
            exp, log: the functions, in the precision of the computation.
    """

    exp: Callable[[Expr], Expr] = staticmethod(math_functions.exp)
    log: Callable[[Expr], Expr] = staticmethod(math_functions.log)

    def __init__(self) -> None:
        self.length = parameter("length")
        self.passes: list[_Pass] = []
        self._stores: list[tuple[int, Expr]] = []

    def max(self, expr: Expr) -> Expr:
        """Return the largest over the row (ignoring NaN)."""
        return self._reduce("max", [expr])[0]

    def sum(self, expr: Expr) -> Expr:
        """Return the sum over the row."""
        return self._reduce("sum", [expr])[0]

    def sums(self, *exprs: Expr) -> list[Expr]:
        """Return several sums, computed in one pass."""
        return self._reduce("sum", exprs)

    def keep(self, output: int, expr: Expr) -> Expr:
        """Store an output in the next pass; later passes read it instead of computing it again."""
        self._stores.append((output, expr))
        return placeholder(f"kept {output}")

    def _reduce(self, kind: str, exprs: Sequence[Expr]) -> list[Expr]:
        number = len(self.passes)
        names = [placeholder(f"reduced {number}.{at}") for at in range(len(exprs))]
        self.passes.append(_Pass([(kind, expr, name) for expr, name in zip(exprs, names, strict=True)], self._stores))
        self._stores = []
        return names


class _RowNest(NamedTuple):
    """The loop nest over the parts and columns of one row, while its code is emitted.

    Attributes:
        code: the emitter.
        addresses: the addresses of the arrays, by kind.
        zero: the index 0.
        length: the length of a part.
        parts: the number of parts of a row.
        stride: the distance between the parts, in elements.
        start: the offset of the row's first element.
    """

    code: Code
    addresses: Mapping[str, Sequence[Value]]
    zero: Value
    length: Value
    parts: Value
    stride: Value
    start: Value

    def walk(
        self, body: Callable[[Value, Value, Value | None, int], None], after: Callable[[], None], slots: int = 1
    ) -> None:
        """Emit a pass over all parts: ``body(base, column, mask, slot)`` per vector, ``after()`` after each part."""
        code = self.code
        with code.loop(self.zero, self.parts) as part:
            base = code.plus(self.start, code.times(part, self.stride))
            code.unrolled(self.zero, self.length, lambda column, mask, slot: body(base, column, mask, slot), slots)
            after()


class Rows:
    """A formula over rows, compiled for rows along the last axis, and for rows side by side.

    It computes in float32. Each array may have 16-bit elements, which are widened when read, and rounded once when
    written.

    Args:
        kind: the arrays, in this order: full, columns, singles; outputs, results, totals.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs, results and totals.
        op: an operator of this kind, for parameters that the formula's form depends on.
    """

    def __init__(self, kind: Kind, formula: Formula, op: object = None) -> None:
        self.kind = kind
        row = Row()
        self._inputs = [placeholder(at) for at in range(kind.full + kind.columns + kind.singles)]
        expressions = formula(Parameters(op), row, *self._inputs)
        finals: list[Expr] = list(expressions) if isinstance(expressions, (tuple, list)) else [expressions]
        self._passes = row.passes
        self._outputs = list(enumerate(finals[: kind.outputs]))
        self._results = finals[kind.outputs : kind.outputs + kind.results]
        self._totals = finals[kind.outputs + kind.results :]
        self._finals = finals[: kind.outputs] + self._totals
        steps = [expr for step in row.passes for expr in step.formulas()]
        self._uniforms = uniforms([*steps, *finals])
        count = len(self._inputs) + kind.outputs + kind.results + kind.totals + bool(kind.totals)
        self._pack = struct.Struct(f"2q6q{len(self._uniforms)}d").pack
        self._pack_places = struct.Struct(f"{count}q").pack
        self._calls: dict[object, _Prepared] = {}
        self._arrays = count - bool(kind.totals)
        self._programs: dict[tuple[Any, ...], tuple[Program, Program]] = {}
        """By the arrays' element types: the function along the last axis, and the one side by side."""

    def run(
        self, op: object, shape: tuple[int, int, int], inputs: Sequence[Array], outputs: Sequence[Array],
        parts: int = 1,
    ) -> bool:  # fmt: skip
        """Run it on C-contiguous arrays; return False if it is not compiled (yet).

        Args:
            op: the operator, for the parameters.
            shape: (outer, length, inner).
            inputs: as the kind defines.
            outputs: as the kind defines; totals need an inner of 1.
            parts: the number of parts of each row; arrays then have the shape (parts, outer, length), and inner is 1.
        """
        dtypes = tuple([array.dtype for array in (*inputs, *outputs)])
        call = self._calls.get((op, shape, parts, dtypes))
        if call is None:
            call = self._prepare(op, shape, parts, dtypes)
            if call is None:
                return False
        program, head, shares, is_shared = call
        arrays = [*inputs, *outputs]
        if shares is not None:
            arrays.append(use_memory(np.empty(shares, np.float32)))
        words = head + self._pack_places(*map(id, arrays))  # new bytes for each call: they hold its counters
        assert program.compiled is not None
        team.run(program.compiled, words, team.count() if is_shared else 1, arrays)
        return True

    def bind(self, op: object, shape: tuple[int, int, int], dtypes: Sequence[object]) -> Callable[..., None] | None:
        """Return a function ``call(*inputs, *outputs)`` on arrays in C order, by one thread.

        Returns None if more threads are worthwhile, or if it is not compiled (yet). See :meth:`run` for the arguments.
        """
        prepared = self._prepare(op, shape, 1, tuple(dtypes))
        if prepared is None or prepared[3]:
            return None
        program: Any = prepared[0]  # its function is replaced by an optimized one
        head, shares, pack = prepared[1], prepared[2], self._pack_places
        if shares is None:
            return lambda *arrays: team.run(program.compiled, head + pack(*map(id, arrays)), 1, arrays)

        def call(*arrays: Array) -> None:
            arrays = (*arrays, use_memory(np.empty(shares, np.float32)))
            team.run(program.compiled, head + pack(*map(id, arrays)), 1, arrays)

        return call

    def _prepare(
        self, op: object, shape: tuple[int, int, int], parts: int, dtypes: tuple[object, ...]
    ) -> _Prepared | None:
        """Prepare calls of an operator on arrays of a shape; return None if it is not compiled (yet)."""
        outer, length, inner = shape
        program = self._program(dtypes, inner)
        if program.get() is None:
            return None
        values = {"length": length * parts}
        numbers = [evaluate(each, lambda n: values[n] if n in values else getattr(op, n)) for each in self._uniforms]
        size = parts * outer * length * inner
        # Tasks, and sums over them, do not depend on the number of threads; each task has partial totals.
        most = 16 if self.kind.totals else 64
        if inner == 1:
            units, share = outer, max(1, -(-outer // most), _TASK // length)
        else:
            # A unit is a vector's width of rows.
            units = outer * -(-inner // FLOAT.lanes)
            share = max(1, -(-units // most), _TASK // (length * FLOAT.lanes))
        tasks = -(-units // share)
        head = self._pack(0, tasks, units, share, length, inner, parts, 0, *numbers)
        shares = (tasks, self.kind.totals, length) if self.kind.totals else None
        make_room(self._calls, _MAX_CALLS)
        prepared = self._calls[op, shape, parts, dtypes] = program, head, shares, size > _TWO_TASKS and tasks > 1
        return prepared

    def is_ready(self, inner: int = 1, dtypes: Sequence[object] = ()) -> bool:
        """Return whether rows along the last axis (or before an inner axis) are compiled; compile them if possible.

        ``dtypes`` are those of all arrays; without them all are float32.
        """
        return self._program(tuple(dtypes) or (FLOAT32,) * self._arrays, inner).get() is not None

    def _program(self, dtypes: tuple[object, ...], inner: int) -> Program:
        """Return the function for arrays of these element types."""
        programs = self._programs.get(dtypes)
        if programs is None:
            reals = [float_type_of(dtype) for dtype in dtypes]
            pair = Program(partial(self._along, reals)), Program(partial(self._side_by_side, reals))
            programs = self._programs.setdefault(dtypes, pair)
        return programs[inner != 1]

    # -- text ------------------------------------------------------------------------------------------

    def _begin(
        self, reals: Sequence[FloatType | None], features: frozenset[str]
    ) -> tuple[Code, list[Value], dict[Expr, Value], dict[str, list[Value]]]:
        code, kind = Code(FLOAT, features), self.kind
        sizes = [*(code.word() for _ in range(5)), code.counter()]
        numbers = {uniform: code.number() for uniform in self._uniforms}
        groups = ("full", "columns", "singles", "outputs", "results", "totals")
        types = iter(reals)
        addresses = {group: [code.array(next(types)) for _ in range(getattr(kind, group))] for group in groups}
        addresses["shares"] = [code.array()] if kind.totals else []
        return code, sizes, numbers, addresses

    def _read(self, which: str) -> Sequence[Expr]:
        kind = self.kind
        start = {"full": 0, "columns": kind.full, "singles": kind.full + kind.columns}[which]
        return self._inputs[start : start + getattr(kind, which)]

    def _along(self, reals: Sequence[FloatType | None], features: frozenset[str]) -> str:
        """Return the code of a kernel with vectors along the row."""
        code, (rows, share, length, _, parts, done), numbers, at = self._begin(reals, features)
        stride = code.times(rows, length)
        zero = code.index(0)
        with code.tasks() as task:
            first = code.times(task, share)
            totals = self._clear_totals(code, task, length, at["shares"])
            with code.loop(first, code.least(code.plus(first, share), rows)) as row:
                nest = _RowNest(code, at, zero, length, parts, stride, code.times(row, length))
                values = dict(numbers)
                for expr, address in zip(self._read("singles"), at["singles"], strict=True):
                    values[expr] = code.spread(code.load_one(address, row))
                for step in self._passes:
                    values = invariants(code, step.formulas(), values)
                    self._emit_pass(nest, step, values)
                if self._outputs or self._totals:
                    values = invariants(code, self._finals, values)
                    self._emit_outputs(nest, values, totals)
                for value, address in zip(lower(code, self._results, values), at["results"], strict=True):
                    code.store_one(code.first(value), address, row)
            if self._totals:
                self._sum_totals(code, done, length, at)
        return code.finish()

    def _load(
        self, nest: _RowNest, values: Mapping[Expr, Value], base: Value, column: Value, mask: Value | None
    ) -> dict[Expr, Value]:
        """Load the elements of a vector in a row, in addition to values that are the same for the whole row."""
        code, at = nest.code, nest.addresses
        place = code.plus(base, column)
        loaded = dict(values)
        for expr, address in zip(self._read("full"), at["full"], strict=True):
            loaded[expr] = code.load(address, place, mask)
        for expr, address in zip(self._read("columns"), at["columns"], strict=True):
            loaded[expr] = code.load(address, column, mask)
        for output, address in enumerate(at["outputs"]):
            loaded[placeholder(f"kept {output}")] = code.load(address, place, mask)
        return loaded

    def _emit_pass(self, nest: _RowNest, step: _Pass, values: dict[Expr, Value]) -> None:
        """Emit a pass of reductions over the row, and add their results to ``values``."""
        code = nest.code
        slots = step.slots()
        row_totals, *sums = (
            [code.local(_neutral(code, kind)) for kind, _, _ in step.reductions] for _ in range(1 + slots)
        )

        def body(base: Value, column: Value, mask: Value | None, slot: int) -> None:
            elements = self._load(nest, values, base, column, mask)
            self._store(code, step.stores, elements, nest.addresses["outputs"], code.plus(base, column), mask)
            terms = lower(code, [expr for _, expr, _ in step.reductions], elements)
            for (kind, _, _), value, total in zip(step.reductions, terms, sums[slot], strict=True):
                if mask is not None:
                    value = code.choose(mask, value, _neutral(code, kind))
                code.set(total, _combine(code, kind, code.get(total), value))

        def gather() -> None:
            # Partial sums per part keep the rounding error of long sums small.
            for (kind, _, _), row_total, *totals in zip(step.reductions, row_totals, *sums, strict=True):
                for total in totals:
                    code.set(row_total, _combine(code, kind, code.get(row_total), code.get(total)))
                    code.set(total, _neutral(code, kind))

        nest.walk(body, gather, slots)
        for (kind, _, name), total in zip(step.reductions, row_totals, strict=True):
            vector = code.get(total)
            values[name] = code.spread(code.total(vector) if kind == "sum" else code.largest(vector))

    def _emit_outputs(self, nest: _RowNest, values: Mapping[Expr, Value], totals: Sequence[Value]) -> None:
        """Emit the last pass over the row, which stores the outputs and adds to the totals over rows."""
        code = nest.code

        def body(base: Value, column: Value, mask: Value | None, slot: int) -> None:
            elements = self._load(nest, values, base, column, mask)
            self._store(code, self._outputs, elements, nest.addresses["outputs"], code.plus(base, column), mask)
            for value, total in zip(lower(code, self._totals, elements), totals, strict=True):
                code.store(code.binary("fadd", code.load(total, column, mask), value), total, column, mask)

        nest.walk(body, lambda: None)

    def _clear_totals(self, code: Code, task: Value, length: Value, shares: Sequence[Value]) -> list[Value]:
        """Set the task's partial totals to 0, and return their addresses."""
        count = self.kind.totals
        if not count:
            return []
        first = code.times(code.times(task, count), length)

        def clear(column: Value, mask: Value | None) -> None:
            code.store(code.constant(0.0), shares[0], code.plus(first, column), mask)

        code.strips(code.index(0), code.times(length, count), clear)
        return [code.at(shares[0], code.plus(first, code.times(length, number))) for number in range(count)]

    def _sum_totals(self, code: Code, done: Value, length: Value, at: Mapping[str, list[Value]]) -> None:
        """At the end of a task: if it was the last one, sum the partial totals of all tasks, in their order."""
        tasks = code.task_count()
        before = code.put("i64", f"atomicrmw add {done}, i64 1 acq_rel, align 8")
        with code.when(code.put("i1", f"icmp eq {code.plus(before, 1)}, {tasks.name}")):
            step = code.times(length, self.kind.totals)
            for number, target in enumerate(at["totals"]):
                first = code.times(length, number)

                def add(column: Value, mask: Value | None, first: Value = first, target: Value = target) -> None:
                    total = code.local(code.constant(0.0))
                    with code.loop(code.index(0), tasks) as task:
                        place = code.plus(code.plus(first, code.times(task, step)), column)
                        code.set(total, code.binary("fadd", code.get(total), code.load(at["shares"][0], place, mask)))
                    code.store(code.get(total), target, column, mask)

                code.strips(code.index(0), length, add)

    def _side_by_side(self, reals: Sequence[FloatType | None], features: frozenset[str]) -> str:
        """A row in each lane."""
        code, (units, share, length, inner, _, _), numbers, at = self._begin(reals, features)
        width = code.put("i64", f"add i64 {inner.name}, {code.lanes - 1}")
        blocks = code.put("i64", f"sdiv i64 {width.name}, {code.lanes}")
        with code.tasks() as task:
            first = code.times(task, share)
            with code.loop(first, code.least(code.plus(first, share), units)) as unit:
                outer = code.put("i64", f"sdiv {unit}, {blocks.name}")
                block = code.put("i64", f"srem {unit}, {blocks.name}")
                lane = code.times(block, code.lanes)
                left = code.put("i64", f"sub {inner}, {lane.name}")
                start = code.plus(code.times(code.times(outer, length), inner), lane)
                single = code.plus(code.times(outer, inner), lane)
                whole = code.put("i1", f"icmp sge {left}, {code.lanes}")
                for condition, mask in (
                    (whole, None),
                    (code.put("i1", f"xor {whole}, true"), code.first_lanes(left)),
                ):
                    with code.when(condition):
                        self._lanes(code, numbers, at, length, inner, start, single, mask)
        return code.finish()

    def _lanes(
        self, code: Code, numbers: Mapping[Expr, Value], at: Mapping[str, list[Value]], length: Value, inner: Value,
        start: Value, single: Value, mask: Value | None,
    ) -> None:  # fmt: skip
        row_values = dict(numbers)
        for expr, address in zip(self._read("singles"), at["singles"], strict=True):
            row_values[expr] = code.load(address, single, mask)

        def load(row_values: Mapping[Expr, Value], column: Value) -> tuple[Value, dict[Expr, Value]]:
            place = code.plus(start, code.times(column, inner))
            loaded = dict(row_values)
            for expr, address in zip(self._read("full"), at["full"], strict=True):
                loaded[expr] = code.load(address, place, mask)
            for expr, address in zip(self._read("columns"), at["columns"], strict=True):
                loaded[expr] = code.spread(code.load_one(address, column))
            for output, address in enumerate(at["outputs"]):
                loaded[placeholder(f"kept {output}")] = code.load(address, place, mask)
            return place, loaded

        for step in self._passes:
            row_values = invariants(code, step.formulas(), row_values)
            sums = [code.local(_neutral(code, kind)) for kind, _, _ in step.reductions]
            with code.loop(code.index(0), length) as column:
                place, values = load(row_values, column)
                self._store(code, step.stores, values, at["outputs"], place, mask)
                terms = lower(code, [expr for _, expr, _ in step.reductions], values)
                for (kind, _, _), value, total in zip(step.reductions, terms, sums, strict=True):
                    code.set(total, _combine(code, kind, code.get(total), value))
            for (_, _, name), total in zip(step.reductions, sums, strict=True):
                row_values[name] = code.get(total)
        if self._outputs:
            row_values = invariants(code, self._finals, row_values)
            with code.loop(code.index(0), length) as column:
                place, values = load(row_values, column)
                self._store(code, self._outputs, values, at["outputs"], place, mask)
        for value, address in zip(lower(code, self._results, row_values), at["results"], strict=True):
            code.store(value, address, single, mask)

    @staticmethod
    def _store(
        code: Code, stores: Sequence[tuple[int, Expr]], values: dict[Expr, Value], addresses: Sequence[Value],
        place: Value, mask: Value | None,
    ) -> None:  # fmt: skip
        for (output, _), value in zip(stores, lower(code, [expr for _, expr in stores], values), strict=True):
            code.store(value, addresses[output], place, mask)
            values[placeholder(f"kept {output}")] = value  # still in a register


def _neutral(code: Code, kind: str) -> Value:
    return code.constant(0.0 if kind == "sum" else float("-inf"))


def _combine(code: Code, kind: str, total: Value, value: Value) -> Value:
    if kind == "sum":
        return code.binary("fadd", total, value)
    larger = code.put(code.mask, f"fcmp ogt {value}, {total.name}")
    return code.choose(larger, value, total)
