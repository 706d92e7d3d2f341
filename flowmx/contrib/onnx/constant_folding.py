"""NumPy implementations of the operators that exporters write to compute shapes.

ONNX's reference implementation computes the others. It takes about a millisecond per node, and large files have
thousands of nodes for shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import need_onnx
from flowmx.ops.registry.operators import Array

Attributes = dict[str, Any]
Evaluator = Callable[[Sequence[Array | None], Attributes, int], Array | None]

_TABLE: dict[str, Evaluator] = {}


def evaluate(node: Any, inputs: Sequence[Array | None], opset: int) -> Array | None:
    """Return the output of a node, or None if this module does not implement it for these inputs.

    Args:
        node: the node, which has one output.
        inputs: an array for each input; None for an absent one.
        opset: the opset of the file.
    """
    evaluator = _TABLE.get(node.op_type)
    if evaluator is None:
        return None
    get = need_onnx().helper.get_attribute_value
    return evaluator(inputs, {attribute.name: get(attribute) for attribute in node.attribute}, opset)


def _evaluates(*kinds: str) -> Callable[[Evaluator], Evaluator]:
    def register(evaluator: Evaluator) -> Evaluator:
        _TABLE.update(dict.fromkeys(kinds, evaluator))
        return evaluator

    return register


def _arrays(inputs: Sequence[Array | None]) -> list[Array]:
    return [array for array in inputs if array is not None]


def _ints(inputs: Sequence[Array | None], attributes: Attributes, at: int, name: str) -> list[int] | None:
    """Return ints from an input, or from an attribute in older opsets; None if absent."""
    array = inputs[at] if at < len(inputs) else None
    values = attributes.get(name) if array is None else array.reshape(-1)
    return None if values is None else [int(value) for value in values]


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal, "Less": np.less, "Greater": np.greater,
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or,
}  # fmt: skip
_UNARY: dict[str, Callable[[Array], Array]] = {
    "Neg": np.negative, "Not": np.logical_not, "Sqrt": np.sqrt, "Floor": np.floor, "Ceil": np.ceil, "Abs": np.abs,
    "Identity": np.asarray,
}  # fmt: skip


def _binary(function: Callable[[Array, Array], Array]) -> Evaluator:
    def run(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
        first, second = _arrays(inputs)
        return None if opset < 7 else np.asarray(function(first, second))

    return run


def _unary(function: Callable[[Array], Array]) -> Evaluator:
    def run(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
        (array,) = _arrays(inputs)
        return np.asarray(function(array))

    return run


_TABLE.update({kind: _binary(function) for kind, function in _BINARY.items()})
_TABLE.update({kind: _unary(function) for kind, function in _UNARY.items()})


@_evaluates("Div")
def _div(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
    """Divide; integers are rounded towards zero."""
    first, second = _arrays(inputs)
    if opset < 7 or not second.all():
        return None
    if first.dtype.kind not in "iu":
        return np.asarray(first / second)
    quotient = np.abs(first) // np.abs(second)
    return np.asarray(np.where((first < 0) != (second < 0), -quotient, quotient).astype(first.dtype))


@_evaluates("Constant")
def _constant(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
    ((name, value),) = attributes.items()
    if name == "value":
        return np.asarray(need_onnx().numpy_helper.to_array(value))
    dtype = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
    return np.array(value, dtype[name]) if name in dtype else None


@_evaluates("Cast")
def _cast(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
    (array,) = _arrays(inputs)
    dtype = np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(attributes["to"]))
    if array.dtype.kind not in "biuf" or dtype.kind not in "biuf" or not np.isfinite(array).all():
        return None
    return array.astype(dtype)


@_evaluates("Gather")
def _gather(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    array, places = _arrays(inputs)
    return np.asarray(np.take(array, places, axis=attributes.get("axis", 0)))


@_evaluates("Concat")
def _concat(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    return np.concatenate(_arrays(inputs), axis=attributes.get("axis", 1))


@_evaluates("Unsqueeze")
def _unsqueeze(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    return np.expand_dims(_arrays(inputs)[0], tuple(_ints(inputs, attributes, 1, "axes") or ()))


@_evaluates("Squeeze")
def _squeeze(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    axes = _ints(inputs, attributes, 1, "axes")
    return np.squeeze(_arrays(inputs)[0], None if axes is None else tuple(axes))


@_evaluates("Slice")
def _slice(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    array = _arrays(inputs)[0]
    starts, ends = (_ints(inputs, attributes, at, name) or [] for at, name in ((1, "starts"), (2, "ends")))
    axes = _ints(inputs, attributes, 3, "axes") or list(range(len(starts)))
    steps = _ints(inputs, attributes, 4, "steps") or [1] * len(starts)
    key = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        length = array.shape[axis]
        key[axis] = slice(start, None if step < 0 and end < -length else end, step)
    return array[tuple(key)]


@_evaluates("Reshape")
def _reshape(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
    array, shape = _arrays(inputs)
    if attributes.get("allowzero", 0):
        return None
    return array.reshape([array.shape[at] if length == 0 else int(length) for at, length in enumerate(shape)])


@_evaluates("Transpose")
def _transpose(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    return np.transpose(_arrays(inputs)[0], attributes.get("perm"))


@_evaluates("Expand")
def _expand(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    array, shape = _arrays(inputs)
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(map(int, shape))))


@_evaluates("Where")
def _where(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    return np.where(*_arrays(inputs))


@_evaluates("Size")
def _size(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    return np.array(_arrays(inputs)[0].size, np.int64)


@_evaluates("Shape")
def _shape(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    shape = _arrays(inputs)[0].shape
    return np.array(shape[attributes.get("start", 0) : attributes.get("end")], np.int64)


@_evaluates("Range")
def _range(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array | None:
    start, stop, step = (array.reshape(()) for array in _arrays(inputs))
    count = max(0, int(np.ceil((stop.astype(np.float64) - start) / step)))
    return np.asarray(start + np.arange(count, dtype=start.dtype) * step)


@_evaluates("ConstantOfShape")
def _constant_of_shape(inputs: Sequence[Array | None], attributes: Attributes, opset: int) -> Array:
    value = attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else need_onnx().numpy_helper.to_array(value)
    return np.full(tuple(map(int, _arrays(inputs)[0])), fill.reshape(()))


_TABLE["Min"] = lambda inputs, attributes, opset: np.asarray(_reduce(np.minimum, _arrays(inputs)))
_TABLE["Max"] = lambda inputs, attributes, opset: np.asarray(_reduce(np.maximum, _arrays(inputs)))


def _reduce(function: Callable[[Array, Array], Array], arrays: Sequence[Array]) -> Array:
    result = arrays[0]
    for array in arrays[1:]:
        result = function(result, array)
    return result
