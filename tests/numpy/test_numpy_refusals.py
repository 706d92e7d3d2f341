"""Errors of mx.np and its symbols: their types are those of NumPy, and their messages give the reason."""

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
        (TypeError, r"'.1f' needs a 0-d array, got shape \(2, 2\)", lambda: f"{X:.1f}"),
        (TypeError, r"can be an index, got float32\(\)", lambda: [1][np.array(0.0)]),
        (TypeError, "can be an index", lambda: [1][np.array([0], dtype="int32")]),
        (TypeError, "iteration over a 0-d array", lambda: [*np.array(1.0)]),
        (ValueError, "the truth value of an array of 4 elements is ambiguous", lambda: bool(X)),
        (TypeError, "cannot cast float32 to int32 with casting='safe'", lambda: X.astype("int32", casting="safe")),
        (IndexError, r"the mask has shape \(3,\)", lambda: X[np.array([True, False, True], dtype="bool")]),
        (IndexError, r"the mask has shape \(2, 2\), but it indexes axes of shape \(2,\)", lambda: X[:, X > 1]),
        (TypeError, "could not convert", lambda: np.array(["a"])),
        (ValueError, "requires a copy, but copy=False", lambda: np.asarray(X, dtype="int32", copy=False)),
        (ValueError, "numbers and lists require a copy", lambda: np.asarray([1, 2], copy=False)),
        (TypeError, "inhomogeneous", lambda: np.array([[1], [1, 2]])),
        (ValueError, "gamma: a parameter is not above 0", lambda: np.random.gamma(-1.0, 1.0, size=3).asnumpy()),
        (ValueError, "a probability is outside 0 to 1", lambda: npx.random.bernoulli(np.array([2.0])).asnumpy()),
        (ValueError, "exactly one of prob and logit", lambda: npx.random.bernoulli()),
        (ValueError, "exactly one of prob and logit", lambda: npx.random.bernoulli(0.5, 0.5)),
        (ValueError, "-3 removes an axis of length 1, got length 2", lambda: npx.reshape(X, (-3, -2))),
        (ValueError, "needs more axes than the 2 of the array", lambda: npx.reshape(X, (-2, -2, -2))),
        (AttributeError, "there is no operator '_image_resise'", lambda: npx.image.resise),
        (AttributeError, "no attribute 'relux'.*relu", lambda: npx.relux),
        (NotImplementedError, "where= is for arrays", lambda: sym.np.sqrt(S, where=S)),
    ],
)  # fmt: skip
def test_errors(error, message, call):
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
def test_only_c_order_is_supported(call):
    assert call("C").shape
    with pytest.raises(NotImplementedError, match="order must be 'C'"):
        call("F")
