"""Run a cached graph operator by operator, recording each on the tape.

This is used if hooks inspect every value, and if shapes depend on the content of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from flowmx import ndarray as nd
from flowmx.graph.labels import input_labels
from flowmx.graph.node import Entry
from flowmx.ndarray.array import NDArray
from flowmx.ndarray.core import invoke
from flowmx.ndarray.recording import TapeNode
from flowmx.ops.registry.tensors import Functions, Tensors
from flowmx.symbol.symbol import Symbol


class OpHook(NamedTuple):
    """Callback for the operators of a block.

    Attributes:
        callback: called with the name of a value, that of its operator, and the array.
        monitor_all: whether inputs, and the gradients of inputs, are shown too.
        is_active: called to check whether the hook is enabled.
    """

    callback: Callable[[str, str, NDArray], Any]
    monitor_all: bool = False
    is_active: Callable[[], bool] = lambda: True


def observed(symbol: Symbol, arrays: Mapping[str, NDArray], hooks: Sequence[OpHook]) -> list[NDArray]:
    """Enqueue a symbol operator by operator; return its outputs.

    Args:
        symbol: the symbol.
        arrays: its inputs by name.
        hooks: the hooks.
    """
    values: dict[Entry, NDArray] = {}
    for node in symbol.nodes():
        if node.op is None:
            values[Entry(node, 0)] = arrays[node.name]
            continue
        inputs = [values[entry] for entry in node.inputs]
        for name, array in zip(input_labels(node.op), inputs, strict=True):
            _show(hooks, f"{node.name}_{name}", node.op.name, array, is_more=True)
        result = (
            node.op.compute_eagerly(nd, cast("Tensors", inputs)) if node.op.traits.dynamic else invoke(node.op, inputs)
        )
        outputs = [result] if isinstance(result, NDArray) else list(result)
        for index, array in enumerate(outputs):
            values[Entry(node, index)] = array
            _show(hooks, node.output_name(index), node.op.name, array)
        _observe_gradient(hooks, node.name, node.op.name, outputs)
    return [values[entry] for entry in symbol.entries]


def _show(hooks: Sequence[OpHook], name: str, operator: str, array: NDArray, is_more: bool = False) -> None:
    for hook in hooks:
        if hook.monitor_all or not is_more:
            hook.callback(name, operator, array)


def _observe_gradient(hooks: Sequence[OpHook], name: str, operator: str, outputs: Sequence[NDArray]) -> None:
    """Show the gradients of a recorded operator's inputs."""
    entry = outputs[0].tape_entry if outputs else None
    if entry is None or not isinstance(entry.node, TapeNode) or not any(hook.monitor_all for hook in hooks):
        return
    inner = entry.node.gradient

    def gradient(F: Functions, inputs: Any, outputs: Any, heads: Any) -> Sequence[NDArray | None]:
        gradients = cast("Sequence[NDArray | None]", inner(F, inputs, outputs, heads))
        for index, array in enumerate(gradients):
            if array is not None:
                _show(hooks, f"{name}_backward_{index}", f"_backward_{operator}", array, is_more=True)
        return gradients

    entry.node.gradient = gradient
    entry.node.rules = None
