"""The outputs' shapes and dtypes that an operator infers from those of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.parameters import Shape


class Spec:
    """The result of an operator's inference for one combination of input shapes and dtypes.

    Attributes:
        shapes: shapes of the outputs.
        dtypes: dtypes of the outputs.
        nbytes: total bytes of the outputs.
        light: whether the operation takes microseconds.
        short: whether the operation is too short to be worth handing to another thread.
        gradient: the operator's gradient function; None if no gradient flows.
        weight: the approximate work, in bytes moved.
        single: whether there is one output.
        rules: cache of gradient rules, used by the tape.
        is_plain: whether the operator only computes its outputs from its inputs.
        ready: the bound call, cached by the dispatcher.
        follows: whether all output shapes and dtypes follow from those of the inputs.
    """

    __slots__ = (
        "dtypes",
        "follows",
        "gradient",
        "is_plain",
        "light",
        "nbytes",
        "ready",
        "rules",
        "shapes",
        "short",
        "single",
        "weight",
    )

    def __init__(self, shapes: list[Shape], dtypes: list[DType], light: bool, weight: int = 0) -> None:
        self.shapes = shapes
        self.dtypes = dtypes
        self.nbytes = sum(size(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        self.light = self.short = light
        self.weight = weight
        self.single = len(shapes) == 1
        self.gradient: Callable[..., object] | None = None
        self.rules: dict[object, Any] = {}
        self.is_plain = False
        self.follows = True
        self.ready: Any = None


def size(shape: Shape) -> int:
    """Return the number of elements of an array."""
    size = 1
    for dimension in shape:
        size *= dimension
    return size
