"""Refusals of mx.np and its symbols: errors of the types that NumPy has, with the reason."""

from typing import Any

import pytest

import flowmx as mx

np: Any = mx.np
npx: Any = mx.npx
sym: Any = mx.sym
X = np.array([[1.0, 2.0], [3.0, 4.0]])
S = sym.var("x").as_np_ndarray()


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "stream must be None", lambda: X.to_device(mx.cpu(), stream=1)),
        (TypeError, r"'.1f' is for an array without axes, this one has shape \(2, 2\)", lambda: f"{X:.1f}"),
        (TypeError, r"can be an index, this is float32\(\)", lambda: [1][np.array(0.0)]),
        (TypeError, "can be an index", lambda: [1][np.array([0], dtype="int32")]),
        (TypeError, "iteration over a 0-d array", lambda: [*np.array(1.0)]),
        (ValueError, "the truth value of an array of 4 elements is ambiguous", lambda: bool(X)),
        (TypeError, "not cast to int32 by the rule 'safe'", lambda: X.astype("int32", casting="safe")),
        (IndexError, r"the mask has shape \(3,\)", lambda: X[np.array([True, False, True], dtype="bool")]),
        (IndexError, r"the mask has shape \(2, 2\), but the axes that it stands for are \(2,\)", lambda: X[:, X > 1]),
        (TypeError, "could not convert", lambda: np.array(["a"])),
        (ValueError, "copy=False forbids", lambda: np.asarray(X, dtype="int32", copy=False)),
        (ValueError, "numbers and lists need a copy", lambda: np.asarray([1, 2], copy=False)),
        (TypeError, "inhomogeneous", lambda: np.array([[1], [1, 2]])),
        (ValueError, "gamma: a parameter is not above 0", lambda: np.random.gamma(-1.0, 1.0, size=3).asnumpy()),
        (ValueError, "a probability is not from 0 to 1", lambda: npx.random.bernoulli(np.array([2.0])).asnumpy()),
        (ValueError, "exactly one of prob and logit", lambda: npx.random.bernoulli()),
        (ValueError, "exactly one of prob and logit", lambda: npx.random.bernoulli(0.5, 0.5)),
        (ValueError, "-3 leaves out an axis of length 1, not one of 2", lambda: npx.reshape(X, (-3, -2))),
        (ValueError, "asks for more axes than the array's 2", lambda: npx.reshape(X, (-2, -2, -2))),
        (AttributeError, "there is no operator '_image_resise'", lambda: npx.image.resise),
        (AttributeError, "no attribute 'relux'.*relu", lambda: npx.relux),
        (NotImplementedError, "where= is for arrays", lambda: sym.np.sqrt(S, where=S)),
    ],
)  # fmt: skip
def test_what_is_refused(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda order: np.array([1]).copy(order=order), lambda order: np.zeros(2, order=order),
        lambda order: np.full((2,), 1, order=order), lambda order: np.asarray([1], order=order),
        lambda order: np.reshape(X, (4,), order=order), lambda order: npx.reshape(X, (4,), order=order),
        lambda order: np.ones_like(X, order=order), lambda order: np.zeros_like(X, order=order),
        lambda order: np.empty_like(X, order=order), lambda order: np.full_like(X, 2, order=order),
        lambda order: np.full_like(X, [1, 2], order=order), lambda order: np.ravel(X, order=order),
    ],
)  # fmt: skip
def test_other_orders_in_memory_than_that_of_c(call):
    assert call("C").shape
    with pytest.raises(NotImplementedError, match="order must be 'C'"):
        call("F")
