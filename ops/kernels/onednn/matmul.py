"""Matrix products by oneDNN: all that operators multiply, and FullyConnected with its bias and a ReLU.

Transposed matrices go in as they lie in memory. Small products stay with the array library, whose call is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowmx.ops.kernels.onednn.library import Arg, Query
from flowmx.ops.kernels.onednn.primitives import (
    Array,
    Desc,
    Geometry,
    Primitive,
    attributes,
    geometry,
    loaded,
    plan,
    pointer,
    strided,
    suits,
)
from flowmx.ops.nn_linear import FullyConnected, as_matrix
from flowmx.ops.products import product
from flowmx.ops.registry import Run, kernel

_SMALL = 1 << 15
"""Multiplications below which NumPy's product is faster."""


class Product:
    """C = A B, plus a bias along the last axis and a ReLU where wanted; all with equal batch axes."""

    def __init__(self, a: Geometry, b: Geometry, c: Geometry, has_bias: bool, relu: bool) -> None:
        lib = loaded()
        left, right, out = strided(*a), strided(*b), strided(*c)
        width = c[0][-1]
        bias = strided((*(1,) * (len(c[0]) - 1), width), (*(width,) * (len(c[0]) - 1), 1)) if has_bias else None
        desc = lib.create(
            "matmul_primitive_desc_create", lib.engine, left.handle, right.handle,
            None if bias is None else bias.handle, out.handle, attributes(relu),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: left, Arg.WEIGHTS: right, Arg.DST: out}
        if bias is not None:
            arguments[Arg.BIAS] = bias
        self.run = Primitive(desc, arguments)


@product("cpu")
def multiply(a: Array, b: Array, c: Array, bias: Array | None = None, relu: bool = False) -> bool:
    """Compute ``c = a @ b + bias``; False where oneDNN cannot, or need not."""
    if c.size * a.shape[-1] < _SMALL or not suits(a, b, c):
        return False
    made = plan(Product, geometry(a), geometry(b), geometry(c), bias is not None, relu)
    if made is None:
        return False
    made.run(pointer(a), pointer(b), pointer(c), *(() if bias is None else (pointer(bias),)))
    return True


def fully_connected(op: FullyConnected, inputs: Sequence[Array], out: Array, relu: bool = False) -> bool:
    """Compute FullyConnected; False where oneDNN cannot."""
    if not out.flags.c_contiguous:
        return False
    data, target = as_matrix(inputs[0], op.flatten), as_matrix(out, op.flatten)
    return multiply(data, inputs[1].T, target, None if op.no_bias else inputs[2], relu)


@kernel("cpu", "FullyConnected")
def _fully_connected(op: FullyConnected, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not fully_connected(op, inputs, outputs[0]):
        op.forward(run, inputs, outputs)


@kernel("cpu", "_relu_FullyConnected")
def _fully_connected_relu(op: FullyConnected, run: Run, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if not fully_connected(op, inputs, outputs[0], relu=True):
        op.forward(run, inputs, outputs)
