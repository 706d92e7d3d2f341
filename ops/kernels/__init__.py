"""Faster kernels for particular devices. The operators' forwards are the fallback and the reference implementation.

The modules here register their kernels with :mod:`flowmx.ops.registry.kernels` when they are imported: at the first
use of a device type. Importing them loads no library; the first call does. If the library is missing, the operator's
forward runs.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from typing import TYPE_CHECKING

from flowmx import process_hooks
from flowmx.ops.kernels import llvm, onednn
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.kernels import load_at_first_use, load_kernels
from flowmx.ops.registry.traits import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowmx.ops.registry.dtypes import DType
    from flowmx.ops.registry.kernels import ArrayLayout
    from flowmx.ops.registry.operators import Operator, Shape

_CUDA = f"{__name__}.cuda"
_loading = threading.RLock()


def _load_cpu_kernels() -> None:
    """Import the modules that register kernels for CPUs.

    They are imported one by one, not by their packages: two threads may import them at the same time. A fork waits: the
    child of a fork in the middle of an import would wait forever for the thread that imports.
    """
    with _loading:
        _import_cpu_kernels()


def _import_cpu_kernels() -> None:
    modules = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg]
    modules += [f"llvm.{name}" for name in llvm.MODULES]
    modules += [f"onednn.{info.name}" for info in pkgutil.iter_modules(onednn.__path__)]
    for name in modules:
        importlib.import_module(f"{__name__}.{name}")


def _wait_for_loading() -> None:
    with _loading:
        pass


load_at_first_use("cpu", _load_cpu_kernels)
process_hooks.at_install(lambda: load_kernels("cpu"))  # the engine's first operation, before other threads compute
process_hooks.at_fork(before=_wait_for_loading)
load_at_first_use("gpu", lambda: importlib.import_module(_CUDA))


def channels_last_dtypes(device_type: str) -> frozenset[DType]:
    """Return the element types in which a device's kernels are faster with the channels contiguous in memory."""
    from flowmx.ops.kernels.onednn.library import library

    if device_type == "gpu":
        from flowmx.ops.kernels import cuda

        return cuda.convolution.channels_last()
    if device_type != "cpu" or library() is None:
        return frozenset()
    return product_dtypes(device_type) | quantized_dtypes(device_type)


def quantized_dtypes(device_type: str) -> frozenset[DType]:
    """Return the integer types in which a device's kernels compute quantized layers: none without VNNI."""
    from flowmx.ops.kernels.onednn.library import library
    from flowmx.ops.quantization.ranges import INT8, INT32, UINT8

    onednn = library() if device_type == "cpu" else None
    return frozenset([INT8, UINT8, INT32] if onednn is not None and onednn.multiplies_bytes() else [])


def product_dtypes(device_type: str) -> frozenset[DType]:
    """Return the element types in which a device's kernels compute products and fused layers."""
    from flowmx.ops.kernels.onednn.layouts import native_16bit_dtypes

    return frozenset([FLOAT32]) | (native_16bit_dtypes() if device_type == "cpu" else frozenset())


def computes(device_type: str, op: Operator, dtype: DType) -> bool:
    """Return whether an operator's kernel computes on 16-bit elements without converting them first."""
    from flowmx.ops.registry.kernels import kernel_for

    kernel = kernel_for(device_type, op.name)
    if kernel is None and op.traits.heavy and op.traits.precision in (Precision.LOW, Precision.WIDEST):
        # The device's product computes it.
        return dtype in product_dtypes(device_type)
    takes = None if kernel is None else kernel.takes
    return op.traits.moves or op.traits.repeats or bool(takes is not None and takes(op, dtype))


def fastest_form(device_type: str, layer: Operator, data: Shape, dtype: DType) -> Operator:
    """Return a layer with packed weight and the fastest algorithm for data of a shape, which may be measured now."""
    from flowmx.ops.compiled.fused_layers import FusedConvolution, FusedFullyConnected

    if device_type != "cpu" or type(layer) not in (FusedConvolution, FusedFullyConnected):
        return layer
    from flowmx.ops.kernels.onednn.algorithm_choice import form_of

    form = form_of(layer, data, dtype)
    if not form:
        return layer
    return type(layer).create(**{name: getattr(layer, name) for name in layer.attributes()}, **form)


def weight_of_link(device_type: str, op: Operator, dtype: DType, count: int) -> int | None:
    """Estimate an operator's instructions as part of a chain; None if it cannot be in one."""
    load_kernels(device_type)
    if device_type == "cpu":
        from flowmx.ops.kernels.llvm import chain

        return chain.weight(op, dtype, count)
    if device_type == "gpu":
        from flowmx.ops.kernels import cuda

        return cuda.chain.weight(op, dtype, count)
    return None


def expect_graph(device_type: str) -> None:
    """Start loading the loop compiler in the background, if the device has one and the cache is empty."""
    if device_type == "cpu":
        from flowmx.ops.kernels.llvm import chain

        chain.can_compile()


def load_ahead(device_type: str) -> None:
    """Start loading the loop compiler in the background for a new graph, if the device has one."""
    if device_type == "cpu":
        from flowmx.ops.kernels.llvm import background_compilation, chain

        if chain.can_compile():
            background_compilation.load_ahead()


def compile_ahead(
    device_type: str, chains: Sequence[tuple[Operator, Sequence[ArrayLayout], Sequence[ArrayLayout]]]
) -> None:
    """Start compiling the kernels of chains in the background, for these layouts of inputs and outputs."""
    from flowmx.ops.kernels.llvm import chain
    from flowmx.ops.registry.kernels import kernel_for

    kernel = kernel_for(device_type, "_chain")
    if kernel is not None and kernel.compute is chain.compute:
        chain.compile_ahead(chains)


def computes_attention(device_type: str, dtype: DType, size: int, pairs: int, is_plain_prediction: bool) -> bool:
    """Return whether a device has a fused attention kernel that is worth using.

    Args:
        device_type: the device type.
        dtype: the element type of queries, keys and values.
        size: the length of the vectors.
        pairs: the number of query-key pairs per head.
        is_plain_prediction: whether it only predicts, and has no bias.
    """
    if device_type == "cpu":
        from flowmx.ops.kernels.llvm import attention

        return attention.takes(dtype, pairs, is_plain_prediction)
    if device_type == "gpu":
        from flowmx.ops.kernels import cuda

        return cuda.attention.takes(dtype, size)
    return False
