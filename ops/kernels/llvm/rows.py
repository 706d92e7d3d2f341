"""Fused kernels that reduce: an array is seen as rows, and a formula may look at sums and maxima of its row.

Such a formula is written as passes over a row::

    def softmax(p, row, x):
        top = row.max(x * p.scale)
        e = row.keep(0, exp(x * p.scale - top))
        return e / row.sum(e)

Each ``max``, ``sum`` or ``sums`` is a pass; what it returns is one number for the row. ``keep`` stores an
output in the following pass already, to be read again in later ones. The last pass computes the outputs that
the formula returns. An array of shape (outer, length, inner) is reduced over ``length``. Where inner is 1 a
vector holds neighbours of one row; elsewhere it holds as many rows side by side. A row may also consist of several
parts, as a channel of a batch of images does: an array of shape (parts, outer, length) is reduced over the first axis
too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, kinds, parameter, placeholder, uniforms
from flowmx.ops.kernels.llvm import functions, team
from flowmx.ops.kernels.llvm.code import FLOAT, Code, Real, Value
from flowmx.ops.kernels.llvm.elementwise import real_of
from flowmx.ops.kernels.llvm.lowering import invariants, lower
from flowmx.ops.kernels.llvm.program import Program
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array

Formula = Callable[..., Any]

_TASK = 1 << 14
"""Elements of a task, about."""
_TWO_TASKS = 1 << 15
_SLOTS = 4
_KEPT = 256
"""Forms of calls that a formula remembers."""
_Known = tuple[Program, bytes, tuple[int, int, int] | None, bool]
"""A call on arrays of one shape: the program, its words but for the arrays, the shape of what tasks add up by
themselves, whether several threads take part."""


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
    """One walk along a row."""

    reductions: list[tuple[str, Expr, Expr]]
    """max or sum, the formula, the name of the result."""
    stores: list[tuple[int, Expr]]

    def formulas(self) -> list[Expr]:
        """All that is computed on the way."""
        return [expr for _, expr, _ in self.reductions] + [expr for _, expr in self.stores]

    def slots(self) -> int:
        """The number of independent accumulators, without which each cheap step would wait for the one before."""
        return 1 if "scale" in kinds(self.formulas()) else _SLOTS


class Row:
    """The row inside a formula.

    Attributes:
        length: how many elements it has.
        exp, log: the functions, as precise as what is computed in.
    """

    exp: Callable[[Expr], Expr] = staticmethod(functions.exp)
    log: Callable[[Expr], Expr] = staticmethod(functions.log)

    def __init__(self) -> None:
        self.length = parameter("length")
        self.passes: list[_Pass] = []
        self._stores: list[tuple[int, Expr]] = []

    def max(self, expr: Expr) -> Expr:
        """The largest over the row (NaN is passed over)."""
        return self._reduce("max", [expr])[0]

    def sum(self, expr: Expr) -> Expr:
        """The sum over the row."""
        return self._reduce("sum", [expr])[0]

    def sums(self, *exprs: Expr) -> list[Expr]:
        """Several sums in one pass."""
        return self._reduce("sum", exprs)

    def keep(self, output: int, expr: Expr) -> Expr:
        """Store an output in the next pass, and read it in the later ones instead of computing it again."""
        self._stores.append((output, expr))
        return placeholder(f"kept {output}")

    def _reduce(self, kind: str, exprs: Sequence[Expr]) -> list[Expr]:
        number = len(self.passes)
        names = [placeholder(f"reduced {number}.{at}") for at in range(len(exprs))]
        self.passes.append(_Pass([(kind, expr, name) for expr, name in zip(exprs, names, strict=True)], self._stores))
        self._stores = []
        return names


class Rows:
    """A formula over rows, compiled for rows along the last axis, and for rows side by side.

    It is computed in float32; each array may be of 16 bits, and is then widened as it is read, and rounded once as it
    is written.

    Args:
        kind: the arrays that it takes, in this order: full, columns, singles; outputs, results, totals.
        formula: called as ``formula(p, row, *inputs)``; returns the outputs, results and totals.
        op: any operator of the sort, for parameters that the formula's form depends on.
    """

    def __init__(self, kind: Kind, formula: Formula, op: Any = None) -> None:
        self.kind = kind
        row = Row()
        self._inputs = [placeholder(at) for at in range(kind.full + kind.columns + kind.singles)]
        made = formula(Parameters(op), row, *self._inputs)
        finals: list[Expr] = list(made) if isinstance(made, (tuple, list)) else [made]
        self._passes = row.passes
        self._outputs = list(enumerate(finals[: kind.outputs]))
        self._results = finals[kind.outputs : kind.outputs + kind.results]
        self._totals = finals[kind.outputs + kind.results :]
        self._finals = finals[: kind.outputs] + self._totals
        every = [expr for each in row.passes for expr in each.formulas()]
        self._uniforms = uniforms([*every, *finals])
        count = len(self._inputs) + kind.outputs + kind.results + kind.totals + bool(kind.totals)
        self._pack = struct.Struct(f"2q6q{len(self._uniforms)}d").pack
        self._pack_places = struct.Struct(f"{count}q").pack
        self._known: dict[Any, _Known] = {}
        self._arrays = count - bool(kind.totals)
        self._programs: dict[tuple[Any, ...], tuple[Program, Program]] = {}
        """For the element types of the arrays: the function along the last axis, and that side by side."""

    def run(
        self, op: Any, shape: tuple[int, int, int], inputs: Sequence[Array], outputs: Sequence[Array],
        parts: int = 1,
    ) -> bool:  # fmt: skip
        """Run it on C-contiguous arrays; False where it is not compiled (yet).

        Args:
            op: the operator, for the parameters.
            shape: (outer, length, inner).
            inputs: as the kind defines.
            outputs: likewise; totals need an inner of 1.
            parts: how many parts each row has; arrays are then of shape (parts, outer, length), and inner is 1.
        """
        dtypes = tuple([array.dtype for array in (*inputs, *outputs)])
        known = self._known.get((op, shape, parts, dtypes))
        if known is None:
            known = self._learn(op, shape, parts, dtypes)
            if known is None:
                return False
        program, head, shares, is_shared = known
        places = [*map(id, inputs), *map(id, outputs)]
        if shares is not None:
            kept = np.empty(shares, np.float32)
            places.append(id(kept))
        words = head + self._pack_places(*places)  # new bytes for each call, which counts in them
        assert program.compiled is not None
        team.run(program.compiled, words, team.count() if is_shared else 1)
        return True

    def bind(self, op: Any, shape: tuple[int, int, int], dtypes: Sequence[Any]) -> Callable[..., None] | None:
        """A call ``function(*inputs, *outputs)`` on arrays in C order, by one thread.

        None where more threads are worth it, or it is not compiled (yet). Arguments are those of :meth:`run`.
        """
        known = self._learn(op, shape, 1, tuple(dtypes))
        if known is None or known[3]:
            return None
        program: Any = known[0]  # its function is replaced by a better one
        head, shares, pack = known[1], known[2], self._pack_places
        if shares is None:
            return lambda *arrays: team.run(program.compiled, head + pack(*map(id, arrays)), 1)

        def call(*arrays: Array) -> None:
            kept = np.empty(shares, np.float32)
            team.run(program.compiled, head + pack(*map(id, arrays), id(kept)), 1)

        return call

    def _learn(self, op: Any, shape: tuple[int, int, int], parts: int, dtypes: tuple[Any, ...]) -> _Known | None:
        """Remember what calls of an operator on arrays of a shape need; None where it is not compiled (yet)."""
        outer, length, inner = shape
        program = self._program(dtypes, inner)
        if program.get() is None:
            return None
        values = {"length": length * parts}
        numbers = [evaluate(each, lambda n: values[n] if n in values else getattr(op, n)) for each in self._uniforms]
        size = parts * outer * length * inner
        # Tasks do not depend on the number of threads, nor do sums over them; each has its part of every total.
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
        if len(self._known) >= _KEPT:
            self._known.clear()
        made = self._known[op, shape, parts, dtypes] = program, head, shares, size > _TWO_TASKS and tasks > 1
        return made

    def is_ready(self, inner: int = 1, dtypes: Sequence[Any] = ()) -> bool:
        """Tell whether rows along the last axis (or with more behind it) are computed, and compile them if it can.

        ``dtypes`` are those of all arrays; without them all are float32.
        """
        return self._program(tuple(dtypes) or (FLOAT32,) * self._arrays, inner).get() is not None

    def _program(self, dtypes: tuple[Any, ...], inner: int) -> Program:
        """The function for arrays of these element types."""
        known = self._programs.get(dtypes)
        if known is None:
            reals = [real_of(dtype) for dtype in dtypes]
            made = Program(partial(self._along, reals)), Program(partial(self._side_by_side, reals))
            known = self._programs.setdefault(dtypes, made)
        return known[inner != 1]

    # -- text ------------------------------------------------------------------------------------------

    def _begin(
        self, reals: Sequence[Real | None], features: frozenset[str]
    ) -> tuple[Code, list[Value], dict[Expr, Value], dict[str, list[Value]]]:
        code, kind = Code(FLOAT, features), self.kind
        sizes = [*(code.word() for _ in range(5)), code.counter()]
        numbers = {uniform: code.number() for uniform in self._uniforms}
        groups = ("full", "columns", "singles", "outputs", "results", "totals")
        each = iter(reals)
        addresses = {group: [code.array(next(each)) for _ in range(getattr(kind, group))] for group in groups}
        addresses["shares"] = [code.array()] if kind.totals else []
        return code, sizes, numbers, addresses

    def _read(self, which: str) -> Sequence[Expr]:
        kind = self.kind
        start = {"full": 0, "columns": kind.full, "singles": kind.full + kind.columns}[which]
        return self._inputs[start : start + getattr(kind, which)]

    def _along(self, reals: Sequence[Real | None], features: frozenset[str]) -> str:
        """Vectors along the row."""
        code, (rows, share, length, _, parts, done), numbers, at = self._begin(reals, features)
        stride = code.times(rows, length)
        zero = code.index(0)
        with code.tasks() as task:
            first = code.times(task, share)
            totals = self._clear_totals(code, task, length, at["shares"])
            with code.loop(first, code.least(code.plus(first, share), rows)) as row:
                start = code.times(row, length)
                known = dict(numbers)
                for expr, address in zip(self._read("singles"), at["singles"], strict=True):
                    known[expr] = code.spread(code.load_one(address, row))

                def load(
                    known: Mapping[Expr, Value], base: Value, column: Value, mask: Value | None
                ) -> dict[Expr, Value]:
                    place = code.plus(base, column)
                    loaded = dict(known)
                    for expr, address in zip(self._read("full"), at["full"], strict=True):
                        loaded[expr] = code.load(address, place, mask)
                    for expr, address in zip(self._read("columns"), at["columns"], strict=True):
                        loaded[expr] = code.load(address, column, mask)
                    for output, address in enumerate(at["outputs"]):
                        loaded[placeholder(f"kept {output}")] = code.load(address, place, mask)
                    return loaded

                def walk(
                    body: Callable[[Value, Value, Value | None, int], None], after: Callable[[], None], slots: int = 1
                ) -> None:
                    """Go along all parts: ``body(base, column, mask, slot)`` a vector, ``after()`` after each part."""
                    with code.loop(zero, parts) as part:
                        base = code.plus(start, code.times(part, stride))
                        code.unrolled(zero, length, lambda column, mask, slot: body(base, column, mask, slot), slots)
                        after()

                for each in self._passes:
                    known = invariants(code, each.formulas(), known)
                    slots = each.slots()
                    alls, *sums = (
                        [code.local(_neutral(code, kind)) for kind, _, _ in each.reductions] for _ in range(1 + slots)
                    )

                    def body(
                        base: Value, column: Value, mask: Value | None, slot: int, each: _Pass = each, sums: Any = sums,
                        known: Mapping[Expr, Value] = known,
                    ) -> None:  # fmt: skip
                        values = load(known, base, column, mask)
                        self._store(code, each.stores, values, at["outputs"], code.plus(base, column), mask)
                        found = lower(code, [expr for _, expr, _ in each.reductions], values)
                        for (kind, _, _), value, total in zip(each.reductions, found, sums[slot], strict=True):
                            if mask is not None:
                                value = code.choose(mask, value, _neutral(code, kind))
                            code.set(total, _combine(code, kind, code.get(total), value))

                    def gather(each: _Pass = each, sums: Any = sums, alls: Any = alls) -> None:
                        # Part by part, which keeps the rounding of long sums small.
                        for (kind, _, _), whole, *totals in zip(each.reductions, alls, *sums, strict=True):
                            for total in totals:
                                code.set(whole, _combine(code, kind, code.get(whole), code.get(total)))
                                code.set(total, _neutral(code, kind))

                    walk(body, gather, slots)
                    for (kind, _, name), total in zip(each.reductions, alls, strict=True):
                        vector = code.get(total)
                        known[name] = code.spread(code.total(vector) if kind == "sum" else code.largest(vector))

                def last(base: Value, column: Value, mask: Value | None, slot: int) -> None:
                    values = load(known, base, column, mask)
                    self._store(code, self._outputs, values, at["outputs"], code.plus(base, column), mask)
                    for value, total in zip(lower(code, self._totals, values), totals, strict=True):
                        code.store(code.binary("fadd", code.load(total, column, mask), value), total, column, mask)

                if self._outputs or self._totals:
                    known = invariants(code, self._finals, known)
                    walk(last, lambda: None)
                for value, address in zip(lower(code, self._results, known), at["results"], strict=True):
                    code.store_one(code.first(value), address, row)
            if self._totals:
                self._sum_totals(code, done, length, at)
        return code.finish()

    def _clear_totals(self, code: Code, task: Value, length: Value, shares: Sequence[Value]) -> list[Value]:
        """The task's own share of each total, set to 0."""
        count = self.kind.totals
        if not count:
            return []
        first = code.times(code.times(task, count), length)

        def clear(column: Value, mask: Value | None) -> None:
            code.store(code.constant(0.0), shares[0], code.plus(first, column), mask)

        code.strips(code.index(0), code.times(length, count), clear)
        return [code.at(shares[0], code.plus(first, code.times(length, number))) for number in range(count)]

    def _sum_totals(self, code: Code, done: Value, length: Value, at: Mapping[str, list[Value]]) -> None:
        """At the end of a task: where it was the last one, sum the shares of all, in their order."""
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

    def _side_by_side(self, reals: Sequence[Real | None], features: frozenset[str]) -> str:
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
        known = dict(numbers)
        for expr, address in zip(self._read("singles"), at["singles"], strict=True):
            known[expr] = code.load(address, single, mask)

        def load(known: Mapping[Expr, Value], column: Value) -> tuple[Value, dict[Expr, Value]]:
            place = code.plus(start, code.times(column, inner))
            loaded = dict(known)
            for expr, address in zip(self._read("full"), at["full"], strict=True):
                loaded[expr] = code.load(address, place, mask)
            for expr, address in zip(self._read("columns"), at["columns"], strict=True):
                loaded[expr] = code.spread(code.load_one(address, column))
            for output, address in enumerate(at["outputs"]):
                loaded[placeholder(f"kept {output}")] = code.load(address, place, mask)
            return place, loaded

        for each in self._passes:
            known = invariants(code, each.formulas(), known)
            sums = [code.local(_neutral(code, kind)) for kind, _, _ in each.reductions]
            with code.loop(code.index(0), length) as column:
                place, values = load(known, column)
                self._store(code, each.stores, values, at["outputs"], place, mask)
                found = lower(code, [expr for _, expr, _ in each.reductions], values)
                for (kind, _, _), value, total in zip(each.reductions, found, sums, strict=True):
                    code.set(total, _combine(code, kind, code.get(total), value))
            for (_, _, name), total in zip(each.reductions, sums, strict=True):
                known[name] = code.get(total)
        if self._outputs:
            known = invariants(code, self._finals, known)
            with code.loop(code.index(0), length) as column:
                place, values = load(known, column)
                self._store(code, self._outputs, values, at["outputs"], place, mask)
        for value, address in zip(lower(code, self._results, known), at["results"], strict=True):
            code.store(value, address, single, mask)

    @staticmethod
    def _store(
        code: Code, stores: Sequence[tuple[int, Expr]], values: dict[Expr, Value], addresses: Sequence[Value],
        place: Value, mask: Value | None,
    ) -> None:  # fmt: skip
        for (output, _), value in zip(stores, lower(code, [expr for _, expr in stores], values), strict=True):
            code.store(value, addresses[output], place, mask)
            values[placeholder(f"kept {output}")] = value  # still at hand


def _neutral(code: Code, kind: str) -> Value:
    return code.constant(0.0 if kind == "sum" else float("-inf"))


def _combine(code: Code, kind: str, total: Value, value: Value) -> Value:
    if kind == "sum":
        return code.binary("fadd", total, value)
    larger = code.put(code.mask, f"fcmp ogt {value}, {total.name}")
    return code.choose(larger, value, total)
