"""Symbols raise errors where something cannot be composed, named or inferred."""

from typing import Any

import pytest

import flowmx as mx
from flowmx.errors import ParameterError, ShapeError

sym: Any = mx.sym
X, Y = sym.var("x"), sym.var("y")
SUM = X + Y
PAIR = sym.Group([X, Y])


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "by position or by name, not both", lambda: SUM(X, y=Y)),
        (TypeError, "3 inputs were given, the symbol has 2 arguments", lambda: SUM(X, Y, X)),
        (TypeError, "input y is 3, expected a symbol with one output", lambda: SUM(y=3)),
        (TypeError, "input y is .*, expected a symbol with one output", lambda: SUM(y=PAIR)),
        (ParameterError, r"there is no argument 'z', expected one of \['x', 'y'\]", lambda: SUM(z=X)),
        (DeprecationWarning, r"use attr_dict\(\)", lambda: SUM.list_attr(recursive=True)),
        (ValueError, "attribute depth is 3, expected text", lambda: X._set_attr(depth=3)),
        (ParameterError, "the symbol has no variable 'yy', only x, y", lambda: SUM.infer_shape(yy=(1,))),
        (TypeError, "by position or by name, not both", lambda: SUM.infer_shape((1,), y=(1,))),
        (TypeError, "3 values were given, the symbol has 2 arguments", lambda: SUM.infer_shape((1,), (1,), (1,))),
        (ShapeError, r"the shape of 'x' is \('two',\), expected ints", lambda: SUM.infer_shape(x=("two",))),
        (NotImplementedError, "call backward instead", lambda: SUM.grad(["x"])),
        (TypeError, "name is 3, expected text", lambda: sym.Variable(3)),
        (ValueError, "unknown keyword 'shapes'", lambda: sym.Variable("x", shapes=(1,))),
        (TypeError, "3 is not a Symbol", lambda: sym.Group([X, 3])),
        (IndexError, "output 2 was requested, but the symbol has 2", lambda: PAIR[2]),
        (TypeError, "has 2 outputs|with 2 outputs", lambda: sym.FullyConnected(PAIR, num_hidden=2)),
        (TypeError, "input bias is not taken by", lambda: sym.FullyConnected(X, bias=Y, no_bias=True, num_hidden=2)),
        (ValueError, "range is missing", lambda: sym.histogram(X, bins=3)),
        (AttributeError, "has no function 'uniforme'", lambda: sym.random.uniforme),
        (ValueError, "pred has 2 outputs, expected 1", lambda: sym.contrib.cond(PAIR, lambda: X, lambda: Y)),
        (ValueError, "returned 1 symbols and else_func 2", lambda: sym.contrib.cond(X, lambda: X, lambda: [X, Y])),
    ],
)  # fmt: skip
def test_invalid_calls_are_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()
