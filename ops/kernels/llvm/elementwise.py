"""Fused elementwise kernels: one pass over memory for a whole formula.

A kernel is a formula under an operator's name::

    fused("softsign", lambda p, x: x / (absolute(x) + 1.0))

``p`` stands for the operator's parameters. A formula gives an expression for each output, and for each input
that the operator updates. Arrays are walked in the order of memory, so they may lie in any order of axes as
long as all of them lie alike and densely. Everything else takes the operator's plain forward.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import Expr, Parameters, evaluate, kinds, placeholder, steps, uniforms
from flowmx.ops.kernels.llvm import compiler, team
from flowmx.ops.kernels.llvm.code import BFLOAT, DOUBLE, FLOAT, HALF, Code, Real
from flowmx.ops.kernels.llvm.functions import expanded
from flowmx.ops.kernels.llvm.lowering import invariants, lower
from flowmx.ops.kernels.llvm.program import Program
from flowmx.ops.registry.dtypes import NAMES
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run, kernel, lookup

Formula = Callable[..., Any]

FUSED: dict[str, Fused] = {}
"""Every operator's formula, by the operator's name: other devices make kernels of them too."""

_REALS: dict[str, Real] = {"float32": FLOAT, "float64": DOUBLE, "float16": HALF, "bfloat16": BFLOAT}


@cache
def real_of(dtype: Any) -> Real | None:
    """The types in which loops compute on elements of a dtype; None where they can not."""
    real = _REALS.get(NAMES.get(dtype, ""))
    if real is None or real.kept is None or not real.kept.feature or real.kept.feature in compiler.features():
        return real
    return None


_FLOAT_ONLY = {"scale", "exponent", "mantissa"}
"""Primitives of polynomials, whose coefficients are those of float32."""

# What a core does in a nanosecond, roughly: it decides on threads alone.
_BYTES_A_NS = 64
_STEPS_A_NS = 140
WORTH_A_THREAD_NS = 16_000
LEAST = 8192
"""Elements from which a loop takes the place of a plain forward of several steps."""
FEW = 512
"""The same of forwards of many steps."""
_LEAST_HALVES = 1024
"""Elements of 16 bits below which the plain forward is as fast: it is slow with them."""
TASK = 1 << 14
"""Elements of a task, at least."""


def pace(outputs: Sequence[Expr], arrays: int, real: Real) -> float:
    """Nanoseconds for each element, by what it costs to compute or to bring from memory."""
    return max(arrays * real.nbytes / _BYTES_A_NS, steps(outputs) / _STEPS_A_NS)


def is_exact(outputs: Sequence[Expr], real: Real) -> bool:
    """Tell whether formulas are accurate in this type."""
    return real.name == "float" or not kinds(outputs) & _FLOAT_ONLY


class Loop:
    """A formula as a loop over flat arrays of one element type.

    Args:
        outputs: the formulas.
        inputs: how many arrays they take.
        real: the element type.
        reals: that of each array in memory, inputs first, where they are not all of this one.
    """

    def __init__(self, outputs: Sequence[Expr], inputs: int, real: Real, reals: Sequence[Real] = ()) -> None:
        self.outputs = outputs
        self.inputs = inputs
        self.real = real
        self._reals = reals or [real] * (inputs + len(outputs))
        self.uniforms = uniforms(outputs)
        self.program = Program(self._write)
        self._pack = struct.Struct(f"4q{len(self.uniforms)}d").pack
        self._pack_places = struct.Struct(f"{inputs + len(outputs)}q").pack
        self._pace = pace(outputs, inputs + len(outputs), real)

    @property
    def is_exact(self) -> bool:
        """True where the formula is accurate in its type."""
        return is_exact(self.outputs, self.real)

    @property
    def is_one_step(self) -> bool:
        """True where the formula is rounded once, as NumPy rounds it."""
        return steps(self.outputs) <= 1

    def _write(self, features: frozenset[str]) -> str:
        code = Code(self.real, features)
        size, share = code.word(), code.word()
        numbers = {uniform: code.number() for uniform in self.uniforms}
        reals = iter(self._reals)
        sources = {placeholder(position): code.array(next(reals)) for position in range(self.inputs)}
        targets = [code.array(next(reals)) for _ in self.outputs]
        fixed = invariants(code, self.outputs, numbers)
        with code.tasks() as task:
            start = code.times(task, share)
            stop = code.least(code.plus(start, share), size)

            def body(index: Any, mask: Any) -> None:
                read = {source: code.load(address, index, mask) for source, address in sources.items()}
                for value, target in zip(lower(code, self.outputs, fixed | read), targets, strict=True):
                    code.store(value, target, index, mask)

            code.strips(start, stop, body)
        return code.finish()

    def values(self, owner: Any) -> list[float]:
        """The numbers that come with a call of this operator."""
        return [evaluate(uniform, lambda name: getattr(owner, name)) for uniform in self.uniforms]

    def run(self, size: int, numbers: Sequence[float], arrays: Sequence[Array]) -> bool:
        """Run it over flat arrays, inputs first; False where it is not compiled (yet)."""
        compiled = self.program.compiled or self.program.get()
        if compiled is None:
            return False
        threads = team.count() if size * self._pace > WORTH_A_THREAD_NS else 1
        share = size
        if threads > 1:
            share = max(TASK, size // (8 * threads) // 1024 * 1024)
        words = self._pack(0, -(-size // share), size, share, *numbers) + self._pack_places(*map(id, arrays))
        team.run(compiled, words, threads)
        return True

    def bind(self, size: int, numbers: Sequence[float]) -> Callable[..., None] | None:
        """A call over so many elements by one thread, of flat arrays; None where it is not compiled (yet), or more."""
        program: Any = self.program  # its function is replaced by a better one
        if program.get() is None or size * self._pace > WORTH_A_THREAD_NS:
            return None
        head, pack = self._pack(0, 1, size, size, *numbers), self._pack_places
        return lambda *arrays: team.run(program.compiled, head + pack(*map(id, arrays)), 1)


def in_memory_order(arrays: Sequence[Array]) -> bool:
    """Tell whether arrays of one shape are dense in one order of axes, so that they can be walked as flat ones."""
    for array in arrays:
        if not array.flags.c_contiguous:
            break
    else:
        return True
    first = arrays[0]
    axes = [axis for axis, length in enumerate(first.shape) if length != 1]
    strides = [first.strides[axis] for axis in axes]
    for array in arrays[1:]:
        if [array.strides[axis] for axis in axes] != strides:
            return False
    step = first.itemsize
    for stride, axis in sorted(zip(strides, axes, strict=True)):
        if stride != step:
            return False
        step *= first.shape[axis]
    return True


def lying_as(out: Array, array: Array) -> Array:
    """The array, or a copy whose axes lie in the order of those of an output that it is broadcast to."""
    missing = out.ndim - array.ndim
    order = sorted(range(missing, out.ndim), key=lambda axis: -out.strides[axis])
    made = np.empty([array.shape[axis - missing] for axis in order], array.dtype)
    made = made.transpose(np.argsort([axis - missing for axis in order]))
    if made.strides == array.strides:
        return array
    np.copyto(made, array)
    return made


def computed_alike(
    out: Array,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    compute: Callable[[Sequence[Array], Sequence[Array]], bool],
) -> bool:
    """Compute from and into copies that lie as one of the outputs does, where arrays lie in different orders.

    Args:
        out: that output, dense in some order of its axes.
        inputs: those of a loop, which are broadcast to the output.
        outputs: those of a loop.
        compute: the loop, of inputs and outputs that lie alike; returns False where it did nothing.
    """
    if not in_memory_order([out]):
        return False
    laid = [each if each.strides == out.strides else np.empty_like(out) for each in outputs]
    if not compute([lying_as(out, each) for each in inputs], laid):
        return False
    for made, each in zip(laid, outputs, strict=True):
        if made is not each:
            np.copyto(each, made)
    return True


class Fused:
    """The kernel of an operator by a formula; see the module's essay.

    Args:
        name: the operator's name.
        formula: called as ``formula(p, *inputs)``; returns an expression, a tuple of them, or None.
        variant: what of an operator's parameters the formula's form depends on (it finds them in ``p.op``).
        least: elements below which the plain forward is as fast.
    """

    def __init__(
        self, name: str, formula: Formula, variant: Callable[[Any], Hashable] | None = None, least: int = LEAST
    ) -> None:
        self.name = name
        self._statement = formula
        self.variant = variant
        self.least = least
        self.updates = lookup(name).updates
        self._loops: dict[Any, Loop | None] = {}

    def formula(self, p: Parameters, *inputs: Expr) -> Any:
        """The formula in terms of what loops compute: an expression, a tuple of them, or None where they can not."""
        made = self._statement(p, *inputs)
        if made is None:
            return None
        whole = expanded(made if isinstance(made, tuple) else (made,))
        return whole if whole is None else tuple(whole) if isinstance(made, tuple) else whole[0]

    def loop(self, op: Any, dtype: Any, count: int) -> Loop | None:
        """The loop for an operator and an element type, or None where there is none."""
        key = (dtype, count, None if self.variant is None else self.variant(op))
        try:
            return self._loops[key]
        except KeyError:
            return self._loops.setdefault(key, self._make(op, dtype, count))

    def _make(self, op: Any, dtype: Any, count: int) -> Loop | None:
        real = real_of(dtype)
        if real is None:
            return None
        inputs = [placeholder(position) for position in range(count)]
        made = self.formula(Parameters(op), *inputs)
        if made is None:
            return None
        loop = Loop(made if isinstance(made, tuple) else (made,), count, real)
        return loop if loop.is_exact else None

    def takes(self, op: Operator, dtype: Any) -> bool:
        """Tell whether there is a loop over elements of this type."""
        return self.loop(op, dtype, len(op.inputs())) is not None

    def __call__(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The kernel: compute into the outputs."""
        out = outputs[0]
        if out.size < self._least(out.dtype) or not self._fast(op, out, inputs, outputs):
            op.forward(run, inputs, outputs)

    def bind(self, op: Operator, given: Sequence[Form], made: Sequence[Form]) -> Bound | None:
        """The kernel for arrays of these shapes and dtypes."""
        (shape, dtype), size = made[0], math.prod(made[0][0])
        if size < self._least(dtype) or any(form != (shape, dtype) for form in given):
            return op.bound(np, given, made) or op.forward
        loop = None if self.updates else self.loop(op, dtype, len(given))
        call = None if loop is None else loop.bind(size, loop.values(op))
        if call is None:
            return None

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for each in inputs:
                if not each.flags.c_contiguous:
                    break
            else:
                if outputs[0].flags.c_contiguous:
                    call(*inputs, *outputs)
                    return
            self(op, run, inputs, outputs)

        return bound

    def compute(self, xp: Any, parameters: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute with parameters of any owner; False, and nothing is done, where a plain forward must do it."""
        out = outputs[0]
        return out.size >= self._least(out.dtype) and self._fast(parameters, out, inputs, outputs)

    def _least(self, dtype: Any) -> int:
        return self.least if dtype.itemsize > 2 else min(self.least, _LEAST_HALVES)

    def _fast(self, op: Any, out: Array, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        shape, dtype = out.shape, out.dtype
        for array in inputs:
            if array.shape != shape or array.dtype != dtype:
                return False
        known: dict[Any, Any] = op.__dict__
        numbers = known.get("_numbers")  # for operators that are called again, and updates of many weights by one
        if numbers is None or numbers[0] is not self or numbers[1] != dtype or numbers[2] != len(inputs):
            loop = self.loop(op, dtype, len(inputs))
            if loop is None:
                return False
            numbers = (self, dtype, len(inputs), loop, loop.values(op))
            object.__setattr__(op, "_numbers", numbers)
        loop = numbers[3]
        arrays = [*inputs, *outputs, *[inputs[position] for position in self.updates]]
        if not in_memory_order(arrays):
            if self.updates or loop.is_one_step:
                return False  # the plain forward gives the same to the last bit
            # The bits of a result do not depend on where it lies: the same values are computed again elsewhere.
            return computed_alike(out, inputs, outputs, lambda *laid: self._fast(op, out, *laid))
        return loop.run(out.size, numbers[4], arrays)


def fused(name: str, formula: Formula, variant: Callable[[Any], Hashable] | None = None, least: int = LEAST) -> Fused:
    """Register a :class:`Fused` kernel for the CPU."""
    made = FUSED[name] = Fused(name, formula, variant, least)
    kernel("cpu", name)(made)
    return made
