"""Operators that rearrange elements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from flowmx.contrib.onnx.converters import ShapeByContent, Unsupported, exports, imports
from flowmx.contrib.onnx.dynamic_lengths import Length, Lengths, Varying, combine, trial
from flowmx.contrib.onnx.import_constants import Known
from flowmx.contrib.onnx.node_export import NodeExport, Value
from flowmx.contrib.onnx.node_import import NodeImport
from flowmx.symbol import Symbol

END = 2**31 - 1
"""A position after the end of any axis."""


@exports("Reshape", "reshape_like", "expand_dims", "squeeze")
def _reshape(n: NodeExport) -> str:
    return n.reshape(n.inputs[0], n.dims(), n.out_dims())


@exports("Flatten")
def _flatten(n: NodeExport) -> str:
    return n.add("Flatten", n.inputs[0], axis=1)


@imports("Reshape")
def _import_reshape(n: NodeImport) -> Symbol:
    dims = _dims(n.known_value(1))
    if 0 in dims and n.attr("allowzero", 0):
        raise Unsupported("its result is empty")
    return n.reshape(n.symbol(0), dims)


@imports("Flatten")
def _import_flatten(n: NodeImport) -> Symbol:
    axis = n.attr("axis", 1)
    if axis == 1:
        return n.make("Flatten", n.symbol(0))
    if axis == 0:
        return n.make("Reshape", n.symbol(0), shape=(1, -1))
    axis = axis if axis > 0 else axis + n.rank()
    merged = n.symbol(0)
    for _ in range(axis - 1):
        merged = n.make("Reshape", merged, shape=(-3, -2))
    return n.make("Flatten", merged)


@imports("Unsqueeze")
def _unsqueeze(n: NodeImport) -> Symbol:
    result = n.symbol(0)
    axes = n.ints(1, "axes") or []
    if min(axes) < 0:
        axes = [axis % (n.rank() + len(axes)) for axis in axes]
    for axis in sorted(axes):
        result = n.make("expand_dims", result, axis=axis)
    return result


@imports("Squeeze")
def _squeeze(n: NodeImport) -> Symbol:
    axes = n.ints(1, "axes")
    return n.make("squeeze", n.symbol(0), axis=tuple(axes) if axes else None)


@exports("transpose")
def _transpose(n: NodeExport) -> str:
    axes = [axis % n.rank() for axis in n.op.axes] or list(reversed(range(n.rank())))
    return n.add("Transpose", n.inputs[0], perm=axes) if axes else n.add("Identity", n.inputs[0])


@exports("SwapAxis")
def _swap(n: NodeExport) -> str:
    order = list(range(n.rank()))
    one, other = n.op.dim1 % n.rank(), n.op.dim2 % n.rank()
    order[one], order[other] = other, one
    return n.add("Transpose", n.inputs[0], perm=order)


@imports("Transpose")
def _import_transpose(n: NodeImport) -> Symbol:
    return n.make("transpose", n.symbol(0), axes=tuple(n.attr("perm", ())))


# -- joining and splitting ---------------------------------------------------------------------------------


@exports("stack")
def _stack(n: NodeExport) -> str:
    axis = n.op.axis % (n.rank() + 1)
    return n.add("Concat", *[n.add("Unsqueeze", value, [axis]) for value in n.inputs], axis=axis)


@exports("SliceChannel", "_split_v2")
def _split(n: NodeExport) -> list[str]:
    op, axis = n.op, n.op.axis % n.rank()
    bounds = op.bounds(n.fixed(n.dims()[axis], f"the length of axis {axis}, which is split,"))
    sizes = [max(0, stop - start) for start, stop in pairwise(bounds)]
    parts = n.add_many("Split", len(sizes), n.inputs[0], sizes, axis=axis)
    if not op.squeeze_axis:
        return parts
    return [n.add("Squeeze", part, [axis]) for part in parts] if n.rank() > 1 else parts


@imports("Split")
def _import_split(n: NodeImport) -> Symbol:
    axis = n.axis(0)
    sizes = n.ints(1, "split")
    if sizes is None or len(set(sizes)) == 1:
        return n.make("SliceChannel", n.symbol(0), num_outputs=n.outputs, axis=axis)
    starts = tuple(sum(sizes[:index]) for index in range(len(sizes)))
    return n.make("_split_v2", n.symbol(0), indices=starts, axis=axis)


# -- parts -------------------------------------------------------------------------------------------------


@exports("slice", "slice_axis", "slice_like")
def _slice(n: NodeExport) -> str:
    """Export a slice; the operator computes its bounds in both trials."""
    keys = [
        n.op.key(trial(n.dims(), number), [trial(n.dims(index), number) for index in range(1, len(n.inputs))])
        for number in (0, 1)
    ]
    return _parts(n, [_bounds(first, second) for first, second in zip(*keys, strict=True)])


def _bounds(first: slice, second: slice) -> tuple[int, Length, int]:
    step = first.step or 1
    start = (0 if step > 0 else END) if first.start is None else first.start
    if first.stop is None:
        return start, END if step > 0 else -END, step
    return start, first.stop if first.stop == second.stop else Varying(first.stop, second.stop), step


def _parts(n: NodeExport, bounds: list[tuple[int, Length, int]]) -> str:
    partial = [(axis, *bound) for axis, bound in enumerate(bounds) if bound != (0, END, 1)]
    if not partial:
        return n.add("Identity", n.inputs[0])
    axes, starts, stops, steps = (list(column) for column in zip(*partial, strict=True))
    ends: Value = n.shape(tuple(stops))
    return n.add("Slice", n.inputs[0], starts, ends, axes, steps)


@exports("Crop")
def _crop(n: NodeExport) -> str:
    size, target = ([n.fixed(dim, "the image's size") for dim in dims[2:]] for dims in (n.dims(), n.out_dims()))
    corner = n.op.corner(tuple(size), tuple(target))
    ends = [start + length for start, length in zip(corner, target, strict=True)]
    return n.add("Slice", n.inputs[0], list(corner), ends, [2, 3], [1, 1])


@exports("reverse")
def _reverse(n: NodeExport) -> str:
    axes = [axis % n.rank() for axis in n.op.axis]
    count = len(axes)
    return n.add("Slice", n.inputs[0], [-1] * count, [-END] * count, axes, [-1] * count)


@imports("Slice")
def _import_slice(n: NodeImport) -> Symbol:
    starts, ends = n.known_value(1), n.known_value(2)
    count = len(starts.trials[0])
    axes = n.ints(3) or list(range(count))
    if min(axes) < 0:
        axes = [axis % n.rank() for axis in axes]
    steps = n.ints(4) or [1] * count
    data = n.symbol(0)
    for index, axis in enumerate(axes):
        length = _first_rows(n, starts, ends, index, axis) if steps[index] == 1 else None
        if length is not None:
            like = n.zeros([length if i == axis else 1 for i in range(n.rank())])
            data = n.make("slice_like", data, like, axes=(axis,))
    done = [
        axis
        for index, axis in enumerate(axes)
        if steps[index] == 1 and _first_rows(n, starts, ends, index, axis) is not None
    ]
    if len(done) == count:
        return data
    whole: list[object] = [None] * (max(axes) + 1)
    begin, end, step = list(whole), list(whole), list(whole)
    for index, axis in enumerate(axes):
        if axis in done:
            continue
        step[axis] = None if steps[index] == 1 else steps[index]
        begin[axis] = _bound(n, starts, index, axis, start=True, forward=steps[index] > 0)
        end[axis] = _bound(n, ends, index, axis, start=False, forward=steps[index] > 0)
    return n.make("slice", data, begin=tuple(begin), end=tuple(end), step=tuple(step) if any(step) else None)


def _first_rows(n: NodeImport, starts: Known, ends: Known, index: int, axis: int) -> Varying | None:
    """Return the varying length of a slice from 0 of a longer, fixed axis; None for other slices."""
    first, second = (int(array[index]) for array in ends.trials)
    length = n.dims()[axis]
    if first == second or not isinstance(length, int) or min(first, second) < 0 or max(first, second) > length:
        return None
    return Varying(first, second) if all(int(array[index]) == 0 for array in starts.trials) else None


def _bound(n: NodeImport, bounds: Known, index: int, axis: int, *, start: bool, forward: bool) -> int | None:
    """Return a bound of a slice, or None if it is the end of the axis."""
    first, second = (int(array[index]) for array in bounds.trials)
    if first != second:
        if n.dims()[axis] == Varying(first, second) and forward is not start:
            return None
        raise Unsupported(f"its bound on axis {axis} varies ({first} or {second}): set input_shapes")
    if (start and first == 0 and forward) or abs(first) >= END - 1:
        return None
    return first


@exports("Pad")
def _pad(n: NodeExport) -> str:
    widths = list(n.op.pad_width)
    values: list[Value] = [widths[::2] + widths[1::2]]
    if n.op.mode == "constant":
        values.append(n.number(n.op.constant_value))
    return n.add("Pad", n.inputs[0], *values, mode=n.op.mode)


@imports("Pad")
def _import_pad(n: NodeImport) -> Symbol:
    values = n.ints(1, "pads") or []
    count, rank = len(values) // 2, n.rank()
    axes = [axis % rank for axis in n.ints(3) or range(rank)]
    widths = [0] * (2 * rank)
    for index, axis in enumerate(axes):
        widths[2 * axis], widths[2 * axis + 1] = values[index], values[index + count]
    if min(widths, default=0) < 0:
        raise Unsupported(f"its pads are {values}, expected nonnegative ones")
    n.expect("mode", "constant", "edge", "reflect")
    value = n.number(2, n.attr("value", 0.0))
    return n.make("Pad", n.symbol(0), mode=n.attr("mode", "constant"), pad_width=tuple(widths), constant_value=value)


# -- copies ------------------------------------------------------------------------------------------------


@exports("tile")
def _tile(n: NodeExport) -> str:
    reps, rank = list(n.op.reps), n.rank()
    x = n.inputs[0]
    if len(reps) > rank:
        x = n.reshape(x, n.dims(), ((1,) * (len(reps) - rank) + n.dims()))
    return n.add("Tile", x, [1] * (rank - len(reps)) + reps)


@imports("Tile")
def _import_tile(n: NodeImport) -> Symbol:
    return n.make("tile", n.symbol(0), reps=tuple(n.ints(1) or ()))


@exports("repeat")
def _repeat(n: NodeExport) -> str:
    """Tile along a new axis after the repeated one, then merge them."""
    x, dims, times = n.inputs[0], n.dims(), n.op.repeats
    if n.op.axis is None:
        x, dims = n.add("Reshape", x, [-1]), (1,)
    axis = 0 if n.op.axis is None else n.op.axis % n.rank()
    wide = n.add(
        "Tile", n.add("Unsqueeze", x, [axis + 1]), [times if index == axis + 1 else 1 for index in range(len(dims) + 1)]
    )
    if n.op.axis is None:
        return n.add("Reshape", wide, [-1])
    return n.reshape(wide, (), n.out_dims())


@exports("broadcast_to", "broadcast_like", "broadcast_axis")
def _broadcast(n: NodeExport) -> str:
    return n.add("Expand", n.inputs[0], n.shape(n.out_dims()))


@imports("Expand")
def _expand(n: NodeImport) -> Symbol:
    x, old = n.symbol(0), n.dims()
    target = _dims(n.known_value(1))
    while len(target) > len(old):
        x, old = n.make("expand_dims", x, axis=0), (1, *old)
    skip = len(old) - len(target)
    shape = [0] * len(old)
    for axis, length in enumerate(target, start=skip):
        if length == 0 != old[axis]:
            raise Unsupported("its result is empty")
        if isinstance(length, Varying) and length != old[axis]:
            return n.make("broadcast_add", x, n.zeros(target, n.dtype().name))
        if length not in (1, old[axis]):
            shape[axis] = n.fixed(length, f"the length of axis {axis}")
    return n.make("broadcast_to", x, shape=tuple(shape)) if any(shape) else n.make("_copy", x)


@exports("depth_to_space")
def _depth_to_space(n: NodeExport) -> str:
    return n.add("DepthToSpace", n.inputs[0], blocksize=n.op.block_size, mode="DCR")


@exports("diag")
def _diag(n: NodeExport) -> str:
    """Gather the diagonals of the planes of two axes, or place a vector on a diagonal."""
    dims = [n.fixed(dim, "its input's shape") for dim in n.dims()]
    count, k = n.fixed(n.out_dims()[-1], "the diagonal's length"), n.op.k
    if len(dims) == 1:
        rows, columns = np.indices((count, count))
        source, inside = rows + min(0, k), columns - rows == k
        result = n.add("Gather", n.inputs[0], np.where(inside, source, 0), axis=0)
        return n.add("Mul", result, inside.astype(n.dtype()))
    one, other = n.op.axis1 % len(dims), n.op.axis2 % len(dims)
    rest = [index for index in range(len(dims)) if index not in (one, other)]
    planes = n.transpose(n.inputs[0], [*rest, one, other])
    flat = n.add("Reshape", planes, [dims[index] for index in rest] + [dims[one] * dims[other]])
    positions = np.arange(count)
    return n.add("Gather", flat, (positions + max(0, -k)) * dims[other] + positions + max(0, k), axis=len(rest))


# -- shapes as values --------------------------------------------------------------------------------------


@exports("size_array")
def _size_array(n: NodeExport) -> str:
    return n.add("Reshape", n.add("Size", n.inputs[0]), [1])


@imports("Shape")
def _import_shape(n: NodeImport) -> Known:
    x, rank = n.symbol(0), n.rank()
    start, end, _ = slice(n.attr("start", 0), n.attr("end")).indices(rank)

    def make() -> Symbol:
        shape = n.make("shape_array", x)
        return shape if (start, end) == (0, rank) else n.make("slice_axis", shape, axis=0, begin=start, end=end)

    like = x if (start, end) == (0, rank) else None
    return Known.shape(n.dims()[start:end], n.name, make, like)


@imports("Size")
def _import_size(n: NodeImport) -> Known:
    x = n.symbol(0)
    sizes = [np.array(np.prod(trial(n.dims(), index), dtype=np.int64)) for index in (0, 1)]
    return Known((sizes[0], sizes[1]), n.name, lambda: n.make("size_array", x))


@imports("ConstantOfShape")
def _constant_of_shape(n: NodeImport) -> Symbol:
    """Fill a varying shape: that of another value, or one computed from the inputs' shapes."""
    shape, content = n.known_value(0), n.attr("value")
    value = 0.0 if content is None else float(content.reshape(-1)[0])
    if shape.like is not None:
        result = n.make("zeros_like" if value == 0 else "ones_like", shape.like)
        if content is not None and n.dtype(result) != content.dtype:
            result = n.make("Cast", result, dtype=content.dtype.name)
        return result if value in (0, 1) else n.make("_mul_scalar", result, scalar=value)
    result = n.zeros(_dims(shape), "float32" if content is None else content.dtype.name)
    return result if value == 0 else n.make("_plus_scalar", result, scalar=value)


@imports("Range")
def _range(n: NodeImport) -> Symbol:
    """Convert a range from 0 to a varying length."""
    (first, second), dtype = n.known_value(1).trials, n.known_value(1).trials[0].dtype
    if n.scalar(0) != 0 or n.scalar(2) != 1:
        raise Unsupported("its bounds vary with the inputs' shapes, expected 0 and steps of 1: set input_shapes")
    return n.make("_contrib_arange_like", n.zeros([Varying(int(first), int(second))], dtype.name), axis=0)


@imports("Trilu")
def _trilu(n: NodeImport) -> Symbol:
    """Keep a triangle and set other elements to 0, also those that are infinite or NaN."""
    x, k = n.symbol(0), int(n.scalar(1) or 0)
    lengths = n.make("Cast", x, dtype="float32")  # only its shape is used
    rows = n.make("expand_dims", n.make("_contrib_arange_like", lengths, axis=-2, start=k), axis=1)
    columns = n.make("expand_dims", n.make("_contrib_arange_like", lengths, axis=-1), axis=0)
    keeps = "broadcast_greater_equal" if n.attr("upper", 1) else "broadcast_lesser_equal"
    inside = n.make(keeps, columns, rows)
    for _ in range(n.rank() - 2):
        inside = n.make("expand_dims", inside, axis=0)
    return n.make("where", n.make("broadcast_like", inside, lengths), x, n.make("zeros_like", x))


def _dims(shape: Known) -> Lengths:
    """Return the lengths in a known vector."""
    first, second = (tuple(map(int, array)) for array in shape.trials)
    return combine(first, second)


@imports("NonZero", "Compress", "Unique", "NonMaxSuppression")
def _shape_by_content(n: NodeImport) -> Symbol:
    raise ShapeByContent("its inputs are computed, expected constants: the shape of its output depends on them")


@imports("Constant", "BitShift", "BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "DFT", "MaxUnpool")
def _raise_unsupported(n: NodeImport) -> Symbol:
    raise Unsupported("its inputs are computed, expected constants")
