"""Indexing operators, and operators of sequences with lengths."""

from __future__ import annotations

import numpy as np

from flowmx.contrib.onnx.converters import Unsupported, exports, imports, need_onnx
from flowmx.contrib.onnx.dynamic_lengths import Length
from flowmx.contrib.onnx.node_export import NodeExport
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.ops.registry.dtypes import name_of
from flowmx.symbol import Symbol


def _bound_indices(n: NodeExport, index: str, length: Length, mode: str) -> str:
    """Clip or wrap indices, as MXNet does."""
    if mode == "raise":
        return index
    count = np.asarray(length, np.int64) if isinstance(length, int) else n.add("Squeeze", n.shape((length,)), [0])
    if mode == "wrap":
        return n.add("Mod", index, count)
    last = np.asarray(length - 1, np.int64) if isinstance(length, int) else n.add("Sub", count, np.asarray(1, np.int64))
    return n.add("Clip", index, np.asarray(0, np.int64), last)


@exports("take")
def _take(n: NodeExport) -> str:
    index = _bound_indices(n, n.as_int64(1), n.dims()[n.op.axis], n.op.mode)
    return n.add("Gather", n.inputs[0], index, axis=n.op.axis)


@exports("batch_take")
def _batch_take(n: NodeExport) -> str:
    index = _bound_indices(n, n.as_int64(1), n.dims()[1], "clip")
    result = n.add("GatherElements", n.inputs[0], n.add("Unsqueeze", index, [1]), axis=1)
    return n.add("Squeeze", result, [1])


@exports("pick")
def _pick(n: NodeExport) -> str:
    if n.op.axis is None:
        raise Unsupported("its axis is None, expected a number")
    axis = n.op.axis % n.rank()
    index = _bound_indices(n, n.as_int64(1), n.dims()[axis], n.op.mode)
    if n.rank(1) < n.rank():
        index = n.add("Unsqueeze", index, [axis])
    result = n.add("GatherElements", n.inputs[0], index, axis=axis)
    if n.op.keepdims:
        return result
    return result if n.rank() == 1 else n.add("Squeeze", result, [axis])


@imports("Gather")
def _gather(n: NodeImport) -> Symbol:
    axis = n.axis(0)
    if not n.is_known(1) or not n.known_value(1).fixed:
        if n.is_known(0) and axis == 0 and n.array(0).ndim == 2:
            rows, width = n.array(0).shape
            return n.make("Embedding", n.symbol(1), n.symbol(0), input_dim=rows, output_dim=width,
                          dtype=name_of(n.dtype(0)))  # fmt: skip
        return n.make("take", n.symbol(0), n.symbol(1), axis=axis, mode="wrap")
    index = n.array(1)
    if index.ndim:
        return n.make("take", n.symbol(0), n.symbol(1), axis=axis, mode="wrap")
    begin = int(index)
    part = n.make("slice_axis", n.symbol(0), axis=axis, begin=begin, end=None if begin == -1 else begin + 1)
    return n.make("squeeze", part, axis=axis)


@imports("GatherElements")
def _gather_elements(n: NodeImport) -> Symbol:
    """Convert to ``pick`` if there is one index per position of the other axes, else to ``gather_nd``."""
    axis, index = n.axis(0), n.symbol(1)
    if n.dims(1) == (*n.dims()[:axis], 1, *n.dims()[axis + 1 :]):
        return n.make("pick", n.symbol(0), index, axis=axis, keepdims=True, mode="wrap")
    rank = n.rank()
    coordinates = [index if i == axis else _positions_like(n, index, i, rank) for i in range(rank)]
    return n.make("gather_nd", n.symbol(0), n.make("stack", *coordinates, axis=0))


def _positions_like(n: NodeImport, index: Symbol, axis: int, rank: int) -> Symbol:
    """Create an array like ``index`` with the position of each element on an axis."""
    line = n.make("_contrib_arange_like", index, axis=axis)
    line = n.make("Reshape", line, shape=tuple(-1 if i == axis else 1 for i in range(rank)))
    return n.make("broadcast_like", line, index)


@exports("gather_nd")
def _gather_nd(n: NodeExport) -> str:
    """MXNet has the coordinates on the first axis, ONNX on the last."""
    rank = n.rank(1)
    return n.add("GatherND", n.inputs[0], n.transpose(n.as_int64(1), [*range(1, rank), 0]))


@imports("GatherND")
def _import_gather_nd(n: NodeImport) -> Symbol:
    n.expect("batch_dims", 0, 1)
    rank = n.rank(1)
    if n.attr("batch_dims", 0):
        return _sequence_ends(n)
    index = n.make("transpose", n.symbol(1), axes=(rank - 1, *range(rank - 1)))
    return n.make("gather_nd", n.symbol(0), index)


def _sequence_ends(n: NodeImport) -> Symbol:
    """Return the last element of each sequence."""
    if n.dims(1)[1:] != (1,):
        raise Unsupported("its batch_dims is 1 with several coordinates, expected one for each row")
    ends = n.make("_plus_scalar", n.make("squeeze", n.symbol(1), axis=1), scalar=1)
    return n.make("SequenceLast", n.symbol(0), ends, use_sequence_length=True, axis=1)


@exports("scatter_nd")
def _scatter_nd(n: NodeExport) -> str:
    shape = [n.fixed(dim, "its result's shape") for dim in n.out_dims()]
    rank = n.rank(1)
    index = n.transpose(n.as_int64(1), [*range(1, rank), 0])
    return n.add("ScatterND", np.zeros(shape, n.out_dtype()), index, n.inputs[0])


@exports("_contrib_index_copy")
def _index_copy(n: NodeExport) -> str:
    return n.add("ScatterND", n.inputs[0], n.add("Unsqueeze", n.as_int64(1), [1]), n.inputs[2])


@imports("ScatterND")
def _import_scatter_nd(n: NodeImport) -> Symbol:
    n.expect("reduction", "none")
    rank = n.rank(1)
    return _overwrite(n, n.make("transpose", n.symbol(1), axes=(rank - 1, *range(rank - 1))))


@imports("ScatterElements", "Scatter")
def _scatter_elements(n: NodeImport) -> Symbol:
    n.expect("reduction", "none")
    axis, rank, index = n.axis(0), n.rank(), n.symbol(1)
    length = n.fixed(n.dims()[axis], "the length of its axis")
    inside = n.make("_mod_scalar", index, scalar=length)  # negative indices count from the end
    coordinates = [inside if i == axis else _positions_like(n, index, i, rank) for i in range(rank)]
    return _overwrite(n, n.make("stack", *[n.make("Cast", place, dtype="int64") for place in coordinates], axis=0))


def _overwrite(n: NodeImport, coordinates: Symbol) -> Symbol:
    """Replace elements of the first input at coordinates by those of the third input."""
    shape = tuple(n.fixed(length, "the shape of its data") for length in n.dims())
    result = n.make("scatter_nd", n.symbol(2), coordinates, shape=shape)
    if n.is_known(0) and not n.array(0).any():
        return result
    mask = n.make("scatter_nd", n.make("ones_like", n.symbol(2)), coordinates, shape=shape)
    return n.make("where", mask, result, n.symbol(0))


@imports("EyeLike")
def _eye_like(n: NodeImport) -> Symbol:
    rows, columns = (n.fixed(length, "the shape of its input") for length in n.dims())
    number = n.attr("dtype")
    dtype = n.dtype() if number is None else np.dtype(need_onnx().helper.tensor_dtype_to_np_dtype(number))
    return n.parameter(np.eye(rows, columns, n.attr("k", 0), dtype), "eye")


@exports("one_hot")
def _one_hot(n: NodeExport) -> str:
    op = n.op
    values = np.array([op.off_value, op.on_value], np.float32)
    index, depth = n.as_int64(0), np.asarray(op.depth, np.int64)
    # Negative indices count from the end in ONNX; in MXNet they give the off value.
    index = n.add("Where", n.add("Less", index, np.asarray(0, np.int64)), depth, index)
    if not n.rank():
        index = n.add("Reshape", index, [1])
    result = n.add("OneHot", index, depth, values, axis=-1)  # onnxruntime supports few dtypes
    result = result if n.rank() else n.add("Reshape", result, [op.depth])
    return result if op.dtype == np.float32 else n.cast(result, op.dtype)


@imports("OneHot")
def _import_one_hot(n: NodeImport) -> Symbol:
    off, on = n.array(2).tolist()
    dtype, depth, axis = name_of(n.array(2).dtype), int(n.array(1).reshape(())), n.attr("axis", -1)
    if axis not in (-1, n.rank()):
        raise Unsupported(f"its axis is {axis}, expected the last")
    return n.make("one_hot", n.symbol(0), depth=depth, on_value=on, off_value=off, dtype=dtype)


# -- sequences: (time, batch, ...), or (batch, time, ...) with axis 1 --------------------------------------


def _grid(n: NodeExport) -> tuple[str, str]:
    """Return the time indices and the lengths as int tensors that broadcast to (time, batch) or (batch, time)."""
    axis = n.op.axis
    count = n.add("Squeeze", n.shape((n.dims()[axis],)), [0])
    times = n.add("Range", np.asarray(0, np.int64), count, np.asarray(1, np.int64))
    return n.add("Unsqueeze", times, [1 - axis]), n.add("Unsqueeze", n.as_int64(1), [axis])


@exports("SequenceMask")
def _sequence_mask(n: NodeExport) -> str:
    if not n.op.use_sequence_length:
        return n.add("Identity", n.inputs[0])
    times, lengths = _grid(n)
    inside = n.add("Less", times, lengths)
    if n.rank() > 2:
        inside = n.add("Unsqueeze", inside, list(range(2, n.rank())))
    return n.add("Where", inside, n.inputs[0], n.number(n.op.value))


@exports("SequenceLast")
def _sequence_last(n: NodeExport) -> str:
    axis = n.op.axis
    if not n.op.use_sequence_length:
        return n.add("Gather", n.inputs[0], np.asarray(-1, np.int64), axis=axis)
    x = n.inputs[0] if axis == 1 else n.transpose(n.inputs[0], [1, 0, *range(2, n.rank())])
    last = n.add("Max", n.add("Sub", n.as_int64(1), np.asarray(1, np.int64)), np.asarray(0, np.int64))
    return n.add("GatherND", x, n.add("Unsqueeze", last, [1]), batch_dims=1)


@exports("SequenceReverse")
def _sequence_reverse(n: NodeExport) -> str:
    axis = n.op.axis
    if not n.op.use_sequence_length:
        return n.slice(n.inputs[0], axis, -1, -(2**31 - 1), -1)
    return n.add("ReverseSequence", n.inputs[0], n.as_int64(1), time_axis=axis, batch_axis=1 - axis)


@imports("ReverseSequence")
def _reverse_sequence(n: NodeImport) -> Symbol:
    axes = n.attr("time_axis", 0), n.attr("batch_axis", 1)
    if axes not in ((0, 1), (1, 0)):
        raise Unsupported(f"its time_axis and batch_axis are {axes}, expected 0 and 1")
    return n.make("SequenceReverse", n.symbol(0), n.symbol(1), use_sequence_length=True, axis=axes[0])
