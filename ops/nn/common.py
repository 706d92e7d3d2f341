"""Helpers of the neural-network operators: scratch memory, cache-sized blocks, parameters handed on."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, merge
from flowmx.ops.registry.traits import BatchParts, BatchWise

_BLOCK = 1 << 14
"""Elements of each array in a block: a handful of such blocks stay in a core's second-level cache."""

_KEPT_BYTES = 1 << 26

_local = threading.local()


def scratch(run: Run, slot: str, shape: Sequence[int], dtype: Any) -> Array:
    """Uninitialised memory for the rest of this forward; a worker thread uses its own again and again.

    Two arrays that live at the same time need different slots.
    """
    if run.xp is not np:
        return run.xp.empty(shape, dtype)
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes > _KEPT_BYTES:
        return np.empty(shape, dtype)
    buffers: dict[str, Any] = _local.__dict__
    memory = buffers.get(slot)
    if memory is None or memory.nbytes < nbytes:
        memory = buffers[slot] = np.empty(nbytes, np.uint8)
    return np.ndarray(shape, dtype, memory)


def blocks(*arrays: Array) -> Iterator[Sequence[Array]]:
    """The same block of each of several arrays of one shape, small enough that all stay in the cache.

    Where one of them is not contiguous (or on a GPU), they come whole.
    """
    size = arrays[0].size
    if size <= _BLOCK or not all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, size, _BLOCK):
        yield [array[start : start + _BLOCK] for array in flat]


def computing_dtype(dtype: DType) -> DType:
    """The dtype to multiply matrices and to sum in: float32 for the 16-bit ones, which have no fast product."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def bound(op: Operator) -> dict[str, Any]:
    """The operator's parameters that differ from their defaults, to hand on to its backward operators."""
    known: dict[str, Any] | None = op.__dict__.get("_bound")
    if known is None:
        known = {name: getattr(op, name) for name in op.attributes()}
        object.__setattr__(op, "_bound", known)
    return known


def wanted(inputs: Any, position: int) -> bool:
    """Tell whether the gradient of an input is needed; True for symbols, whose passes prune by themselves."""
    ask = getattr(inputs, "wanted", None)
    return ask is None or bool(ask(position))


def unchecked(values: Any, position: int) -> Any:
    """An input of which a gradient needs the shape alone, so that a change since is no error."""
    return getattr(values, "unchecked", values.__getitem__)(position)


def expect_shape(
    op: Operator, name: str, given: ShapeOrNone, expected: ShapeOrNone, data: ShapeOrNone = None
) -> ShapeOrNone:
    """Merge two partly known shapes of an input, of which one follows from that of the data, if that is given.

    Raises:
        ShapeError: they contradict each other.
    """
    both = merge(given, expected)
    if both is False:
        why = "" if data is None else f" for data of shape {data}"
        raise ShapeError(f"{op.name}: input {name} has shape {given}, expected {expected}{why}")
    return both  # type: ignore[no-any-return]


def expect_rank(op: Operator, name: str, shape: ShapeOrNone, low: int, high: int | None = None) -> None:
    """Refuse an input with too few or too many axes.

    Raises:
        ShapeError: it has.
    """
    if shape is not None and not low <= len(shape) <= (high or len(shape)):
        wanted_axes = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
        raise ShapeError(f"{op.name}: input {name} has shape {shape}, expected {wanted_axes} axes")


def product(lengths: Sequence[int]) -> int:
    """The number of elements of part of a shape, -1 where it is not known."""
    return -1 if -1 in lengths else math.prod(lengths)


def positive_axis(op: Operator, axis: int, shape: ShapeOrNone) -> int:
    """The axis counted from the front (as given where the shape is not known yet).

    Raises:
        ShapeError: the input has no such axis.
    """
    if shape is None:
        return axis
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"{op.name}: axis is {axis}, but the input has shape {shape}")
    return axis % len(shape)


class Linear(Operator, heavy=True, multiplies=True):
    """A product of data and weight, plus a bias: linear in each. Its gradients are two more such products.

    The three operators ``name``, ``_backward_name_data`` and ``_backward_name_weight`` are each other's
    gradients, to any order.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight", "bias")
    no_bias: bool

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 2 if self.no_bias else 3]

    def bias_axis(self) -> int:
        """The axis of the output that the bias lies along."""
        return 1

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        given = bound(self) | {"no_bias": True}
        grads: list[Any] = [None, None]
        if wanted(inputs, 0):
            like = unchecked(inputs, 0)
            grads[0] = F.op(f"_backward_{self.name}_data", heads[0], inputs[1], like, **given)
        if wanted(inputs, 1):
            grads[1] = F.op(f"_backward_{self.name}_weight", heads[0], inputs[0], **given)
        if not self.no_bias:
            grads.append(F.op("_backward_bias", heads[0], axis=self.bias_axis()))
        return grads


class LinearData(Operator, hidden=True):
    """Gradient of a :class:`Linear` operator for its data, in the shape of ``like``."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "weight", "like")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        alike = self.traits.batch_wise is BatchWise.OWN and inputs[0][:1] == inputs[2][:1]
        return BatchParts((0, 2), (0,)) if alike else None

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[2]]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        # The products are those of the forward; `like` is not read.
        head, weight, like = inputs
        return super().cost([like, weight], [head])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        of, given = _linear_name(self), bound(self)
        return [
            F.op(of, heads[0], inputs[1], **given),
            F.op(f"_backward_{of}_weight", inputs[0], heads[0], **given),
            None,
        ]


class LinearWeight(Operator, hidden=True):
    """Gradient of a :class:`Linear` operator for its weight."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "data")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        head, data = inputs
        return super().cost([data, outputs[0]], [head])

    def gradient(self, F: Any, inputs: Sequence[Any], outputs: Sequence[Any], heads: Sequence[Any]) -> list[Any]:
        of, given = _linear_name(self), bound(self)
        return [
            F.op(of, inputs[1], heads[0], **given),
            F.op(f"_backward_{of}_data", inputs[0], heads[0], unchecked(inputs, 1), **given),
        ]


def _linear_name(op: Operator) -> str:
    """The operator that a backward operator belongs to."""
    return op.name.split("_")[2]
