"""Matrix products by oneDNN, for any operator and for fused FullyConnected layers.

Transposed matrices are passed without a copy. The array library computes small products, since its calls are cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm import vector_product
from flowmx.ops.kernels.llvm.casts import copy
from flowmx.ops.kernels.onednn.epilogue import PLAIN, Epilogue
from flowmx.ops.kernels.onednn.layouts import (
    TYPES,
    Array,
    Desc,
    Geometry,
    any_layout,
    dense,
    geometry,
    library_or_raise,
    native_16bit_dtypes,
    plain,
    pointer,
    strided,
    suits,
)
from flowmx.ops.kernels.onednn.library import Arg, DType, Query, Unsupported
from flowmx.ops.kernels.onednn.primitives import LINE, Call, Primitive, Reorder, attributes
from flowmx.ops.kernels.onednn.work import FixedWork, Operand, Work, call_all, first_line, multiply_time_ns, plan
from flowmx.ops.math.matmul import SMALL, Matrices, fixed_shape_product, product_kernel, product_preparation
from flowmx.ops.math.matmul import mixed_product_support as mixed_product_support
from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.dtypes import DType as NumPyType
from flowmx.ops.registry.operators import Shape

SMALL_BY_VECTOR = 1 << 15
"""The minimum number of multiply-adds for oneDNN if one factor is a vector; ``SMALL`` is the limit for matrices."""


class Product(Work):
    """C = A B with an epilogue; all have equal batch axes, and vectors lie along the last axis.

    B may be only an element type: then the primitive chooses its layout.
    """

    def __init__(self, a: Geometry, b: Geometry | DType, c: Geometry, epilogue: Epilogue = PLAIN) -> None:
        super().__init__()
        lib = library_or_raise()
        left, out = strided(*a), strided(*c)
        right = strided(*b) if isinstance(b, Geometry) else any_layout((a[0][-1], c[0][-1]), b)
        vector = (*(1,) * (len(c[0]) - 1), c[0][-1])
        bias = plain(vector, epilogue.vector_type) if epilogue.has_primitive_bias else None
        desc = lib.create(
            "matmul_primitive_desc_create", lib.engine, left.handle, right.handle,
            None if bias is None else bias.handle, out.handle,
            attributes(*epilogue.posts(vector), scales=epilogue.scales),
        )  # fmt: skip
        arguments: dict[int, Desc | Query] = {
            Arg.SRC: left, Arg.WEIGHTS: Query.WEIGHTS, Arg.DST: out, **epilogue.arguments(vector)
        }  # fmt: skip
        self.run = Primitive(self.workspace, desc, arguments)

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        a, _, c = key[:3]
        return multiply_time_ns(prod(c.shape) * a.shape[-1])

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self.run.at(base, *addresses)]


@product_kernel("cpu")
def multiply(a: Array, b: Array, c: Array) -> bool:
    """Compute ``c = a @ b``; return False if oneDNN cannot, or is not faster."""
    count = c.size * a.shape[-1]
    if count < SMALL_BY_VECTOR or not suits(a, b, c):
        return False
    if c.ndim == 2 and 1 in c.shape and c.dtype == FLOAT32 == a.dtype and _multiply_vector(a, b, c):
        return True
    if count < SMALL:
        return False
    work = plan(Product, geometry(a), geometry(b), geometry(c))
    if work is None:
        return False
    work(pointer(a), pointer(b), pointer(c))
    return True


@fixed_shape_product("cpu")
def _make_fixed_product(
    a: Matrices, b: Matrices, out: Shape, dtype: NumPyType
) -> Callable[[Array, Array, Array], bool] | None:
    if len(out) == 2 and 1 in out:
        return None
    left, right = (_matrices(*each) for each in (a, b))
    work = plan(Product, left, right, dense(out))
    # A plan for several threads must not be bound: a later caller may be allowed fewer.
    if work is None or work.threads > 1:
        return None
    call = FixedWork(work, 3)

    def multiply_fixed(a: Array, b: Array, c: Array) -> bool:
        call(pointer(a), pointer(b), pointer(c))
        return True

    return multiply_fixed


def _matrices(shape: Shape, transpose: bool) -> Geometry:
    """Return the geometry of matrices in C order, optionally transposed."""
    matrices = dense(shape)
    if not transpose:
        return matrices
    *batch, rows, columns = shape
    *steps, along, across = matrices.strides
    return Geometry((*batch, columns, rows), (*steps, across, along))


@mixed_product_support("cpu")
def _multiplies(dtype: NumPyType) -> bool:
    return dtype in native_16bit_dtypes()


class _Reorder(Work):
    """A copy of a right factor in the layout of its product."""

    def __init__(self, left: Geometry, right: Geometry, out: Geometry) -> None:
        super().__init__()
        product = plan(Product, left, right.dtype, out)
        if product is None:
            raise Unsupported("oneDNN has no such product")
        self._copy = Reorder(self.workspace, strided(*right), product.run.descriptor(Arg.WEIGHTS))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        return [self._copy.at(base, *addresses)]


class _RepeatedProduct:
    """Repeated products with the same right factor, which is copied once, into the layout of the product."""

    def __init__(self, product: Product, reorder: _Reorder, b: Array, rows: int, dtype: NumPyType) -> None:
        self._memory = np.empty(product.run.descriptor(Arg.WEIGHTS).nbytes + LINE, np.uint8)
        self._weight = first_line(self._memory)
        reorder(pointer(b), self._weight)
        self._workspace = np.empty(product.nbytes, np.uint8)
        self._base, self._threads = first_line(self._workspace), product.threads
        self._input_buffer = None if b.dtype == dtype else np.empty((rows, len(b)), b.dtype)
        self._out = np.empty((rows, b.shape[1]), dtype)
        primitive, places = product.calls(self._base, 0, self._weight, 0)[0]
        self._call = primitive.call(places)
        self._rest = places[3:]

    def __call__(self, a: Array, out: Array) -> None:
        """Compute one product."""
        if self._input_buffer is not None:
            if not copy(a, self._input_buffer):
                self._input_buffer[...] = a
            a = self._input_buffer
        elif not a.flags.c_contiguous:
            a = np.ascontiguousarray(a)
        target = out if out.flags.c_contiguous else self._out
        self._call.point((pointer(a), self._weight, pointer(target), *self._rest))
        call_all([self._call], self._threads)
        if target is not out:
            out[...] = target


@product_preparation("cpu")
def _prepare_product(b: Array, rows: int, dtype: NumPyType) -> _RepeatedProduct | None:
    if dtype != FLOAT32 or rows * b.size < SMALL_BY_VECTOR or not suits(b) or (b.dtype == dtype and rows == 1):
        return None
    kind = TYPES[b.dtype]
    left, out = dense((rows, len(b)), kind), dense((rows, b.shape[1]))
    product, reorder = plan(Product, left, kind, out), plan(_Reorder, left, geometry(b), out)
    return None if product is None or reorder is None else _RepeatedProduct(product, reorder, b, rows, dtype)


def _multiply_vector(a: Array, b: Array, c: Array) -> bool:
    """Compute a product of a vector and a matrix with contiguous rows; return False for other factors."""
    matrix, vector = (b.T, a[0]) if c.shape[0] == 1 else (a, b[:, 0])
    out = c.reshape(-1)
    if not (matrix.flags.c_contiguous and vector.flags.c_contiguous and np.shares_memory(out, c)):
        return False
    return vector_product.multiply(matrix, vector, out)


class FullyConnect(Work):
    """Fused FullyConnected; data and addend in other layouts are copied to C order."""

    def __init__(
        self, data: Geometry, rows: int, weight: Geometry, out: Geometry, epilogue: Epilogue, addend: Geometry | None,
        packed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        units, width = weight[0]
        self._epilogue = epilogue
        right = weight.dtype if packed else transposed(weight)
        self._product = Product(dense((rows, width), data.dtype), right, dense((rows, units), out.dtype), epilogue)
        self._inner = self.workspace.take(self._product.workspace.nbytes)
        weight_desc = self._product.run.descriptor(Arg.WEIGHTS)
        layout = self.packed(rows, weight, epilogue, data.dtype, out.dtype) if packed else weight_desc
        assert layout is not None
        self._weight = Operand(self.workspace, layout, weight_desc)
        self._source = Operand(self.workspace, strided(*data), plain(data.shape, data.dtype))
        self._addend = (
            None if addend is None else Reorder(self.workspace, strided(*addend), plain(out.shape, out.dtype))
        )

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, _, weight, out = key[:4]
        return multiply_time_ns(prod(out.shape) * weight.shape[1])

    def packed(self, rows: int, weight: Geometry, epilogue: Epilogue, data: DType, out: DType) -> Desc | None:
        """Return the layout of a packed weight."""
        return packed_matrix(rows, weight, epilogue, data, out)

    def implementation(self) -> str:
        """Return the name of the implementation that oneDNN chose."""
        return self._product.run.implementation()

    def calls(self, base: int, *addresses: int) -> list[Call]:
        data, weight, *extra, out = addresses
        bias = [extra.pop(0)] if self._epilogue.has_bias else []
        scale = [extra.pop(0)] if self._epilogue.has_scale else []
        before = [*self._source.before(base, data), *self._weight.before(base, weight)]
        if self._addend is not None and extra[0] != out:
            before.append(self._addend.at(base, extra[0], out))
        operands = self._source.at(base, data), self._weight.at(base, weight), out
        return [*before, *self._product.calls(base + self._inner, *operands, *self._epilogue.addresses(bias, scale))]


@cache
def packed_matrix(rows: int, weight: Geometry, epilogue: Epilogue, data: DType, out: DType) -> Desc | None:
    """Return the layout of a packed weight, chosen once per key, since packed copies are reused."""
    units, width = weight.shape
    # Products of float32 with a vector run without oneDNN, from a weight in C order.
    if rows * units * width < SMALL or (rows == 1 and weight.dtype == DType.F32):
        return None
    work = plan(Product, dense((rows, width), data), weight.dtype, dense((rows, units), out), epilogue)
    return None if work is None else work.run.descriptor(Arg.WEIGHTS)


def transposed(weight: Geometry) -> Geometry:
    """Return the geometry of a weight as the right matrix of a product."""
    (units, width), (along, across), dtype = weight
    return Geometry((width, units), (across, along), dtype)


class Gradient(Work):
    """The gradient of a FullyConnected input or weight: a product of matrices; other layouts are copied to C order."""

    def __init__(self, inputs: Sequence[Geometry], left: Geometry, right: Geometry, out: Geometry) -> None:
        super().__init__()
        self._product = Product(left, right, out)
        self._inner = self.workspace.take(self._product.workspace.nbytes)
        self._inputs = [Operand(self.workspace, strided(*each), plain(each.shape, each.dtype)) for each in inputs]

    @staticmethod
    def nanoseconds(*key: Any) -> float:
        _, left, _, out = key
        return multiply_time_ns(prod(out.shape) * left.shape[-1])

    def calls(self, base: int, *addresses: int) -> list[Call]:
        operands, calls = list(zip(self._inputs, addresses[:2], strict=True)), []
        for operand, address in operands:
            calls += operand.before(base, address)
        places = [operand.at(base, address) for operand, address in operands]
        return [*calls, *self._product.calls(base + self._inner, *places, addresses[-1])]
