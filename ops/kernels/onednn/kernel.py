"""Kernels whose primitives follow from how their arrays lie in memory, and from nothing else.

So a bound graph can ask such a kernel for the bytes of workspace before anything runs, and *tie* it to a step: the
tied kernel remembers what it made for the step's arrays and, while these stay the same, only calls oneDNN.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from operator import call, is_
from typing import Any

import numpy as np

from flowmx.ops.kernels.onednn.layouts import FLOATS, KEPT, TYPES, Array, Geometry, geometry, pointer, suits
from flowmx.ops.kernels.onednn.library import OneDNNError, library
from flowmx.ops.kernels.onednn.primitives import Bound
from flowmx.ops.kernels.onednn.work import FixedWork, Work, call_all, first_line
from flowmx.ops.math.conversion import as_type, cast
from flowmx.ops.registry.dtypes import FLOAT32, DType, is_floating
from flowmx.ops.registry.operators import PLANNED, Form, Laid, Operator, Run, Shape, kernel_for
from flowmx.ops.registry.operators import Bound as BoundForward

Make = Callable[[Any, Sequence[Geometry], Sequence[Geometry]], Work | None]
"""From an operator and how its inputs and outputs lie, what computes it; None where oneDNN cannot."""
PackedSize = Callable[[Any, Shape, DType], int | None]
Compute = Callable[[Any, Any, Sequence[Array], Sequence[Array]], None]
"""A function that computes an operator, called as ``compute(op, run, inputs, outputs)``."""

_MOST_TRIED = 1 << 16
"""Elements of arrays up to which it is tried before the first call whether their operator runs plainly."""
_KEPT = 32
"""Forms of calls for which a kernel remembers what computes them."""


def plainly(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator where oneDNN cannot: in float32 for it where numbers have 16 bits, else by its plain forward."""
    if any(map(_is_half, (*inputs, *outputs))):
        _widely(op, run, inputs, outputs)
    else:
        _by_itself(op, run, inputs, outputs)


def _is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2 and is_floating(array.dtype)


def _widely(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator on float32 copies of what has 16 bits."""
    given = [as_type(run, each, FLOAT32) if _is_half(each) else each for each in inputs]
    made = [np.empty_like(each, dtype=FLOAT32) if _is_half(each) else each for each in outputs]
    fast = kernel_for("cpu", op.name)
    assert fast is not None
    fast(op, run, given, made)
    count = len(inputs) - len(op.auxiliary)
    for each, out in (*zip(made, outputs, strict=True), *zip(given[count:], inputs[count:], strict=True)):
        if each is not out:
            cast(run, each, out)


def _by_itself(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator's plain forward, on copies in C order where an array lies otherwise."""
    results = [each if each.flags.c_contiguous else np.empty(each.shape, each.dtype) for each in outputs]
    count = len(inputs) - len(op.auxiliary)
    given = [np.ascontiguousarray(each) for each in inputs[:count]]
    op.forward(run, [*given, *inputs[count:]], results)
    for result, each in zip(results, outputs, strict=True):
        if result is not each:
            each[...] = result


def _forward(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The operator's plain forward as it is."""
    op.forward(run, inputs, outputs)


def _by_work(work: Work) -> Compute:
    def compute(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        arrays = [*_with_dense_vectors(inputs), *outputs]  # kept until the work is done: some are copies
        work(*map(pointer, arrays))

    return compute


def _by_dense_work(work: Work, count: int) -> Compute:
    """As :func:`_by_work`, for so many arrays that are known to lie in C order."""
    fixed = FixedWork(work, count)

    def compute(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        fixed(*map(pointer, inputs), *map(pointer, outputs))

    return compute


def _with_dense_vectors(arrays: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(each) if each.ndim == 1 else each for each in arrays]


def _laid(each: Laid) -> Geometry:
    return Geometry(each.shape, each.strides, TYPES[each.dtype])


def threads_here() -> int:
    """The number of threads that a primitive takes here; 0 without oneDNN."""
    found = library()
    return 0 if found is None else found.threads()


class Kernel:
    """A forward by oneDNN, for :func:`flowmx.ops.registry.operators.kernel`; the plain one where oneDNN cannot."""

    def __init__(
        self, make: Make, packed_size: PackedSize | None = None, dtypes: Container[DType] = FLOATS
    ) -> None:  # fmt: skip
        """Make it.

        Args:
            make: what computes an operator.
            packed_size: the elements of a copy of its weight in the order that it wants, for data of a shape and dtype.
            dtypes: the element types that it is asked with; which of them go together, ``make`` decides.
        """
        self._make = make
        self._dtypes = dtypes
        self.packed_size = packed_size
        self._room = lru_cache(KEPT)(self._asked_room)
        self._chosen: dict[Any, tuple[Operator, Compute]] = {}
        """By operator, number of threads and how its arrays lie.

        With the operator, so that no other one has its identity.
        """

    def takes(self, op: Operator, dtype: DType) -> bool:
        """Tell whether it computes on elements of this type."""
        return dtype in self._dtypes

    def computed(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """The inputs, or the outputs, that must be of the kernel's element types: all of them."""
        return arrays

    def work(self, op: Operator, inputs: Sequence[Array], outputs: Sequence[Array]) -> Work | None:
        """The primitives that compute the operator on arrays of these layouts; None where oneDNN does not take them."""
        if not suits(*self.computed(inputs), *self.computed(outputs), among=self._dtypes):
            return None
        return self._make(op, [geometry(each) for each in inputs], [geometry(each) for each in outputs])

    def __call__(self, op: Operator, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        form = (id(op), threads_here(), *[(each.shape, each.strides, each.dtype) for each in (*inputs, *outputs)])
        known = self._chosen.get(form)
        if known is None:
            if len(self._chosen) >= _KEPT:
                self._chosen.clear()
            known = self._chosen[form] = op, self._choose(op, inputs, outputs)
        known[1](op, run, inputs, outputs)

    def bind(self, op: Operator, given: Sequence[Form], made: Sequence[Form]) -> BoundForward | None:
        """The kernel for arrays of these shapes and dtypes."""
        simply = op.bound(np, given, made) or op.forward
        if sum(math.prod(shape) for shape, _ in (*given, *made)) <= _MOST_TRIED:
            read, written = ([np.empty(shape, dtype) for shape, dtype in forms] for forms in (given, made))
            if self._choose(op, read, written, True) is _forward:  # whatever the number of threads is

                def simple(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
                    for each in (*inputs, *outputs):
                        if not each.flags.c_contiguous:
                            self(op, run, inputs, outputs)
                            return
                    simply(run, inputs, outputs)

                return simple
        chosen: dict[int, Compute] = {}

        def bound(run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for each in (*inputs, *outputs):
                if not each.flags.c_contiguous:
                    self(op, run, inputs, outputs)
                    return
            threads = threads_here()
            compute = chosen.get(threads)
            if compute is None:
                compute = self._choose(op, inputs, outputs, True)
                compute = chosen[threads] = by_forward if compute is _forward else compute
            compute(op, run, inputs, outputs)

        def by_forward(op: Any, run: Any, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            simply(run, inputs, outputs)

        return bound

    def _choose(
        self, op: Operator, inputs: Sequence[Array], outputs: Sequence[Array], dense: bool = False
    ) -> Compute:  # fmt: skip
        """Choose the function that computes the operator on arrays of these layouts, which may all be C order."""
        work = self.work(op, _with_dense_vectors(inputs), outputs)
        if work is not None:
            # What is added to an output may lie where that does, which decides on a copy.
            is_fixed = dense and not getattr(op, "added", False)
            return _by_dense_work(work, len(inputs) + len(outputs)) if is_fixed else _by_work(work)
        if getattr(op, "packed", False):
            raise OneDNNError(f"oneDNN: {op.name} cannot read the weight that was packed for it")
        plain = all(each.flags.c_contiguous and not _is_half(each) for each in (*inputs, *outputs))
        return _forward if plain else plainly

    def workspace(self, op: Operator, inputs: Sequence[Laid], outputs: Sequence[Laid]) -> int:
        """The bytes of workspace for arrays that lie like this."""
        return 0 if library() is None else self._room(threads_here(), op, tuple(inputs), tuple(outputs))

    def _asked_room(self, threads: int, op: Operator, inputs: Sequence[Laid], outputs: Sequence[Laid]) -> int:
        """The same, for so many threads."""
        arrays = (*self.computed(inputs), *self.computed(outputs))
        if any(each.dtype not in self._dtypes or 0 in each.shape for each in arrays):
            return 0
        work = self._make(op, [*map(_laid, inputs)], [*map(_laid, outputs)])
        return 0 if work is None else work.nbytes

    def tie(self, op: Operator) -> TiedKernel:
        """A forward for one step of a bound graph."""
        return TiedKernel(self, op)


class TiedKernel:
    """A forward that is called with the same arrays again and again, though with others now and then.

    Attributes:
        stale: True where arrays may be others than at the last call. Its caller says so, once this is not None;
            else each array is looked at, which takes as long as a small layer.
    """

    def __init__(self, kernel: Kernel, op: Operator) -> None:
        self._kernel, self._op = kernel, op
        # Weakly, since some are the user's, who may be done with them.
        self._arrays: list[weakref.ref[Any]] = []
        self._calls: list[Bound] = []
        self._forms: list[Any] = []
        self._work: Work | None = None
        self._memory: Array | None = None
        self._threads = self._taken = 0
        self._is_ready = False
        self.stale: bool | None = None

    def use(self, memory: Array | None) -> None:
        """Work in this memory from now on (None: the thread's)."""
        self._memory, self._arrays = memory, []
        self.stale = None if self.stale is None else True

    def __call__(self, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute the operator."""
        threads = threads_here()
        if self.stale is not False or threads != self._threads:
            self._tie(inputs, outputs, threads)
        if not self._is_ready:
            self._kernel(self._op, run, inputs, outputs)
            return
        call_all(self._calls, self._taken)

    def _tie(self, inputs: Sequence[Array], outputs: Sequence[Array], threads: int) -> None:
        """Prepare the calls where the arrays, or the number of threads, are others than at the last call."""
        arrays = [*inputs, *outputs]
        if (
            threads != self._threads
            or len(arrays) != len(self._arrays)
            or not all(map(is_, arrays, map(call, self._arrays)))
        ):
            forms = [(each.shape, each.strides, each.dtype) for each in arrays]
            if threads != self._threads or forms != self._forms:
                self._work = self._kernel.work(self._op, inputs, outputs)
                self._threads, self._forms = threads, forms
            self._is_ready = self._look(inputs, outputs)
            self._arrays = [weakref.ref(each) for each in arrays]
        self.stale = None if self.stale is None else False

    def _look(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Prepare the calls for these arrays; False where oneDNN cannot, or they need more memory than is given."""
        work = self._work
        if work is None:
            return False
        memory = np.empty(0, np.uint8) if self._memory is None else self._memory
        if memory.nbytes < work.nbytes:
            if work.nbytes >= PLANNED:
                return False
            memory = self._memory = np.empty(work.nbytes, np.uint8)
        self._taken = work.threads
        calls = work.calls(first_line(memory), *map(pointer, (*inputs, *outputs)))
        if [each.of for each in self._calls] == [primitive for primitive, _ in calls]:
            for each, (_, where) in zip(self._calls, calls, strict=True):
                each.point(where)
        else:
            self._calls = [primitive.call(where) for primitive, where in calls]
        return True
