"""Checkpoints of networks with recurrent cells, with separate arrays for each gate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowmx import model
from flowmx.callback import _run_in_thread
from flowmx.ndarray import NDArray
from flowmx.rnn.base_cell import BaseRNNCell

Cells = BaseRNNCell | Sequence[BaseRNNCell]


def save_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int, symbol: object, arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray],
) -> None:  # fmt: skip
    """Save a checkpoint like ``mx.model.save_checkpoint``, with the cells' weights unpacked.

    Args:
        cells: the cells of the symbol.
        prefix: the prefix of the files' names.
        epoch: the number of epochs done.
        symbol: the symbol.
        arg_params: the parameters.
        aux_params: the auxiliary states.
    """
    for cell in _as_list(cells):
        arg_params = cell.unpack_weights(arg_params)
    model.save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int
) -> tuple[Any, dict[str, NDArray], dict[str, NDArray]]:  # fmt: skip
    """Load the result of :func:`save_rnn_checkpoint`; return symbol, parameters and auxiliary states.

    Args:
        cells: the cells of the symbol, which may differ from those that were saved, such as fused ones.
        prefix: the prefix of the files' names.
        epoch: the number of epochs done.
    """
    symbol, arg_params, aux_params = model.load_checkpoint(prefix, epoch)
    for cell in _as_list(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> Callable[..., object]:
    """Return an ``epoch_end_callback`` that calls :func:`save_rnn_checkpoint`.

    Args:
        cells: the cells of the symbol.
        prefix: the prefix of the files' names.
        period: the number of epochs between two checkpoints.
    """

    def callback(iter_no: int, sym: object = None, arg: object = None, aux: object = None) -> Any:
        if (iter_no + 1) % max(1, int(period)) == 0:
            return _run_in_thread(save_rnn_checkpoint, cells, prefix, iter_no + 1, sym, arg, aux)
        return None

    return callback


def rnn_unroll(
    cell: BaseRNNCell, length: int, inputs: Any = None, begin_state: Any = None, input_prefix: str = "",
    layout: str = "NTC",
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Call ``cell.unroll`` (MXNet's older name)."""
    warnings.warn("rnn_unroll: call cell.unroll() instead", DeprecationWarning, stacklevel=2)
    return cell.unroll(length, inputs, begin_state, layout)


def _as_list(cells: Cells) -> Sequence[BaseRNNCell]:
    return [cells] if isinstance(cells, BaseRNNCell) else cells
