"""Kernels whose primitives depend only on the layouts of their arrays.

A bound graph can therefore ask such a kernel for its workspace before anything runs, and *tie* it to a step: the tied
kernel caches the calls for the step's arrays and, while these stay the same, only calls oneDNN.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from operator import call, is_
from typing import Any

import numpy as np

from flowmx.bounded_tables import make_room
from flowmx.ops.kernels.onednn.layouts import FLOATS, KEPT, TYPES, Array, Geometry, geometry, pointer, suits
from flowmx.ops.kernels.onednn.library import OneDNNError, library
from flowmx.ops.kernels.onednn.primitives import Bound
from flowmx.ops.kernels.onednn.work import FixedWork, Work, call_all, first_line, record_constants
from flowmx.ops.kernels.recording import current, mark_incomplete
from flowmx.ops.math.conversion import as_type, cast
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.kernels import PLANNED, ArrayLayout, Compute, Kernel, PackedSize, kernel_for
from flowmx.ops.registry.operators import Bound as BoundForward
from flowmx.ops.registry.operators import Form, Operator, Run

Make = Callable[[Any, Sequence[Geometry], Sequence[Geometry]], Work | None]
"""Makes the work of an operator from the geometries of inputs and outputs; None if oneDNN cannot compute it."""

_MAX_TRIED = 1 << 16
"""Up to this number of elements, binding checks in advance whether the operator's forward runs."""
_KEPT = 256
"""The maximum number of argument layouts for which a kernel caches its choice."""


def run_fallback(op: Operator, run: object, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute an operator that oneDNN cannot: 16-bit dtypes in float32 by oneDNN, others by the operator's forward."""
    mark_incomplete()
    if any(map(_is_half, (*inputs, *outputs))):
        _run_in_float32(op, run, inputs, outputs)
    else:
        _run_on_copies(op, run, inputs, outputs)


def _is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2 and is_floating(array.dtype)


def _run_in_float32(op: Operator, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the operator on float32 copies of 16-bit arrays."""
    arrays = [as_type(run, each, FLOAT32) if _is_half(each) else each for each in inputs]
    results = [np.empty_like(each, dtype=FLOAT32) if _is_half(each) else each for each in outputs]
    kernel = kernel_for("cpu", op.name)
    assert kernel is not None
    kernel.compute(op, run, arrays, results)
    count = len(inputs) - len(op.auxiliary)
    for each, out in (*zip(results, outputs, strict=True), *zip(arrays[count:], inputs[count:], strict=True)):
        if each is not out:
            cast(run, each, out)


def _run_on_copies(op: Operator, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run the operator's forward, on copies in C order of arrays with other layouts."""
    results = [each if each.flags.c_contiguous else np.empty(each.shape, each.dtype) for each in outputs]
    count = len(inputs) - len(op.auxiliary)
    arrays = [np.ascontiguousarray(each) for each in inputs[:count]]
    op.forward(run, [*arrays, *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            each[...] = result


def _forward(op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Run the operator's forward."""
    mark_incomplete()
    op.forward(run, inputs, outputs)


def _compute_with(work: Work) -> Compute:
    def compute(op: object, run: object, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = [*_with_dense_vectors(inputs), *outputs]  # referenced until the work is done: some are copies
        work(*map(pointer, arrays))

    return compute


def _compute_dense_with(work: Work, count: int) -> Compute:
    """Return the same as :func:`_compute_with`, for arrays known to be in C order."""
    fixed = FixedWork(work, count)

    def compute(op: object, run: object, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        fixed(*map(pointer, inputs), *map(pointer, outputs))

    return compute


def _with_dense_vectors(arrays: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(each) if each.ndim == 1 else each for each in arrays]


def _geometry_of(each: ArrayLayout) -> Geometry:
    return Geometry(each.shape, each.strides, TYPES[each.dtype])


def threads_here() -> int:
    """Return the number of threads of a primitive on this thread; 0 without oneDNN."""
    lib = library()
    return 0 if lib is None else lib.threads()


class PrimitiveKernel(Kernel):
    """A kernel by oneDNN, with the operator's forward as fallback."""

    only_native = True
    records_calls = True

    def __init__(
        self, make: Make, packed_size: PackedSize | None = None, dtypes: Container[DType] = FLOATS,
        make_tied: Make | None = None,
    ) -> None:  # fmt: skip
        """Make a kernel.

        Args:
            make: makes the work that computes an operator.
            packed_size: returns the elements of a packed copy of the weight, for data of a shape and dtype.
            dtypes: the supported element types; ``make`` decides which may be combined.
            make_tied: replaces ``make`` in bound graphs that only predict, where a call costs less.
        """
        self._make = make
        self._make_tied = make_tied or make
        self._dtypes = dtypes
        self.packed_size = packed_size
        self._workspace = lru_cache(KEPT)(self._requested_workspace)
        self._chosen: dict[object, tuple[Operator, Compute]] = {}
        """The choice by operator identity, number of threads and layouts; the operator is kept alive with it."""

    def takes(self, op: Operator, dtype: DType) -> bool:
        """Return whether the kernel computes on elements of this type."""
        return dtype in self._dtypes

    def computed(self, arrays: Sequence[object]) -> Sequence[Any]:
        """Return the inputs, or the outputs, that must have the kernel's element types: all of them."""
        return arrays

    def work(
        self, op: Operator, inputs: Sequence[Array], outputs: Sequence[Array], is_tied: bool = False
    ) -> Work | None:  # fmt: skip
        """Return the primitives for arrays of these layouts; None if oneDNN does not support them."""
        if not suits(*self.computed(inputs), *self.computed(outputs), among=self._dtypes):
            return None
        make = self._make_tied if is_tied else self._make
        return make(op, [geometry(each) for each in inputs], [geometry(each) for each in outputs])

    def compute(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        form = (id(op), threads_here(), *[(each.shape, each.strides, each.dtype) for each in (*inputs, *outputs)])
        choice = self._chosen.get(form)
        if choice is None:
            make_room(self._chosen, _KEPT)
            choice = self._chosen[form] = op, self._choose(op, inputs, outputs)
        choice[1](op, run, inputs, outputs)

    def bind(self, op: Operator, in_forms: Sequence[Form], out_forms: Sequence[Form]) -> BoundForward | None:
        """Return the kernel specialized for arrays of these shapes and dtypes."""
        simply = op.bound(np, in_forms, out_forms) or op.forward
        if sum(math.prod(shape) for shape, _ in (*in_forms, *out_forms)) <= _MAX_TRIED:
            samples = [[np.empty(shape, dtype) for shape, dtype in forms] for forms in (in_forms, out_forms)]
            if self._choose(op, samples[0], samples[1], True) is _forward:  # for any number of threads

                def simple(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
                    for each in (*inputs, *outputs):
                        if not each.flags.c_contiguous:
                            self.compute(op, run, inputs, outputs)
                            return
                    simply(run, inputs, outputs)

                return simple
        functions: dict[int, Compute] = {}

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for each in (*inputs, *outputs):
                if not each.flags.c_contiguous:
                    self.compute(op, run, inputs, outputs)
                    return
            threads = threads_here()
            compute = functions.get(threads)
            if compute is None:
                compute = self._choose(op, inputs, outputs, True)
                compute = functions[threads] = run_forward if compute is _forward else compute
            compute(op, run, inputs, outputs)

        def run_forward(op: object, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            simply(run, inputs, outputs)

        return bound

    def _choose(
        self, op: Operator, inputs: Sequence[Array], outputs: Sequence[Array], dense: bool = False
    ) -> Compute:  # fmt: skip
        """Choose the function that computes the operator on these arrays; ``dense``: all are in C order."""
        work = self.work(op, _with_dense_vectors(inputs), outputs)
        if work is not None:
            # Whether an addend shares the output's memory decides on a copy.
            is_fixed = dense and not getattr(op, "has_addend", False)
            return _compute_dense_with(work, len(inputs) + len(outputs)) if is_fixed else _compute_with(work)
        if getattr(op, "packed", False):
            raise OneDNNError(f"oneDNN: {op.name} cannot read the weight that was packed for it")
        plain = all(each.flags.c_contiguous and not _is_half(each) for each in (*inputs, *outputs))
        return _forward if plain else run_fallback

    def workspace(self, op: Operator, inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]) -> int:
        """Return the workspace size in bytes for arrays of these layouts."""
        return 0 if library() is None else self._workspace(threads_here(), op, tuple(inputs), tuple(outputs))

    def _requested_workspace(
        self, threads: int, op: Operator, inputs: Sequence[ArrayLayout], outputs: Sequence[ArrayLayout]
    ) -> int:
        """Return the workspace size in bytes for this number of threads."""
        arrays = (*self.computed(inputs), *self.computed(outputs))
        if any(each.dtype not in self._dtypes or 0 in each.shape for each in arrays):
            return 0
        work = self._make_tied(op, [*map(_geometry_of, inputs)], [*map(_geometry_of, outputs)])
        return 0 if work is None else work.nbytes

    def tie(self, op: Operator, predicts: bool) -> TiedKernel:
        """Return a forward for one step of a bound graph."""
        return TiedKernel(self, op, predicts)


class TiedKernel:
    """A forward that is usually called with the same arrays.

    Attributes:
        stale: True if the arrays may differ from those of the last call; set by the caller. While it is None, each
            call compares all arrays, which takes as long as a small layer.
    """

    only_native = True

    def __init__(self, kernel: PrimitiveKernel, op: Operator, predicts: bool) -> None:
        self._kernel, self._op, self._predicts = kernel, op, predicts
        # Weak references: some arrays belong to the user, who may release them.
        self._arrays: list[weakref.ref[Any]] = []
        self._calls: list[Bound] = []
        self._forms: list[Any] = []
        self._work: Work | None = None
        self._memory: list[Array | None] = [None]
        """The workspace; recordings of the calls refer to this list."""
        self._threads = self._taken = 0
        self._is_ready = False
        self.stale: bool | None = None

    def use(self, memory: Array | None) -> None:
        """Set the workspace of later calls (None: the thread's)."""
        self._memory[0], self._arrays = memory, []
        self.stale = None if self.stale is None else True

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        threads = threads_here()
        if self.stale is not False or threads != self._threads:
            self._tie(inputs, outputs, threads)
        if not self._is_ready:
            self._kernel.compute(self._op, run, inputs, outputs)
            return
        recording = current()
        if recording is not None:
            recording.use_memory(self._memory, is_aligned=True)
            if self._work is not None:
                record_constants(self._work)
        call_all(self._calls, self._taken)

    def _tie(self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int) -> None:
        """Prepare the calls if the arrays or the number of threads changed since the last call."""
        arrays = [*inputs, *outputs]
        if (
            threads != self._threads
            or len(arrays) != len(self._arrays)
            or not all(map(is_, arrays, map(call, self._arrays)))
        ):
            forms = [(each.shape, each.strides, each.dtype) for each in arrays]
            if threads != self._threads or forms != self._forms:
                self._work = self._kernel.work(self._op, inputs, outputs, self._predicts)
                self._threads, self._forms = threads, forms
            self._is_ready = self._prepare_calls(inputs, outputs)
            self._arrays = [weakref.ref(each) for each in arrays]
        self.stale = None if self.stale is None else False

    def _prepare_calls(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Prepare the calls for these arrays; return False if oneDNN cannot, or the workspace is too small."""
        work = self._work
        if work is None:
            return False
        memory = np.empty(0, np.uint8) if self._memory[0] is None else self._memory[0]
        if memory.nbytes < work.nbytes:
            if work.nbytes >= PLANNED:
                return False
            memory = self._memory[0] = np.empty(work.nbytes, np.uint8)
        self._taken = work.threads
        calls = work.calls(first_line(memory), *map(pointer, (*inputs, *outputs)))
        if [each.of for each in self._calls] == [primitive for primitive, _ in calls]:
            for each, (_, where) in zip(self._calls, calls, strict=True):
                each.point(where)
        else:
            self._calls = [primitive.call(where) for primitive, where in calls]
        return True
