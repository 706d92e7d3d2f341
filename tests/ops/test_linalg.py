"""MXNet's linalg operators: results, gradients by symmetric matrices, other dtypes, errors."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import MXNetError, ShapeError
from flowmx.ndarray.functions import op
from flowmx.test_utils import check_numeric_gradient
from tests.op_cases.linalg import definite, regular

RNG = np.random.default_rng(3)
RTOL = {"float32": 2e-5, "float64": 1e-12, "float16": 5e-3}


def array(values, dtype="float64"):
    return mx.nd.array(values, dtype=dtype)


def symmetric(x):
    return (x + mx.nd.SwapAxis(x, dim1=-1, dim2=-2)) * 0.5


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 4, 4)])
def test_factorizations_multiply_back(shape, dtype):
    a = definite(*shape)(RNG)
    inputs, close = array(a, dtype), RTOL[dtype] * np.abs(a).max()

    def host(x):
        assert x.dtype == np.dtype(dtype)
        return x.asnumpy().astype("float64")

    lower = mx.nd.linalg.potrf(inputs)
    factor = host(lower)
    np.testing.assert_allclose(factor @ factor.swapaxes(-1, -2), a, atol=close)
    np.testing.assert_array_equal(factor, np.tril(factor))
    inverse = np.linalg.inv(factor @ factor.swapaxes(-1, -2))
    np.testing.assert_allclose(host(mx.nd.linalg.potri(lower)), inverse, atol=RTOL[dtype])
    np.testing.assert_allclose(host(mx.nd.linalg.inverse(inputs)) @ a, np.broadcast_to(np.eye(shape[-1]), shape),
                               atol=10 * RTOL[dtype])  # fmt: skip
    u, values = map(host, mx.nd.linalg.syevd(inputs))
    np.testing.assert_allclose(u.swapaxes(-1, -2) @ (values[..., None] * u), a, atol=close)
    assert (np.diff(values) >= 0).all()
    assert (np.take_along_axis(u, np.abs(u).argmax(-1)[..., None], -1) > 0).all()
    q, lower = map(host, mx.nd.linalg.gelqf(inputs[..., :3, :]))
    np.testing.assert_allclose(lower @ q, a[..., :3, :], atol=close)
    np.testing.assert_allclose(q @ q.swapaxes(-1, -2), np.broadcast_to(np.eye(3), lower.shape), atol=10 * RTOL[dtype])


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("rightside", [True, False])
def test_triangular_systems_undo_products(lower, transpose, rightside):
    # A factorization with pivoting would exchange rows of this matrix.
    a = RNG.standard_normal((2, 6, 6)) * 3 + np.eye(6)
    b = RNG.standard_normal((2, 6, 6))
    ways = {"lower": lower, "transpose": transpose, "rightside": rightside}
    product = mx.nd.linalg.trmm(array(a), array(b), alpha=2.0, **ways)
    np.testing.assert_allclose(mx.nd.linalg.trsm(array(a), product, alpha=0.5, **ways).asnumpy(), b, rtol=1e-7)


def test_determinants():
    a = np.stack([regular(4, 4)(RNG), -np.eye(4) * np.diag([1, 1, 1, -1]), np.ones((4, 4))])
    np.testing.assert_allclose(mx.nd.linalg.det(array(a)).asnumpy(), np.linalg.det(a), atol=1e-13)
    sign, logarithm = mx.nd.linalg.slogdet(array(a[:2]))
    expected = np.linalg.slogdet(a[:2])
    np.testing.assert_array_equal(sign.asnumpy(), expected[0])
    np.testing.assert_allclose(logarithm.asnumpy(), expected[1], atol=1e-14)
    assert mx.nd.linalg.det(array(np.eye(2))).shape == (1,)


@pytest.mark.parametrize("name", ["det", "slogdet"])
def test_gradients_of_singular_matrices(name):
    a = array([[[1, 2], [2, 4]], [[1, 2], [3, 4]]])
    a.attach_grad()
    with mx.autograd.record():
        actual = getattr(mx.nd.linalg, name)(a)
        actual = actual[1] if name == "slogdet" else actual
    actual.backward()
    gradient = a.grad.asnumpy()
    np.testing.assert_allclose(gradient[0], [[4, -2], [-2, 1]] if name == "det" else np.zeros((2, 2)), rtol=1e-12)
    expected = np.linalg.inv([[1, 2], [3, 4]]).T * (-2 if name == "det" else 1)
    np.testing.assert_allclose(gradient[1], expected, rtol=1e-12)


def distances(u):
    """Return a function of the eigenvectors that does not depend on their signs."""
    return u * u


SYMMETRIC = {
    "potrf": lambda x: op("_linalg_potrf", symmetric(x)),
    "potri": lambda x: op("_linalg_potri", op("_linalg_potrf", symmetric(x))),
    "syevd": lambda x: [distances(op("_linalg_syevd", symmetric(x))[0]), op("_linalg_syevd", symmetric(x))[1]],
    "gelqf": lambda x: op("_linalg_gelqf", x),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_gradients(name):
    check_numeric_gradient(SYMMETRIC[name], [definite(2, 3, 3)(np.random.default_rng(0))], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_second_gradients(name):
    def gradient(x):
        if x.tape_entry is None:
            x.attach_grad()
        with mx.autograd.record():
            outputs = SYMMETRIC[name](x)
            outputs = outputs if isinstance(outputs, list) else [outputs]
            loss = sum((item * item * item).sum() for item in outputs)
            return mx.autograd.grad(loss, [x], create_graph=True, retain_graph=True)

    check_numeric_gradient(gradient, [definite(3, 3)(np.random.default_rng(0))], rtol=1e-4, atol=1e-5)


def test_symbols():
    a = mx.sym.var("a")
    q, lower = mx.sym.linalg.gelqf(a, name="lq")
    assert mx.sym.Group([q, lower]).list_outputs() == ["lq_output0", "lq_output1"]
    assert mx.sym.linalg.potrf(a).infer_shape(a=(2, 3, 3))[1] == [(2, 3, 3)]
    assert mx.sym.linalg.slogdet(a).infer_shape(a=(4, 3, 3))[1] == [(4,), (4,)]
    assert mx.sym.linalg.extracttrian(a, offset=-1).infer_shape(a=(4, 3, 3))[1] == [(4, 3)]


@pytest.mark.parametrize(
    ("name", "shapes", "ways", "message"),
    [
        ("potrf", [(2, 3)], {}, r"_linalg_potrf: A has shape \(2, 3\), expected square matrices"),
        ("trsm", [(3, 3), (2, 3)], {}, r"_linalg_trsm: A has shape \(3, 3\), expected \(2, 2\) for B of shape"),
        ("gelqf", [(4, 3)], {}, "expected no more rows than columns"),
        ("maketrian", [(2, 5)], {}, "expected n·"),
        ("extractdiag", [(3, 3)], {"offset": 3}, "expected sides longer than the offset 3"),
        ("gemm2", [(3, 3), (3, 3)], {"axis": -1}, "axis is -1, the last axis"),
    ],
)
def test_shape_errors(name, shapes, ways, message):
    with pytest.raises(ShapeError, match=message):
        getattr(mx.nd.linalg, name)(*(mx.nd.ones(shape) for shape in shapes), **ways)


@pytest.mark.parametrize(
    ("name", "matrix", "message"),
    [
        ("potrf", [[1.0, 2.0], [2.0, 1.0]], "_linalg_potrf: A holds a matrix that is not positive definite"),
        ("inverse", [[1.0, 2.0], [2.0, 4.0]], "_linalg_inverse: A holds a matrix that is not invertible"),
        ("potri", [[1.0, 0.0], [2.0, 0.0]], "_linalg_potri: A has a 0 on its diagonal"),
    ],
)
def test_invalid_matrices(name, matrix, message):
    with pytest.raises(MXNetError, match=message):
        getattr(mx.nd.linalg, name)(array(matrix)).asnumpy()


def upper_of(x):
    return mx.nd.linalg.potrf(symmetric(x), lower=False)


def test_upper_factors_are_transposed_lower_factors():
    a = array(definite(2, 3, 3)(RNG))
    upper, lower = upper_of(a), mx.nd.linalg.potrf(symmetric(a))
    np.testing.assert_array_equal(upper.asnumpy(), lower.asnumpy().swapaxes(-1, -2))
    actual, expected = mx.nd.linalg.potri(upper, lower=False), mx.nd.linalg.potri(lower)
    np.testing.assert_allclose(actual.asnumpy(), expected.asnumpy(), rtol=1e-12)


@pytest.mark.parametrize("function", [upper_of, lambda x: mx.nd.linalg.potri(upper_of(x), lower=False)])
def test_gradients_of_upper_factors(function):
    x = array(definite(3, 3)(np.random.default_rng(0)))
    head, step = array(np.random.default_rng(1).standard_normal((3, 3))), 1e-5
    x.attach_grad()
    with mx.autograd.record():
        total = (function(x) * head).sum()
    total.backward()
    for index in np.ndindex(3, 3):
        moved = np.zeros((3, 3))
        moved[index] = step
        low, high = ((function(x + array(sign * moved)) * head).sum().asscalar() for sign in (-1, 1))
        assert x.grad[index].asscalar() == pytest.approx((high - low) / (2 * step), rel=1e-4, abs=1e-6)


def test_upper_factors_are_mxnets():
    a = array([[4, 1], [1, 4.25]])
    a.attach_grad()
    with mx.autograd.record():
        factor = mx.nd.linalg.potrf(a, lower=False)
        total = (factor * array([[1, 2], [3, 4]])).sum()
    total.backward()
    assert factor.asnumpy().tolist() == [[2, 0.5], [0, 2]]
    np.testing.assert_allclose(a.grad.asnumpy(), [[0.1875, 0.25], [0.25, 1.0]], rtol=1e-12)
