"""Values that are known while a file is read: constants, and what is computed from shapes.

A length that varies has one value in each of two trials, and so has all that follows from it (``lengths.py``). ONNX's
own reference implementation computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx.contrib.onnx.converters import need_onnx
from flowmx.contrib.onnx.lengths import Lengths, trial
from flowmx.symbol import Symbol

Array = np.ndarray[Any, Any]
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}


class Numbers(NamedTuple):
    """Whole numbers that a constant is made of.

    Attributes:
        whole: int8 or int32, counted from 0.
        scale: the real numbers of a step, float32: one, or one for each place on an axis.
        axis: which that is.
    """

    whole: Array
    scale: Array
    axis: int

    @classmethod
    def of(cls, whole: Array, scale: Array, zero: Array | None, axis: int) -> Numbers | None:
        """Those of a conversion to real numbers; None where their zero is none that counting from 0 could replace."""
        if zero is not None and whole.dtype == np.uint8 and (zero == 128).all():
            whole, zero = (whole.astype(np.int16) - 128).astype(np.int8), None
        fits = whole.dtype in (np.int8, np.int32) and scale.dtype == np.float32 and scale.ndim <= 1
        if not fits or (zero is not None and zero.any()):
            return None
        return cls(whole, scale.reshape(-1), axis if axis >= 0 else axis + whole.ndim)

    def turned(self) -> Numbers:
        """A matrix with its axes swapped."""
        return Numbers(self.whole.T.copy(), self.scale, 1 - self.axis)


class Known:
    """A known array: the same in both trials, or one for each.

    Attributes:
        numbers: the whole numbers that it is made of, where it is.
        trials: the arrays.
        name: its name in the file.
        make: makes the symbol that computes it, where it varies.
        like: the symbol whose shape it is.
    """

    def __init__(
        self, trials: tuple[Array, Array], name: str, make: Callable[[], Symbol] | None = None,
        like: Symbol | None = None,
    ) -> None:  # fmt: skip
        self.trials, self.name, self.make, self.like = trials, name, make, like
        self.numbers: Numbers | None = None

    @classmethod
    def constant(cls, array: Array, name: str) -> Known:
        """An array that does not vary."""
        return cls((array, array), name)

    @classmethod
    def of_numbers(cls, numbers: Numbers, name: str) -> Known:
        """An array that is made of whole numbers."""
        column = [1] * numbers.whole.ndim
        if numbers.scale.size > 1:
            column[numbers.axis] = -1
        made = cls.constant(numbers.whole.astype(np.float32) * numbers.scale.reshape(column), name)
        made.numbers = numbers
        return made

    @classmethod
    def shape(cls, dims: Lengths, name: str, make: Callable[[], Symbol], like: Symbol | None) -> Known:
        """The lengths of a value's axes, which ``make`` computes where they vary."""
        first, second = (np.array(trial(dims, turn), np.int64) for turn in (0, 1))
        return cls((first, second), name, make, like)

    @property
    def fixed(self) -> bool:
        """True where both trials gave the same array."""
        first, second = self.trials
        return first is second or (first.shape == second.shape and bool(np.array_equal(first, second)))


class Values(tuple["Symbol | Known", ...]):
    """A sequence of arrays."""

    __slots__ = ()


def fold(node: Any, inputs: Sequence[Known | None], opset: int, make: Callable[[int], Symbol]) -> list[Known] | None:
    """Evaluate a node on known inputs; None where the result is not constant, or ONNX's reference fails."""
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
    evaluator = need_onnx().reference.ReferenceEvaluator
    turns = (0,) if all(each is None or each.fixed for each in inputs) else (0, 1)
    made = []
    for turn in turns:
        feeds = {name: each.trials[turn] for name, each in zip(node.input, inputs, strict=True) if each is not None}
        try:
            made.append(evaluator(node, opsets={"": opset}).run(None, feeds))
        except Exception:  # whatever the reference has against it: the node is converted as any other
            return None
    both = zip(made[0], made[-1], strict=True)
    return [
        Known((np.asarray(first), np.asarray(second)), name, lambda at=at: make(at))  # type: ignore[misc]
        for at, (name, (first, second)) in enumerate(zip(node.output, both, strict=False))
    ]
