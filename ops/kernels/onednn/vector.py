"""FullyConnected of few rows: products of a matrix and a vector.

For a single row it is several times faster than oneDNN, since it reads the weight once, at the speed of memory. For a
few rows and a small weight, which stays in the caches, it avoids the fixed costs of a product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm.vector_product import multiply
from flowmx.ops.kernels.onednn.epilogue import Epilogue
from flowmx.ops.kernels.onednn.layouts import Array, Geometry, plain, strided
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Operand, Work
from flowmx.ops.kernels.recording import Recording, mark_incomplete
from flowmx.ops.registry.operators import Shape


class VectorProduct:
    """A substitute for a primitive: out = then(scale · (weight · data) + bias + out)."""

    def __init__(self, weight: Shape, epilogue: Epilogue) -> None:
        self.weight = weight
        self.epilogue = epilogue

    def at(self, base: int, *addresses: int) -> tuple[VectorProduct, tuple[int, ...]]:
        """Return a call on data, weight, output, and optionally scale and bias."""
        return self, addresses

    def call(self, addresses: tuple[int, ...]) -> BoundVectorProduct:
        """Return a separate call that can run repeatedly."""
        call = BoundVectorProduct(self)
        call.point(addresses)
        return call

    def run(self, addresses: tuple[int, ...]) -> None:
        """Run once."""
        self.call(addresses)()


MAX_ROWS = 8
"""The maximum number of rows, for a small weight."""


class ConnectVectors(Work):
    """Fused FullyConnected of few rows, one at a time."""

    def __init__(self, data: Geometry, weight: Shape, out: Shape, epilogue: Epilogue, addend: Geometry | None) -> None:
        super().__init__()
        self._rows, (self._units, self._width) = prod(out) // weight[0], weight
        self._product = VectorProduct(weight, epilogue)
        self._source = Operand(self.workspace, strided(*data), plain(data[0]))
        self._addend = None if addend is None else Reorder(self.workspace, strided(*addend), plain(out))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        epilogue = self._product.epilogue
        data, weight, *extra, out = addresses
        bias = [extra.pop(0)] if epilogue.has_bias else []
        scale = [extra.pop(0)] if epilogue.has_scale else []
        calls: list[Call] = [*self._source.before(base, data)]
        if self._addend is not None and extra[0] != out:
            calls.append(self._addend.at(base, extra[0], out))
        source = self._source.at(base, data)
        for row in range(self._rows):
            places = source + 4 * row * self._width, weight, out + 4 * row * self._units
            calls.append(self._product.at(base, *places, *scale, *bias))
        return calls


class BoundVectorProduct:
    """A product bound to arrays.

    Attributes:
        of: the product.
        addresses: the addresses of the arrays.
    """

    def __init__(self, of: VectorProduct) -> None:
        self.of = of
        self.addresses: tuple[int, ...] = ()

    def point(self, addresses: tuple[int, ...]) -> None:
        """Set the addresses of the arrays."""
        self.addresses = addresses
        units, width = self.of.weight
        data, weight, out, *vectors = addresses
        self._data, self._weight, self._out = _at(data, (width,)), _at(weight, (units, width)), _at(out, (units,))
        arrays = [_at(each, (units,)) for each in vectors]
        epilogue = self.of.epilogue
        self._scale = arrays.pop(0) if epilogue.has_scale else None
        self._shifts = [*arrays, *([self._out] if epilogue.has_addend else [])]

    def record(self, recording: Recording, threads: int) -> None:
        """Do nothing: the loop adds its call when it runs."""

    def __call__(self) -> None:
        weight, data, out, activation = self._weight, self._data, self._out, self.of.epilogue.activation
        if multiply(weight, data, out, self._scale, self._shifts, activation):
            return
        mark_incomplete()
        result = weight @ data
        if self._scale is not None:
            result *= self._scale
        for shift in self._shifts:
            result += shift
        out[...] = np.maximum(result, 0) if activation else result


def _at(address: int, shape: Sequence[int]) -> Array:
    """Return the float32 numbers at an address."""
    memory: Any = (ctypes.c_float * prod(shape)).from_address(address)
    return np.ndarray(tuple(shape), np.float32, memory)
