"""oneDNN kernels that run recurrent layers over whole sequences in prediction, from packed parameters.

Packed parameters hold, for each layer, the input weights, the recurrent weights and the biases of all directions and,
for int8 layers, the scales of the gates. Each layer is one primitive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flowmx.ops.compiled.packed_rnn import PackedRNN, PackRNN
from flowmx.ops.kernels.onednn import panel_lstm
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Array,
    Desc,
    Geometry,
    any_layout,
    geometry,
    layout_number,
    library_or_raise,
    native_16bit_dtypes,
    plain,
    pointer,
)
from flowmx.ops.kernels.onednn.library import Alg, Arg, DType, Handle, OneDNNError, Prop, Query, Unsupported, library
from flowmx.ops.kernels.onednn.primitives import Call, Primitive, WorkspaceLayout, attributes
from flowmx.ops.kernels.onednn.work import Work, plan
from flowmx.ops.kernels.recording import mark_incomplete, use_memory
from flowmx.ops.math.conversion import cast
from flowmx.ops.math.reduce import widen
from flowmx.ops.quantization.quantized_rnn import PackedQuantizedRNN, PackQuantizedRNN, QuantizedRNN, steps_of
from flowmx.ops.quantization.ranges import UINT8, number
from flowmx.ops.recurrent.layout import Layout
from flowmx.ops.recurrent.rnn import RNN
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.kernels import FunctionKernel, Kernel, kernel, register_kernel
from flowmx.ops.registry.operators import Run, Shape

_CELLS = {"rnn_relu": Alg.ELTWISE_RELU, "rnn_tanh": Alg.ELTWISE_TANH}
"""The activations of plain cells. GRUs are excluded: oneDNN 3.2 divides by zero when it creates large ones."""
_LEFT_TO_RIGHT, _BOTH_SIDE_BY_SIDE = 1, 3
_GATE_SCALE_MASK = (1 << 3) | (1 << 4)
"""The axes of weights (layers, directions, inputs, gates, units) along which scales differ."""


Quantization = tuple[float, float, bytes]
"""The quantization of an int8 layer: (scale, shift, weight scales).

Data and states are quantized as q = x · scale + shift. The weight scales are the bytes of a float32 array
(gates·units,)."""


class PrimitiveKey(NamedTuple):
    """The properties that determine the oneDNN primitives of recurrent layers.

    Attributes:
        mode: the operator's mode.
        layout: the sizes of the layers.
        data: the shape of the data (time, batch, features).
        dtype: the element type of the data.
    """

    mode: str
    layout: Layout
    data: Shape
    dtype: DType

    def inputs(self, layer: int) -> int:
        """Return the length of a layer's input."""
        return self.layout.width if layer else self.data[2]


class Layer:
    """The primitive of one layer and the descriptors of its arrays."""

    def __init__(
        self, workspace: WorkspaceLayout, key: PrimitiveKey, layer: int, numbers: Quantization | None = None
    ) -> None:
        """Make a layer.

        Args:
            workspace: the workspace layout, to which the scratch memory of the layer is added.
            key: the key of all layers.
            layer: the index of the layer.
            numbers: the quantization of int8 layers; any value if only the layout of weights is needed.
        """
        lib, layout = library_or_raise(), key.layout
        time, batch, _ = key.data
        directions, units, gates, inputs = layout.directions, layout.units, layout.cell.gates, key.inputs(layer)
        is_int8 = key.dtype == DType.U8
        weight_dtype, state_dtype = (DType.S8, DType.F32) if is_int8 else (key.dtype, key.dtype)
        is_last = layer == layout.layers - 1
        self.output = plain((time, batch, layout.width), DType.F32 if is_int8 and is_last else key.dtype)
        self.state = plain((1, directions, batch, units), state_dtype)
        self.cell = plain((1, directions, batch, units))
        self.bias = plain((1, directions, gates, units))
        data = plain((time, batch, inputs), key.dtype)
        weights = [any_layout((1, directions, width, gates, units), weight_dtype) for width in (inputs, units)]
        self.attributes = attributes()
        if is_int8:
            scale, shift, steps = numbers or (1.0, 0.0, np.ones(gates * units, np.float32).tobytes())
            self.attributes = lib.own(self, "primitive_attr", _attributes(scale, shift, steps))
        side = _BOTH_SIDE_BY_SIDE if directions == 2 else _LEFT_TO_RIGHT
        states = [self.state, self.cell] if key.mode == "lstm" else [self.state]
        start: list[Any] = [lib.engine, int(Prop.FORWARD_INFERENCE)]
        handles = [each.handle for each in weights]
        results = [self.bias.handle, self.output.handle, *[each.handle for each in states], 0]
        input_handles = [data.handle, *[each.handle for each in states]]
        if key.mode == "lstm":
            name, middle = "lstm", [side, *input_handles, *handles, None, None, *results]
        else:
            name, middle = "vanilla_rnn", [int(_CELLS[key.mode]), side, *input_handles, *handles, *results]
            middle += [ctypes.c_float(0), ctypes.c_float(0)]
        desc = lib.create(f"{name}_forward_primitive_desc_create", *start, *middle, self.attributes)
        if not lib.implementation(desc).startswith("brgemm"):
            raise Unsupported(f"oneDNN: {lib.implementation(desc)} is no faster than single steps")
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: data, Arg.SRC_1: self.state, Arg.WEIGHTS: Desc(lib.described(desc, Query.WEIGHTS, 0)),
            Arg.WEIGHTS_1: Desc(lib.described(desc, Query.WEIGHTS, 1)), Arg.BIAS: self.bias, Arg.DST: self.output,
            Arg.DST_1: self.state,
        }  # fmt: skip
        if key.mode == "lstm":
            arguments |= {Arg.SRC_2: self.cell, Arg.DST_2: self.cell}
        self.run = Primitive(workspace, desc, arguments)

    def parts(self) -> list[Desc]:
        """Return the layouts of input weights, recurrent weights and biases."""
        return [self.run.descriptor(Arg.WEIGHTS), self.run.descriptor(Arg.WEIGHTS_1), self.bias]


def _attributes(scale: float, shift: float, steps: bytes) -> Handle:
    lib = library_or_raise()
    handle = lib.create("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", handle, 1)
    lib.call("primitive_attr_set_rnn_data_qparams", handle, ctypes.c_float(scale), ctypes.c_float(shift))
    numbers = np.frombuffer(steps, np.float32)
    lib.call(
        "primitive_attr_set_rnn_weights_qparams", handle, ctypes.c_int64(numbers.size), _GATE_SCALE_MASK,
        ctypes.c_void_p(numbers.ctypes.data),
    )  # fmt: skip
    return handle


class PackedLayout(NamedTuple):
    """The offsets of the parts of packed parameters.

    Attributes:
        parts: for each layer, the offsets of input weights, recurrent weights, biases and scales.
        size: the total size in bytes.
        layouts: the numbers of the memory layouts of all parts.
    """

    parts: list[list[int]]
    size: int
    layouts: tuple[int, ...]


@cache
def _packed_layout(key: PrimitiveKey) -> PackedLayout | None:
    """Return the layout of packed parameters, chosen once per form, since copies are reused; None if unsupported."""
    workspace, parts = WorkspaceLayout(), []
    layouts: list[int] = []
    scales = key.layout.cell.gates * key.layout.units * 4 if key.dtype == DType.U8 else 0
    try:
        for layer in range(key.layout.layers):
            primitive = Layer(WorkspaceLayout(), key, layer)
            parts.append([workspace.take(each.nbytes) for each in primitive.parts()] + [workspace.take(scales)])
            layouts += map(layout_number, primitive.parts())
    except OneDNNError:
        return None
    return PackedLayout(parts, workspace.nbytes, tuple(layouts))


def _primitive_key(op: RNN, data: Shape, dtype: DType) -> PrimitiveKey | None:
    """Return the form of layers; None if oneDNN does not support them."""
    lib = library()
    if lib is None or not all(data):
        return None
    multiplies = lib.sums_int8_exactly("") if dtype == DType.U8 else lib.multiplies(dtype)
    is_type_supported = dtype == DType.F32 or multiplies
    is_cell_supported = op.simple_lstm or (op.mode in _CELLS and not op.use_sequence_length)
    return PrimitiveKey(op.mode, op.layout, data, dtype) if is_type_supported and is_cell_supported else None


class Layers(Work):
    """All layers, in order."""

    def __init__(self, key: PrimitiveKey, scale: float = 1.0, shift: float = 0.0, steps: Sequence[bytes] = ()) -> None:
        """Make the layers; scale, shift and the steps of each layer's weights are as in :data:`Quantization`."""
        super().__init__()
        self._primitive_key = key
        places = _packed_layout(key)
        if places is None:
            raise Unsupported("oneDNN has no such recurrent layers")
        self._packed_layout = places.parts
        numbers: list[Quantization | None] = [(scale, shift, each) for each in steps] or [None] * key.layout.layers
        self._layers = [Layer(self.workspace, key, at, each) for at, each in enumerate(numbers)]
        self._between = [self.workspace.take(each.output.nbytes) for each in self._layers[:-1]]

    def calls(self, base: int, *addresses: int) -> list[Call]:
        """Return the calls for data, packed parameters, states, cells, output, last states and last cells."""
        half = len(addresses) // 2 - 1
        data, packed, *states = addresses[: 2 + half]
        output, *last = addresses[2 + half :]
        calls = []
        for at, (layer, places) in enumerate(zip(self._layers, self._packed_layout, strict=True)):
            is_last = at == len(self._layers) - 1
            target = output if is_last else base + self._between[at]
            steps = [at * layer.state.nbytes, at * layer.cell.nbytes]
            before = [address + step for address, step in zip(states, steps, strict=False)]
            after = [address + step for address, step in zip(last, steps, strict=False)]
            weights = [packed + place for place in places[:3]]
            where = [data, before[0], *weights, target, after[0]]
            calls.append(layer.run.at(base, *where, *before[1:], *after[1:]))
            data = target
        return calls


class _Weights(Work):
    """The weights of one layer, (directions, inputs, gates·units), in the layout of its primitive."""

    def __init__(self, layer: Layer, argument: Arg, gates: int, weights: Geometry) -> None:
        super().__init__()
        lib, (directions, inputs, rows) = library_or_raise(), weights.shape
        source, target = (
            plain((1, directions, inputs, gates, rows // gates), weights.dtype),
            layer.run.descriptor(argument),
        )
        desc = lib.create(
            "reorder_primitive_desc_create", source.handle, lib.engine, target.handle, lib.engine, layer.attributes
        )
        self._copy = Primitive(self.workspace, desc, {Arg.SRC: source, Arg.DST: target})

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


def packed_size(op: RNN, data: Shape, dtype: NumPyType) -> int | None:
    """Return the size of packed parameters in bytes, for data of a shape and dtype; None if the fallback must run."""
    key = _primitive_key(op, data, TYPES[dtype])
    if key is not None and _uses_panel_kernel(key):
        return key.dtype.nbytes * panel_lstm.packed_length(key.layout, data[2])
    places = None if key is None else _packed_layout(key)
    return None if places is None else places.size


def _uses_panel_kernel(key: PrimitiveKey) -> bool:
    """Return whether compiled loops compute the layers."""
    return key.mode == "lstm" and panel_lstm.supports(key.layout, key.dtype)


def _work(key: PrimitiveKey) -> Work | None:
    """Return the computation of layers; None if oneDNN does not support them."""
    if _uses_panel_kernel(key):
        return plan(panel_lstm.Layers, key.layout, key.data)
    return plan(Layers, key)


def pack(op: RNN, key: PrimitiveKey, vector: Array, packed: Array) -> None:
    """Pack a vector of parameters for layers of a form."""
    if _uses_panel_kernel(key):
        panel_lstm.pack(key.layout, vector, key.data[2], packed.view(np.float32))
        return
    places = _packed_layout(key)
    assert places is not None
    for layer, (sides, where) in enumerate(zip(op.layout.unpack(vector, key.data[2]), places.parts, strict=True)):
        weights = [np.array([getattr(side, name).T for side in sides], order="C") for name in ("input", "recurrent")]
        steps = steps_of(np, sides) if key.dtype == DType.U8 else np.zeros(0, np.float32)
        primitive = Layer(WorkspaceLayout(), key, layer, (1.0, 0.0, steps.tobytes()) if steps.size else None)
        biases = np.stack([widen(side.input_bias) + widen(side.recurrent_bias) for side in sides])
        for argument, array, at in zip((Arg.WEIGHTS, Arg.WEIGHTS_1), weights, where, strict=False):
            work = _Weights(primitive, argument, op.layout.cell.gates, geometry(array))
            work(pointer(array), pointer(packed) + at)
        for array, at in zip((biases, steps), where[2:], strict=True):
            packed[at : at + array.nbytes] = array.reshape(-1).view(UINT8)


class _RNNKernel(Kernel):
    """The forward of layers with packed parameters."""

    only_native = True

    def __init__(self) -> None:
        self.packed_size = packed_size

    def takes(self, op: RNN, dtype: NumPyType) -> bool:
        """Return whether the kernel computes on elements of this type without conversion."""
        return dtype in native_16bit_dtypes()

    def compute(self, op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = map(np.ascontiguousarray, inputs)
        key = _primitive_key(op, data.shape, TYPES[data.dtype])
        work = None if key is None or packed_size(op, data.shape, data.dtype) != packed.size else _work(key)
        if work is None:
            raise OneDNNError(f"oneDNN: {op.name} cannot read the parameters that were packed for it")
        compute(run, work, data, packed, states, [data.dtype, FLOAT32], outputs)


def compute(
    run: Run, work: Work, data: Array, packed: Array, states: Sequence[Array], dtypes: Sequence[NumPyType],
    outputs: Sequence[Array],
) -> None:  # fmt: skip
    """Run layers.

    Args:
        run: the context of the forward.
        work: the layers.
        data: the data.
        packed: the packed parameters.
        states: the initial states and, if any, cells.
        dtypes: the dtypes in which the layers compute states and cells.
        outputs: the output, and optionally the last states.
    """
    inputs = [each if each.dtype == dtype else each.astype(dtype) for each, dtype in zip(states, dtypes, strict=False)]
    out = outputs[0]
    results: list[Array] = [out if out.flags.c_contiguous else use_memory(np.empty(out.shape, out.dtype))]
    for at, (state, dtype) in enumerate(zip(inputs, dtypes, strict=False), 1):
        is_usable = at < len(outputs) and outputs[at].dtype == dtype and outputs[at].flags.c_contiguous
        results.append(outputs[at] if is_usable else use_memory(np.empty(state.shape, dtype)))
    work(*map(pointer, (data, packed, *inputs, *results)))
    for each, out in zip(results, outputs, strict=False):
        if each is not out:
            mark_incomplete()
            cast(run, each, out)


class _Int8RNNKernel(_RNNKernel):
    """The forward of int8 layers, with primitives for the scales of data and weights."""

    only_native = False  # a recording cannot replay it: the primitives depend on the scales in the data

    def compute(self, op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        data, packed, *states = map(np.ascontiguousarray, inputs[:4])
        key = _primitive_key(op, data.shape, DType.U8)
        places = None if key is None else _packed_layout(key)
        if key is None or places is None or places.size != packed.size:
            raise OneDNNError(f"oneDNN: {op.name} cannot read the parameters that were packed for it")
        width = 4 * key.layout.cell.gates * key.layout.units
        steps = [packed[at : at + width].tobytes() for *_, at in places.parts]
        work = plan(Layers, key, *map(float, map(number, inputs[4:])), tuple(steps))
        if work is None:
            raise OneDNNError(f"oneDNN: {op.name} has no primitive for the scales of its data")
        compute(run, work, data, packed, states, [FLOAT32, FLOAT32], outputs)


_int8_kernel = _Int8RNNKernel()


def _pack_and_compute(op: QuantizedRNN, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Pack the parameters of int8 layers, then compute the layers."""
    data, vector, *rest = inputs
    key = _primitive_key(op, data.shape, DType.U8)
    size = packed_size(op, data.shape, data.dtype)
    if key is None or size is None:
        op.forward(run, inputs, outputs)
        return
    packed = np.empty(size, UINT8)
    pack(op, key, np.ascontiguousarray(vector), packed)
    _int8_kernel.compute(op, run, [data, packed, *rest], outputs)


def _pack(op: Any, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    key = _primitive_key(op, op.data_shape, DType.U8 if isinstance(op, PackQuantizedRNN) else TYPES[inputs[0].dtype])
    assert key is not None
    pack(op, key, op.vector(run, inputs), outputs[0])


def _content_key(op: Any, dtype: NumPyType | None) -> Hashable | None:
    """Return the key of packed parameters: their layout, which may be the same for any number of sequences."""
    kind = None if dtype is None else TYPES.get(dtype)
    key = None if kind is None else _primitive_key(op, op.data_shape, kind)
    if key is None:
        return None
    if _uses_panel_kernel(key):
        return key.mode, key.layout, key.data[2], kind, "panels"
    places = _packed_layout(key)
    return None if places is None else (key.mode, key.layout, key.data[2], kind, places.layouts, op.size)


register_kernel("cpu", PackRNN.name, FunctionKernel(_pack, content_key=_content_key))
register_kernel("cpu", PackedRNN.name, _RNNKernel())
kernel("cpu", PackQuantizedRNN.name)(_pack)
register_kernel("cpu", PackedQuantizedRNN.name, _int8_kernel)
kernel("cpu", QuantizedRNN.name)(_pack_and_compute)
