"""PyTorch's code of operators that move elements: reshaping, slicing, joining, indexing, padding and sequences."""

from __future__ import annotations

import math

from flowmx.contrib.onnx.dynamic_lengths import Length, Varying
from flowmx.source_code.description import Unsupported
from flowmx.source_code.literals import number
from flowmx.source_code.reading import Code, Row, Site
from flowmx.source_code.torch.arithmetic import cast, dtype_name

__all__ = ["ROWS"]

# -- reshaping -------------------------------------------------------------------------------------------------------


def reshaped(n: Site) -> str:
    """Return the reshape of the first input to the output's shape."""
    source, target = n.dims(), n.out_dims()
    if source == target:
        return "{0}"
    if len(target) < len(source) and target[:-1] == source[: len(target) - 1] and _is_last(source, target):
        return f"{{0}}.flatten({len(target) - 1})"
    varying = [axis for axis, length in enumerate(target) if isinstance(length, Varying)]
    if not varying:
        return f"{{0}}.reshape({_numbers(target)})"
    if len(varying) == 1:
        sizes = [length if isinstance(length, int) else -1 for length in target]
        return f"{{0}}.reshape({', '.join(map(str, sizes))})"
    texts = [_length_text(length, n) for length in target]
    unknown = [axis for axis, text in enumerate(texts) if text is None]
    if len(unknown) > 1:
        raise Unsupported("its output has several lengths that depend on the input's")
    return f"{{0}}.reshape({', '.join(text or '-1' for text in texts)})"


def _is_last(source: tuple[Length, ...], target: tuple[Length, ...]) -> bool:
    rest = source[len(target) - 1 :]
    if all(isinstance(length, int) for length in rest):
        return target[-1] == math.prod(length for length in rest if isinstance(length, int))
    return isinstance(target[-1], Varying)


def _length_text(length: Length, n: Site) -> str | None:
    """Return a length as a number or as one of the input's lengths; None if it is another varying length."""
    if isinstance(length, int):
        return str(length)
    for axis, other in enumerate(n.dims()):
        if other == length:
            return f"{{0}}.shape[{axis}]"
    for axis, other in enumerate(n.dims()):
        if isinstance(other, Varying):
            if (ratio := length.ratio_to(other)) is not None:
                return f"{{0}}.shape[{axis}] * {ratio}"
            if (ratio := other.ratio_to(length)) is not None:
                return f"{{0}}.shape[{axis}] // {ratio}"
    return None


def _numbers(lengths: tuple[Length, ...]) -> str:
    return ", ".join(str(length) for length in lengths) or "()"


def _expand_dims(n: Site) -> str:
    return f"{{0}}.unsqueeze({n.op.axis})"


def _squeeze(n: Site) -> str:
    axes = n.op.axis
    axes = (axes,) if isinstance(axes, int) else axes
    chosen = (
        [axis for axis, length in enumerate(n.dims()) if length == 1] if axes is None else [n.axis(a) for a in axes]
    )
    if not chosen:
        return "{0}"
    if len(chosen) == n.rank() and n.out_dims() == (1,):
        return "{0}.reshape(1)"
    return f"{{0}}.squeeze({chosen[0] if len(chosen) == 1 else tuple(chosen)})"


def _like(n: Site) -> str:
    if n.op.lhs_begin is None and n.op.lhs_end is None and n.op.rhs_begin is None and n.op.rhs_end is None:
        return "{0}.reshape({1}.shape)"
    return reshaped(n)


# -- permuting -------------------------------------------------------------------------------------------------------


def _transpose(n: Site) -> str:
    axes = tuple(n.op.axes) or tuple(reversed(range(n.rank())))
    axes = tuple(n.axis(axis) for axis in axes)
    moved = [axis for axis, source in enumerate(axes) if axis != source]
    if not moved:
        return "{0}"
    if len(moved) == 2:
        return f"{{0}}.transpose({moved[0]}, {moved[1]})"
    return f"{{0}}.permute({', '.join(map(str, axes))})"


def _swap(n: Site) -> str:
    return f"{{0}}.transpose({n.op.dim1}, {n.op.dim2})"


def _flip(n: Site) -> str:
    axes = (n.op.axis,) if isinstance(n.op.axis, int) else tuple(n.op.axis)
    return f"{{0}}.flip({', '.join(map(str, axes))})"


def _depth_to_space(n: Site) -> str:
    size, channels = n.op.block_size, n.dims()[1]
    rows, columns = (f"{{0}}.shape[{axis}]" for axis in (2, 3))
    out = n.fixed(channels, "the number of channels") // size**2
    return (
        f"{{0}}.reshape(-1, {size}, {size}, {out}, {rows}, {columns}).permute(0, 3, 4, 1, 5, 2)"
        f".reshape(-1, {out}, {rows} * {size}, {columns} * {size})"
    )


def _space_to_depth(n: Site) -> str:
    size, channels = n.op.block_size, n.fixed(n.dims()[1], "the number of channels")
    rows, columns = (f"{{0}}.shape[{axis}] // {size}" for axis in (2, 3))
    return (
        f"{{0}}.reshape(-1, {channels}, {rows}, {size}, {columns}, {size}).permute(0, 3, 5, 1, 2, 4)"
        f".reshape(-1, {channels * size**2}, {rows}, {columns})"
    )


# -- slicing ---------------------------------------------------------------------------------------------------------


def _range(begin: int | None, end: int | None, length: Length) -> str:
    """Return a slice as text; the length is that of the axis."""
    first = "" if begin in (None, 0) else str(begin)
    last = "" if end is None or end == length or (isinstance(length, int) and end > length) else str(end)
    return f"{first}:{last}"


def _indexed(parts: list[str]) -> str:
    while parts and parts[-1] == ":":
        parts.pop()
    return f"{{0}}[{', '.join(parts)}]" if parts else "{0}"


def _slice(n: Site) -> str:
    op, parts, flips = n.op, [], []
    for axis, (begin, end) in enumerate(zip(op.begin, op.end, strict=True)):
        step = op.step[axis] if axis < len(op.step) else None
        length = n.dims()[axis]
        if step is not None and step < 0:
            size = n.fixed(length, "the length of its axis")
            indices = range(*slice(begin, end, step).indices(size))
            low, high = (indices[-1], indices[0] + 1) if len(indices) else (0, 0)
            flips.append(axis)
            parts.append(f"{low}:{high}" + (f":{-step}" if step != -1 else ""))
        else:
            parts.append(_range(begin, end, length) + (f":{step}" if step not in (None, 1) else ""))
    text = _indexed(parts)
    return f"{text}.flip({', '.join(map(str, flips))})" if flips else text


def _slice_axis(n: Site) -> Code:
    op, axis = n.op, n.axis(n.op.axis)
    constants: dict[str, object] = {}
    if op.begin:
        constants["begin"] = op.begin
    if op.end is not None and op.end != n.dims()[axis]:
        constants["end"] = op.end
    part = f"{'{begin}' if 'begin' in constants else ''}:{'{end}' if 'end' in constants else ''}"
    return Code(f"{{0}}[{':, ' * axis}{part}]" if constants else "{0}", constants=constants)


def _slice_like(n: Site) -> str:
    axes = {n.axis(axis) for axis in n.op.axes} or set(range(n.rank()))
    parts = [f":{{1}}.shape[{axis}]" if axis in axes else ":" for axis in range(n.rank())]
    return _indexed(parts)


def _crop(n: Site) -> str:
    op = n.op
    height, width = n.out_dims()[2:]
    if op.center_crop:
        top, left = (
            (n.fixed(a, "its size") - n.fixed(b, "its size")) // 2
            for a, b in zip(n.dims()[2:], (height, width), strict=True)
        )
    else:
        top, left = op.offset
    if n.count > 1:
        rows, columns = "{1}.shape[2]", "{1}.shape[3]"
        return f"{{0}}[:, :, {top}:{top} + {rows}, {left}:{left} + {columns}]" if top or left else (
            f"{{0}}[:, :, :{rows}, :{columns}]"
        )  # fmt: skip
    return f"{{0}}[:, :, {top}:{top + n.fixed(height, 'its size')}, {left}:{left + n.fixed(width, 'its size')}]"


def _split(n: Site) -> Code:
    op, axis = n.op, n.axis(n.op.axis)
    indices = getattr(op, "indices", ())
    count = getattr(op, "num_outputs", 0) or getattr(op, "sections", 0)
    if indices:
        cuts = [*(index for index in indices if index), n.fixed(n.dims()[axis], "the length of its axis")]
        sizes = [b - a for a, b in zip([0, *cuts[:-1]], cuts, strict=True)]
        text, count = f"{{0}}.split({sizes}, {axis})", len(sizes)
    else:
        text = f"{{0}}.chunk({count}, {axis})"
    if op.squeeze_axis:
        text = f"{{0}}.unbind({axis})"
    if count == 1:
        return Code(f"{text}[0]")
    return Code(text, outputs=tuple(range(count)))


def _diagonal(n: Site) -> str:
    if n.rank() == 1:
        return f"torch.diag({{0}}, {n.op.k})"
    return f"torch.diagonal({{0}}, {n.op.k}, {n.op.axis1}, {n.op.axis2})"


# -- joining ---------------------------------------------------------------------------------------------------------


def _concat(n: Site) -> str:
    inputs = ", ".join(f"{{{index}}}" for index in range(n.count))
    return f"torch.cat([{inputs}], dim={n.op.dim})" if n.count > 1 else "{0}"


def _stack(n: Site) -> str:
    inputs = ", ".join(f"{{{index}}}" for index in range(n.count))
    return f"torch.stack([{inputs}], dim={n.op.axis})"


def _tile(n: Site) -> str:
    return f"{{0}}.tile({tuple(n.op.reps)})"


def _repeat(n: Site) -> str:
    axis = "" if n.op.axis is None else f", dim={n.op.axis}"
    return f"{{0}}.repeat_interleave({n.op.repeats}{axis})"


def _broadcast_to(n: Site) -> str:
    sizes = [
        "-1" if other == length else str(length) if isinstance(length, int) else None
        for length, other in zip(n.out_dims(), n.dims(), strict=True)
    ]
    if None in sizes:
        raise Unsupported("it broadcasts to a length that depends on an input's")
    return f"{{0}}.expand({', '.join(map(str, sizes))})"


def _broadcast_like(n: Site) -> str:
    if n.op.lhs_axes is None:
        return "{0}.expand_as({1})"
    pairs = {n.axis(a): n.axis(b, 1) for a, b in zip(n.op.lhs_axes, n.op.rhs_axes, strict=True)}
    sizes = [f"{{1}}.shape[{pairs[axis]}]" if axis in pairs else "-1" for axis in range(n.rank())]
    return f"{{0}}.expand({', '.join(sizes)})"


# -- padding and enlarging -------------------------------------------------------------------------------------------


def _pad(n: Site) -> str:
    widths = list(n.op.pad_width)
    pairs = [(widths[2 * axis], widths[2 * axis + 1]) for axis in range(len(widths) // 2)]
    flat = tuple(width for pair in reversed(pairs[2:]) for width in pair)
    if n.op.mode == "constant":
        return (
            f"F.pad({{0}}, {flat}, value={float(n.op.constant_value)})"
            if n.op.constant_value
            else f"F.pad({{0}}, {flat})"
        )
    mode = {"edge": "replicate", "reflect": "reflect"}[n.op.mode]
    return f'F.pad({{0}}, {flat}, mode="{mode}")'


def _upsampling(n: Site) -> Code | str:
    op = n.op
    if op.sample_type == "bilinear":
        scale = op.scale
        kernel, pad = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
        channels = n.fixed(n.dims()[1], "the number of channels")
        return f"F.conv_transpose2d({{0}}, {{1}}, stride={scale}, padding={pad}, groups={channels})" if kernel else ""
    if n.count == 1:
        return f"F.interpolate({{0}}, scale_factor={op.scale})"
    heights = [n.fixed(n.dims(index)[2], "the height of its input") for index in range(n.count)]
    target = heights[0] * op.scale
    parts = [f"F.interpolate({{{index}}}, scale_factor={target // height})" for index, height in enumerate(heights)]
    return " + ".join(parts) if op.multi_input_mode == "sum" else f"torch.cat([{', '.join(parts)}], dim=1)"


def _resize(n: Site) -> str:
    sizes = [n.fixed(length, "its size") for length in n.out_dims()[2:]]
    align = getattr(n.op, "align_corners", True)
    return f'F.interpolate({{0}}, ({sizes[0]}, {sizes[1]}), mode="bilinear", align_corners={align})'


def _adaptive_pooling(n: Site) -> str:
    sizes = tuple(n.fixed(length, "its size") for length in n.out_dims()[2:])
    return f"F.adaptive_avg_pool2d({{0}}, {sizes[0] if sizes[0] == sizes[1] else sizes})"


# -- creation --------------------------------------------------------------------------------------------------------


def _filled(function: str) -> Row:
    def row(n: Site) -> str:
        shape = tuple(n.fixed(length, "its shape") for length in n.out_dims())
        value = f", {float(n.op.value)}" if function == "full" else ""
        kind = "" if n.out_dtype().name == "float32" else f", dtype={dtype_name(n.out_dtype())}"
        return f"torch.{function}({shape}{value}{kind})"

    return row


def _arange(n: Site) -> str:
    op = n.op
    start, stop = (0.0, op.start) if op.stop is None and not op.infer_range else (op.start, op.stop)
    if stop is None:
        stop = start + op.step * n.fixed(n.out_dims()[0], "its length") / op.repeat
    repeat = f".repeat_interleave({op.repeat})" if op.repeat != 1 else ""
    numbers = ", ".join(map(number, (start, stop, op.step)))
    return f"torch.arange({numbers}, dtype={dtype_name(n.out_dtype())}){repeat}"


def _arange_like(n: Site) -> str:
    op = n.op
    count = "{0}.numel()" if op.axis is None else f"{{0}}.shape[{op.axis}]"
    count = count if op.repeat == 1 else f"{count} // {op.repeat}"
    text = f"torch.arange({count}, device={{0}}.device, dtype={dtype_name(n.out_dtype())})"
    text = text if op.step == 1 else f"{text} * {number(op.step)}"
    text = text if op.start == 0 else f"{number(op.start)} + {text}"
    text = text if op.repeat == 1 else f"({text}).repeat_interleave({op.repeat})"
    return text if op.axis is not None else f"({text}).reshape({{0}}.shape)"


def _eye(n: Site) -> str:
    if n.op.k:
        raise Unsupported(f"its k is {n.op.k}, expected 0")
    return f"torch.eye({n.op.N}, {n.op.M or n.op.N}, dtype={dtype_name(n.out_dtype())})"


def _linspace(n: Site) -> str:
    op = n.op
    if not op.endpoint:
        return f"torch.linspace({op.start}, {op.stop}, {op.num + 1})[:-1]"
    return f"torch.linspace({op.start}, {op.stop}, {op.num})"


def _shape_array(n: Site) -> str:
    return "torch.tensor({0}.shape)"


# -- indexing --------------------------------------------------------------------------------------------------------


def _index(n: Site, index: int) -> str:
    return f"{{{index}}}" if n.dtype(index).name in ("int64", "int32") else f"{{{index}}}.long()"


def _take(n: Site) -> Code:
    axis = n.axis(n.op.axis)
    if n.op.mode == "wrap":
        index = f"{_index(n, 1)} % {{0}}.shape[{axis}]"
    else:
        index = f"{_index(n, 1)}.clamp(0, {{0}}.shape[{axis}] - 1)"
    return Code(f"{{0}}[{':, ' * axis}{index}]")


def _pick(n: Site) -> str:
    axis = n.op.axis
    if axis is None:
        raise Unsupported("its axis is None, expected an axis")
    axis = n.axis(axis)
    index = _index(n, 1)
    size = f"{{0}}.shape[{axis}]"
    index = f"{index} % {size}" if n.op.mode == "wrap" else f"{index}.clamp(0, {size} - 1)"
    positions = index if n.rank(1) == n.rank(0) else f"({index}).unsqueeze({axis})"
    text = f"{{0}}.gather({axis}, {positions}.long())" if "long" not in index else f"{{0}}.gather({axis}, {positions})"
    return text if n.op.keepdims else f"{text}.squeeze({axis})"


def _batch_take(n: Site) -> str:
    return f"{{0}}.gather(1, {_index(n, 1)}.long().clamp(0, {{0}}.shape[1] - 1).unsqueeze(1)).squeeze(1)"


def _one_hot(n: Site) -> str:
    op = n.op
    text = f"({_index(n, 0)}.unsqueeze(-1) == torch.arange({op.depth}, device={{0}}.device))"
    if (op.on_value, op.off_value) == (1.0, 0.0):
        return cast(text, n.out_dtype())
    return f"torch.where({text}, {float(op.on_value)}, {float(op.off_value)})"


def _gather_nd(n: Site) -> str:
    count = n.fixed(n.dims(1)[0], "the number of indices")
    index = _index(n, 1)
    return "{0}[" + ", ".join(f"{index}[{axis}]" for axis in range(count)) + "]"


def _sort(n: Site) -> str:
    axis = n.op.axis
    data, axis = ("{0}.flatten()", 0) if axis is None else ("{0}", axis)
    order = "" if n.op.is_ascend else ", descending=True"
    if n.op.name == "sort":
        return f"{data}.sort({axis}{order}, stable=True).values"
    return cast(f"{data}.sort({axis}{order}, stable=True).indices", n.out_dtype())


def _topk(n: Site) -> Code:
    op = n.op
    if op.axis is None:
        raise Unsupported("its axis is None, expected an axis")
    size = n.fixed(n.dims()[n.axis(op.axis)], "the length of its axis")
    count = op.k if 0 < op.k < size else size
    text = f"{{0}}.topk({count}, {op.axis}{', largest=False' if op.is_ascend else ''})"
    if op.ret_typ == "value":
        return Code(f"{text}.values")
    if op.ret_typ == "indices":
        return Code(cast(f"{text}.indices", n.out_dtype()))
    if op.ret_typ == "mask":
        return Code(f"torch.zeros_like({{0}}).scatter({op.axis}, {text}.indices, 1.0)")
    return Code(f"top_both({text}, {dtype_name(n.out_dtype(1))})", helpers=("top_both",), outputs=(0, 1))


# -- sequences -------------------------------------------------------------------------------------------------------


def _sequence_mask(n: Site) -> Code:
    op = n.op
    if not op.use_sequence_length:
        return Code("{0}")
    return Code(f"sequence_mask({{0}}, {{1}}, {float(op.value)}, {op.axis})", helpers=("sequence_mask",))


def _sequence_last(n: Site) -> Code:
    op = n.op
    if not op.use_sequence_length:
        return Code("{0}[-1]" if op.axis == 0 else "{0}[:, -1]")
    return Code(f"sequence_last({{0}}, {{1}}, {op.axis})", helpers=("sequence_last",))


def _sequence_reverse(n: Site) -> Code:
    op = n.op
    if not op.use_sequence_length:
        return Code(f"{{0}}.flip({op.axis})")
    return Code(f"sequence_reverse({{0}}, {{1}}, {op.axis})", helpers=("sequence_reverse",))


ROWS: dict[str, Row] = {
    "Reshape": reshaped,
    "Flatten": reshaped,
    "reshape_like": _like,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "SwapAxis": _swap,
    "reverse": _flip,
    "depth_to_space": _depth_to_space,
    "space_to_depth": _space_to_depth,
    "slice": _slice,
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    "Crop": _crop,
    "SliceChannel": _split,
    "_split_v2": _split,
    "diag": _diagonal,
    "Concat": _concat,
    "stack": _stack,
    "tile": _tile,
    "repeat": _repeat,
    "broadcast_to": _broadcast_to,
    "broadcast_axis": _broadcast_to,
    "broadcast_like": _broadcast_like,
    "Pad": _pad,
    "UpSampling": _upsampling,
    "_contrib_BilinearResize2D": _resize,
    "_contrib_AdaptiveAvgPooling2D": _adaptive_pooling,
    "_zeros": _filled("zeros"),
    "_ones": _filled("ones"),
    "_full": _filled("full"),
    "_arange": _arange,
    "_contrib_arange_like": _arange_like,
    "_eye": _eye,
    "_linspace": _linspace,
    "shape_array": _shape_array,
    "take": _take,
    "pick": _pick,
    "batch_take": _batch_take,
    "one_hot": _one_hot,
    "gather_nd": _gather_nd,
    "sort": _sort,
    "argsort": _sort,
    "topk": _topk,
    "SequenceMask": _sequence_mask,
    "SequenceLast": _sequence_last,
    "SequenceReverse": _sequence_reverse,
}
"""Operators that move elements."""
