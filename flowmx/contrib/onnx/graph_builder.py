"""An ONNX graph under construction: its nodes, which can still be renamed or dropped, and its constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowmx.contrib.onnx.converters import need_onnx
from flowmx.contrib.onnx.names import Names
from flowmx.ops.registry.operators import Array


@dataclass
class Step:
    """A node of the ONNX graph under construction."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: Mapping[str, Any]

    def rename(self, old: str, new: str) -> None:
        """Rename a value."""
        self.inputs = [new if value == old else value for value in self.inputs]
        self.outputs = [new if output == old else output for output in self.outputs]


class Steps:
    """The nodes of a graph, in order, and its constants by name."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[str, Array] = {}
        self._names: dict[Any, str] = {}
        self.fresh = Names().fresh

    def constant(self, value: Array, name: str = "constant") -> str:
        """Add a constant and return its name; equal constants are stored once."""
        key = (str(value.dtype), value.shape, value.tobytes())
        if key not in self._names:
            self._names[key] = self.fresh(name)
            self.constants[self._names[key]] = value
        return self._names[key]

    def prune(self, results: Iterable[str]) -> None:
        """Drop the nodes and constants that no result depends on."""
        used, steps = set(results), []
        for step in reversed(self.steps):
            if used.intersection(step.outputs):
                used.update(step.inputs)
                steps.append(step)
        self.steps = steps[::-1]
        self.constants = {name: value for name, value in self.constants.items() if name in used}

    def nodes(self) -> list[Any]:
        """Return the nodes as ONNX's NodeProto objects."""
        make = need_onnx().helper.make_node
        return [make(step.kind, step.inputs, step.outputs, step.name, **step.attributes) for step in self.steps]

    def initializers(self) -> list[Any]:
        """Return the constants as ONNX's TensorProto objects."""
        make = need_onnx().numpy_helper.from_array
        return [make(np.asarray(value, order="C"), name) for name, value in self.constants.items()]


def tensor_type(dtype: Any) -> int:
    """Return ONNX's number of a dtype."""
    return int(need_onnx().helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def describe_names(names: Sequence[str], limit: int = 8) -> str:
    """Return the first few names, for a message."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
