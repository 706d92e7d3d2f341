"""Matrix products by oneDNN: all that operators multiply, and FullyConnected with what follows it.

Transposed matrices go in as they lie in memory. Small products stay with the array library, whose call is cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from flowmx.ops.kernels.onednn.ends import PLAIN, Ends, ends_of
from flowmx.ops.kernels.onednn.kernel import Kernel, Make
from flowmx.ops.kernels.onednn.library import Arg, Query
from flowmx.ops.kernels.onednn.primitives import (
    Array,
    Call,
    Desc,
    Geometry,
    Operand,
    Primitive,
    Reorder,
    Work,
    attributes,
    c_strides,
    dense_vectors,
    geometry,
    loaded,
    plain,
    plan,
    pointer,
    strided,
    suits,
)
from flowmx.ops.nn_linear import FullyConnected
from flowmx.ops.products import product
from flowmx.ops.registry import Shape, kernel

_SMALL = 1 << 15
"""Multiplications below which NumPy's product is faster."""


class Product(Work):
    """C = A B, and what follows it; all with equal batch axes, vectors along the last axis."""

    def __init__(self, a: Geometry, b: Geometry, c: Geometry, ends: Ends = PLAIN) -> None:
        super().__init__()
        lib = loaded()
        left, right, out = strided(*a), strided(*b), strided(*c)
        vector = (*(1,) * (len(c[0]) - 1), c[0][-1])
        bias = plain(vector) if ends.own_bias else None
        desc = lib.create(
            "matmul_primitive_desc_create", lib.engine, left.handle, right.handle,
            None if bias is None else bias.handle, out.handle, attributes(*ends.posts(vector)),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {Arg.SRC: left, Arg.WEIGHTS: right, Arg.DST: out, **ends.arguments(vector)}
        self.run = Primitive(self.room, desc, arguments)

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self.run.at(base, *addresses)]


@product("cpu")
def multiply(a: Array, b: Array, c: Array) -> bool:
    """Compute ``c = a @ b``; False where oneDNN cannot, or need not."""
    if c.size * a.shape[-1] < _SMALL or not suits(a, b, c):
        return False
    made = plan(Product, geometry(a), geometry(b), geometry(c))
    if made is None:
        return False
    made(pointer(a), pointer(b), pointer(c))
    return True


class FullyConnect(Work):
    """FullyConnected and what follows it: the data, and the addend, are brought to C order where they lie otherwise."""

    def __init__(
        self, data: Geometry, rows: int, weight: Geometry, out: Shape, ends: Ends, addend: Geometry | None
    ) -> None:
        super().__init__()
        (units, width), (along, across) = weight
        self._ends = ends
        self._product = Product(dense((rows, width)), ((width, units), (across, along)), dense((rows, units)), ends)
        self._inner = self.room.take(self._product.room.nbytes)
        self._source = Operand(self.room, strided(*data), plain(data[0]))
        self._addend = None if addend is None else Reorder(self.room, strided(*addend), plain(out))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, weight, *more, out = addresses
        bias = [more.pop(0)] if self._ends.bias else []
        scale = [more.pop(0)] if self._ends.scaled else []
        before = self._source.before(base, data)
        if self._addend is not None and more[0] != out:
            before.append(self._addend.at(base, more[0], out))
        source = self._source.at(base, data)
        return [
            *before,
            *self._product.calls(base + self._inner, source, weight, out, *self._ends.addresses(bias, scale)),
        ]


class Gradient(Work):
    """A product of two inputs as matrices; they are brought to C order where they lie otherwise."""

    def __init__(self, inputs: Sequence[Geometry], left: Geometry, right: Geometry, out: Geometry) -> None:
        super().__init__()
        self._product = Product(left, right, out)
        self._inner = self.room.take(self._product.room.nbytes)
        self._inputs = [Operand(self.room, strided(*each), plain(each[0])) for each in inputs]

    def calls(self, base: int, *addresses: int) -> list[Call]:
        given, made = list(zip(self._inputs, addresses[:2], strict=True)), []
        for operand, address in given:
            made += operand.before(base, address)
        places = [operand.at(base, address) for operand, address in given]
        return [*made, *self._product.calls(base + self._inner, *places, addresses[-1])]


def dense(shape: Shape) -> Geometry:
    """How an array in C order lies."""
    return shape, c_strides(shape)


def _fully_connected(op: FullyConnected, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    (data, weight, *rest), (out, strides) = inputs, outputs[0]
    ends = ends_of(op)
    rows, fits = prod(out) // op.num_hidden, strides == c_strides(out) and dense_vectors(rest[: len(rest) - ends.added])
    if not fits or prod(out) * weight[0][1] < _SMALL:
        return None
    return plan(FullyConnect, data, rows, weight, out, ends, rest[-1] if ends.added else None)


def _fully_connected_data(op: FullyConnected, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    (head, weight, _), (out, strides) = inputs, outputs[0]
    units, width = weight[0]
    if strides != c_strides(out) or prod(out) * units < _SMALL:
        return None
    rows = prod(out) // width
    return plan(Gradient, (head, weight), dense((rows, units)), dense((units, width)), dense((rows, width)))


def _fully_connected_weight(op: FullyConnected, inputs: Sequence[Geometry], outputs: Sequence[Geometry]) -> Work | None:
    (head, data), (out, strides) = inputs, outputs[0]
    units, width = out
    rows = prod(head[0]) // units
    if strides != c_strides(out) or rows * units * width < _SMALL:
        return None
    turned = (units, rows), (1, units)
    return plan(Gradient, (head, data), turned, dense((rows, width)), dense((units, width)))


KERNELS: dict[str, Make] = {
    "FullyConnected": _fully_connected,
    "_fused_FullyConnected": _fully_connected,
    "_backward_FullyConnected_data": _fully_connected_data,
    "_backward_FullyConnected_weight": _fully_connected_weight,
}
for _name, _make in KERNELS.items():
    kernel("cpu", _name)(Kernel(_make))
