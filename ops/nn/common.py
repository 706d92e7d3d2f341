"""Helpers of the neural-network operators: scratch memory, cache-sized blocks, shape checks, linear operators."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, cast

import numpy as np

from flowmx.errors import ShapeError
from flowmx.ops.arrays.linear import shape_of
from flowmx.ops.registry.dtypes import DType, DTypeLike
from flowmx.ops.registry.operators import Array, Operator, Run, Shape, ShapeOrNone, merge
from flowmx.ops.registry.tensors import Functions, Gradients, Tensors
from flowmx.ops.registry.traits import BatchParts, BatchWise

_BLOCK = 1 << 14
"""Elements of a block: several such blocks fit in a core's second-level cache."""

_SCRATCH_LIMIT = 1 << 26

_local = threading.local()


def scratch(run: Run, slot: str, shape: Sequence[int], dtype: DTypeLike) -> Array:
    """Return uninitialized memory for the rest of this forward; each worker thread reuses its buffers.

    Arrays in use at the same time need different slots.
    """
    if run.xp is not np:
        result: Array = run.xp.empty(shape, dtype)
        return result
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes > _SCRATCH_LIMIT:
        return np.empty(shape, dtype)
    buffers: dict[str, Any] = _local.__dict__
    memory = buffers.get(slot)
    if memory is None or memory.nbytes < nbytes:
        memory = buffers[slot] = np.empty(nbytes, np.uint8)
    return np.ndarray(shape, dtype, memory)


def blocks(*arrays: Array) -> Iterator[Sequence[Array]]:
    """Iterate over corresponding cache-sized blocks of arrays of the same shape.

    Yield the whole arrays if one of them is not contiguous, or on a GPU.
    """
    size = arrays[0].size
    if size <= _BLOCK or not all(isinstance(cast("object", a), np.ndarray) and a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, size, _BLOCK):
        yield [array[start : start + _BLOCK] for array in flat]


def computing_dtype(dtype: DType) -> DType:
    """Return the dtype for matrix products and sums: float32 for 16-bit dtypes, which have no fast product."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def non_defaults(op: Operator) -> dict[str, Any]:
    """Return the operator's parameters that differ from their defaults, to pass to its backward operators."""
    parameters: dict[str, Any] | None = op.__dict__.get("_bound")
    if parameters is None:
        parameters = {name: getattr(op, name) for name in op.attributes()}
        object.__setattr__(op, "_bound", parameters)
    return parameters


def needs_gradient(inputs: Tensors, position: int) -> bool:
    """Return whether the gradient of an input is needed; True for symbols, whose passes prune unused gradients."""
    check = getattr(inputs, "needs_gradient", None)
    return check is None or bool(check(position))


def expect_shape(
    op: Operator, name: str, shape: ShapeOrNone, expected: ShapeOrNone, data: ShapeOrNone = None
) -> ShapeOrNone:
    """Merge an input's partly known shape with the expected one; ``data``, if given, appears in the message.

    Raises:
        ShapeError: the shapes contradict each other.
    """
    merged: ShapeOrNone | Literal[False] = merge(shape, expected)
    if merged is False:
        why = "" if data is None else f" for data of shape {data}"
        raise ShapeError(f"{op.name}: input {name} has shape {shape}, expected {expected}{why}")
    return merged


def expect_rank(op: Operator, name: str, shape: ShapeOrNone, low: int, high: int | None = None) -> None:
    """Check the number of axes of an input.

    Raises:
        ShapeError: the input has too few or too many axes.
    """
    if shape is not None and not low <= len(shape) <= (high or len(shape)):
        wanted_axes = f"{low}" if high == low else f"at least {low}" if high is None else f"{low} to {high}"
        raise ShapeError(f"{op.name}: input {name} has shape {shape}, expected {wanted_axes} axes")


def product(lengths: Sequence[int]) -> int:
    """Return the number of elements of part of a shape, -1 if unknown."""
    return -1 if -1 in lengths else math.prod(lengths)


def positive_axis(op: Operator, axis: int, shape: ShapeOrNone) -> int:
    """Return the axis counted from the front (unchanged if the shape is unknown).

    Raises:
        ShapeError: the input has no such axis.
    """
    if shape is None:
        return axis
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"{op.name}: axis is {axis}, but the input has shape {shape}")
    return axis % len(shape)


class Linear(Operator, heavy=True, multiplies=True):
    """A product of data and weight, plus a bias. Its gradients are two more such products.

    The three operators ``name``, ``_backward_name_data`` and ``_backward_name_weight`` are each other's
    gradients, of any order.
    """

    arguments: ClassVar[tuple[str, ...]] = ("data", "weight", "bias")
    no_bias: bool

    def inputs(self) -> tuple[str, ...]:
        return self.arguments[: 2 if self.no_bias else 3]

    def bias_axis(self) -> int:
        """Return the axis of the output along which the bias varies."""
        return 1

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        parameters = non_defaults(self) | {"no_bias": True}
        grads: list[Any] = [None, None]
        if needs_gradient(inputs, 0):
            like = shape_of(inputs, 0)
            grads[0] = F.op(f"_backward_{self.name}_data", heads[0], inputs[1], like, **parameters)
        if needs_gradient(inputs, 1):
            grads[1] = F.op(f"_backward_{self.name}_weight", heads[0], inputs[0], **parameters)
        if not self.no_bias:
            grads.append(F.op("_backward_bias", heads[0], axis=self.bias_axis()))
        return grads


class LinearData(Operator, hidden=True):
    """Gradient of a :class:`Linear` operator for its data, in the shape of ``like``."""

    arguments: ClassVar[tuple[str, ...]] = ("head", "weight", "like")

    def inputs(self) -> tuple[str, ...]:
        return self.arguments

    def batch_parts(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> BatchParts | None:
        is_splittable = self.traits.batch_wise is BatchWise.OWN and inputs[0][:1] == inputs[2][:1]
        return BatchParts((0, 2), (0,)) if is_splittable else None

    def infer_shape(self, shapes: list[ShapeOrNone]) -> tuple[list[ShapeOrNone], list[ShapeOrNone]]:
        return shapes, [shapes[2]]

    def cost(self, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> tuple[int, int]:
        # The products equal those of the forward; `like` is not read.
        head, weight, like = inputs
        return super().cost([like, weight], [head])

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        forward, parameters = _linear_name(self), non_defaults(self)
        return [
            F.op(forward, heads[0], inputs[1], **parameters),
            F.op(f"_backward_{forward}_weight", inputs[0], heads[0], **parameters),
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

    def gradient(self, F: Functions, inputs: Tensors, outputs: Tensors, heads: Tensors) -> Gradients:
        forward, parameters = _linear_name(self), non_defaults(self)
        return [
            F.op(forward, inputs[1], heads[0], **parameters),
            F.op(f"_backward_{forward}_data", inputs[0], heads[0], shape_of(inputs, 1), **parameters),
        ]


def _linear_name(op: Operator) -> str:
    """Return the forward operator of a backward operator."""
    return op.name.split("_")[2]
