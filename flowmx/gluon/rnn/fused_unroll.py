"""Unrolling of a cell over arrays by the operator ``RNN``, instead of about ten operators per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.gluon.rnn import sequences
from flowmx.gluon.rnn.cell_steps import Unrolled
from flowmx.ndarray import NDArray

_STATES = ("state", "state_cell")


def unroll(
    mode: Any, weights: Sequence[NDArray], states: Sequence[NDArray], inputs: Any, layout: str,
    merge_outputs: bool | None, valid_length: object,
) -> Unrolled:  # fmt: skip
    """Unroll a cell by one call of operator ``RNN``; return outputs and states as ``RecurrentCell.unroll`` does.

    Args:
        mode: the operator's mode.
        weights: the cell's weights, in the operator's order.
        states: the initial states.
        inputs: an array with a time axis, or a list of steps.
        layout: the layout of the array, and of the outputs.
        merge_outputs: as for ``unroll``.
        valid_length: as for ``unroll``.
    """
    sequence = inputs if isinstance(inputs, NDArray) else sequences.merge_steps(inputs, "TNC")
    is_transposed = layout != "TNC"
    data = nd.swapaxes(sequence, 0, 1) if is_transposed and isinstance(inputs, NDArray) else sequence
    vector = nd._internal._rnn_param_concat(*(weight.reshape(-1) for weight in weights), dim=0)
    options: dict[str, Any] = {
        name: nd.expand_dims(state, axis=0) for name, state in zip(_STATES, states, strict=False)
    }
    if valid_length is not None:
        options |= {"sequence_length": valid_length, "use_sequence_length": True}
    output, *last = nd.RNN(
        data, vector, state_size=states[0].shape[-1], num_layers=1, mode=mode, state_outputs=True, **options
    )
    next_states = [nd.squeeze(state, axis=0) for state in last]
    if merge_outputs or (merge_outputs is None and valid_length is not None):
        return (nd.swapaxes(output, 0, 1) if is_transposed else output), next_states
    return sequences.steps(output, len(output), "TNC"), next_states
