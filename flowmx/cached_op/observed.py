"""A cached graph computed operator by operator; the tape records each.

It is done where somebody looks at every value, and where shapes follow from the content of arrays.
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
from flowmx.symbol.symbol import Symbol


class OpHook(NamedTuple):
    """Callback for the operators of a block.

    Attributes:
        callback: called with the name of a value, that of its operator, and the array.
        monitor_all: whether inputs, and the gradients of inputs, go to it too.
        is_active: whether to, at the moment.
    """

    callback: Callable[[str, str, NDArray], Any]
    monitor_all: bool = False
    is_active: Callable[[], bool] = lambda: True


def observed(symbol: Symbol, arrays: Mapping[str, NDArray], hooks: Sequence[OpHook]) -> list[NDArray]:
    """Enqueue a symbol operator by operator; returns its outputs.

    Args:
        symbol: the symbol.
        arrays: its inputs by name.
        hooks: who looks.
    """
    values: dict[Entry, NDArray] = {}
    for node in symbol._nodes():
        if node.op is None:
            values[Entry(node, 0)] = arrays[node.name]
            continue
        inputs = [values[entry] for entry in node.inputs]
        for name, array in zip(input_labels(node.op), inputs, strict=True):
            _show(hooks, f"{node.name}_{name}", node.op.name, array, is_more=True)
        found = node.op.at_once(nd, inputs) if node.op.traits.dynamic else invoke(node.op, inputs)
        outputs = [found] if isinstance(found, NDArray) else list(found)
        for index, array in enumerate(outputs):
            values[Entry(node, index)] = array
            _show(hooks, node.output_name(index), node.op.name, array)
        _observe_gradient(hooks, node.name, node.op.name, outputs)
    return [values[entry] for entry in symbol._entries]


def _show(hooks: Sequence[OpHook], name: str, operator: str, array: NDArray, is_more: bool = False) -> None:
    for hook in hooks:
        if hook.monitor_all or not is_more:
            hook.callback(name, operator, array)


def _observe_gradient(hooks: Sequence[OpHook], name: str, operator: str, outputs: Sequence[NDArray]) -> None:
    """Have the gradients of a recorded operator's inputs shown."""
    entry = outputs[0]._entry if outputs else None
    if entry is None or not isinstance(entry.node, TapeNode) or not any(hook.monitor_all for hook in hooks):
        return
    inner = entry.node.gradient

    def gradient(F: Any, inputs: Any, made: Any, heads: Any) -> Sequence[NDArray | None]:
        found = cast("Sequence[NDArray | None]", inner(F, inputs, made, heads))
        for index, each in enumerate(found):
            if each is not None:
                _show(hooks, f"{name}_backward_{index}", f"_backward_{operator}", each, is_more=True)
        return found

    entry.node.gradient = gradient
    entry.node.rules = None
