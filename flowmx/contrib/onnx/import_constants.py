"""Values that are known during import: constants, and values computed from shapes.

A varying length has one value in each of two trials, and so do values computed from it (``dynamic_lengths.py``). ONNX's
reference implementation computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowmx.contrib.onnx.constant_folding import evaluate
from flowmx.contrib.onnx.converters import need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Lengths, trial
from flowmx.ops.registry.operators import Array
from flowmx.symbol import Symbol

RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}


class Numbers(NamedTuple):
    """A quantized constant: integers and their scale.

    Attributes:
        whole: the integers, int8 or int32, with zero point 0.
        scale: the scale, float32: one number, or one for each position on an axis.
        axis: that axis.
    """

    whole: Array
    scale: Array
    axis: int

    @classmethod
    def of(cls, whole: Array, scale: Array, zero: Array | None, axis: int) -> Numbers | None:
        """Return the constant of a DequantizeLinear node, or None if its zero point cannot be made 0."""
        if zero is not None and whole.dtype == np.uint8 and (zero == 128).all():
            whole, zero = (whole.astype(np.int16) - 128).astype(np.int8), None
        fits = whole.dtype in (np.int8, np.int32) and scale.dtype == np.float32 and scale.ndim <= 1
        if not fits or (zero is not None and zero.any()):
            return None
        return cls(whole, scale.reshape(-1), axis if axis >= 0 else axis + whole.ndim)

    def transposed(self) -> Numbers:
        """Return the transposed matrix."""
        return Numbers(self.whole.T.copy(), self.scale, 1 - self.axis)


class Known:
    """A known array, which may differ between the trials.

    Attributes:
        numbers: its integers and scale, if it is quantized.
        trials: the arrays of the trials.
        name: its name in the file.
        make: returns the symbol that computes it, if it varies.
        like: the symbol whose shape it is.
        is_from_file: whether it depends on constants of the file alone, and not on shapes.
    """

    def __init__(
        self, trials: tuple[Array, Array], name: str, make: Callable[[], Symbol] | None = None,
        like: Symbol | None = None,
    ) -> None:  # fmt: skip
        self.trials, self.name, self.make, self.like = trials, name, make, like
        self.numbers: Numbers | None = None
        self.is_from_file = False

    @classmethod
    def constant(cls, array: Array, name: str) -> Known:
        """Create a constant."""
        return cls((array, array), name)

    @classmethod
    def of_tensor(cls, tensor: Any) -> Known:
        """Create a constant of the file."""
        value = cls.constant(need_onnx().numpy_helper.to_array(tensor), tensor.name)
        value.is_from_file = True
        return value

    @classmethod
    def of_numbers(cls, numbers: Numbers, name: str) -> Known:
        """Create a quantized constant."""
        column = [1] * numbers.whole.ndim
        if numbers.scale.size > 1:
            column[numbers.axis] = -1
        constant = cls.constant(numbers.whole.astype(np.float32) * numbers.scale.reshape(column), name)
        constant.numbers = numbers
        return constant

    @classmethod
    def shape(cls, dims: Lengths, name: str, make: Callable[[], Symbol], like: Symbol | None) -> Known:
        """Create the shape of a value, which ``make`` computes if it varies."""
        first, second = (np.array(trial(dims, index), np.int64) for index in (0, 1))
        return cls((first, second), name, make, like)

    @property
    def source(self) -> str:
        """The name of a constant that depends on the file alone; "" for other values."""
        return self.name if self.is_from_file else ""

    @property
    def fixed(self) -> bool:
        """Whether the array is the same in both trials."""
        first, second = self.trials
        return first is second or (first.shape == second.shape and bool(np.array_equal(first, second)))


class Values(tuple["Symbol | Known", ...]):
    """A sequence of arrays."""

    __slots__ = ()


def fold(node: Any, inputs: Sequence[Known | None], opset: int, make: Callable[[int], Symbol]) -> list[Known] | None:
    """Evaluate a node on known inputs. Return None if the result is not constant, or ONNX's reference fails."""
    if (
        node.op_type in RANDOM
        or "Sequence" in node.op_type
        or any(attribute.HasField("g") for attribute in node.attribute)
    ):
        return None
    if node.op_type == "Identity" and inputs[0] is not None:
        return [inputs[0]]
    if node.op_type == "ConstantOfShape" and (inputs[0] is None or inputs[0].like is not None or not inputs[0].fixed):
        return None
    turns = (0,) if all(value is None or value.fixed for value in inputs) else (0, 1)
    results = []
    for turn in turns:
        try:
            results.append(compute(node, [None if value is None else value.trials[turn] for value in inputs], opset))
        except Exception:  # the reference can raise any exception; the node is then converted
            return None
    both = zip(results[0], results[-1], strict=True)
    values = [
        Known((np.asarray(first), np.asarray(second)), name, partial(make, index))
        for index, (name, (first, second)) in enumerate(zip(node.output, both, strict=False))
    ]
    is_from_file = all(value is None or value.is_from_file for value in inputs)
    for value in values:
        value.is_from_file = is_from_file
    return values


def compute(node: Any, inputs: Sequence[Array | None], opset: int) -> list[Array]:
    """Compute the outputs of a node; ONNX's reference implementation may raise any exception."""
    single = evaluate(node, inputs, opset)
    if single is not None:
        return [single]
    feeds = {name: value for name, value in zip(node.input, inputs, strict=True) if value is not None}
    evaluator = need_onnx().reference.ReferenceEvaluator(node, opsets={"": opset})
    return [np.asarray(result) for result in evaluator.run(None, feeds)]
