"""Pooling and its gradient: one thread per written element, for any layout of images.

For each element of the data, the gradient iterates over the windows that contain it; in max pooling, only over those
in which it is the first maximum. No two threads add to the same element, so results are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from flowmx.devices.cuda.memory import address_of
from flowmx.ops.kernels.cuda.elementwise_source import compute_type, memory_type
from flowmx.ops.kernels.cuda.layouts import has_layout, run_fallback
from flowmx.ops.kernels.cuda.source_kernels import Program, blocks_for
from flowmx.ops.nn.pooling import Pooling
from flowmx.ops.registry.dtypes import DType
from flowmx.ops.registry.kernels import kernel
from flowmx.ops.registry.operators import Array, Run

_FIELDS = [
    "int64 size", "int64 channels", "int64 data[3]", "int64 out[3]", "int64 kernel_[3]", "int64 stride[3]",
    "int64 pad[3]", "int64 count_pad",
]  # fmt: skip
_WORDS = 3 + 5 * 3

_COMMON = """
typedef {real} real;
typedef {stored} T;

// The offset of element (sample, channel, position) in memory.
__device__ __forceinline__ int64 at(const int64* step, int64 n, int64 c, const int* p) {
    return n * step[0] + c * step[1] + p[0] * step[2] + p[1] * step[3] + p[2] * step[4];
}
// From a linear index to sample, channel and position: the innermost axis in memory varies fastest.
__device__ __forceinline__ void place(const Args& a, const int64* length, int64 i, int64& n, int64& c, int* p) {
    if ({last}) { c = i % a.channels; i /= a.channels; }
    for (int axis = 2; axis >= 0; --axis) { p[axis] = (int)(i % length[axis]); i /= length[axis]; }
    if (!{last}) { c = i % a.channels; i /= a.channels; }
    n = i;
}
// The begin and end of a window on an axis, and the number of elements that it averages there.
__device__ __forceinline__ int window(const Args& a, int axis, int w, int& low, int& high) {
    const int start = w * (int)a.stride[axis] - (int)a.pad[axis], stop = start + (int)a.kernel_[axis];
    low = max(start, 0);
    high = min(stop, (int)a.data[axis]);
    if (!a.count_pad) return max(1, high - low);
    return max(1, min(stop, (int)(a.data[axis] + a.pad[axis])) - max(start, -(int)a.pad[axis]));
}
"""

_FORWARD = """
extern "C" __global__ void __launch_bounds__(256) kernel(const Args a) {
    const int64 step = (int64)gridDim.x * blockDim.x;
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < a.size; i += step) {
        int64 n, c;
        int p[3], q[3], low[3], high[3], count = 1;
        place(a, a.out, i, n, c, p);
        for (int axis = 0; axis < 3; ++axis) count *= window(a, axis, p[axis], low[axis], high[axis]);
        real result = {start};
        for (q[0] = low[0]; q[0] < high[0]; ++q[0])
            for (q[1] = low[1]; q[1] < high[1]; ++q[1])
                for (q[2] = low[2]; q[2] < high[2]; ++q[2]) {
                    const real x = widened(a.x[at(a.x_step, n, c, q)]);
                    {take}
                }
        {end}
        narrow(result, a.y[at(a.y_step, n, c, p)]);
    }
}
"""

_BACKWARD = """
extern "C" __global__ void __launch_bounds__(256) kernel(const Args a) {
    const int64 step = (int64)gridDim.x * blockDim.x;
    for (int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x; i < a.size; i += step) {
        int64 n, c;
        int p[3], w[3], first[3], last[3];
        place(a, a.data, i, n, c, p);
        for (int axis = 0; axis < 3; ++axis) {
            const int from = p[axis] + (int)a.pad[axis];
            const int before = from - (int)a.kernel_[axis] + 1;
            first[axis] = before <= 0 ? 0 : (before + (int)a.stride[axis] - 1) / (int)a.stride[axis];
            last[axis] = min(from / (int)a.stride[axis], (int)a.out[axis] - 1);
        }
        real result = 0;
        {own}
        for (w[0] = first[0]; w[0] <= last[0]; ++w[0])
            for (w[1] = first[1]; w[1] <= last[1]; ++w[1])
                for (w[2] = first[2]; w[2] <= last[2]; ++w[2]) {
                    int low[3], high[3], count = 1;
                    for (int axis = 0; axis < 3; ++axis) count *= window(a, axis, w[axis], low[axis], high[axis]);
                    {counts}
                }
        narrow(result, a.y[at(a.y_step, n, c, p)]);
    }
}
"""

_OWN_MAX = "const real own = widened(a.x[at(a.x_step, n, c, p)]);"
_IF_FIRST = """
                    if (own != widened(a.o[at(a.o_step, n, c, w)])) continue;
                    bool is_first = true;
                    int q[3];
                    for (q[0] = low[0]; q[0] <= p[0] && is_first; ++q[0])
                        for (q[1] = low[1]; q[1] < high[1] && is_first; ++q[1])
                            for (q[2] = low[2]; q[2] < high[2] && is_first; ++q[2]) {
                                const bool earlier = q[0] < p[0] || q[1] < p[1] || (q[1] == p[1] && q[2] < p[2]);
                                if (!earlier) { q[1] = high[1]; break; }
                                if (widened(a.x[at(a.x_step, n, c, q)]) == own) is_first = false;
                            }
                    if (is_first) result += widened(a.h[at(a.h_step, n, c, w)]);
"""
_SHARE = {
    "avg": "result += widened(a.h[at(a.h_step, n, c, w)]) / (real)count;",
    "sum": "result += widened(a.h[at(a.h_step, n, c, w)]);",
}
_LOWEST = {"float32": "-3.4028234663852886e38f", "float64": "-1.7976931348623157e308", "float16": "-65504.0f"}
_TAKE = {"max": "if (x > result || x != x) result = x;", "avg": "result += x;", "sum": "result += x;"}


def _fill(text: str, **parts: str) -> str:
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


@cache
def _program(kind: str, dtype: DType, last: bool, backward: bool) -> Program:
    """Return the kernel for a kind of pooling."""
    names = (["h", "x", "o"] if kind == "max" else ["h"]) if backward else ["x"]
    fields = [
        *_FIELDS,
        *[f"{memory_type(dtype)}* {name}" for name in (*names, "y")],
        *[f"int64 {n}_step[5]" for n in (*names, "y")],
    ]
    real = compute_type([dtype]) or "float"
    body = _fill(_COMMON, real=real, stored=memory_type(dtype) or "", last="true" if last else "false")
    if backward:
        body += _fill(
            _BACKWARD, own=_OWN_MAX if kind == "max" else "", counts=_IF_FIRST if kind == "max" else _SHARE[kind]
        )
    else:
        start = _LOWEST.get(dtype.name, "-3.3895313892515355e38f") if kind == "max" else "0"
        body += _fill(_FORWARD, start=start, take=_TAKE[kind], end="result /= (real)count;" if kind == "avg" else "")
    return Program(fields, f"{_WORDS + 6 * (len(names) + 1)}q", body)


def _steps(op: Pooling, array: Array) -> list[int]:
    """Return the strides of sample, channel and three spatial axes, in elements."""
    steps = [stride // array.itemsize for stride in array.strides]
    if op.channels_last:
        steps.insert(1, steps.pop())
    return [*steps[:2], *[0] * (5 - len(steps)), *steps[2:]]


def _pool(op: Pooling, run: Run, arrays: Sequence[Array], data: Array, out: Array, backward: bool) -> bool:
    """Launch the kernel of a pooling; return False, without effect, if it is unsupported.

    Args:
        op: the operator.
        run: the context of the forward.
        arrays: the arrays that the kernel reads, then the array that it writes.
        data: an array with the data's shape and layout.
        out: an array with the result's shape and layout.
        backward: whether to compute the gradient.
    """
    target = arrays[-1]
    is_supported = op.pool_type in _TAKE and memory_type(target.dtype) is not None and data.size and out.size
    if not is_supported or any(each.dtype != target.dtype for each in arrays):
        return False
    lines = op.lines(op.spatial(data.shape), op.spatial(out.shape))
    front = 3 - len(lines)
    pads = [[1] * front + [getattr(line, name) for line in lines] for name in ("length", "windows", "kernel", "stride")]
    pad = [0] * front + [line.pad for line in lines]
    channels = data.shape[-1 if op.channels_last else 1]
    last = op.channels_last or (not has_layout(target, "C") and target.ndim > 2 and has_layout(target, "channels last"))
    program = _program(op.pool_type, target.dtype, last, backward)
    numbers = [number for each in (*pads, pad) for number in each]
    steps = [step for each in arrays for step in _steps(op, each)]
    words = (target.size, channels, *numbers, int(op.count_include_pad is not False))
    addresses = [address_of(each) for each in arrays]
    return program.launch(run.xp, blocks_for(target.size), (*words, *addresses, *steps))


@kernel("gpu", "Pooling")
def pooling(op: Pooling, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the forward."""
    if not _pool(op, run, [inputs[0], outputs[0]], inputs[0], outputs[0], backward=False):
        run_fallback(op, run, inputs, outputs)


@kernel("gpu", "_backward_Pooling")
def pooling_gradient(op: Pooling, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Compute the gradient of the data."""
    head, data, output = inputs
    reads = [head, data, output] if op.pool_type == "max" else [head]
    if not _pool(op, run, [*reads, outputs[0]], data, head, backward=True):
        run_fallback(op, run, inputs, outputs)
