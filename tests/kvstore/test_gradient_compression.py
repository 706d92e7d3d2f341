"""Gradient compression: words and residuals as in MXNet, and no loss under any type."""

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowmx.errors import ParameterError
from flowmx.kvstore import compression

RECORDED = json.loads((Path(__file__).parent.parent / "fixtures" / "compression.json").read_text())


def words_one_by_one(values, threshold):
    """Return the 2-bit words of residuals, element by element as in MXNet's kernel, and the new residuals."""
    data = bytearray(4 * math.ceil(len(values) / 16))
    rest = []
    for i, value in enumerate(np.asarray(values, np.float32)):
        mark = 0b11 if value >= threshold else 0b10 if value <= -threshold else 0
        data[i // 4] |= mark << (6 - 2 * (i % 4))
        rest.append(value - {0b11: threshold, 0b10: -threshold, 0: np.float32(0)}[mark])
    return np.frombuffer(bytes(data), "<u4"), np.array(rest, np.float32)


def test_two_bits_by_hand():
    codec = compression.create({"type": "2bit", "threshold": 1.0})
    residual = np.zeros(6, np.float32)
    sent = codec.compress(np.array([1.5, -1.0, 0.25, 3.0, -0.5, -4.0], np.float32), residual)
    assert sent.tobytes() == bytes([0b11_10_00_11, 0b00_10_00_00, 0, 0])
    assert residual.tolist() == [0.5, 0.0, 0.25, 2.0, -0.5, -3.0]
    assert codec.decompress(sent, 6).tolist() == [1, -1, 0, 1, 0, -1]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: str(recorded["threshold"]))
def test_two_bits_equal_mxnets_encoding(recorded):
    codec = compression.create({"type": "2bit", "threshold": recorded["threshold"]})
    residual = np.zeros(len(recorded["gradients"][0]), np.float32)
    for gradient, expected in zip(recorded["gradients"], recorded["sent"], strict=True):
        sent = codec.compress(np.array(gradient, np.float32), residual)
        np.testing.assert_array_equal(codec.decompress(sent, residual.size), np.array(expected, np.float32))


@given(st.lists(st.floats(-10, 10, width=32), max_size=70), st.floats(0.125, 4, width=32))
def test_two_bits_follow_the_plain_loop(values, threshold):
    codec = compression.TwoBit(threshold)
    residual = np.zeros(len(values), np.float32)
    sent = codec.compress(np.array(values, np.float32), residual)
    expected, rest = words_one_by_one(values, np.float32(threshold))
    np.testing.assert_array_equal(sent, expected)
    np.testing.assert_array_equal(residual, rest)


@pytest.mark.parametrize("params", [{"type": "2bit", "threshold": 4}, {"type": "fp16"}, {"type": "bf16"}])
@given(rounds=st.lists(st.lists(st.integers(-3000, 3000), min_size=5, max_size=5), min_size=1, max_size=8))
def test_no_gradient_is_lost(params, rounds):
    codec = compression.create(params)
    residual = np.zeros(5, np.float32)
    sent = [codec.decompress(codec.compress(np.array(round, np.float32), residual), 5) for round in rounds]
    np.testing.assert_array_equal(np.sum(sent, axis=0) + residual, np.sum(rounds, axis=0))


def test_arrays_larger_than_a_chunk():
    gradient = np.random.default_rng(0).integers(-4, 5, (3, 50_001)).astype(np.float32)
    for params in ({"type": "2bit", "threshold": 2}, {"type": "fp16"}):
        codec = compression.create(params)
        residual = np.zeros_like(gradient)
        sent = codec.compress(gradient, residual)
        assert sent.size == codec.length(gradient.size)
        np.testing.assert_array_equal(codec.decompress(sent, gradient.size) + residual.ravel(), gradient.ravel())


def test_two_bits_are_a_sixteenth():
    assert compression.TwoBit().length(160) == 10 and compression.TwoBit().length(161) == 11


def test_values_beyond_fp16_are_sent_later():
    codec, residual = compression.create({"type": "fp16"}), np.zeros(1, np.float32)
    first = codec.compress(np.array([70_000], np.float32), residual)
    second = codec.compress(np.zeros(1, np.float32), residual)
    assert first.dtype == np.float16 and float(first[0]) == 65504
    assert float(first[0]) + float(second[0]) + residual[0] == 70_000


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_an_infinite_element_travels_and_leaves_nothing(kind):
    codec, residual = compression.create({"type": kind}), np.zeros(3, np.float32)
    sent = codec.decompress(codec.compress(np.array([np.inf, np.nan, 1], np.float32), residual), 3)
    np.testing.assert_array_equal(sent, [np.inf, np.nan, 1])
    assert residual.tolist() == [0, 0, 0]


def test_bf16_rounds_to_nearest_even():
    codec, residual = compression.create({"type": "bf16"}), np.zeros(1, np.float32)
    sent = codec.compress(np.array([1.00390625], np.float32), residual)
    assert sent.dtype == ml_dtypes.bfloat16 and float(sent[0]) == 1.0 and residual[0] == 0.00390625


def test_parameters_recreate_the_same_compression():
    assert compression.create(compression.TwoBit(0.25).config()).config() == {"type": "2bit", "threshold": 0.25}
    assert (
        compression.create({"type": "2bit", "threshold": "0.25"}).config()["threshold"] == 0.25
    )  # MXNet accepts strings


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "type is None, expected one of 2bit"),
        ({"type": "1bit"}, "'1bit'"),
        ({"type": ["2bit"]}, r"\['2bit'\]"),
        ({"type": "2bit", "threshold": 0}, "positive"),
        ({"type": "2bit", "threshold": float("nan")}, "positive"),
        ({"type": "2bit", "threshold": "much"}, "much"),
        ({"type": "2bit", "limit": 1}, "unknown parameter 'limit'"),
        ({"type": "fp16", "threshold": 1}, "unknown parameter 'threshold'"),
    ],
)
def test_refuses_parameters(params, message):
    with pytest.raises(ParameterError, match=message):
        compression.create(params)


def test_refuses_arrays_that_do_not_fit():
    codec = compression.TwoBit()
    with pytest.raises(TypeError, match="gradient is float64"):
        codec.compress(np.zeros(3), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="needs a residual of the same size"):
        codec.compress(np.zeros(3, np.float32), np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="is sent under 2bit as 1 elements of uint32, not as"):
        codec.decompress(np.zeros(2, np.uint32), 3)
