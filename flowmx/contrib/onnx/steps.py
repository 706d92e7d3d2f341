"""An ONNX graph while it grows: steps that still can be renamed or dropped, and constants, each stored once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import need_onnx
from flowmx.contrib.onnx.names import Names


@dataclass
class Step:
    """A node of the ONNX graph to be."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any]

    def rename(self, old: str, new: str) -> None:
        """Call a value otherwise."""
        self.inputs = [new if each == old else each for each in self.inputs]
        self.outputs = [new if each == old else each for each in self.outputs]


class Steps:
    """The steps of a graph, in order, and its constants by name."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self._stored: dict[Any, str] = {}
        self.fresh = Names().fresh

    def constant(self, value: np.ndarray[Any, Any], wanted: str = "constant") -> str:
        """The name of a constant; equal ones are stored once."""
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._stored:
            self._stored[key] = self.fresh(wanted)
            self.constants[self._stored[key]] = value
        return self._stored[key]

    def prune(self, needed: Iterable[str]) -> None:
        """Drop the steps and constants that nothing needs."""
        wanted, kept = set(needed), []
        for step in reversed(self.steps):
            if wanted.intersection(step.outputs):
                wanted.update(step.inputs)
                kept.append(step)
        self.steps = kept[::-1]
        self.constants = {name: value for name, value in self.constants.items() if name in wanted}

    def nodes(self) -> list[Any]:
        """The steps as ONNX's nodes."""
        make = need_onnx().helper.make_node
        return [make(step.kind, step.inputs, step.outputs, step.name, **step.attributes) for step in self.steps]

    def initializers(self) -> list[Any]:
        """The constants as ONNX's tensors."""
        make = need_onnx().numpy_helper.from_array
        return [make(np.asarray(value, order="C"), name) for name, value in self.constants.items()]


def tensor_type(dtype: Any) -> int:
    """ONNX's number of a dtype."""
    return int(need_onnx().helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def described(names: Sequence[str], limit: int = 8) -> str:
    """A few names for a message."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
