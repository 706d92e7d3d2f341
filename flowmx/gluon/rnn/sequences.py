"""Sequences of recurrent cells: an array with a time axis, or a list of its steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.ndarray import NDArray
from flowmx.ops.registry.dtypes import FLOAT32, DTypeLike, is_floating
from flowmx.symbol import Symbol

Leaf = (NDArray, Symbol)


def namespace(inputs: Any) -> Any:
    """Return ``mx.nd`` for arrays, ``mx.sym`` for symbols."""
    first = inputs if isinstance(inputs, Leaf) else inputs[0]
    return sym if isinstance(first, Symbol) else nd


def time_axis(layout: str) -> int:
    """Return the index of the time axis in a layout, 0 or 1.

    Raises:
        ValueError: the layout is unknown.
    """
    if sorted(layout) != ["C", "N", "T"]:
        raise ValueError(f"unroll: layout is {layout!r}, expected 'NTC' or 'TNC'")
    return layout.index("T")


def steps(inputs: Any, length: int, layout: str) -> list[Any]:
    """Split a sequence into a list of its steps.

    Raises:
        ValueError: the sequence has another length.
    """
    check_length(inputs, length, layout)
    if isinstance(inputs, Leaf):
        inputs = namespace(inputs).split(inputs, axis=time_axis(layout), num_outputs=length, squeeze_axis=True)
        return list(inputs) if length > 1 else [inputs]
    return list(inputs)


def check_length(inputs: Any, length: int, layout: str) -> None:
    """Check the number of steps of a sequence, if it is known.

    Raises:
        ValueError: the sequence has another length.
    """
    axis = time_axis(layout)
    if isinstance(inputs, NDArray) and inputs.shape[axis] != length:
        raise ValueError(f"unroll: length is {length}, and the inputs have shape {inputs.shape} ({layout})")
    if not isinstance(inputs, Leaf) and len(inputs) != length:
        raise ValueError(f"unroll: length is {length}, and there are {len(inputs)} inputs")


def merge_steps(outputs: Sequence[object], layout: str) -> Any:
    """Stack steps into one array."""
    return namespace(outputs).stack(*outputs, axis=time_axis(layout))


def mask(outputs: object, valid_length: object, layout: str) -> Any:
    """Set a merged sequence to zero after the end of each sample."""
    return namespace(outputs).SequenceMask(
        outputs, sequence_length=valid_length, use_sequence_length=True, axis=time_axis(layout)
    )


def last_valid(states: Sequence[Sequence[Any]], valid_length: object) -> list[Any]:
    """Return the states after the last valid step of each sample."""
    F = namespace(states[0])
    return [
        F.SequenceLast(F.stack(*steps_of_state, axis=0), sequence_length=valid_length, use_sequence_length=True, axis=0)
        for steps_of_state in zip(*states, strict=True)
    ]


def reverse_time(inputs: Sequence[object], valid_length: object) -> list[Any]:
    """Reverse the steps; with lengths, reverse the valid steps of each sample, and keep the others."""
    if valid_length is None:
        return list(inputs)[::-1]
    F = namespace(inputs)
    reversed_steps = F.SequenceReverse(F.stack(*inputs, axis=0), sequence_length=valid_length, use_sequence_length=True)
    return steps(reversed_steps, len(inputs), "TNC")


def zero_states(begin_state: Callable[..., list[Any]], inputs: Any, layout: str = "NTC") -> list[Any]:
    """Return initial states of zeros, with the batch size and dtype of the inputs (steps or one array)."""
    is_merged = isinstance(inputs, Leaf)
    first = inputs if is_merged else inputs[0]
    batch_axis = layout.index("N") if is_merged else 0
    if isinstance(first, NDArray):
        input_dtype = first.element_type if is_floating(first.element_type) else FLOAT32

        def zeros_like_input(shape: Sequence[int], dtype: DTypeLike = input_dtype) -> NDArray:
            return nd.zeros(shape, dtype=dtype)

        with first.context:
            return begin_state(batch_size=first.shape[batch_axis], func=zeros_like_input)
    if batch_axis:
        first = sym.swapaxes(first, 0, batch_axis)

    def zeros(shape: Sequence[int], **kwargs: Any) -> Symbol:
        # A symbol has no batch size: derive it from one column of the input.
        column = sym.zeros_like(sym.slice_axis(sym.reshape(first, shape=(0, -1)), axis=1, begin=0, end=1))
        spread = sym.broadcast_axis(column, axis=1, size=int(shape[1])) if shape[1] > 1 else column
        return spread if len(shape) == 2 else sym.broadcast_to(
            sym.reshape(spread, shape=(0, -1) + (1,) * (len(shape) - 2)), shape=(0, 0, *shape[2:])
        )  # fmt: skip

    return begin_state(func=zeros)
