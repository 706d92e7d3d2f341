"""The choice of a convolution's algorithm by measurement, once for each shape and processor.

The direct algorithm and Winograd's run alternately for some milliseconds, on one thread: its processor time does not
depend on what else the machine does. The choice is stored in the cache folder, so results are bit-identical in every
process. ``FLOWMX_CPU_AUTOTUNE_DEFAULT`` limits the choice. An event loop does not wait for a measurement: there the
usually faster algorithm is used, and nothing is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from flowmx import disk_cache, settings
from flowmx.devices.cpu_pool import allocate
from flowmx.ops.kernels.llvm.matrix_product import PANEL
from flowmx.ops.kernels.llvm.winograd import ACTIVATIONS, PAIRS, TAPS, inner_program
from flowmx.ops.kernels.onednn.convolution import Forward
from flowmx.ops.kernels.onednn.epilogue import Epilogue, epilogue_of
from flowmx.ops.kernels.onednn.layouts import TYPES, Array, Desc, channels_last_strides, dense, pointer
from flowmx.ops.kernels.onednn.library import DType, library
from flowmx.ops.kernels.onednn.panels import supports
from flowmx.ops.kernels.onednn.winograd import Winograd, filters_layout, fits
from flowmx.ops.kernels.onednn.work import Work, call_all, first_line, plan
from flowmx.ops.nn.convolution import Convolution
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Shape

_SUFFIX = ".form"
_FORMAT = 3
_SECONDS = {1: 0.01, 2: 0.1}
"""The time for the measurements of a shape, by the setting."""
_USUALLY_FASTER = 4
_SIDES = {1: (_USUALLY_FASTER,), 2: tuple(PAIRS)}
"""The sides of Winograd's tiles that are measured, by the setting: the loops of each take 0.1 s to compile."""
_FILTER_BYTES = {1: 64 << 20, 2: 1 << 40}
"""The largest transformed filters, by the setting."""
_PRODUCTS = 1 << 29
"""The maximum number of multiplications of a measurement; of larger batches, only some images are measured."""
_ROUNDS = 3
"""The minimum number of measurements of each algorithm."""
_GAIN = 0.85
"""Winograd's algorithm is chosen only if it takes at most this share of the direct algorithm's time, because its
filters take up to four times the memory, and the first call writes them."""
_PANEL_WEIGHTS = 1 << 17
"""The minimum number of weights of a layer for the compiled product: half a megabyte."""
_PADDED_SHARE = 16
"""The maximum share of outputs that the last panel computes although they do not exist."""
_PANEL_POSITIONS = 1 << 10
"""The maximum number of positions of a convolution for the compiled product."""

_sides: dict[object, int] = {}


def form_of(op: object, data: Shape, dtype: NumPyType) -> dict[str, object]:
    """Return the parameters of a layer with packed weight that select its algorithm; none for oneDNN's.

    Args:
        op: the fused convolution or product.
        data: the shape of its data.
        dtype: its element type.
    """
    if dtype not in TYPES or 0 in data or library() is None:
        return {}
    if _uses_panel_kernel(op, data) and supports(TYPES[dtype], epilogue_of(op)._replace(has_scale=False)):
        return {"panels": True}
    side = winograd_side(op, data, dtype) if isinstance(op, Convolution) else 0
    return {"winograd": side} if side else {}


def _uses_panel_kernel(op: Any, data: Shape) -> bool:
    """Return whether a layer is a product for which the compiled loop is usually faster.

    The compiled loop is faster if a layer has so many weights that the product waits for memory. It is slower if it
    computes many outputs that do not exist, or if a convolution has so many positions that oneDNN rarely reads the
    weights from memory.
    """
    outputs, inputs = op.weight_shape(data)[:2]
    rows, padded = prod(data) // inputs, -(-outputs // PANEL) * PANEL
    if outputs * inputs < _PANEL_WEIGHTS or padded - outputs > outputs // _PADDED_SHARE:
        return False
    if not isinstance(op, Convolution):
        return True
    windows = op.geometry
    ones = (1,) * len(windows.kernel)
    is_matrix = windows.kernel == ones == windows.stride and not any(windows.pad) and windows.groups == 1
    return is_matrix and rows <= _PANEL_POSITIONS


def winograd_side(op: Any, data: Shape, dtype: NumPyType) -> int:
    """Return the side of Winograd's output tiles for a convolution with packed filters; 0 for the direct algorithm.

    Args:
        op: the fused convolution.
        data: the shape of its data.
        dtype: its element type.
    """
    mode, lib, kind = settings.get().cpu_autotune_default, library(), TYPES.get(dtype)
    if not mode or lib is None or kind is None or op.activation not in ACTIVATIONS or 0 in data:
        return 0
    if not fits(op.geometry, data, op.num_filter, kind):
        return 0
    out = op.output_shape(data)
    batch = min(data[0], max(1, _PRODUCTS // (prod(out[1:]) * data[1] * TAPS**2)))
    data, out = (batch, *data[1:]), (batch, *out[1:])
    key = (_FORMAT, mode, op.geometry, data, out)
    if key in _sides:
        return _sides[key]
    identity = (lib.version(), lib.isa, disk_cache.processor(), np.__version__)
    path = disk_cache.folder() / f"{disk_cache.digest(repr((key, identity)).encode()).hexdigest()}{_SUFFIX}"
    stored = disk_cache.read(path)
    if stored is not None and len(stored) == 1 and (stored[0] in PAIRS or not stored[0]):
        return _sides.setdefault(key, stored[0])
    sides = [side for side in _SIDES[mode] if 4 * (side + TAPS - 1) ** 2 * out[1] * data[1] <= _FILTER_BYTES[mode]]
    if asyncio._get_running_loop() is not None:
        return _USUALLY_FASTER if _USUALLY_FASTER in sides else 0
    threads = lib.threads()
    lib.use_threads(1)
    try:
        side = _fastest(op.geometry, data, out, sides, _SECONDS[mode])
    finally:
        lib.use_threads(threads)
    disk_cache.write(path, bytes([side]))
    return _sides.setdefault(key, side)


def _fastest(windows: object, data: Shape, out: Shape, sides: Sequence[int], seconds: float) -> int:
    """Measure the algorithms, and return the side of the fastest one's tiles; 0 for the direct one."""
    epilogue = Epilogue(has_bias=True, activation="relu")
    source, target = (dense(shape)._replace(strides=channels_last_strides(shape)) for shape in (data, out))
    weight = dense((out[1], data[1], TAPS, TAPS))
    direct = plan(Forward, windows, source, weight, target, epilogue, None, True)
    if direct is None:
        return 0
    shared = [_values(prod(data)), _values(out[1]), _values(prod(out))]
    runs = {0: _bound(direct, direct.filters(), shared)}
    for side in sides:
        work = plan(Winograd, windows, source, target, epilogue, None, side)
        if work is not None and inner_program(side).get() is not None:
            runs[side] = _bound(work, filters_layout(data[1], out[1], side), shared)
    if len(runs) == 1:
        return 0
    times = _times(runs, seconds)
    best = min(times, key=times.__getitem__)
    return best if times[best] <= _GAIN * times[0] else 0


def _values(count: int) -> Array:
    """Return numbers of usual size, in memory that packed filters will use again."""
    values = allocate((count,), np.dtype(np.float32))
    values[...] = 0.01
    return values


def _bound(work: Work, filters: Desc, shared: Sequence[Array]) -> Callable[[], None]:
    """Return a function that runs an algorithm on the shared data, bias and output, and on its filters."""
    data, bias, out = shared
    memory, packed = np.empty(work.nbytes + 1, np.uint8), _values(filters.nbytes // DType.F32.nbytes)
    calls = [
        runs.call(where) for runs, where in work.calls(first_line(memory), *map(pointer, (data, packed, bias, out)))
    ]

    def run() -> None:
        assert memory.size and packed.size  # kept alive
        call_all(calls, work.threads)

    return run


def _times(runs: dict[int, Callable[[], None]], seconds: float) -> dict[int, float]:
    """Return the least processor time of each function; they run alternately, first once without being timed."""
    for run in runs.values():
        run()
    times, end, rounds = dict.fromkeys(runs, float("inf")), time.thread_time() + seconds, 0
    while rounds < _ROUNDS or time.thread_time() < end:
        for side, run in runs.items():
            start = time.thread_time()
            run()
            times[side] = min(times[side], time.thread_time() - start)
        rounds += 1
    return times
