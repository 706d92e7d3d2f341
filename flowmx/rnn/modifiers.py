"""Cells that modify other cells: dropout, zoneout, residual connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from flowmx import symbol as sym
from flowmx.gluon.rnn.modifiers import mix, unmodified
from flowmx.ndarray import NDArray
from flowmx.ops.registry.tensors import Tensor
from flowmx.rnn.base_cell import BaseRNNCell, RNNParams, StepResult, Weights, merge_steps, split
from flowmx.symbol import Symbol


class DropoutCell(BaseRNNCell):
    """Drop a part of the input in training.

    Args:
        dropout: the probability of a zero.
        prefix: the prefix of names.
        params: ignored; accepted for MXNet's scripts.

    Raises:
        TypeError: ``dropout`` is not a number.
    """

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        if not isinstance(dropout, (int, float)):
            raise TypeError(f"DropoutCell: dropout is {dropout!r}, expected a number from 0 to 1")
        self.dropout = dropout

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return []

    def __call__(self, inputs: Any, states: list[Any]) -> StepResult:
        return (sym.Dropout(data=inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def _unroll(self, length: int, inputs: object, begin_state: object, layout: str, merge: bool | None) -> StepResult:
        if merge is True or (merge is None and isinstance(inputs, Symbol)):
            return self(merge_steps(inputs, layout), [])
        return super()._unroll(length, inputs, begin_state, layout, merge)


class ModifierCell(BaseRNNCell):
    """Base class of cells that wrap another cell, which must not be called directly any more.

    Args:
        base_cell: the other cell.
    """

    def __init__(self, base_cell: BaseRNNCell) -> None:
        super().__init__()
        base_cell._modified = True
        self.base_cell = base_cell

    @property
    def params(self) -> RNNParams:
        self._own_params = False
        return self.base_cell.params

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return self.base_cell.state_info

    def begin_state(self, init_sym: Callable[..., Symbol] = sym.zeros, **kwargs: object) -> list[Any]:  # type: ignore[override]
        self._check_unmodified()
        with unmodified(self.base_cell) as cell:
            return cell.begin_state(func=init_sym, **kwargs)

    def unpack_weights(self, args: Weights) -> dict[str, NDArray]:
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Weights) -> dict[str, NDArray]:
        return self.base_cell.pack_weights(args)


class ZoneoutCell(ModifierCell):
    """Keep a part of outputs and states from the previous step, in training (Krueger et al. 2016).

    Args:
        base_cell: the cell.
        zoneout_outputs: the fraction of the outputs.
        zoneout_states: the fraction of the states.

    Raises:
        TypeError: the cell cannot be called step by step.
    """

    def __init__(self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        if type(base_cell).__call__ is BaseRNNCell.__call__:
            raise TypeError(
                f"ZoneoutCell: a {type(base_cell).__name__} cannot be called step by step: unfuse() it, or put "
                "ZoneoutCells around the cells in it"
            )
        super().__init__(base_cell)
        self.zoneout_outputs = zoneout_outputs
        self.zoneout_states = zoneout_states
        self.prev_output: Any = None

    def reset(self) -> None:
        super().reset()
        self.prev_output = None
        if hasattr(self, "base_cell"):
            self.base_cell.reset()

    def __call__(self, inputs: Any, states: list[Any]) -> StepResult:
        output, after = self.base_cell(inputs, states)
        before = sym.zeros((0, 0)) if self.prev_output is None else self.prev_output
        output = mix(sym, self.zoneout_outputs, cast("Tensor", output), cast("Tensor", before))
        after = [mix(sym, self.zoneout_states, new, old) for new, old in zip(after, states, strict=True)]
        self.prev_output = output
        return output, after


class ResidualCell(ModifierCell):
    """Add the input to the output of another cell (Wu et al. 2016).

    Args:
        base_cell: the other cell.
    """

    def __call__(self, inputs: Any, states: list[Any]) -> StepResult:
        output, states = self.base_cell(inputs, states)
        return _plus(output, inputs), states

    def _unroll(self, length: int, inputs: Any, begin_state: Any, layout: str, merge: bool | None) -> StepResult:
        with unmodified(self.base_cell) as cell:
            outputs, states = cell.unroll(length, inputs, begin_state, layout, merge)
        if isinstance(outputs, Symbol):
            return _plus(outputs, merge_steps(inputs, layout)), states
        pairs = zip(outputs, split(length, inputs, layout), strict=True)
        return [_plus(*pair) for pair in pairs], states


def _plus(output: Symbol, inputs: Symbol) -> Symbol:
    return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")
