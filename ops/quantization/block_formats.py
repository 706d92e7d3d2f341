"""The formats of quantized weights in GGUF files: blocks of integer codes with scales.

A row of a weight is a sequence of blocks, and a block is a record of bytes::

    value = scale * (code - zero) + minimum

Scales and minimums belong to *groups* of consecutive codes of a block. Codes are unsigned; ``zero`` is a constant of
the format, and some formats have no minimums. The formats of floating-point numbers are in the same table, with blocks
of one number.

The arithmetic is that of the Python package ``gguf``, operation by operation, so that results are bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flowmx.ops.registry.dtypes import FLOAT32
from flowmx.ops.registry.operators import Array
from flowmx.ops.registry.tensors import ArrayNamespace
from flowmx.suggestions import did_you_mean

__all__ = ["FORMATS", "BlockFormat", "Codes", "format_named"]


class Codes(NamedTuple):
    """The contents of blocks.

    Attributes:
        codes: uint8 (blocks, values of a block).
        scale: float32 (blocks, 1).
        minimum: float32 (blocks, 1), or None.
        scale_steps: the scale of each group in units of the block's, int8 or uint8 (blocks, groups); None if a block is
            one group.
        minimum_steps: the minimum of each group in negative units of the block's, uint8 (blocks, groups), or None.
    """

    codes: Array
    scale: Array
    minimum: Array | None = None
    scale_steps: Array | None = None
    minimum_steps: Array | None = None

    @property
    def scales(self) -> Array:
        """The scale of each group: float32 (blocks, groups)."""
        return self.scale if self.scale_steps is None else self.scale * self.scale_steps.astype(np.float32)

    @property
    def minimums(self) -> Array | None:
        """The minimum of each group: float32 (blocks, groups); None if all are 0."""
        if self.minimum is None or self.minimum_steps is None:
            return self.minimum
        return -(self.minimum * self.minimum_steps.astype(np.float32))

    def values(self, zero: int) -> Array:
        """Return the values: float32 (blocks, values of a block)."""
        with np.errstate(over="ignore", invalid="ignore"):
            scales, minimums = self.scales, self.minimums
            grouped = self.codes.reshape(*scales.shape, self.codes.shape[1] // scales.shape[1]).astype(np.float32)
            if zero:
                grouped -= np.float32(zero)
            grouped *= scales[..., None]
            if minimums is not None:
                grouped += minimums[..., None]
        return grouped.reshape(self.codes.shape)


class BlockFormat(NamedTuple):
    """A format of weights.

    Attributes:
        name: its name in GGUF.
        values: the number of values of a block.
        nbytes: the size of a block in bytes.
        unpack: returns the codes, scales and minimums of blocks, uint8 (blocks, nbytes); None for a format of
            floating-point numbers.
        pack: quantizes blocks of values, float32 (blocks, values), to uint8 (blocks, nbytes).
        widen: converts rows of bytes to float32, for a format of floating-point numbers.
        bits: the number of bits of a code.
        zero: the code of 0.
        group: the number of values that share a scale.
    """

    name: str
    values: int
    nbytes: int
    unpack: Callable[[ArrayNamespace, Array], Codes] | None
    pack: Callable[[Array], Array]
    widen: Callable[[ArrayNamespace, Array], Array] | None = None
    bits: int = 0
    zero: int = 0
    group: int = 0

    def row_bytes(self, columns: int) -> int:
        """Return the size in bytes of a row with this number of values.

        Raises:
            ValueError: the number is no multiple of the block's.
        """
        if columns < 0 or columns % self.values:
            raise ValueError(
                f"a row of {columns} values cannot be stored as {self.name}, whose blocks have {self.values} values; "
                f"expected a multiple of {self.values}"
            )
        return columns // self.values * self.nbytes

    def columns(self, row_bytes: int) -> int:
        """Return the number of values in a row of this size.

        Raises:
            ValueError: the size is no multiple of the block's.
        """
        if row_bytes < 0 or row_bytes % self.nbytes:
            raise ValueError(
                f"a row of {row_bytes} bytes is not in format {self.name}, whose blocks have {self.nbytes} bytes; "
                f"expected a multiple of {self.nbytes}"
            )
        return row_bytes // self.nbytes * self.values

    def codes(self, data: Array, xp: ArrayNamespace | None = None) -> Codes:
        """Return the contents of all blocks of uint8 rows (..., bytes of a row), in order.

        Raises:
            ValueError: the rows are no sequences of blocks, or the format has no codes.
        """
        if self.unpack is None:
            raise ValueError(f"{self.name} is a format of floating-point numbers, which have no codes")
        self.columns(data.shape[-1])
        return self.unpack(np if xp is None else xp, data.reshape(-1, self.nbytes))

    def dequantize(self, data: Array, xp: ArrayNamespace | None = None) -> Array:
        """Return the values of uint8 rows (..., bytes of a row), as float32 (..., columns).

        Args:
            data: the rows.
            xp: the array namespace of the rows; NumPy by default.

        Raises:
            ValueError: the rows are no sequences of blocks.
        """
        shape = (*data.shape[:-1], self.columns(data.shape[-1]))
        if self.widen is not None:
            return self.widen(np if xp is None else xp, _contiguous(data, xp)).reshape(shape)
        return self.codes(_contiguous(data, xp), xp).values(self.zero).reshape(shape)

    def quantize(self, values: Array) -> Array:
        """Return values (..., columns) as uint8 rows (..., bytes of a row).

        Raises:
            ValueError: the number of columns is no multiple of the block's, or the values of a block are not finite or
                too large for its scale.
        """
        nbytes = self.row_bytes(values.shape[-1])
        real = np.ascontiguousarray(values, FLOAT32)
        if self.unpack is not None and not np.isfinite(real).all():
            raise ValueError(f"NaN and infinity cannot be quantized to {self.name}, which has no codes for them")
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            packed = self.pack(real.reshape(-1, self.values))
        packed = packed.reshape(*values.shape[:-1], nbytes)
        if self.unpack is not None and not np.isfinite(self.dequantize(packed)).all():
            raise ValueError(
                f"values up to {np.abs(real).max():.3g} are too large for {self.name}, whose scales are float16; "
                "divide them by a constant"
            )
        return packed


def _contiguous(data: Array, xp: ArrayNamespace | None) -> Array:
    return (np if xp is None else xp).ascontiguousarray(data)


# -- floating-point numbers ----------------------------------------------------------------------------------


def _widen_float32(xp: ArrayNamespace, rows: Array) -> Array:
    return rows.view(np.float32)


def _widen_float16(xp: ArrayNamespace, rows: Array) -> Array:
    return rows.view(np.float16).astype(np.float32)


def _widen_bfloat16(xp: ArrayNamespace, rows: Array) -> Array:
    return (rows.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrow_float32(values: Array) -> Array:
    return values.view(np.uint8)


def _narrow_float16(values: Array) -> Array:
    return values.astype(np.float16).view(np.uint8)


def _narrow_bfloat16(values: Array) -> Array:
    """Round to nearest, ties to even; a NaN stays a quiet NaN with its upper bits."""
    bits = values.view(np.uint32)
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(is_nan, (bits >> 16) | 64, rounded).astype(np.uint16).view(np.uint8)


# -- blocks of 32 values -------------------------------------------------------------------------------------


def _numbers(rows: Array) -> Array:
    """Return float16 numbers in float32."""
    return rows.view(np.float16).astype(np.float32)


def _field(xp: ArrayNamespace, blocks: Array, start: int, stop: int) -> Array:
    """Return some bytes of each block, contiguous."""
    return xp.ascontiguousarray(blocks[:, start:stop])


def _nibbles(xp: ArrayNamespace, pairs: Array) -> Array:
    """Return 4-bit codes: the lower halves of the bytes (..., count), then the upper ones, as (..., 2 * count)."""
    return xp.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1)


def _paired(codes: Array) -> Array:
    """Return 4-bit codes (..., 2 * count) as bytes (..., count): the inverse of :func:`_nibbles`."""
    lower, upper = np.split(codes, 2, axis=-1)
    pairs: Array = lower | (upper << np.uint8(4))
    return pairs


def _inverse(scales: Array) -> Array:
    """Return the reciprocals, and 0 for 0 and for numbers whose reciprocal is no float32."""
    reciprocals = 1 / scales
    return np.where(np.isfinite(reciprocals), reciprocals, np.zeros_like(reciprocals))


def _unpack_q4_0(xp: ArrayNamespace, blocks: Array) -> Codes:
    return Codes(_nibbles(xp, blocks[:, 2:]), _numbers(_field(xp, blocks, 0, 2)))


def _pack_q4_0(values: Array) -> Array:
    places = np.abs(values).argmax(axis=-1, keepdims=True)
    scales = np.take_along_axis(values, places, axis=-1) / -8
    codes = np.trunc(values * _inverse(scales) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([_narrow_float16(scales), _paired(codes)], axis=-1)


def _unpack_q4_1(xp: ArrayNamespace, blocks: Array) -> Codes:
    numbers = _numbers(_field(xp, blocks, 0, 4))
    return Codes(_nibbles(xp, blocks[:, 4:]), numbers[:, :1], numbers[:, 1:])


def _pack_q4_1(values: Array) -> Array:
    minimums = values.min(axis=-1, keepdims=True)
    scales = (values.max(axis=-1, keepdims=True) - minimums) / 15
    codes = np.trunc((values - minimums) * _inverse(scales) + np.float32(0.5)).astype(np.uint8).clip(0, 15)
    return np.concatenate([_narrow_float16(scales), _narrow_float16(minimums), _paired(codes)], axis=-1)


def _unpack_q8_0(xp: ArrayNamespace, blocks: Array) -> Codes:
    return Codes(blocks[:, 2:] ^ np.uint8(128), _numbers(_field(xp, blocks, 0, 2)))


def _pack_q8_0(values: Array) -> Array:
    scales = np.abs(values).max(axis=-1, keepdims=True) / 127
    steps = values * _inverse(scales)
    sizes = np.abs(steps)
    whole = np.floor(sizes)
    codes = np.sign(steps) * (whole + np.floor(2 * (sizes - whole)))  # ties away from zero
    return np.concatenate([_narrow_float16(scales), codes.astype(np.int8).view(np.uint8)], axis=-1)


# -- blocks of 256 values, whose groups have quantized scales ------------------------------------------------


def _unpack_q4_k(xp: ArrayNamespace, blocks: Array) -> Codes:
    numbers = _numbers(_field(xp, blocks, 0, 4))
    first, second, rest = (blocks[:, at : at + 4] for at in (4, 8, 12))
    upper = [(each >> np.uint8(2)) & np.uint8(0x30) for each in (first, second)]
    scales = xp.concatenate([first & np.uint8(63), (rest & np.uint8(15)) | upper[0]], axis=-1)
    minimums = xp.concatenate([second & np.uint8(63), (rest >> np.uint8(4)) | upper[1]], axis=-1)
    codes = _nibbles(xp, blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return Codes(codes, numbers[:, :1], numbers[:, 1:], scales, minimums)


def _pack_q4_k(values: Array) -> Array:
    groups = values.reshape(-1, 8, 32)
    low = np.maximum(-groups.min(axis=-1), 0)
    steps = (np.maximum(groups.max(axis=-1), -low) + low) / 15
    units = np.stack([steps, low], axis=1).astype(np.float32)  # (blocks, 2, 8)
    numbers = (units.max(axis=-1) / 63).astype(np.float16)
    scales = np.rint(units * _inverse(numbers.astype(np.float32))[..., None]).clip(0, 63).astype(np.uint8)
    real = numbers.astype(np.float32)[..., None] * scales
    codes = np.rint((groups + real[:, 1, :, None]) * _inverse(real[:, 0, :, None])).clip(0, 15).astype(np.uint8)
    head, tail = scales[..., :4], scales[..., 4:]
    packed = (head | ((tail & np.uint8(0x30)) << np.uint8(2))).reshape(-1, 8)
    rest = (tail[:, 0] & np.uint8(15)) | (tail[:, 1] << np.uint8(4))
    pairs = _paired(codes.reshape(-1, 4, 64)).reshape(-1, 128)
    return np.concatenate([numbers.view(np.uint8), packed, rest, pairs], axis=-1)


def _unpack_q6_k(xp: ArrayNamespace, blocks: Array) -> Codes:
    lower = _nibbles(xp, blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> xp.asarray([[0], [2], [4], [6]], dtype=np.uint8)
    codes = lower | ((upper & np.uint8(3)) << np.uint8(4))
    scales = _field(xp, blocks, 192, 208).view(np.int8)
    return Codes(codes.reshape(-1, 256), _numbers(_field(xp, blocks, 208, 210)), scale_steps=scales)


def _pack_q6_k(values: Array) -> Array:
    groups = values.reshape(-1, 16, 16)
    places = np.abs(groups).argmax(axis=-1, keepdims=True)
    units = np.take_along_axis(groups, places, axis=-1)[..., 0] / -32
    largest = np.take_along_axis(units, np.abs(units).argmax(axis=-1, keepdims=True), axis=-1)
    numbers = (largest / -128).astype(np.float16)
    scales = np.rint(units * _inverse(numbers.astype(np.float32))).clip(-128, 127).astype(np.int8)
    real = (numbers.astype(np.float32) * scales)[..., None]
    codes = (np.rint(groups * _inverse(real)) + 32).clip(0, 63).astype(np.uint8)
    lower = _paired((codes & np.uint8(15)).reshape(-1, 2, 128)).reshape(-1, 128)
    shifted = (codes >> np.uint8(4)).reshape(-1, 2, 4, 32) << np.array([[0], [2], [4], [6]], np.uint8)
    upper = np.bitwise_or.reduce(shifted, axis=2).reshape(-1, 64)
    return np.concatenate([lower, upper, scales.view(np.uint8), numbers.view(np.uint8)], axis=-1)


FORMATS: dict[str, BlockFormat] = {
    each.name: each
    for each in (
        BlockFormat("F32", 1, 4, None, _narrow_float32, _widen_float32),
        BlockFormat("F16", 1, 2, None, _narrow_float16, _widen_float16),
        BlockFormat("BF16", 1, 2, None, _narrow_bfloat16, _widen_bfloat16),
        BlockFormat("Q8_0", 32, 34, _unpack_q8_0, _pack_q8_0, bits=8, zero=128, group=32),
        BlockFormat("Q4_0", 32, 18, _unpack_q4_0, _pack_q4_0, bits=4, zero=8, group=32),
        BlockFormat("Q4_1", 32, 20, _unpack_q4_1, _pack_q4_1, bits=4, group=32),
        BlockFormat("Q4_K", 256, 144, _unpack_q4_k, _pack_q4_k, bits=4, group=32),
        BlockFormat("Q6_K", 256, 210, _unpack_q6_k, _pack_q6_k, bits=6, zero=32, group=16),
    )
}
"""The formats by name."""


def format_named(name: str) -> BlockFormat:
    """Return a format.

    Raises:
        ValueError: there is no format of this name.
    """
    if name not in FORMATS:
        hint = did_you_mean(name, FORMATS)
        raise ValueError(f"there is no format {name[:80]!r} of weights, expected one of {', '.join(FORMATS)}{hint}")
    return FORMATS[name]
