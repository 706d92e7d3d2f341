"""Private helpers of ``mxnet.gluon.rnn.rnn_cell`` that packages import: formats of input sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx import symbol as sym
from flowmx.compat.base_helpers import _as_list
from flowmx.compat.block_helpers import tensor_types
from flowmx.ndarray import NDArray
from flowmx.ops.registry.tensors import Functions
from flowmx.symbol import Symbol

__all__ = [
    "_cells_begin_state", "_cells_state_info", "_format_sequence", "_get_begin_state", "_mask_sequence_variable_length",
    "_reverse_sequences", "dynamic_unroll",
]  # fmt: skip


def _cells_state_info(cells: Sequence[Any], batch_size: int) -> list[Any]:
    """Return the state descriptions of all cells."""
    return [info for cell in cells for info in cell.state_info(batch_size)]


def _cells_begin_state(cells: Sequence[Any], **kwargs: Any) -> list[Any]:
    """Return the initial states of all cells."""
    return [state for cell in cells for state in cell.begin_state(**kwargs)]


def _get_begin_state(cell: Any, F: Functions, begin_state: object, inputs: Any, batch_size: int) -> Any:
    """Return ``begin_state``, or zeros on the device of the inputs."""
    if begin_state is not None:
        return begin_state
    if F is not nd:
        return cell.begin_state(func=F.zeros, batch_size=batch_size)
    first: Any = inputs if isinstance(inputs, tensor_types) else inputs[0]
    with first.context:
        return cell.begin_state(func=F.zeros, batch_size=batch_size)


def _format_sequence(
    length: int | None, inputs: Any, layout: str, merge: bool | None, in_layout: str | None = None
) -> tuple[Any, int, Any, int]:
    """Convert a sequence to one array, or to a list of its steps.

    Args:
        length: number of steps; None: from the inputs.
        inputs: an array or a symbol with a time axis, or a list of steps.
        layout: the axes, such as ``"NTC"``.
        merge: True for one array, False for a list, None for the form of the inputs.
        in_layout: the axes of ``inputs``, if they differ.

    Returns:
        the sequence, the time axis, ``mx.nd`` or ``mx.sym``, and the batch size (0 for symbols).

    Raises:
        AssertionError: there are no inputs, or their number is not ``length`` (MXNet's exception).
    """
    if inputs is None:
        raise AssertionError("unroll: inputs is None, expected arrays or symbols")
    axis = layout.find("T")
    in_axis = axis if in_layout is None else in_layout.find("T")
    first: Any = inputs if isinstance(inputs, tensor_types) else inputs[0]
    shape: Any = getattr(first, "shape", None)
    F: Any = sym if isinstance(first, Symbol) else nd
    if isinstance(inputs, tensor_types):
        batch_size = shape[layout.find("N")] if F is nd else 0
        if merge is False:
            steps = length if F is sym else shape[in_axis]
            if length not in (None, steps):
                raise AssertionError(f"unroll: length is {length}, but the inputs have {steps} steps")
            split = F.split(inputs, axis=in_axis, num_outputs=steps, squeeze_axis=1)
            inputs = list(split) if F is sym else _as_list(split)
    else:
        if length not in (None, len(inputs)):
            raise AssertionError(f"unroll: length is {length}, but there are {len(inputs)} inputs")
        batch_size = shape[0] if F is nd else 0
        if merge is True:
            inputs, in_axis = F.stack(*inputs, axis=axis), axis
    if isinstance(inputs, tensor_types) and axis != in_axis:
        inputs = F.swapaxes(inputs, dim1=axis, dim2=in_axis)
    return inputs, axis, F, batch_size


def _mask_sequence_variable_length(
    F: Functions, data: Any, length: int, valid_length: Any, time_axis: int, merge: bool
) -> Any:
    """Return a sequence with zeros after the valid steps, as one array or as a list of steps."""
    whole = data if isinstance(data, tensor_types) else F.stack(*data, axis=time_axis)
    masked = F.SequenceMask(whole, sequence_length=valid_length, use_sequence_length=True, axis=time_axis)
    return masked if merge else _as_list(F.split(masked, num_outputs=length, axis=time_axis, squeeze_axis=True))


def _reverse_sequences(sequences: Sequence[object], unroll_step: int, valid_length: object = None) -> Any:
    """Reverse the valid steps; the other steps follow them unchanged."""
    if valid_length is None:
        return list(reversed(sequences))
    F: Any = nd if isinstance(sequences[0], NDArray) else sym
    reversed_steps = F.SequenceReverse(
        F.stack(*sequences, axis=0), sequence_length=valid_length, use_sequence_length=True
    )
    if unroll_step == 1 and F is nd:
        return [reversed_steps[0]]
    return F.split(reversed_steps, axis=0, num_outputs=unroll_step, squeeze_axis=True)


def dynamic_unroll(
    cell: Any, inputs: object, begin_state: Sequence[object], drop_inputs: float = 0, drop_outputs: float = 0,
    layout: str = "TNC", valid_length: object = None,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the outputs and the final states of a cell over a sequence of dynamic length.

    Args:
        cell: the cell.
        inputs: the sequence, an array or a symbol.
        begin_state: the initial states.
        drop_inputs: dropout rate of the inputs.
        drop_outputs: dropout rate of the outputs.
        layout: the axes, such as ``"NTC"``.
        valid_length: number of valid steps by sample; outputs after them are zeros.
    """
    inputs, axis, F, _ = _format_sequence(None, inputs, layout, True)
    swapped = [axis if i == 0 else 0 if i == axis else i for i in range(len(layout))]
    inputs = F.transpose(inputs, axes=swapped)
    if drop_inputs:
        inputs = F.Dropout(inputs, p=drop_inputs, axes=(axis,))
    if valid_length is None:
        outputs, states = F.contrib.foreach(cell, inputs, begin_state)
    else:

        def step(data: Any, states: list[Any]) -> tuple[Any, list[Any]]:
            *before, number = states
            out, after = cell(data, before)
            is_valid = F.broadcast_greater(valid_length, number)
            selected = [F.where(is_valid, new, old) for new, old in zip(after, before, strict=True)]
            return out, [*selected, number + 1]

        outputs, (*states, _) = F.contrib.foreach(step, inputs, [*_as_list(begin_state), F.zeros((1,))])
    if drop_outputs:
        outputs = F.Dropout(outputs, p=drop_outputs, axes=(axis,))
    outputs = F.transpose(outputs, axes=swapped)
    if valid_length is not None:
        outputs = F.SequenceMask(outputs, sequence_length=valid_length, use_sequence_length=True, axis=axis)
    return outputs, states
