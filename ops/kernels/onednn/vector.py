"""FullyConnected of a single row: a product of a matrix and a vector, which oneDNN takes several times as long for.

It reads the weight once and is done, at the speed of memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from flowmx.ops.kernels.llvm.vector_product import multiply
from flowmx.ops.kernels.onednn.ends import Ends
from flowmx.ops.kernels.onednn.layouts import Array, Geometry, plain, strided
from flowmx.ops.kernels.onednn.primitives import Call, Reorder
from flowmx.ops.kernels.onednn.work import Operand, Work
from flowmx.ops.registry.operators import Shape


class VectorProduct:
    """out = then(scale · (weight · data) + bias + out); stands where a primitive does."""

    def __init__(self, weight: Shape, ends: Ends) -> None:
        self.weight = weight
        self.ends = ends

    def at(self, base: int, *addresses: int) -> tuple[VectorProduct, tuple[int, ...]]:
        """A run on the data, the weight, the output and then scale and bias, as far as there are such."""
        return self, addresses

    def call(self, addresses: tuple[int, ...]) -> BoundVectorProduct:
        """A call of its own, ready to run again and again."""
        made = BoundVectorProduct(self)
        made.point(addresses)
        return made

    def run(self, addresses: tuple[int, ...]) -> None:
        """Run it once."""
        self.call(addresses)()


class ConnectVector(Work):
    """FullyConnected of one row, and what follows it."""

    def __init__(self, data: Geometry, weight: Shape, out: Shape, ends: Ends, addend: Geometry | None) -> None:
        super().__init__()
        self._product = VectorProduct(weight, ends)
        self._source = Operand(self.room, strided(*data), plain(data[0]))
        self._addend = None if addend is None else Reorder(self.room, strided(*addend), plain(out))

    def calls(self, base: int, *addresses: int) -> list[Call]:
        ends = self._product.ends
        data, weight, *more, out = addresses
        bias = [more.pop(0)] if ends.bias else []
        scale = [more.pop(0)] if ends.scaled else []
        made = [*self._source.before(base, data)]
        if self._addend is not None and more[0] != out:
            made.append(self._addend.at(base, more[0], out))
        return [*made, self._product.at(base, self._source.at(base, data), weight, out, *scale, *bias)]


class BoundVectorProduct:
    """A product with arrays.

    Attributes:
        of: the product.
        addresses: where its arrays are.
    """

    def __init__(self, of: VectorProduct) -> None:
        self.of = of
        self.addresses: tuple[int, ...] = ()

    def point(self, addresses: tuple[int, ...]) -> None:
        """Say where the arrays are."""
        self.addresses = addresses
        units, width = self.of.weight
        data, weight, out, *vectors = addresses
        self._data, self._weight, self._out = _at(data, (width,)), _at(weight, (units, width)), _at(out, (units,))
        given = [_at(each, (units,)) for each in vectors]
        ends = self.of.ends
        self._scale = given.pop(0) if ends.scaled else None
        self._shifts = [*given, *([self._out] if ends.added else [])]

    def __call__(self) -> None:
        weight, data, out, then = self._weight, self._data, self._out, self.of.ends.then
        if multiply(weight, data, out, self._scale, self._shifts, then):
            return
        result = weight @ data
        if self._scale is not None:
            result *= self._scale
        for shift in self._shifts:
            result += shift
        out[...] = np.maximum(result, 0) if then else result


def _at(address: int, shape: Sequence[int]) -> Array:
    """The float32 numbers at an address."""
    memory: Any = (ctypes.c_float * prod(shape)).from_address(address)
    return np.ndarray(tuple(shape), np.float32, memory)
