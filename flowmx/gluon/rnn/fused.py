"""A cell unrolled over arrays, by the one operator of recurrent layers in the place of some ten for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx import ndarray as nd
from flowmx.gluon.rnn import sequences
from flowmx.ndarray import NDArray

Unrolled = tuple[Any, list[Any]]

_STATES = ("state", "state_cell")


def unrolled(
    mode: Any, weights: Sequence[NDArray], states: Sequence[NDArray], inputs: Any, layout: str,
    merge_outputs: bool | None, valid_length: Any,
) -> Unrolled:  # fmt: skip
    """Unroll a cell by one call of operator ``RNN``; returns as ``RecurrentCell.unroll`` does.

    Args:
        mode: the operator's.
        weights: those of the cell, in the operator's order.
        states: the first states.
        inputs: an array with an axis of time, or a list of steps.
        layout: that of the array, and of the outputs.
        merge_outputs: as for ``unroll``.
        valid_length: likewise.
    """
    whole = inputs if isinstance(inputs, NDArray) else sequences.merged(inputs, "TNC")
    turned = layout != "TNC"
    data = nd.swapaxes(whole, 0, 1) if turned and isinstance(inputs, NDArray) else whole
    vector = nd._internal._rnn_param_concat(*(each.reshape(-1) for each in weights), dim=0)
    given: dict[str, Any] = {name: nd.expand_dims(each, axis=0) for name, each in zip(_STATES, states, strict=False)}
    if valid_length is not None:
        given |= {"sequence_length": valid_length, "use_sequence_length": True}
    output, *last = nd.RNN(
        data, vector, state_size=states[0].shape[-1], num_layers=1, mode=mode, state_outputs=True, **given
    )
    following = [nd.squeeze(each, axis=0) for each in last]
    if merge_outputs or (merge_outputs is None and valid_length is not None):
        return (nd.swapaxes(output, 0, 1) if turned else output), following
    return sequences.steps(output, len(output), "TNC"), following
