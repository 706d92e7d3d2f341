"""Matrix products by oneDNN: all that operators multiply, and FullyConnected with what follows it.

Transposed matrices go in as they lie in memory. Small products stay with the array library, whose call is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm import vector_product
from flowmx.ops.kernels.llvm.casts import copy
from flowmx.ops.kernels.onednn.ends import PLAIN, Ends
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Array,
    Desc,
    Geometry,
    any_layout,
    dense,
    geometry,
    halves,
    loaded,
    plain,
    pointer,
    strided,
    suits,
)
from flowmx.ops.kernels.onednn.library import Arg, DType, Query, Unsupported
from flowmx.ops.kernels.onednn.primitives import LINE, Call, Primitive, Reorder, attributes
from flowmx.ops.kernels.onednn.work import FixedWork, Operand, Work, call_all, first_line, multiplying, plan
from flowmx.ops.math.products import SMALL, Matrices, again, fixing, product
from flowmx.ops.math.products import multiplying as multiplying_on
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Shape

SMALL_BY_VECTOR = 1 << 15
"""The same where a factor is a vector."""


class Product(Work):
    """C = A B, and what follows it; all with equal batch axes, vectors along the last axis.

    B's layout may be left to the primitive: then its element type alone is given.
    """

    def __init__(self, a: Geometry, b: Geometry | DType, c: Geometry, ends: Ends = PLAIN) -> None:
        super().__init__()
        lib = loaded()
        left, out = strided(*a), strided(*c)
        right = strided(*b) if isinstance(b, Geometry) else any_layout((a[0][-1], c[0][-1]), b)
        vector = (*(1,) * (len(c[0]) - 1), c[0][-1])
        bias = plain(vector, ends.vectors) if ends.own_bias else None
        desc = lib.create(
            "matmul_primitive_desc_create", lib.engine, left.handle, right.handle,
            None if bias is None else bias.handle, out.handle, attributes(*ends.posts(vector), scales=ends.scales),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: left, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: out, **ends.arguments(vector)
        }  # fmt: skip
        self.run = Primitive(self.room, desc, arguments)

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        a, _, c = key[:3]
        return multiplying(prod(c.shape) * a.shape[-1])

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self.run.at(base, *addresses)]


@product("cpu")
def multiply(a: Array, b: Array, c: Array) -> bool:
    """Compute ``c = a @ b``; False where oneDNN cannot, or need not."""
    count = c.size * a.shape[-1]
    if count < SMALL_BY_VECTOR or not suits(a, b, c):
        return False
    if c.ndim == 2 and 1 in c.shape and c.dtype == FLOAT32 == a.dtype and _by_vector(a, b, c):
        return True
    if count < SMALL:
        return False
    made = plan(Product, geometry(a), geometry(b), geometry(c))
    if made is None:
        return False
    made(pointer(a), pointer(b), pointer(c))
    return True


@fixing("cpu")
def _fixed(a: Matrices, b: Matrices, out: Shape, dtype: NumPyType) -> Callable[[Array, Array, Array], bool] | None:
    if len(out) == 2 and 1 in out:
        return None
    left, right = (_matrices(*each) for each in (a, b))
    work = plan(Product, left, right, dense(out))
    # One of several threads is for threads that may use as many.
    if work is None or work.threads > 1:
        return None
    call = FixedWork(work, 3)

    def multiply_fixed(a: Array, b: Array, c: Array) -> bool:
        call(pointer(a), pointer(b), pointer(c))
        return True

    return multiply_fixed


def _matrices(shape: Shape, turn: bool) -> Geometry:
    """The geometry of matrices in C order, transposed where that is said."""
    made = dense(shape)
    if not turn:
        return made
    *batch, rows, columns = shape
    *steps, along, across = made.strides
    return Geometry((*batch, columns, rows), (*steps, across, along))


@multiplying_on("cpu")
def _multiplies(dtype: NumPyType) -> bool:
    return dtype in halves()


class _Reordering(Work):
    """A matrix in the order of the product by which a left factor is multiplied with it."""

    def __init__(self, left: Geometry, given: Geometry, out: Geometry) -> None:
        super().__init__()
        product = plan(Product, left, given.dtype, out)
        if product is None:
            raise Unsupported("oneDNN has no such product")
        self._copy = Reorder(self.room, strided(*given), product.run.descriptor(Arg.WEIGHTS))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


class _Again:
    """Products of matrices of so many rows with one right factor, which is brought into the product's order once."""

    def __init__(self, product: Product, reorder: _Reordering, b: Array, rows: int, dtype: NumPyType) -> None:
        self._memory = np.empty(product.run.descriptor(Arg.WEIGHTS).nbytes + LINE, np.uint8)
        self._weight = first_line(self._memory)
        reorder(pointer(b), self._weight)
        self._room = np.empty(product.nbytes, np.uint8)
        self._base, self._threads = first_line(self._room), product.threads
        self._given = None if b.dtype == dtype else np.empty((rows, len(b)), b.dtype)
        self._out = np.empty((rows, b.shape[1]), dtype)
        primitive, places = product.calls(self._base, 0, self._weight, 0)[0]
        self._call = primitive.call(places)
        self._rest = places[3:]

    def __call__(self, a: Array, out: Array) -> None:
        """Compute one."""
        if self._given is not None:
            if not copy(a, self._given):
                self._given[...] = a
            a = self._given
        elif not a.flags.c_contiguous:
            a = np.ascontiguousarray(a)
        made = out if out.flags.c_contiguous else self._out
        self._call.point((pointer(a), self._weight, pointer(made), *self._rest))
        call_all([self._call], self._threads)
        if made is not out:
            out[...] = made


@again("cpu")
def _repeated(b: Array, rows: int, dtype: NumPyType) -> _Again | None:
    if dtype != FLOAT32 or rows * b.size < SMALL_BY_VECTOR or not suits(b) or (b.dtype == dtype and rows == 1):
        return None
    kind = TYPES[b.dtype]
    left, out = dense((rows, len(b)), kind), dense((rows, b.shape[1]))
    product, reorder = plan(Product, left, kind, out), plan(_Reordering, left, geometry(b), out)
    return None if product is None or reorder is None else _Again(product, reorder, b, rows, dtype)


def _by_vector(a: Array, b: Array, c: Array) -> bool:
    """Compute a product of which one factor is a vector, and the other one's rows lie in a row; False elsewhere."""
    matrix, vector = (b.T, a[0]) if c.shape[0] == 1 else (a, b[:, 0])
    out = c.reshape(-1)
    if not (matrix.flags.c_contiguous and vector.flags.c_contiguous and np.shares_memory(out, c)):
        return False
    return vector_product.multiply(matrix, vector, out)


class FullyConnect(Work):
    """FullyConnected and what follows it: the data, and the addend, are brought to C order where they lie otherwise."""

    def __init__(
        self, data: Geometry, rows: int, weight: Geometry, out: Geometry, ends: Ends, addend: Geometry | None,
        packed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        units, width = weight[0]
        self._ends = ends
        given = weight.dtype if packed else turned(weight)
        self._product = Product(dense((rows, width), data.dtype), given, dense((rows, units), out.dtype), ends)
        self._inner = self.room.take(self._product.room.nbytes)
        wanted = self._product.run.descriptor(Arg.WEIGHTS)
        lies = self.packed(rows, weight, ends, data.dtype, out.dtype) if packed else wanted
        assert lies is not None
        self._weight = Operand(self.room, lies, wanted)
        self._source = Operand(self.room, strided(*data), plain(data.shape, data.dtype))
        self._addend = None if addend is None else Reorder(self.room, strided(*addend), plain(out.shape, out.dtype))

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, _, weight, out = key[:4]
        return multiplying(prod(out.shape) * weight.shape[1])

    def packed(self, rows: int, weight: Geometry, ends: Ends, data: DType, out: DType) -> Desc | None:
        """The layout of a packed weight."""
        return packed_matrix(rows, weight, ends, data, out)

    def implementation(self) -> str:
        """The name of the implementation that oneDNN chose."""
        return self._product.run.implementation()

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, weight, *more, out = addresses
        bias = [more.pop(0)] if self._ends.bias else []
        scale = [more.pop(0)] if self._ends.scaled else []
        before = [*self._source.before(base, data), *self._weight.before(base, weight)]
        if self._addend is not None and more[0] != out:
            before.append(self._addend.at(base, more[0], out))
        ends = self._source.at(base, data), self._weight.at(base, weight), out
        return [*before, *self._product.calls(base + self._inner, *ends, *self._ends.addresses(bias, scale))]


@cache
def packed_matrix(rows: int, weight: Geometry, ends: Ends, data: DType, out: DType) -> Desc | None:
    """The layout of a packed weight, chosen once for each key, since packed copies are kept."""
    units, width = weight.shape
    # A vector is multiplied by float32 without oneDNN, from a weight in C order.
    if rows * units * width < SMALL or (rows == 1 and weight.dtype == DType.F32):
        return None
    made = plan(Product, dense((rows, width), data), weight.dtype, dense((rows, units), out), ends)
    return None if made is None else made.run.descriptor(Arg.WEIGHTS)


def turned(weight: Geometry) -> Geometry:
    """A weight as the right matrix of a product."""
    (units, width), (along, across), dtype = weight
    return Geometry((width, units), (across, along), dtype)


class Gradient(Work):
    """A product of two inputs as matrices; they are brought to C order where they lie otherwise."""

    def __init__(self, inputs: Sequence[Geometry], left: Geometry, right: Geometry, out: Geometry) -> None:
        super().__init__()
        self._product = Product(left, right, out)
        self._inner = self.room.take(self._product.room.nbytes)
        self._inputs = [Operand(self.room, strided(*each), plain(each.shape, each.dtype)) for each in inputs]

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, left, _, out = key
        return multiplying(prod(out.shape) * left.shape[-1])

    def calls(self, base: int, *addresses: int) -> list[Call]:
        given, made = list(zip(self._inputs, addresses[:2], strict=True)), []
        for operand, address in given:
            made += operand.before(base, address)
        places = [operand.at(base, address) for operand, address in given]
        return [*made, *self._product.calls(base + self._inner, *places, addresses[-1])]
