"""Fused elementwise kernels: one pass over memory for a whole formula.

A kernel is a formula under an operator's name::

    fused("softsign", lambda p, x: x / (absolute(x) + 1.0))

``p`` stands for the operator's parameters. A formula returns an expression for each output, and for each input
that the operator updates. Loops run in memory order: the axes may have any order, as long as all arrays are dense and
have the same order. All other calls run the fallback.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

import numpy as np

from flowmx.ops.formulas.expressions import (
    Expr,
    Parameters,
    evaluate,
    instruction_count,
    placeholder,
    primitives,
    uniforms,
)
from flowmx.ops.kernels.llvm import compiler, team
from flowmx.ops.kernels.llvm.assembly import BFLOAT, DOUBLE, FLOAT, HALF, Code, FloatType, Value
from flowmx.ops.kernels.llvm.background_compilation import Program
from flowmx.ops.kernels.llvm.lowering import invariants, lower
from flowmx.ops.kernels.llvm.math_functions import expanded
from flowmx.ops.registry.dtypes import NAMES, DType
from flowmx.ops.registry.kernels import Kernel, register_kernel
from flowmx.ops.registry.operators import Array, Bound, Form, Operator, Run, lookup

Formula = Callable[..., Any]

FUSED: dict[str, Fused] = {}
"""The formula of every operator, by name: other devices compile them too."""

_FLOAT_TYPES: dict[str, FloatType] = {"float32": FLOAT, "float64": DOUBLE, "float16": HALF, "bfloat16": BFLOAT}


@cache
def float_type_of(dtype: DType) -> FloatType | None:
    """Return the types in which loops compute on elements of a dtype; None if they cannot."""
    real = _FLOAT_TYPES.get(NAMES.get(dtype, ""))
    if real is None or real.storage is None or compiler.has(real.storage.feature):
        return real
    return None


_FLOAT_ONLY = {"scale", "exponent", "mantissa"}
"""Primitives of polynomials, whose coefficients are fitted for float32."""

# The approximate work of a core in a nanosecond: used only to decide on the number of threads.
_BYTES_PER_NS = 64
_STEPS_PER_NS = 140
WORTH_A_THREAD_NS = 16_000
MIN_SIZE = 8192
"""The minimum number of elements for which a loop replaces a fallback of several steps."""
MIN_SIZE_MANY_STEPS = 512
"""The minimum number of elements for which a loop replaces a fallback of many steps."""
_MIN_SIZE_16BIT = 1024
"""The minimum number of 16-bit elements for which a loop replaces the fallback, which is slow with them."""
MIN_TASK_SIZE = 1 << 14
"""The minimum number of elements of a task."""


def ns_per_element(outputs: Sequence[Expr], arrays: int, real: FloatType) -> float:
    """Estimate the time per element in nanoseconds: the greater of computation and memory traffic."""
    return max(arrays * real.nbytes / _BYTES_PER_NS, instruction_count(outputs) / _STEPS_PER_NS)


def is_exact(outputs: Sequence[Expr], real: FloatType) -> bool:
    """Return whether formulas are accurate in this type."""
    return real.name == "float" or not primitives(outputs) & _FLOAT_ONLY


class Loop:
    """A formula as a loop over flat arrays of one element type.

    Args:
        outputs: the formulas.
        inputs: the number of input arrays.
        real: the element type.
        reals: the element type of each array in memory, inputs first, if they differ.
    """

    FIRST_SCALAR = 4
    """The index of the first scalar among the 64-bit arguments of a call."""

    def __init__(self, outputs: Sequence[Expr], inputs: int, real: FloatType, reals: Sequence[FloatType] = ()) -> None:
        self.outputs = outputs
        self.inputs = inputs
        self.real = real
        self._reals = reals or [real] * (inputs + len(outputs))
        self.uniforms = uniforms(outputs)
        self.program = Program(self._generate)
        self._pack = struct.Struct(f"{self.FIRST_SCALAR}q{len(self.uniforms)}d").pack
        self._pack_places = struct.Struct(f"{inputs + len(outputs)}q").pack
        self._ns_per_element = ns_per_element(outputs, inputs + len(outputs), real)

    @property
    def is_exact(self) -> bool:
        """Whether the formula is accurate in its type."""
        return is_exact(self.outputs, self.real)

    @property
    def is_one_step(self) -> bool:
        """Whether the formula is rounded once, as NumPy rounds it."""
        return instruction_count(self.outputs) <= 1

    def _generate(self, features: frozenset[str]) -> str:
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

            def body(index: Value, mask: Value | None) -> None:
                operands = {source: code.load(address, index, mask) for source, address in sources.items()}
                for value, target in zip(lower(code, self.outputs, fixed | operands), targets, strict=True):
                    code.store(value, target, index, mask)

            code.strips(start, stop, body)
        return code.finish()

    def values(self, owner: Any) -> list[float]:
        """Return the scalars that are passed with a call of this operator."""
        return [
            float(getattr(owner, uniform.value))
            if uniform.kind == "parameter"
            else evaluate(uniform, lambda name: getattr(owner, name))
            for uniform in self.uniforms
        ]

    def run(self, size: int, numbers: Sequence[float], arrays: Sequence[Array]) -> bool:
        """Run it over flat arrays, inputs first; return False if it is not compiled (yet)."""
        compiled = self.program.compiled or self.program.get()
        if compiled is None:
            return False
        threads = team.count() if size * self._ns_per_element > WORTH_A_THREAD_NS else 1
        share = size
        if threads > 1:
            share = max(MIN_TASK_SIZE, size // (8 * threads) // 1024 * 1024)
        words = self._pack(0, -(-size // share), size, share, *numbers) + self._pack_places(*map(id, arrays))
        team.run(compiled, words, threads, arrays)
        return True

    def bind(self, size: int, numbers: Sequence[float]) -> Callable[..., None] | None:
        """Return a call over ``size`` elements of flat arrays by one thread.

        Returns None if it is not compiled (yet), or if more threads are worthwhile.
        """
        program: Any = self.program  # its function is replaced by an optimized one
        if program.get() is None or size * self._ns_per_element > WORTH_A_THREAD_NS:
            return None
        head, pack = self._pack(0, 1, size, size, *numbers), self._pack_places
        return lambda *arrays: team.run(program.compiled, head + pack(*map(id, arrays)), 1, arrays)


def in_memory_order(arrays: Sequence[Array]) -> bool:
    """Return whether arrays of the same shape are dense in one order of axes, so that a loop can treat them as flat."""
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


def match_layout(out: Array, array: Array) -> Array:
    """Return the array, or a copy whose axes have the memory order of the output that it is broadcast to."""
    missing = out.ndim - array.ndim
    order = sorted(range(missing, out.ndim), key=lambda axis: -out.strides[axis])
    copy = np.empty([array.shape[axis - missing] for axis in order], array.dtype)
    copy = copy.transpose(np.argsort([axis - missing for axis in order]))
    if copy.strides == array.strides:
        return array
    np.copyto(copy, array)
    return copy


def compute_in_common_layout(
    out: Array,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    compute: Callable[[Sequence[Array], Sequence[Array]], bool],
) -> bool:
    """Compute arrays of different layouts on copies with the layout of one of the outputs.

    Args:
        out: that output, dense in some order of its axes.
        inputs: the loop's inputs, which are broadcast to the output.
        outputs: the loop's outputs.
        compute: the loop, for inputs and outputs of one layout; returns False if it did nothing.
    """
    if not in_memory_order([out]):
        return False
    laid = [array if array.strides == out.strides else np.empty_like(out) for array in outputs]
    if not compute([match_layout(out, array) for array in inputs], laid):
        return False
    for copy, array in zip(laid, outputs, strict=True):
        if copy is not array:
            np.copyto(array, copy)
    return True


class Fused(Kernel):
    """A kernel that is generated from a formula; see the module docstring.

    Args:
        name: the operator's name.
        formula: called as ``formula(p, *inputs)``; returns an expression, a tuple of them, or None.
        variant: returns a key of the operator parameters that select a different formula (the formula reads ``p.op``).
        least: the minimum number of elements for which the loop is faster than the fallback.
    """

    only_native = True

    def __init__(
        self, name: str, formula: Formula, variant: Callable[[Any], Hashable] | None = None, least: int = MIN_SIZE
    ) -> None:
        self.name = name
        self._formula = formula
        self.variant = variant
        self.least = least
        self.updates = lookup(name).updates
        self._loops: dict[object, Loop | None] = {}

    def formula(self, p: Parameters, *inputs: Expr) -> Any:
        """Return the formula in primitives: an expression, a tuple of them, or None if loops cannot compute it."""
        result = self._formula(p, *inputs)
        if result is None:
            return None
        primitives = expanded(result if isinstance(result, tuple) else (result,))
        return primitives if primitives is None else tuple(primitives) if isinstance(result, tuple) else primitives[0]

    def loop(self, op: Operator, dtype: DType, count: int) -> Loop | None:
        """Return the loop for an operator and an element type, or None if there is no such loop."""
        key = (dtype, count, None if self.variant is None else self.variant(op))
        try:
            return self._loops[key]
        except KeyError:
            return self._loops.setdefault(key, self._make(op, dtype, count))

    def _make(self, op: Any, dtype: DType, count: int) -> Loop | None:
        real = float_type_of(dtype)
        if real is None:
            return None
        inputs = [placeholder(position) for position in range(count)]
        result = self.formula(Parameters(op), *inputs)
        if result is None:
            return None
        loop = Loop(result if isinstance(result, tuple) else (result,), count, real)
        return loop if loop.is_exact else None

    def takes(self, op: Operator, dtype: DType) -> bool:
        """Return whether there is a loop over elements of this type."""
        return self.loop(op, dtype, len(op.inputs())) is not None

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute into the outputs."""
        out = outputs[0]
        if out.size < self._least(out.dtype) or not self._fast(op, out, inputs, outputs):
            op.forward(run, inputs, outputs)

    def bind(self, op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> Bound | None:
        """Return the kernel for arrays of these shapes and dtypes."""
        (shape, dtype), size = out_forms[0], math.prod(out_forms[0][0])
        if size < self._least(dtype) or any(form != (shape, dtype) for form in in_forms):
            return op.bound(np, in_forms, out_forms) or op.forward
        loop = None if self.updates else self.loop(op, dtype, len(in_forms))
        call = None if loop is None else loop.bind(size, loop.values(op))
        if call is None:
            return None

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for array in inputs:
                if not array.flags.c_contiguous:
                    break
            else:
                if outputs[0].flags.c_contiguous:
                    call(*inputs, *outputs)
                    return
            self.compute(op, run, inputs, outputs)

        return bound

    def try_compute(self, xp: Any, parameters: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute with the parameters of any object; return False, without changes, if the fallback must run."""
        out = outputs[0]
        return out.size >= self._least(out.dtype) and self._fast(parameters, out, inputs, outputs)

    def _least(self, dtype: DType) -> int:
        return self.least if dtype.itemsize > 2 else min(self.least, _MIN_SIZE_16BIT)

    def _fast(self, op: Operator, out: Array, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        shape, dtype = out.shape, out.dtype
        for array in inputs:
            if array.shape != shape or array.dtype != dtype:
                return False
        cache: dict[str, Any] = op.__dict__
        numbers = cache.get("_numbers")  # for repeated calls, and updates of many weights by one operator
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
                return False  # the fallback's result is bit-identical
            # The bits of a result must not depend on its layout: compute the same values elsewhere.
            return compute_in_common_layout(out, inputs, outputs, lambda *laid: self._fast(op, out, *laid))
        return loop.run(out.size, numbers[4], arrays)


def fused(
    name: str, formula: Formula, variant: Callable[[Any], Hashable] | None = None, least: int = MIN_SIZE
) -> Fused:
    """Register a :class:`Fused` kernel for the CPU."""
    operator_kernel = FUSED[name] = Fused(name, formula, variant, least)
    register_kernel("cpu", name, operator_kernel)
    return operator_kernel
