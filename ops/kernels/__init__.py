"""Faster forwards for particular devices, besides the plain ones of the operators, which stay their reference.

Each package here registers its own with :func:`flowmx.ops.registry.operators.kernel` when it is imported. Importing it
loads no library: that waits for the first call, and where the library is missing the plain forward runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.traits import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowmx.ops.registry.dtypes import DType
    from flowmx.ops.registry.operators import Laid, Operator

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def like_channels_last(device_type: str) -> frozenset[DType]:
    """The element types in which a device's kernels are faster with the channels contiguous in memory."""
    from flowmx.ops.kernels import cuda
    from flowmx.ops.kernels.onednn.library import library
    from flowmx.ops.quantization.ranges import INT8, INT32, UINT8

    if device_type == "gpu":
        return cuda.convolution.channels_last()
    found = library() if device_type == "cpu" else None
    if found is None:
        return frozenset()
    return multiplied(device_type) | ({INT8, UINT8, INT32} if found.multiplies_bytes() else set())


def multiplied(device_type: str) -> frozenset[DType]:
    """The element types in which a device's kernels multiply, and do what is fused into a product."""
    from flowmx.ops.kernels.onednn.layouts import halves

    return frozenset([FLOAT32]) | (halves() if device_type == "cpu" else frozenset())


def computes(device_type: str, op: Operator, dtype: DType) -> bool:
    """Tell whether an operator's kernel computes on elements of a type of 16 bits as they are in memory."""
    from flowmx.ops.registry.operators import kernel_for

    kernel = kernel_for(device_type, op.name)
    if kernel is None and op.traits.heavy and op.traits.precision in (Precision.LOW, Precision.WIDEST):
        # By the device's product.
        return dtype in multiplied(device_type)
    ask = getattr(kernel, "takes", None)
    return op.traits.moves or op.traits.repeats or bool(ask is not None and ask(op, dtype))


def weight_of_link(device_type: str, op: Operator, dtype: DType, count: int) -> int | None:
    """About how many instructions an operator of so many inputs takes as part of a chain; None where it cannot be."""
    from flowmx.ops.kernels import cuda, llvm

    ask = {"cpu": llvm.chain.weight, "gpu": cuda.chain.weight}.get(device_type)
    return None if ask is None else ask(op, dtype, count)


def expect_graph(device_type: str) -> None:
    """Let the compiler of loops be loaded meanwhile, where there is one that the cache has nothing of."""
    if device_type == "cpu":
        from flowmx.ops.kernels import llvm

        llvm.chain.can_compile()


def load_ahead(device_type: str) -> None:
    """Let the compiler of loops be loaded meanwhile, where there is one: for a graph that was not met before."""
    if device_type == "cpu":
        from flowmx.ops.kernels import llvm

        if llvm.chain.can_compile():
            llvm.program.load_ahead()


def compile_ahead(device_type: str, chains: Sequence[tuple[Operator, Sequence[Laid], Sequence[Laid]]]) -> None:
    """Let the kernels of chains be compiled meanwhile, in this order, for inputs and outputs that lie like this."""
    from flowmx.ops.kernels import llvm
    from flowmx.ops.registry.operators import kernel_for

    if kernel_for(device_type, "_chain") is llvm.chain.compute:
        llvm.chain.compile_ahead(chains)


def computes_attention(device_type: str, dtype: DType, size: int, pairs: int) -> bool:
    """Tell whether a device has a fused attention kernel that pays.

    Args:
        device_type: the device's.
        dtype: that of queries, keys and values.
        size: the length of these vectors.
        pairs: how many pairs of a query and a key a head has.
    """
    from flowmx.ops.kernels import cuda, llvm

    if device_type == "cpu":
        return llvm.attention.takes(dtype, pairs)
    return device_type == "gpu" and cuda.attention.takes(dtype, size)
