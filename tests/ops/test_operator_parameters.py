"""Parameters of operators, as Python values and as strings in MXNet's files."""

import numpy as np
import pytest

from flowmx.errors import ParameterError
from flowmx.ops.registry.operators import lookup

REQUIRED = {
    "Convolution": {"kernel": (1, 1), "num_filter": 1},
    "FullyConnected": {"num_hidden": 1},
    "_random_randint": {"low": -5, "high": 5},
    "slice": {"begin": (0,), "end": (1,)},
}


def parsed_value(name, parameter, value):
    """Return the parsed value of an operator's parameter."""
    return getattr(lookup(name).create(**{**REQUIRED.get(name, {}), parameter: value}), parameter)


@pytest.mark.parametrize(
    ("name", "parameter", "expected", "values"),
    [
        ("FullyConnected", "num_hidden", 3, ["3", "3L", 3, 3.0, np.int64(3)]),
        ("_random_randint", "low", 0, ["0", "False", False, 0]),
        ("_random_randint", "high", 1, ["1", "True", True, 1]),
        ("_plus_scalar", "scalar", 0.5, ["0.5", "5e-1", 0.5, np.float32(0.5)]),
        ("_plus_scalar", "scalar", 1.0, ["1", "True", 1, True]),
        ("_plus_scalar", "scalar", 0.0, ["0", "False", 0, False]),
        ("Convolution", "no_bias", True, ["True", "true", "1", 1, True, np.bool_(True)]),
        ("Convolution", "no_bias", False, ["False", "false", "0", 0, False]),
        ("Activation", "act_type", "tanh", ["tanh"]),
        ("Pooling", "kernel", (2, 3), ["(2, 3)", "[2, 3]", "(2L, 3L)", " (2,3) ", (2, 3), [2, 3], np.array([2, 3])]),
        ("Reshape", "shape", (-1,), ["-1", "(-1,)", -1, (-1,), np.int64(-1)]),
        ("slice", "begin", (None, 1), ["(None, 1)", "[None, 1]", (None, 1), [None, 1]]),
        ("slice", "begin", (1,), ["1", "(1,)", 1, (1,)]),
        ("slice", "begin", (None,), [(None,), "(None,)"]),
        ("_contrib_MultiBoxPrior", "sizes", (0.5, 2.0), ["(0.5, 2)", "[0.5, 2]", (0.5, 2), np.array([0.5, 2])]),
        ("_contrib_MultiBoxPrior", "sizes", (0.5,), ["0.5", "(0.5,)", 0.5, [0.5]]),
        ("Cast", "dtype", np.dtype("float16"), ["float16", np.float16, np.dtype("float16")]),
        ("argmax", "axis", None, ["None", "", None]),
    ],
)
def test_a_value_has_several_spellings(name, parameter, expected, values):
    for value in values:
        actual = parsed_value(name, parameter, value)
        assert (actual, type(actual)) == (expected, type(expected)), repr(value)


@pytest.mark.parametrize(
    ("name", "parameter", "kind", "values"),
    [
        ("FullyConnected", "num_hidden", "an int of at least 1", ["x", "1.5", 1.5, "(3)", 0, None, (3,)]),
        ("_plus_scalar", "scalar", "a float", ["x", "(1,)", (1.0, 2.0), None]),
        ("Convolution", "no_bias", "a bool", ["yes", 2.5, "2"]),
        ("Activation", "act_type", "one of 'relu'", ["thank", 1, None]),
        ("Pooling", "kernel", "a tuple of ints", ["(2, x)", "(2, 3", 1.5, (1.5, 2), "((2, 3), 2)", (2, None)]),
        ("slice", "begin", "a tuple of ints", ["(None, x)", (1.5,), "x"]),
        ("_contrib_MultiBoxPrior", "sizes", "a tuple of floats", ["(0.5, x)", "x", (0.5, None)]),
        ("Cast", "dtype", "a dtype", ["float17", 3.5]),
    ],
)
def test_an_invalid_value_is_refused_by_name(name, parameter, kind, values):
    for value in values:
        with pytest.raises(ParameterError, match=f"{name}: parameter {parameter} is .*, expected {kind}"):
            parsed_value(name, parameter, value)
