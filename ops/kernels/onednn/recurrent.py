"""Recurrent layers over whole sequences by oneDNN: in prediction, from parameters that were brought into its order.

A copy of the parameters has for each layer the weights of the input, those of the recurrence and the biases of all
directions and, of layers on bytes, the scales of their gates. A layer is one primitive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.compiled.recurrent import PackedRNN, PackRNN
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Array,
    Desc,
    Geometry,
    any_layout,
    geometry,
    halves,
    loaded,
    plain,
    pointer,
)
from flowmx.ops.kernels.onednn.library import Alg, Arg, DType, Handle, OneDNNError, Prop, Query, Unsupported, library
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, Room, attributes
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.math.conversion import cast
from flowmx.ops.math.reduce import wide
from flowmx.ops.quantization.ranges import UINT8, number
from flowmx.ops.quantization.recurrent import PackedQuantizedRNN, PackQuantizedRNN, QuantizedRNN, steps_of
from flowmx.ops.recurrent.layout import Layout
from flowmx.ops.recurrent.operator import RNN
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Run, Shape, kernel

_CELLS = {"rnn_relu": Alg.ELTWISE_RELU, "rnn_tanh": Alg.ELTWISE_TANH}
"""The activations of plain cells. GRUs are left out: oneDNN 3.2 divides by zero where it makes large ones."""
_LEFT_TO_RIGHT, _BOTH_SIDE_BY_SIDE = 1, 3
_OF_GATES = (1 << 3) | (1 << 4)
"""The axes of weights (layers, directions, inputs, gates, units) along which scales differ."""


Numbers = tuple[float, float, bytes]
"""The meaning of bytes as real numbers: the scale and the shift of data and states (byte = real · scale + shift), and
the steps of the weights for each unit of each gate, float32 (gates·units,) as bytes."""


class Form(NamedTuple):
    """The key of the primitives of recurrent layers.

    Attributes:
        mode: the operator's.
        layout: the sizes of the layers.
        data: the shape of the data (time, batch, features).
        dtype: the element type of the data.
    """

    mode: str
    layout: Layout
    data: Shape
    dtype: DType

    def inputs(self, layer: int) -> int:
        """The length of a layer's input."""
        return self.layout.width if layer else self.data[2]


class Layer:
    """The primitive of one layer and the descriptors of its arrays."""

    def __init__(self, room: Room, form: Form, layer: int, numbers: Numbers | None = None) -> None:
        """Make it.

        Args:
            room: where its scratch memory is.
            form: that of all layers.
            layer: which of them.
            numbers: for layers on bytes; any where only the layout of weights counts.
        """
        lib, layout = loaded(), form.layout
        time, batch, _ = form.data
        directions, units, gates, inputs = layout.directions, layout.units, layout.kind.gates, form.inputs(layer)
        of_bytes = form.dtype == DType.U8
        of_weights, of_states = (DType.S8, DType.F32) if of_bytes else (form.dtype, form.dtype)
        is_last = layer == layout.layers - 1
        self.made = plain((time, batch, layout.width), DType.F32 if of_bytes and is_last else form.dtype)
        self.state = plain((1, directions, batch, units), of_states)
        self.cell = plain((1, directions, batch, units))
        self.bias = plain((1, directions, gates, units))
        data = plain((time, batch, inputs), form.dtype)
        weights = [any_layout((1, directions, width, gates, units), of_weights) for width in (inputs, units)]
        self.attributes = attributes()
        if of_bytes:
            scale, shift, steps = numbers or (1.0, 0.0, np.ones(gates * units, np.float32).tobytes())
            self.attributes = lib.own(self, "primitive_attr", _attributes(scale, shift, steps))
        side = _BOTH_SIDE_BY_SIDE if directions == 2 else _LEFT_TO_RIGHT
        states = [self.state, self.cell] if form.mode == "lstm" else [self.state]
        start: list[Any] = [lib.engine, int(Prop.FORWARD_INFERENCE)]
        handles = [each.handle for each in weights]
        ends = [self.bias.handle, self.made.handle, *[each.handle for each in states], 0]
        given = [data.handle, *[each.handle for each in states]]
        if form.mode == "lstm":
            name, middle = "lstm", [side, *given, *handles, None, None, *ends]
        else:
            name, middle = "vanilla_rnn", [int(_CELLS[form.mode]), side, *given, *handles, *ends]
            middle += [ctypes.c_float(0), ctypes.c_float(0)]
        desc = lib.create(f"{name}_forward_primitive_desc_create", *start, *middle, self.attributes)
        if not lib.implementation(desc).startswith("brgemm"):
            raise Unsupported(f"oneDNN: {lib.implementation(desc)} is no faster than single steps")
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: data, Arg.SRC_1: self.state, Arg.WEIGHTS: Desc(lib.described(desc, Query.WEIGHTS, 0)),
            Arg.WEIGHTS_1: Desc(lib.described(desc, Query.WEIGHTS, 1)), Arg.BIAS: self.bias, Arg.DST: self.made,
            Arg.DST_1: self.state,
        }  # fmt: skip
        if form.mode == "lstm":
            arguments |= {Arg.SRC_2: self.cell, Arg.DST_2: self.cell}
        self.run = Primitive(room, desc, arguments)

    def parts(self) -> list[Desc]:
        """The layouts of the weights of the input and of the recurrence, and of the biases."""
        return [self.run.descriptor(Arg.WEIGHTS), self.run.descriptor(Arg.WEIGHTS_1), self.bias]


def _attributes(scale: float, shift: float, steps: bytes) -> Handle:
    lib = loaded()
    made = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", made, 1)
    lib.call("primitive_attr_set_rnn_data_qparams", made, ctypes.c_float(scale), ctypes.c_float(shift))
    numbers = np.frombuffer(steps, np.float32)
    lib.call(
        "primitive_attr_set_rnn_weights_qparams", made, ctypes.c_int64(numbers.size), _OF_GATES,
        ctypes.c_void_p(numbers.ctypes.data),
    )  # fmt: skip
    return made


class Places(NamedTuple):
    """The places of the parts of a copy of the parameters.

    Attributes:
        parts: for each layer the offsets of the weights of input and recurrence, of the biases, and of the scales.
        size: the bytes of all.
    """

    parts: list[list[int]]
    size: int


@cache
def _places(form: Form) -> Places | None:
    """The layout of a copy, chosen once for each form, since copies are kept; None where oneDNN can not."""
    room, parts = Room(), []
    scales = form.layout.kind.gates * form.layout.units * 4 if form.dtype == DType.U8 else 0
    try:
        for layer in range(form.layout.layers):
            made = Layer(Room(), form, layer)
            parts.append([room.take(each.nbytes) for each in made.parts()] + [room.take(scales)])
    except OneDNNError:
        return None
    return Places(parts, room.nbytes)


def _form(op: RNN, data: Shape, dtype: DType) -> Form | None:
    """The form of layers; None where oneDNN has none of the kind."""
    lib = library()
    if lib is None or not all(data):
        return None
    fits = dtype == DType.F32 or (lib.sums_bytes_exactly("") if dtype == DType.U8 else lib.multiplies(dtype))
    known = op.simple_lstm or (op.mode in _CELLS and not op.use_sequence_length)
    return Form(op.mode, op.layout, data, dtype) if fits and known else None


class Layers(Work):
    """All layers, one after the other."""

    def __init__(self, form: Form, scale: float = 1.0, shift: float = 0.0, steps: Sequence[bytes] = ()) -> None:
        """Make them; scale, shift and the steps of each layer's weights are those of :data:`Numbers`."""
        super().__init__()
        self._form = form
        found = _places(form)
        if found is None:
            raise Unsupported("oneDNN has no such recurrent layers")
        self._places = found.parts
        numbers: list[Numbers | None] = [(scale, shift, each) for each in steps] or [None] * form.layout.layers
        self._layers = [Layer(self.room, form, at, each) for at, each in enumerate(numbers)]
        self._between = [self.room.take(each.made.nbytes) for each in self._layers[:-1]]

    def calls(self, base: int, *addresses: int) -> list[Call]:
        """The calls for data, packed parameters, states and cells, and for output, last states and last cells."""
        half = len(addresses) // 2 - 1
        data, packed, *given = addresses[: 2 + half]
        made, *last = addresses[2 + half :]
        calls = []
        for at, (layer, places) in enumerate(zip(self._layers, self._places, strict=True)):
            is_last = at == len(self._layers) - 1
            target = made if is_last else base + self._between[at]
            steps = [at * layer.state.nbytes, at * layer.cell.nbytes]
            before = [address + step for address, step in zip(given, steps, strict=False)]
            after = [address + step for address, step in zip(last, steps, strict=False)]
            weights = [packed + place for place in places[:3]]
            where = [data, before[0], *weights, target, after[0]]
            calls.append(layer.run.at(base, *where, *before[1:], *after[1:]))
            data = target
        return calls


class _Weights(Work):
    """The weights of one layer, (directions, inputs, gates·units), in the order of its primitive."""

    def __init__(self, layer: Layer, argument: Arg, gates: int, given: Geometry) -> None:
        super().__init__()
        lib, (directions, inputs, rows) = loaded(), given.shape
        source, target = (
            plain((1, directions, inputs, gates, rows // gates), given.dtype),
            layer.run.descriptor(argument),
        )
        desc = lib.create(
            "reorder_primitive_desc_create", source.handle, lib.engine, target.handle, lib.engine, layer.attributes
        )
        self._copy = Primitive(self.room, desc, {Arg.SRC: source, Arg.DST: target})

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


def packed_size(op: RNN, data: Shape, dtype: NumPyType) -> int | None:
    """The bytes of a copy of the parameters for data of a shape and dtype; None where the plain forward has to do."""
    form = _form(op, data, TYPES[dtype])
    found = None if form is None else _places(form)
    return None if found is None else found.size


def pack(op: RNN, form: Form, vector: Array, packed: Array) -> None:
    """Bring a vector of parameters into a copy for layers of a form."""
    places = _places(form)
    assert places is not None
    for layer, (sides, where) in enumerate(zip(op.layout.unpack(vector, form.data[2]), places.parts, strict=True)):
        both = [np.array([getattr(side, name).T for side in sides], order="C") for name in ("input", "recurrent")]
        steps = steps_of(np, sides) if form.dtype == DType.U8 else np.zeros(0, np.float32)
        made = Layer(Room(), form, layer, (1.0, 0.0, steps.tobytes()) if steps.size else None)
        biases = np.stack([wide(side.input_bias) + wide(side.recurrent_bias) for side in sides])
        for argument, given, at in zip((Arg.WEIGHTS, Arg.WEIGHTS_1), both, where, strict=False):
            work = _Weights(made, argument, op.layout.kind.gates, geometry(given))
            work(pointer(given), pointer(packed) + at)
        for given, at in zip((biases, steps), where[2:], strict=True):
            packed[at : at + given.nbytes] = given.reshape(-1).view(UINT8)


class _Kernel:
    """The forward of layers that read a copy."""

    packed_size = staticmethod(packed_size)

    def takes(self, op: RNN, dtype: NumPyType) -> bool:
        """Tell whether it computes on elements of this type as they are."""
        return dtype in halves()

    def __call__(self, op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = map(np.ascontiguousarray, inputs)
        form = _form(op, data.shape, TYPES[data.dtype])
        work = None if form is None or packed_size(op, data.shape, data.dtype) != packed.size else plan(Layers, form)
        if work is None:
            raise OneDNNError(f"oneDNN: {op.name} cannot read the parameters that were packed for it")
        compute(run, work, data, packed, states, [data.dtype, FLOAT32], outputs)


def compute(
    run: Run, work: Work, data: Array, packed: Array, states: Sequence[Array], dtypes: Sequence[NumPyType],
    outputs: Sequence[Array],
) -> None:  # fmt: skip
    """Run layers.

    Args:
        run: where.
        work: the layers.
        data: the data.
        packed: the parameters.
        states: the first states, and the cells where there are some.
        dtypes: those of states and of cells in which the layers compute.
        outputs: the output, and the last states as far as they are wanted.
    """
    given = [each if each.dtype == dtype else each.astype(dtype) for each, dtype in zip(states, dtypes, strict=False)]
    made: list[Array] = [outputs[0] if outputs[0].flags.c_contiguous else np.empty(outputs[0].shape, outputs[0].dtype)]
    for at, (state, dtype) in enumerate(zip(given, dtypes, strict=False), 1):
        fits = at < len(outputs) and outputs[at].dtype == dtype and outputs[at].flags.c_contiguous
        made.append(outputs[at] if fits else np.empty(state.shape, dtype))
    work(*map(pointer, (data, packed, *given, *made)))
    for each, out in zip(made, outputs, strict=False):
        if each is not out:
            cast(run, each, out)


class _OfBytes(_Kernel):
    """The forward of layers on bytes, whose primitives are made for the scales of the data and of the weights."""

    def __call__(self, op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = map(np.ascontiguousarray, inputs[:4])
        form = _form(op, data.shape, DType.U8)
        places = None if form is None else _places(form)
        if form is None or places is None or places.size != packed.size:
            raise OneDNNError(f"oneDNN: {op.name} cannot read the parameters that were packed for it")
        width = 4 * form.layout.kind.gates * form.layout.units
        steps = [packed[at : at + width].tobytes() for *_, at in places.parts]
        work = plan(Layers, form, *map(float, map(number, inputs[4:])), tuple(steps))
        if work is None:
            raise OneDNNError(f"oneDNN: {op.name} has no primitive for the scales of its data")
        compute(run, work, data, packed, states, [FLOAT32, FLOAT32], outputs)


_of_bytes = _OfBytes()


def _round_and_compute(op: QuantizedRNN, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """The forward of layers on bytes that read their parameters as they are."""
    data, vector, *rest = inputs
    form = _form(op, data.shape, DType.U8)
    size = packed_size(op, data.shape, data.dtype)
    if form is None or size is None:
        op.forward(run, inputs, outputs)
        return
    packed = np.empty(size, UINT8)
    pack(op, form, np.ascontiguousarray(vector), packed)
    _of_bytes(op, run, [data, packed, *rest], outputs)


def _pack(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    form = _form(op, op.data_shape, DType.U8 if isinstance(op, PackQuantizedRNN) else TYPES[inputs[0].dtype])
    assert form is not None
    pack(op, form, op.vector(run, inputs), outputs[0])


kernel("cpu", PackRNN.name)(_pack)
kernel("cpu", PackedRNN.name)(_Kernel())
kernel("cpu", PackQuantizedRNN.name)(_pack)
kernel("cpu", PackedQuantizedRNN.name)(_of_bytes)
kernel("cpu", QuantizedRNN.name)(_round_and_compute)
