"""Formats of quantized weights: digests of results of the package gguf 0.19, and independent scalar arithmetic."""

import hashlib
import struct

import numpy as np
import pytest

from flowmx.ops.quantization.block_formats import FORMATS, format_named

OF_GGUF = {
    "F32": ("ad4b5b1f2c6a90d3", "bcdaec1d83003eff"),
    "F16": ("06c2bf2cf6085879", "faccb9919c28953b"),
    "BF16": ("028e10baf7a987f7", "fc136c706da7937a"),
    "Q8_0": ("8ad8ab04c3ed7fae", "a8732cb6f0dd6e57"),
    "Q4_0": ("5b997cd3d0cbf032", "cf014b6d7c313c3f"),
    "Q4_1": ("129360da77088706", "5bc21efcc20bf9d9"),
    "Q4_K": ("874309abf96c9a0c", None),
    "Q6_K": ("845af5092f4a459b", None),
}
"""For each format, the digests of dequantized bytes and of quantized values (gguf does not quantize to K formats)."""
VALUES = ((np.arange(4 * 512) * 7919 % 1009 - 504) / 128).astype(np.float32).reshape(4, 512)
ROUNDING = {"F32": 0, "F16": 2**-10, "BF16": 2**-7, "Q8_0": 0.02, "Q4_0": 0.6, "Q4_1": 0.3, "Q4_K": 0.32, "Q6_K": 0.15}
"""The largest errors of quantizing values from -4 to 4."""


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _bytes(name: str, rows: int = 4, columns: int = 512) -> np.ndarray:
    size = FORMATS[name].row_bytes(columns)
    return (np.arange(rows * size) * 37 % 61).astype(np.uint8).reshape(rows, size)


def _half(block: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", block, at)[0])


def _scalars_of_q4_0(block):
    return [_half(block, 0) * ((block[2 + at % 16] >> 4 * (at // 16) & 15) - 8) for at in range(32)]


def _scalars_of_q4_1(block):
    return [_half(block, 0) * (block[4 + at % 16] >> 4 * (at // 16) & 15) + _half(block, 2) for at in range(32)]


def _scalars_of_q8_0(block):
    return [_half(block, 0) * number for number in struct.unpack_from("32b", block, 2)]


def _scalars_of_q4_k(block):
    bits, values = block[4:16], []
    for group in range(8):
        if group < 4:
            scale, low = bits[group] & 63, bits[group + 4] & 63
        else:
            scale = (bits[group + 4] & 15) | (bits[group - 4] >> 6 << 4)
            low = (bits[group + 4] >> 4) | (bits[group] >> 6 << 4)
        for at in range(32):
            code = block[16 + group // 2 * 32 + at] >> 4 * (group % 2) & 15
            values.append(_half(block, 0) * scale * code - _half(block, 2) * low)
    return values


def _scalars_of_q6_k(block):
    values = []
    for at in range(256):
        half, place = divmod(at, 128)
        quarter, column = divmod(place, 32)
        lower = block[64 * half + place % 64] >> 4 * (place // 64) & 15
        upper = block[128 + 32 * half + column] >> 2 * quarter & 3
        scale = struct.unpack_from("b", block, 192 + at // 16)[0]
        values.append(_half(block, 208) * scale * ((lower | upper << 4) - 32))
    return values


SCALARS = {
    "Q4_0": _scalars_of_q4_0,
    "Q4_1": _scalars_of_q4_1,
    "Q8_0": _scalars_of_q8_0,
    "Q4_K": _scalars_of_q4_k,
    "Q6_K": _scalars_of_q6_k,
}


@pytest.mark.parametrize("name", FORMATS)
def test_results_are_those_of_gguf(name):
    dequantized, quantized = OF_GGUF[name]
    assert _digest(FORMATS[name].dequantize(_bytes(name))) == dequantized
    assert quantized in (None, _digest(FORMATS[name].quantize(VALUES)))


@pytest.mark.parametrize("name", SCALARS)
def test_a_block_is_dequantized_as_its_definition_says(name):
    block = np.random.default_rng(0).integers(0, 256, FORMATS[name].nbytes).astype(np.uint8)
    for at in (0, 2, 208):  # finite float16 numbers
        block[at + 1 : at + 2] &= 0xBB
    values = FORMATS[name].dequantize(block[None])
    np.testing.assert_allclose(values[0], SCALARS[name](block.tobytes()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_values_survive_quantization_up_to_rounding(name):
    form = FORMATS[name]
    packed = form.quantize(VALUES.reshape(2, 2, 512))
    assert packed.dtype == np.uint8
    assert packed.shape == (2, 2, form.row_bytes(512))
    back = form.dequantize(packed)
    assert np.abs(back - VALUES.reshape(2, 2, 512)).max() <= 4 * ROUNDING[name]
    assert np.abs(form.dequantize(form.quantize(back)) - back).max() <= 4 * ROUNDING[name]


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_tiny_values_and_no_rows(name):
    form = FORMATS[name]
    assert not form.dequantize(form.quantize(np.zeros((3, 256)))).any()
    assert np.abs(form.dequantize(form.quantize(np.full((1, 256), 1e-42)))).max() < 1e-38
    assert form.dequantize(form.quantize(np.zeros((0, 256)))).shape == (0, 256)


def test_codes_scales_and_minimums_give_the_values():
    for name in SCALARS:
        form, data = FORMATS[name], _bytes(name)
        contents = form.codes(data)
        codes, scales, minimums = contents.codes, contents.scales, contents.minimums
        assert codes.max() < 1 << form.bits
        values = np.repeat(scales, form.group, axis=1) * (codes.astype(np.float32) - form.zero)
        values += 0 if minimums is None else np.repeat(minimums, form.group, axis=1)
        np.testing.assert_array_equal(values.reshape(4, 512), form.dequantize(data))  # also equal: 0 and -0


def test_rounding_to_bfloat16_keeps_nan_and_rounds_ties_to_even():
    bits = np.array([[0x3F808000, 0x3F818000, 0x7F800001, 0xFF800000]], np.uint32)
    packed = FORMATS["BF16"].quantize(bits.view(np.float32)).view(np.uint16)
    assert packed.tolist() == [[0x3F80, 0x3F82, 0x7FC0, 0xFF80]]


def test_wrong_sizes_and_values_are_refused():
    with pytest.raises(ValueError, match=r"a row of 33 values cannot be stored as Q4_0.* multiple of 32"):
        FORMATS["Q4_0"].quantize(np.zeros((1, 33)))
    with pytest.raises(ValueError, match=r"a row of 100 bytes is not in format Q6_K.* multiple of 210"):
        FORMATS["Q6_K"].dequantize(np.zeros((1, 100), np.uint8))
    with pytest.raises(ValueError, match="NaN and infinity cannot be quantized to Q8_0"):
        FORMATS["Q8_0"].quantize(np.full((1, 32), np.nan))
    with pytest.raises(ValueError, match=r"values up to 1e\+30 are too large for Q4_1"):
        FORMATS["Q4_1"].quantize(np.linspace(0, 1e30, 32)[None])
    with pytest.raises(ValueError, match="there is no format 'Q4_2' of weights, expected one of F32, "):
        format_named("Q4_2")
    with pytest.raises(ValueError, match="F16 is a format of floating-point numbers"):
        FORMATS["F16"].codes(np.zeros((1, 2), np.uint8))
