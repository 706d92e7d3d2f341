"""Sequences as recurrent cells take and return them: one array with an axis of time, or a list of its slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import FLOAT32, is_floating
from flowmx.symbol import Symbol

Leaf = (NDArray, Symbol)


def namespace(inputs: Any) -> Any:
    """``mx.nd`` or ``mx.sym``, as the inputs are arrays or symbols."""
    first = inputs if isinstance(inputs, Leaf) else inputs[0]
    return sym if isinstance(first, Symbol) else nd


def time_axis(layout: str) -> int:
    """The index of the time axis in a layout, 0 or 1.

    Raises:
        ValueError: it is nowhere.
    """
    if sorted(layout) != ["C", "N", "T"]:
        raise ValueError(f"unroll: layout is {layout!r}, expected 'NTC' or 'TNC'")
    return layout.index("T")


def steps(inputs: Any, length: int, layout: str) -> list[Any]:
    """A sequence as a list of its steps.

    Raises:
        ValueError: it has another length.
    """
    check_length(inputs, length, layout)
    if isinstance(inputs, Leaf):
        inputs = namespace(inputs).split(inputs, axis=time_axis(layout), num_outputs=length, squeeze_axis=True)
        return list(inputs) if length > 1 else [inputs]
    return list(inputs)


def check_length(inputs: Any, length: int, layout: str) -> None:
    """Check that a sequence has so many steps, as far as that is known.

    Raises:
        ValueError: it has another length.
    """
    axis = time_axis(layout)
    if isinstance(inputs, NDArray) and inputs.shape[axis] != length:
        raise ValueError(f"unroll: length is {length}, and the inputs have shape {inputs.shape} ({layout})")
    if not isinstance(inputs, Leaf) and len(inputs) != length:
        raise ValueError(f"unroll: length is {length}, and there are {len(inputs)} inputs")


def merged(outputs: Sequence[Any], layout: str) -> Any:
    """Steps as one array."""
    return namespace(outputs).stack(*outputs, axis=time_axis(layout))


def masked(outputs: Any, valid_length: Any, layout: str) -> Any:
    """A merged sequence with zeros after the end of each instance."""
    return namespace(outputs).SequenceMask(
        outputs, sequence_length=valid_length, use_sequence_length=True, axis=time_axis(layout)
    )


def last_valid(states: Sequence[Sequence[Any]], valid_length: Any) -> list[Any]:
    """Select, from the states after each step, those after the last valid step of each instance."""
    F = namespace(states[0])
    return [
        F.SequenceLast(F.stack(*each, axis=0), sequence_length=valid_length, use_sequence_length=True, axis=0)
        for each in zip(*states, strict=True)
    ]


def reversed_in_time(inputs: Sequence[Any], valid_length: Any) -> list[Any]:
    """Steps from the last to the first; with lengths, each instance from its own last step, what follows as it is."""
    if valid_length is None:
        return list(inputs)[::-1]
    F = namespace(inputs)
    turned = F.SequenceReverse(F.stack(*inputs, axis=0), sequence_length=valid_length, use_sequence_length=True)
    return steps(turned, len(inputs), "TNC")


def zero_states(begin_state: Callable[..., list[Any]], inputs: Any, layout: str = "NTC") -> list[Any]:
    """First states of zeros, for a batch as long as that of the inputs (steps or one array), and of their dtype."""
    whole = isinstance(inputs, Leaf)
    first = inputs if whole else inputs[0]
    batch_axis = layout.index("N") if whole else 0
    if isinstance(first, NDArray):
        own = first._dtype if is_floating(first._dtype) else FLOAT32

        def alike(shape: Sequence[int], dtype: Any = own) -> NDArray:
            return nd.zeros(shape, dtype=dtype)

        with first.context:
            return begin_state(batch_size=first.shape[batch_axis], func=alike)
    if batch_axis:
        first = sym.swapaxes(first, 0, batch_axis)

    def zeros(shape: Sequence[int], **kwargs: Any) -> Symbol:
        # A symbol knows no batch size: it comes from one column of the input.
        column = sym.zeros_like(sym.slice_axis(sym.reshape(first, shape=(0, -1)), axis=1, begin=0, end=1))
        spread = sym.broadcast_axis(column, axis=1, size=int(shape[1])) if shape[1] > 1 else column
        return spread if len(shape) == 2 else sym.broadcast_to(
            sym.reshape(spread, shape=(0, -1) + (1,) * (len(shape) - 2)), shape=(0, 0, *shape[2:])
        )  # fmt: skip

    return begin_state(func=zeros)
