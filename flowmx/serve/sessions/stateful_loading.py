"""Loads models with states: blocks, recurrent cells and layers, symbols, checkpoints and ONNX files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flowmx.gluon import Block
from flowmx.gluon.rnn import GRU, LSTM, RNN, RecurrentCell
from flowmx.serve.model_loading import Source, load, onnx_file
from flowmx.serve.sessions.stateful_model import StatefulSource
from flowmx.serve.sessions.states import State, StateLike, StateSpec, as_state, read_states

__all__ = ["States", "load_stateful"]

States = bool | Sequence[StateLike] | Mapping[str, "StateLike | str"]
"""The states of a model; see :class:`flowmx.serve.Predictor`."""

_NEXT = ("{}_out", "{}_output", "{}_next", "{}_new", "{}N", "{}n", "next_{}", "new_{}", "out_{}")
"""The names of outputs that have the next value of a state."""


def load_stateful(
    model: object, states: States, shape: object = None, dtype: object = None, params: object = None,
    epoch: int | None = None, constants: Mapping[str, object] | None = None,
) -> StatefulSource:  # fmt: skip
    """Load a model with states.

    Args:
        model: as for :func:`load`.
        states: as for :class:`flowmx.serve.Predictor`.
        shape: as for :func:`load`, without the states.
        dtype: as for :func:`load`.
        params: as for :func:`load`.
        epoch: as for :func:`load`.
        constants: as for :func:`load`.

    Raises:
        TypeError: ``model`` or ``states`` is something else.
        ValueError: the states are unknown or do not fit the model, or as for :func:`load`.
        OSError: a file is missing or cannot be read.
    """
    if isinstance(model, Block):
        specs = read_states(_of_block(model, states))
        return StatefulSource(
            load(model, shape, dtype, constants=constants), specs, isinstance(model, (RecurrentCell, GRU, LSTM, RNN))
        )
    file = onnx_file(model)
    if file is not None:
        return _of_onnx(file, states, shape, dtype, constants)
    pairs = {name: as_state(name, each) for name, each in states.items()} if isinstance(states, Mapping) else {}
    if not pairs or not all(state.output for state in pairs.values()):
        raise TypeError(
            f"states is {states!r}, expected a dict of the symbol's states by the name of their input, such as "
            '{"h": mx.serve.State((128,), output="h_next_output")}'
        )
    if constants:
        raise ValueError(f"constants are {', '.join(constants)}, expected none: they are for ONNX files")
    return _of_symbol(model, pairs, shape, dtype, params, epoch)


# -- blocks ------------------------------------------------------------------------------------------------


def _of_block(block: Block, states: States) -> Mapping[str, StateLike]:
    if states is True:
        return _own_states(block)
    if isinstance(states, (bool, str)) or not isinstance(states, (Sequence, Mapping)):
        raise TypeError(f"states is {states!r}, expected True, a list, or a dict")
    if not isinstance(states, Mapping):
        return {f"state{place}": state for place, state in enumerate(states)}
    texts = [name for name, state in states.items() if isinstance(state, str)]
    if texts:
        raise TypeError(f"the state {texts[0]} is a string, expected a shape or mx.serve.State for a Gluon block")
    return {name: state for name, state in states.items() if not isinstance(state, str)}


def _own_states(block: Block) -> dict[str, StateLike]:
    """Return the states that a recurrent cell or layer describes."""
    describe = getattr(block, "state_info", None)
    if describe is None:
        raise ValueError(
            f"states is True, and {type(block).__name__} has no state_info(): pass the shapes of its states, such as "
            "states=[(128,)]"
        )
    if isinstance(block, (GRU, LSTM, RNN)) and block._layout != "NTC":
        raise ValueError(
            f"{type(block).__name__} has the layout {block._layout}, expected layout='NTC': the batch axis of inputs "
            "and outputs is in front"
        )
    states: dict[str, StateLike] = {}
    for place, info in enumerate(describe(1)):
        axis = str(info.get("__layout__", "NC")).index("N")
        shape = tuple(info["shape"])
        states[f"state{place}"] = State((*shape[:axis], *shape[axis + 1 :]), info.get("dtype", "float32"), axis)
    return states


# -- symbols and files -------------------------------------------------------------------------------------


def _of_symbol(
    model: object, states: Mapping[str, State], shape: object, dtype: object, params: object, epoch: int | None
) -> StatefulSource:
    specs = read_states(states)
    if not isinstance(shape, Mapping):
        raise ValueError(f"shape is {shape!r}, expected a dict of the inputs' shapes by name, because it has states")
    source = load(model, _with_states(shape, specs), _dtypes(shape, dtype, specs), params, epoch)
    outputs = [state.output or "" for state in states.values()]
    return _paired(source, specs, outputs, source.outputs)


def _of_onnx(
    path: Path, states: States, shape: object, dtype: object, constants: Mapping[str, object] | None
) -> StatefulSource:
    from flowmx.contrib.onnx import get_model_metadata

    metadata = get_model_metadata(path)
    inputs = {name: sizes for name, sizes in metadata["input_tensor_data"] if name not in (constants or {})}
    outputs = [name for name, _ in metadata["output_tensor_data"]]
    pairs = _pairs(states, inputs, outputs)
    specs = read_states({name: state for name, (state, _) in pairs.items()})
    rest = {name: sizes for name, sizes in inputs.items() if name not in pairs}
    if shape is None:
        shape = {name: tuple(size or None for size in sizes[1:]) for name, sizes in rest.items()}
    elif not isinstance(shape, Mapping):
        if len(rest) != 1:
            raise ValueError(f"shape is a single shape, and the inputs are {', '.join(rest)}: pass {{name: shape}}")
        shape = {next(iter(rest)): shape}
    axes = {spec.name: spec.axis for spec in specs}
    source = load(path, _with_states(shape, specs), _dtypes(shape, dtype, specs), constants=constants, axes=axes)
    return _paired(source, specs, [output for _, output in pairs.values()], outputs)


def _pairs(states: States, inputs: Mapping[str, Sequence[int]], outputs: Sequence[str]) -> dict[str, tuple[State, str]]:
    """Return the state and the output of each input that is a state."""
    if states is True:
        states = {name: output for name in inputs if (output := _next_name(name, outputs)) is not None}
        if not states:
            raise ValueError(
                f"states is True, and no output of the file is named like the next value of an input: the inputs are "
                f"{', '.join(inputs)}, the outputs {', '.join(outputs)}: pass states={{input: output}}"
            )
    if not isinstance(states, Mapping):
        raise TypeError(f"states is {states!r}, expected True, or a dict of outputs by input for an ONNX file")
    pairs = {}
    for name, state in states.items():
        if name not in inputs:
            raise ValueError(f"states: there is no input {name!r}, expected some of {', '.join(inputs)}")
        spec = _declared(name, inputs[name], state) if isinstance(state, str) else as_state(name, state)
        output = spec.output or _next_name(name, outputs)
        if output is None or output not in outputs:
            raise ValueError(
                f"states: the next value of {name} is the output {output!r}, expected one of {', '.join(outputs)}"
            )
        pairs[name] = (spec, output)
    return pairs


def _next_name(name: str, outputs: Sequence[str]) -> str | None:
    """Return the output whose name says that it is the next value of an input, or None."""
    names = [pattern.format(name) for pattern in _NEXT]
    names += [name.replace("past", "present")] if "past" in name else []
    return next((output for output in outputs if output in names), None)


def _declared(name: str, sizes: Sequence[int], output: str) -> State:
    """Return a state with the shape that the file declares."""
    open_axes = [axis for axis, size in enumerate(sizes) if not size]
    if len(open_axes) != 1:
        raise ValueError(
            f"the file declares the state {name} as {tuple(size or '?' for size in sizes)}, expected one variable "
            f"length, the batch: pass states={{{name!r}: mx.serve.State(shape, axis=..., output={output!r})}}"
        )
    (axis,) = open_axes
    return State((*sizes[:axis], *sizes[axis + 1 :]), axis=axis, output=output)


def _with_states(shape: Mapping[str, Any], specs: Sequence[StateSpec]) -> dict[str, Any]:
    """Return the shapes of the inputs and states by name."""
    return {**shape, **{spec.name: spec.shape for spec in specs}}


def _dtypes(shape: Mapping[str, Any], dtype: object, specs: Sequence[StateSpec]) -> dict[str, Any]:
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(shape, dtype)
    return {**dtypes, **{spec.name: np.dtype(spec.dtype) for spec in specs}}


def _paired(
    source: Source, specs: list[StateSpec], next_outputs: Sequence[str], outputs: Sequence[str]
) -> StatefulSource:
    """Return the source without the states among its inputs."""
    missing = [output for output in next_outputs if output not in outputs]
    if missing:
        raise ValueError(f"states: there is no output {missing[0]!r}, expected some of {', '.join(outputs)}")
    names = {spec.name for spec in specs}
    inputs = [spec for spec in source.inputs if spec.name not in names]
    places = tuple(list(outputs).index(output) for output in next_outputs)
    return StatefulSource(source._replace(inputs=inputs), specs, places=places)
