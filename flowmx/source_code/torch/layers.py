"""PyTorch's code of layers: convolutions, pooling, normalization, products, embeddings and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowmx.source_code.description import Layer, State, Unsupported
from flowmx.source_code.layouts import per_axis, square
from flowmx.source_code.reading import Code, Row, Site

__all__ = ["ROWS"]


# -- products --------------------------------------------------------------------------------------------------------


def _dense(n: Site) -> Code:
    weight, bias = 1, None if n.op.no_bias else 2
    data = _flattened(n)
    if not n.owns(*filter(None, (weight, bias))):
        return Code(f"F.linear({data}, {{1}}{'' if bias is None else ', {2}'})")
    units, size = n.array(weight).shape[0], n.array(weight).reshape(n.array(weight).shape[0], -1).shape[1]
    layer = Layer(
        "nn.Linear", {"in_features": size, "out_features": units, "bias": bias is not None}, 2, {"bias": True},
        n.state(weight=1, **({} if bias is None else {"bias": 2})), title="fc",
    )  # fmt: skip
    return Code(f"{{layer}}({data})", {"layer": layer})


def _flattened(n: Site) -> str:
    if n.op.flatten and n.rank() == 1:
        return "{0}.unsqueeze(1)"
    return "{0}.flatten(1)" if n.op.flatten and n.rank() != 2 else "{0}"


def _embedding(n: Site) -> Code:
    index = "{0}" if n.dtype().kind in "iu" else "{0}.long()"
    if not n.owns(1):
        return Code(f"F.embedding({index}, {{1}})")
    rows, size = n.array(1).shape
    layer = Layer(
        "nn.Embedding", {"num_embeddings": rows, "embedding_dim": size}, 2, {}, n.state(weight=1), title="embedding"
    )
    return Code(f"{{layer}}({index})", {"layer": layer})


# -- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(n: Site) -> Code:
    op, count = n.op, len(n.op.kernel)
    options = {
        "stride": square(per_axis(op.stride, count, 1)),
        "padding": square(per_axis(op.pad, count, 0)),
        "dilation": square(per_axis(op.dilate, count, 1)),
        "groups": op.num_group,
    }
    return _convolving(n, f"Conv{count}d", f"F.conv{count}d", options, "conv")


def _deconvolution(n: Site) -> Code:
    op, count = n.op, len(n.op.kernel)
    stride, dilate = per_axis(op.stride, count, 1), per_axis(op.dilate, count, 1)
    pad, adjust = per_axis(op.pad, count, 0), per_axis(op.adj, count, 0)
    if any(op.target_shape):
        lengths = [n.fixed(length, "the size of its input") for length in n.dims()[2:]]
        full = [
            (size - 1) * s + d * (k - 1) + 1 for size, s, d, k in zip(lengths, stride, dilate, op.kernel, strict=True)
        ]
        excess = [f - target for f, target in zip(full, op.target_shape, strict=True)]
        pad, adjust = tuple((each + 1) // 2 for each in excess), tuple(each % 2 for each in excess)
    options = {
        "stride": square(stride), "padding": square(pad), "output_padding": square(adjust), "groups": op.num_group,
        "dilation": square(dilate),
    }  # fmt: skip
    return _convolving(n, f"ConvTranspose{count}d", f"F.conv_transpose{count}d", options, "deconv")


_CONVOLUTION_DEFAULTS: dict[str, object] = {
    "stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1, "bias": True
}  # fmt: skip


def _convolving(n: Site, layer_type: str, function: str, options: dict[str, object], title: str) -> Code:
    """Return the code of a convolution or deconvolution: a layer, or a function if its filters are not its own."""
    op = n.op
    indices = [1] if op.no_bias else [1, 2]
    if not n.owns(*indices):
        return Code(f"{function}({', '.join(_operands(indices))}{_keywords(options, _CONVOLUTION_DEFAULTS)})")
    arguments = {
        "in_channels": n.fixed(n.dims()[1], "the number of channels"), "out_channels": op.num_filter,
        "kernel_size": square(op.kernel), **options, "bias": not op.no_bias,
    }  # fmt: skip
    state = n.state(weight=1) if op.no_bias else n.state(weight=1, bias=2)
    layer = Layer(f"nn.{layer_type}", arguments, 2, _CONVOLUTION_DEFAULTS, state, title=title)
    return Code("{layer}({0})", {"layer": layer})


def _operands(indices: Sequence[int]) -> list[str]:
    return ["{0}", *(f"{{{index}}}" for index in indices)]


def _keywords(options: dict[str, Any], defaults: dict[str, object]) -> str:
    return "".join(f", {name}={value!r}" for name, value in options.items() if value != defaults.get(name))


# -- pooling ---------------------------------------------------------------------------------------------------------

_GLOBAL = {"max": "amax", "avg": "mean", "sum": "sum"}


def _pooling(n: Site) -> Code:
    op, count = n.op, n.rank() - 2
    if op.channels_last:
        raise Unsupported(f"its layout is {op.layout}, expected channels as axis 1")
    if op.global_pool and op.pool_type in _GLOBAL:
        axes = tuple(range(2, n.rank()))
        return Code(f"{{0}}.{_GLOBAL[op.pool_type]}({axes}, keepdim=True)")
    kernel = tuple(_length(n, axis) for axis in range(2, n.rank())) if op.global_pool else op.kernel
    stride = (1,) * count if op.global_pool else per_axis(op.stride, count, 1)
    pad = (0,) * count if op.global_pool else per_axis(op.pad, count, 0)
    is_ceil = op.pooling_convention in ("full", "same")
    before = _extra(n, kernel, stride, pad) if is_ceil and not op.global_pool else None
    sizes = {"kernel_size": square(kernel), "stride": square(stride)}
    text = f"{square(kernel)}, {square(stride)}"
    if op.pool_type == "lp":
        return Code(f"F.lp_pool{count}d({{0}}, {float(op.p_value)}, {text}{', ceil_mode=True' if is_ceil else ''})")
    if op.pool_type == "max" and before is None:
        pads = f", padding={square(pad)!r}" if any(pad) else ""
        return Code(f"F.max_pool{count}d({{0}}, {text}{pads}{', ceil_mode=True' if is_ceil else ''})")
    if op.pool_type == "max":
        data = _padded("{0}", pad, before or pad, 'float("-inf")')
        return Code(f"F.max_pool{count}d({data}, {text})")
    if count == 3 and not sizes:
        raise Unsupported("its window has no size")
    return _average(n, kernel, stride, pad, is_ceil)


def _length(n: Site, axis: int) -> int:
    return n.fixed(n.dims()[axis], "the size of its input")


def _extra(n: Site, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]) -> tuple[int, ...] | None:
    """Return the padding at the end if ``ceil_mode`` of PyTorch would drop the last window, which begins in it."""
    ends = []
    differs = False
    for axis, (k, s, p) in enumerate(zip(kernel, stride, pad, strict=True), start=2):
        size, out = n.dims()[axis], n.out_dims()[axis]
        if not isinstance(size, int) or not isinstance(out, int):
            ends.append(p)
            continue
        differs |= (out - 1) * s >= size + p
        ends.append(max(p, (out - 1) * s + k - size - p))
    return tuple(ends) if differs else None


def _padded(text: str, before: Sequence[int], after: Sequence[int], value: str = "0.0") -> str:
    widths = tuple(width for pair in zip(reversed(before), reversed(after), strict=True) for width in pair)
    return f"F.pad({text}, {widths}, value={value})" if any(widths) else text


def _average(n: Site, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int], is_ceil: bool) -> Code:
    op, count = n.op, n.rank() - 2
    includes = op.count_include_pad is None or op.count_include_pad
    text = f"{square(kernel)}, {square(stride)}"
    if op.pool_type == "sum":
        size = 1
        for each in kernel:
            size *= each
        data = _padded("{0}", pad, _extra(n, kernel, stride, pad) or pad) if is_ceil else "{0}"
        pads = f", padding={square(pad)!r}" if any(pad) and data == "{0}" else ""
        ceil = ", ceil_mode=True" if is_ceil and data == "{0}" else ""
        divisor = ", divisor_override=1" if count > 1 and not is_ceil else ""
        if is_ceil and count > 1:
            divisor = ", divisor_override=1"
        factor = "" if divisor else f" * {size}"
        return Code(f"F.avg_pool{count}d({data}, {text}{pads}{ceil}{divisor}){factor}")
    pads = f", padding={square(pad)!r}" if any(pad) else ""
    ceil = ", ceil_mode=True" if is_ceil else ""
    counts = "" if includes or not any(pad) else ", count_include_pad=False"
    if is_ceil and _extra(n, kernel, stride, pad) is not None:
        raise Unsupported("its last window begins in the padding, which PyTorch leaves out")
    return Code(f"F.avg_pool{count}d({{0}}, {text}{pads}{ceil}{counts})")


# -- normalization ---------------------------------------------------------------------------------------------------


def _batch_norm(n: Site) -> Code:
    op = n.op
    axis = n.axis(getattr(op, "axis", 1))
    rank = n.rank()
    if not n.owns(1, 2, 3, 4):
        raise Unsupported("its parameters are computed, or another layer has the same ones")
    size = n.array(1).shape[0]
    kind = {4: "nn.BatchNorm2d", 5: "nn.BatchNorm3d"}.get(rank, "nn.BatchNorm1d")
    if rank > 5 or rank < 2:
        raise Unsupported(f"its input has {rank} axes, expected 2 to 5")
    eps, momentum = float(op.eps), round(1 - op.momentum, 10)
    state = n.state(weight=1, bias=2, running_mean=3, running_var=4)
    if op.fix_gamma:
        state["weight"] = State(state["weight"].sources, _ones)
    helpers: list[str] = []
    if op.use_global_stats:
        kind, helpers = kind.replace("nn.", "Frozen"), [kind.replace("nn.", "Frozen")]
    layer = Layer(
        kind, {"num_features": size, "eps": eps, "momentum": momentum}, 1, {"eps": 1e-5, "momentum": 0.1}, state,
        "fix_gamma" if op.fix_gamma else "", "bn",
    )  # fmt: skip
    text = "{layer}({0})" if axis == 1 else f"{{layer}}({{0}}.movedim({axis}, 1)).movedim(1, {axis})"
    if op.name == "_contrib_BatchNormWithReLU":
        text = f"F.relu({text})"
    return Code(text, {"layer": layer}, helpers=(*helpers, *(["fix_gamma"] if op.fix_gamma else [])))


def _ones(gamma: Any) -> Any:
    return gamma * 0 + 1


def _layer_norm(n: Site) -> Code:
    axis = n.axis(n.op.axis)
    is_last = axis == n.rank() - 1
    data = "{0}" if is_last else f"{{0}}.movedim({axis}, -1)"
    after = "" if is_last else f".movedim(-1, {axis})"
    if not n.owns(1, 2):
        size = n.fixed(n.dims()[axis], "the length of its axis")
        return Code(f"F.layer_norm({data}, ({size},), {{1}}, {{2}}, {float(n.op.eps)}){after}")
    arguments = {"normalized_shape": n.array(1).shape[0], "eps": float(n.op.eps)}
    layer = Layer("nn.LayerNorm", arguments, 1, {"eps": 1e-5}, n.state(weight=1, bias=2), title="norm")
    return Code(f"{{layer}}({data}){after}", {"layer": layer})


def _rms_norm(n: Site) -> Code:
    axis = n.axis(n.op.axis)
    if axis != n.rank() - 1:
        raise Unsupported(f"its axis is {n.op.axis}, expected the last one")
    if not n.owns(1):
        return Code(f"F.rms_norm({{0}}, {{1}}.shape, {{1}}, {float(n.op.eps)})")
    arguments = {"normalized_shape": n.array(1).shape[0], "eps": float(n.op.eps)}
    return Code("{layer}({0})", {"layer": Layer("nn.RMSNorm", arguments, 1, {}, n.state(weight=1), title="norm")})


def _instance_norm(n: Site) -> Code:
    if not n.owns(1, 2):
        return Code(f"F.instance_norm({{0}}, weight={{1}}, bias={{2}}, eps={float(n.op.eps)})")
    arguments = {"num_features": n.array(1).shape[0], "eps": float(n.op.eps), "affine": True}
    kind = f"nn.InstanceNorm{n.rank() - 2}d"
    layer = Layer(kind, arguments, 1, {"eps": 1e-5, "affine": False}, n.state(weight=1, bias=2), title="norm")
    return Code("{layer}({0})", {"layer": layer})


def _group_norm(n: Site) -> Code:
    channels = n.fixed(n.dims()[1], "the number of channels")
    if n.array(1).shape[0] != channels:
        groups, size = n.op.num_groups, channels // n.op.num_groups
        shape = (1, groups, size, *[1] * (n.rank() - 2))
        return Code(
            f"F.group_norm({{0}}, {groups}, {{1}}.repeat_interleave({size}), {{2}}.repeat_interleave({size}), "
            f"{float(n.op.eps)})" if shape else ""
        )  # fmt: skip
    if not n.owns(1, 2):
        return Code(f"F.group_norm({{0}}, {n.op.num_groups}, {{1}}, {{2}}, {float(n.op.eps)})")
    arguments = {"num_groups": n.op.num_groups, "num_channels": channels, "eps": float(n.op.eps)}
    layer = Layer("nn.GroupNorm", arguments, 2, {"eps": 1e-5}, n.state(weight=1, bias=2), title="norm")
    return Code("{layer}({0})", {"layer": layer})


def _l2_normalization(n: Site) -> Code:
    axes = {"instance": tuple(range(1, n.rank())), "channel": (1,), "spatial": tuple(range(2, n.rank()))}[n.op.mode]
    where = axes[0] if len(axes) == 1 else axes
    return Code(f"{{0}} / ({{0}}.square().sum({where}, keepdim=True) + {float(n.op.eps)}).sqrt()")


def _local_response(n: Site) -> Code:
    op = n.op
    options = f"{op.nsize}, alpha={float(op.alpha)}, beta={float(op.beta)}, k={float(op.knorm)}"
    return Code(f"F.local_response_norm({{0}}, {options})")


# -- dropout ---------------------------------------------------------------------------------------------------------


def _dropout(n: Site) -> Code | str:
    if n.op.mode == "always":
        return f"F.dropout({{0}}, {float(n.op.p)}, training=True)"
    if n.op.axes:
        shape = ", ".join("1" if axis in n.op.axes else f"{{0}}.shape[{axis}]" for axis in range(n.rank()))
        layer = Layer("nn.Dropout", {"p": float(n.op.p)}, 1, {"p": 0.5}, title="dropout")
        return Code(f"{{0}} * {{layer}}(torch.ones({shape}, device={{0}}.device))", {"layer": layer})
    if not n.op.p:
        return "{0}"
    return Code("{layer}({0})", {"layer": Layer("nn.Dropout", {"p": float(n.op.p)}, 1, {"p": 0.5}, title="dropout")})


ROWS: dict[str, Row] = {
    "FullyConnected": _dense,
    "Embedding": _embedding,
    "_contrib_SparseEmbedding": _embedding,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "Pooling": _pooling,
    "BatchNorm": _batch_norm,
    "_contrib_BatchNormWithReLU": _batch_norm,
    "_contrib_SyncBatchNorm": _batch_norm,
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "L2Normalization": _l2_normalization,
    "LRN": _local_response,
    "Dropout": _dropout,
}
"""Layers."""
