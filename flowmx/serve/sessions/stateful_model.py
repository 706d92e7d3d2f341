"""A model with states that computes batches of a few sizes. Blocking: it runs on threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowmx import autograd
from flowmx.devices import Context
from flowmx.graph.nesting import flatten
from flowmx.ndarray import NDArray
from flowmx.serve.compiled_model import Model
from flowmx.serve.inputs import Array, Inputs
from flowmx.serve.model_loading import Source
from flowmx.serve.sessions.states import StateSpec

__all__ = ["StatefulModel", "StatefulSource"]


class StatefulSource(NamedTuple):
    """A loaded model with states.

    Attributes:
        source: the model; its inputs are those without states.
        states: the states, in the order of the block's arguments after the inputs.
        takes_list: whether the block takes the states as one list.
        places: the positions of the next states among the outputs; None if they are the last outputs.
    """

    source: Source
    states: list[StateSpec]
    takes_list: bool = False
    places: tuple[int, ...] | None = None


class StatefulModel(Model):
    """A loaded model with states. As a :class:`Model`, it computes single calls, which begin with the initial states.

    Args:
        stateful: the model.
        inputs: the specifications of its inputs without states.
        ctx: the device of its parameters.
        version: its number among the models of the predictor.
    """

    def __init__(self, stateful: StatefulSource, inputs: Inputs, ctx: Context, version: int) -> None:
        super().__init__(stateful.source, inputs, ctx, version)
        self.states = stateful.states
        self._takes_list, self._places = stateful.takes_list, stateful.places
        if self._places is not None:
            names = enumerate(stateful.source.outputs)
            self.outputs = tuple(name for place, name in names if place not in self._places)

    def check_same_states(self, other: object) -> None:
        """Check that this model can continue the sessions of another model.

        Raises:
            ValueError: its states differ.
        """
        kinds = [
            [(spec.shape, spec.dtype, spec.axis) for spec in model.states] if isinstance(model, StatefulModel) else []
            for model in (self, other)
        ]
        if kinds[0] != kinds[1]:
            listing = ", ".join(f"{dtype} {shape} with the batch axis {axis}" for shape, dtype, axis in kinds[0])
            expected = ", ".join(f"{dtype} {shape} with the batch axis {axis}" for shape, dtype, axis in kinds[1])
            raise ValueError(f"the new model has the states {listing}, expected {expected}: create another predictor")

    def run(self, batch: Sequence[Array]) -> tuple[Array, ...]:
        rows = len(batch[0])
        states = [np.repeat(np.expand_dims(spec.initial, spec.axis), rows, spec.axis) for spec in self.states]
        return self.step(batch, states)[0]

    def step(self, batch: Sequence[Array], states: Sequence[Array]) -> tuple[tuple[Array, ...], list[Array]]:
        """Return the outputs and the next states, and block until they are computed.

        Args:
            batch: one array for each input. They may be overwritten.
            states: one array for each state. They may be overwritten.

        Raises:
            ValueError: the model returns states of other shapes or dtypes.
        """
        arrays, before = [self._array(array) for array in batch], [self._array(array) for array in states]
        with autograd.pause():
            result = self.source.block(*arrays, *([before] if self._takes_list else before))
        values, _ = flatten(result, NDArray, "outputs of the model")
        outputs, after = self._split([value.asnumpy() for value in values])
        for spec, old, new in zip(self.states, states, after, strict=True):
            if new.shape != old.shape or new.dtype != spec.dtype:
                raise ValueError(
                    f"the model takes the state {spec.name} as {spec.dtype} {old.shape} and returns it as {new.dtype} "
                    f"{new.shape}, expected equal shapes and dtypes: check the order of its outputs, and states=..."
                )
        return tuple(outputs), after

    def _split(self, values: list[Any]) -> tuple[list[Array], list[Array]]:
        """Return the outputs and the next states."""
        count = len(self.states)
        if len(values) <= count:
            raise ValueError(
                f"the model has {count} states and returned {len(values)} arrays, expected (outputs, *next states)"
            )
        if self._places is None:
            return values[:-count], values[-count:]
        outputs = [value for place, value in enumerate(values) if place not in self._places]
        return outputs, [values[place] for place in self._places]
