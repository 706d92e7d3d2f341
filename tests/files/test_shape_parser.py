"""The parser of untrusted shapes: accepted and rejected input, and linear time."""

import pytest

from flowmx import shape_limits
from flowmx.shape_limits import MAX_DIMENSIONS, ShapeError, ShapeOverflow, read_shape


@pytest.mark.parametrize("shape", [[], [0], [2, 3], (4, 0, 5), [1] * MAX_DIMENSIONS, [2**62], [0, 2**62]])
def test_a_shape_is_returned_as_a_tuple(shape):
    assert read_shape(shape) == tuple(shape)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "is None, expected a list of sizes"),
        ("12", "is '12', expected a list of sizes"),
        pytest.param("1" * 10**6, "expected a list of sizes", id="long text"),
        ({"a": 1}, "expected a list of sizes"),
        (3, "is 3, expected a list of sizes"),
        pytest.param(1 << 10**6, "an integer of 1000001 bits, expected a list", id="digits"),
        ([1] * (MAX_DIMENSIONS + 1), "33 dimensions, expected at most 32"),
        ([-1], "the size -1"),
        ([True], "the size True"),
        ([2.0], "the size 2.0"),
        ([None], "the size None"),
        ([[1]], "the size a list"),
        ([2**63], "the size 9223372036854775808"),
        pytest.param([1 << 10**6], "an integer of 1000001 bits", id="digits of a size"),
    ],
)
def test_an_invalid_shape_is_described(value, message):
    with pytest.raises(ShapeError, match=message) as caught:
        read_shape(value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("shape", "itemsize"), [([2**62, 2], 1), ([2**61], 4), ([2**62, 0, 2**62], 1)])
def test_an_array_of_too_many_bytes_is_refused(shape, itemsize):
    with pytest.raises(ShapeOverflow, match=r"less than 2\*\*63 bytes"):
        read_shape(shape, itemsize)


def test_many_dimensions_are_never_multiplied(monkeypatch):
    monkeypatch.setattr(shape_limits.math, "prod", lambda sizes: pytest.fail("a product of unchecked sizes"))
    with pytest.raises(ShapeError, match="20000 dimensions"):
        read_shape([2**63 - 1] * 20_000)
