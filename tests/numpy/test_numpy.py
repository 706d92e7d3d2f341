"""``mx.np``: results, gradients, indexing and protocols of NumPy; ``mx.npx`` and NumPy semantics."""

import asyncio
import pickle
import subprocess
import sys
import warnings

import numpy as onp
import pytest

import flowmx as mx
from flowmx import autograd, gluon, np, npx
from flowmx.errors import AutogradError
from flowmx.numpy import gradients, table
from flowmx.numpy.arrays import ndarray

A = onp.array([[0.3, 0.7, 0.2], [0.9, 0.4, 0.6]])
B = onp.array([[1.5, 0.5, 2.0], [0.8, 1.2, 3.0]])
S = onp.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]])
N = onp.array([[0.3, onp.nan, 0.2, 0.8], [0.9, 0.4, onp.nan, 0.6]])

Z = onp.array(
    [[1.0, 0.0, 3.0, 0.0, -0.5], [2.0, -1.5, 5.0, 0.3, 0.0], [0.0, 2.0, 0.0, 0.0, 7.0], [0.2, 1.0, -3.0, 4.0, 1.0]]
)
ROWS = [
    *((name, (A,), {}) for name in sorted(table.names("""
        absolute arccos arcsin arcsinh arctan arctanh cbrt cos cosh deg2rad exp exp2 expm1 fabs log log10 log1p
        log2 negative positive rad2deg reciprocal sin sinc sinh sqrt square tan tanh nan_to_num sum mean prod
        max min ptp var std cumsum nansum nanprod nanmax ravel transpose flip fliplr flipud rot90 squeeze
        atleast_3d tril triu diag diff sort ediff1d copy diagonal trace average linalg.norm
    """))),
    ("arccosh", (B + 1,), {}),
    *((name, (A, B), {}) for name in sorted(table.names("""
        add subtract multiply divide power maximum minimum fmax fmin hypot arctan2 copysign logaddexp logaddexp2
        remainder fmod vdot inner outer kron cross append float_power
    """))),
    ("add", (A, B[0]), {}), ("multiply", (A[:, :1], B), {}), ("power", (A, 2), {}), ("power", (2.0, A), {}),
    ("flip", (A, (0, 1)), {}),
    ("sum", (A,), {"axis": 1}), ("sum", (A,), {"axis": (0, 1), "keepdims": True}), ("mean", (A,), {"axis": 0}),
    ("var", (A,), {"axis": 0, "ddof": 1}), ("std", (A,), {"axis": 1}), ("max", (A,), {"axis": 1}),
    ("average", (A,), {"axis": 1, "weights": B}), ("cumsum", (A,), {"axis": 1}), ("clip", (A, 0.25, 0.65), {}),
    ("dot", (A, B.T), {}), ("matmul", (A, B.T), {}), ("matmul", (A, B[0]), {}), ("matmul", (A[0], B.T), {}),
    ("tensordot", (A, B.T), {"axes": 1}), ("tensordot", (A, B, ((0, 1), (0, 1))), {}),
    ("einsum", ("ij,kj->ik", A, B), {}), ("einsum", ("ij->j", A), {}), ("vecdot", (A, B), {}),
    ("concatenate", ([A, B],), {"axis": 1}), ("stack", ([A, B],), {}), ("vstack", ([A, B],), {}),
    ("hstack", ([A, B],), {}), ("dstack", ([A, B],), {}), ("column_stack", ([A, B],), {}),
    ("split", (A, 3), {"axis": 1}), ("array_split", (A, 2), {"axis": 1}), ("hsplit", (A, 3), {}), ("unstack", (A,), {}),
    ("where", (A > 0.5, A, B), {}), ("where", (A > 0.5, A, 5.0), {}), ("take", (A, onp.array([2, 0, 0])), {"axis": 1}),
    ("take", (A, 4), {}), ("take", (A, onp.int64(-1)), {"axis": 1}), ("take", (A, [0, 5]), {"mode": "wrap"}),
    ("transpose", (A, onp.array([1, 0])), {}), ("reshape", (A, onp.array([3, 2])), {}),
    ("broadcast_to", (A, onp.array([2, 2, 3])), {}), ("moveaxis", (A, onp.array([0]), onp.array([1])), {}),
    ("take_along_axis", (A, onp.array([[1, 1], [0, 2]])), {"axis": 1}), ("tile", (A, (2, 1)), {}),
    ("repeat", (A, 2), {"axis": 1}), ("repeat", (A, onp.array([1, 0, 2])), {"axis": 1}), ("roll", (A, 1), {"axis": 1}),
    ("expand_dims", (A, 1), {}), ("broadcast_to", (A[:, :1], (2, 3)), {}), ("moveaxis", (A, 0, 1), {}),
    ("swapaxes", (A, 0, 1), {}), ("pad", (A, ((1, 0), (0, 2))), {"constant_values": 7}),
    ("pad", (A, 1), {"mode": "edge"}), ("insert", (A, 1, 3.0), {"axis": 1}), ("delete", (A, 1), {"axis": 1}),
    ("meshgrid", (A[0], B[0]), {}), ("diff", (A,), {"n": 2, "axis": 1}), ("resize", (A, (3, 3)), {}),
    ("linalg.inv", (S,), {}), ("linalg.det", (S,), {}), ("linalg.slogdet", (S,), {}), ("linalg.cholesky", (S,), {}),
    ("linalg.solve", (S, B.T), {}), ("linalg.solve", (S, B[0]), {}), ("linalg.eigvalsh", (S,), {}),
    ("linalg.svd", (S,), {}), ("linalg.svd", (A,), {"full_matrices": False}), ("linalg.svdvals", (A,), {}),
    ("linalg.svd", (A.T,), {"full_matrices": False}), ("linalg.svd", (A,), {"compute_uv": False}),
    ("linalg.qr", (S,), {}), ("linalg.qr", (A,), {}), ("linalg.qr", (A.T,), {}), ("linalg.pinv", (A,), {}),
    ("linalg.pinv", (A.T,), {}), ("linalg.tensorinv", (S.reshape(3, 3, 1),), {"ind": 1}),
    ("linalg.tensorsolve", (S.reshape(3, 3), B[0]), {}), ("linalg.multi_dot", ([A, S, B[0]],), {}),
    ("linalg.matrix_power", (S, 3), {}), ("linalg.matrix_power", (S, -2), {}), ("polyval", (A[0], B), {}),
    *(("linalg.norm", (A,), {"ord": ord}) for ord in (1, -1, 2, -2, onp.inf, -onp.inf, "nuc")),
    ("einsum", ("ii->i", S), {}), ("einsum", ("ii", S), {}),
    ("einsum", ("iji->j", onp.stack([A[:, :2], B[:, :2]])), {}),
    *((name, (A,), {}) for name in sorted(table.names("""
        median nanmedian nanmean nanvar nanstd cov corrcoef cumprod nancumprod nancumsum unwrap i0 trapezoid
        modf gradient linalg.cond frexp angle imag
    """))),
    *((name, (A,), {"axis": 1}) for name in ("median", "nanmean", "nanvar", "cumprod", "nancumsum", "gradient")),
    ("nanmedian", (onp.where(A > 0.8, onp.nan, A),), {"axis": 0}), ("nanstd", (N,), {"axis": 1}),
    ("nanpercentile", (N, [20, 70]), {"axis": 1}), ("nanquantile", (N, 0.3), {}), ("nanmean", (N,), {}),
    ("percentile", (A, 30), {"axis": 1}), ("quantile", (A, [0.2, 0.9]), {"axis": 0, "keepdims": True}),
    ("quantile", (onp.stack([A, B]), 0.4), {"axis": (0, 2)}), ("percentile", (B, 45), {"method": "midpoint"}),
    ("quantile", (B, 0.7), {"method": "hazen"}), ("partition", (B, 1), {}), ("divmod", (B, A * 0.97 + 0.013), {}),
    *(("cumprod", (Z,), {"axis": axis}) for axis in (None, 0, 1, -2)),
    ("cumprod", (Z,), {"axis": 1, "dtype": "float64"}), ("nancumprod", (onp.where(Z == 2, onp.nan, Z),), {"axis": 1}),
    *((name, (Z,), {"axis": axis, "include_initial": initial}) for name in ("cumulative_sum", "cumulative_prod")
      for axis in (0, -1) for initial in (False, True)),
    ("cumulative_sum", (A,), {"axis": 1}), ("cumulative_prod", (A,), {"axis": 0}), ("cov", (A.T,), {"rowvar": False}),
    ("convolve", (A[0], B.ravel()), {}), ("convolve", (B.ravel(), A[0]), {"mode": "same"}),
    ("convolve", (B.ravel(), A[0]), {"mode": "valid"}), ("correlate", (B.ravel(), A[0]), {}),
    ("correlate", (B.ravel(), A[0, :2]), {"mode": "same"}), ("correlate", (A[0], B.ravel()), {"mode": "full"}),
    ("correlate", (A[0], B.ravel()), {}), ("correlate", (A[0, :2], B.ravel()), {"mode": "same"}),
    ("polyadd", (A[0], B.ravel()), {}), ("polysub", (A[0], B[0]), {}), ("polymul", (A[0], B.ravel()), {}),
    ("polyder", (B.ravel(), 2), {}), ("polyint", (B[0],), {}), ("vander", (A[0], 4), {}),
    ("vander", (A[0],), {"increasing": True}), ("select", ([A > 0.8, A > 0.3], [A, B], 2.0), {}),
    ("interp", (A * 4 - 0.5, onp.array([0.2, 1.0, 2.5]), B[0]), {}), ("gradient", (A, 0.5, 2.0), {}),
    ("interp", (A * 4 - 0.5, onp.array([0.2, 1.0, 2.5]), B[0]), {"left": 0.0, "right": 1.0}),
    ("trapezoid", (A, B), {}), ("trapezoid", (A, onp.array([0.0, 1.0, 3.0])), {}), ("trapezoid", (A,), {"axis": 0}),
    ("matvec", (S, A), {}), ("vecmat", (A, S), {}), *(("linalg.cond", (S, p), {}) for p in (2, -2, "fro", 1)),
    ("linalg.lstsq", (A.T, B[0]), {"rcond": None}), ("linalg.lstsq", (A.T, B.T), {"rcond": None}),
    ("linalg.eig", (S,), {}), ("linalg.eigvals", (S,), {}), ("extract", (A > 0.5, A), {}),
    ("compress", (onp.array([True, False, True]), A), {"axis": 1}), ("compress", (onp.array([True, True]), A), {}),
    ("bincount", (onp.array([0, 2, 0]), A[0]), {}),
    ("linalg.norm", (A,), {"axis": 1, "ord": 3}), ("linalg.norm", (A,), {"axis": 1, "ord": onp.inf}),
]  # fmt: skip
"""Calls with a gradient: the function, its arguments, its keyword arguments."""

PLAIN = [
    ("median", (A,), {}), ("percentile", (A, 30), {"axis": 1}), ("argsort", (A,), {}), ("argmax", (A,), {"axis": 1}),
    ("searchsorted", (onp.sort(A[0]), 0.5), {}), ("unique", (onp.array([3, 1, 3]),), {}), ("nonzero", (A > 0.5,), {}),
    ("histogram", (A, 3), {}), ("bincount", (onp.array([0, 2, 2]),), {}), ("floor_divide", (A, 0.2), {}),
    ("logical_and", (A > 0.3, B > 1), {}), ("isnan", (A,), {}), ("bitwise_xor", (onp.array([5, 3]), 6), {}),
    ("left_shift", (onp.array([1, 2]), 3), {}), ("linalg.svd", (A,), {"full_matrices": True}), ("linalg.qr", (A,), {}),
    ("linalg.pinv", (A,), {}), ("linalg.matrix_rank", (S,), {}), ("linalg.eig", (S,), {}),
    ("fft.fft", (A,), {}), ("fft.irfft", (A + 0j,), {}), ("interp", (A, onp.arange(3.0), B[0]), {}), ("cov", (A,), {}),
    ("triu_indices_from", (S,), {}), ("allclose", (A, A), {}), ("array_equal", (A, B), {}), ("polyval", (A[0], B), {}),
    ("result_type", (A, onp.int8(1).dtype), {}), ("divmod", (A, 0.2), {}), ("argwhere", (A > 0.5,), {}),
]  # fmt: skip


def _ours(value, arrays):
    """Convert the arrays in an argument to ``mx.np``, and append them to a list."""
    if isinstance(value, onp.ndarray):
        value = np.array(value)
        arrays.append(value)
    elif isinstance(value, list):
        value = [_ours(item, arrays) for item in value]
    return value


def _function(space, name):
    for part in name.split("."):
        space = getattr(space, part)
    return space


def _flat(results):
    return [item for part in results for item in _flat(part)] if isinstance(results, (list, tuple)) else [results]


def _total(results):
    """A weighted sum of all elements of results, with a different weight for each."""
    total = 0.0
    for result in _flat(results):
        weights = onp.cos(onp.arange(result.size, dtype=onp.float64)).reshape(result.shape)
        total = total + (result * (np.array(weights) if isinstance(result, ndarray) else weights)).sum()
    return total


def _close(results, expected):
    for one, other in zip(_flat(results), _flat(expected), strict=True):
        one = one.asnumpy() if isinstance(one, ndarray) else one
        if isinstance(other, onp.dtype):
            assert one == other
            continue
        assert onp.shape(one) == onp.shape(other)
        onp.testing.assert_allclose(onp.asarray(one), onp.asarray(other), rtol=1e-6, atol=1e-9)


def _slope(name, args, kwargs, position, index):
    """The derivative of :func:`_total` by one element of the array number ``at``, by finite differences."""
    totals = []
    for step in (1e-6, -1e-6):
        count = iter(range(1 << 10))

        def shift(value, step=step, count=count):
            if isinstance(value, list):
                return [shift(item) for item in value]
            if not isinstance(value, onp.ndarray):
                return value
            value = value.copy()
            if next(count) == position:
                value.flat[index] += step
            return value

        totals.append(_total(_function(onp, name)(*list(map(shift, args)), **{k: shift(v) for k, v in kwargs.items()})))
    return (totals[0] - totals[1]) / 2e-6


def _check_gradient(name, args, kwargs):
    arrays = []
    ours = [_ours(arg, arrays) for arg in args]
    named = {key: _ours(value, arrays) for key, value in kwargs.items()}
    floats = [array for array in arrays if array.dtype == onp.float64]
    for float in floats:
        float.attach_grad()
    with autograd.record():
        results = _function(np, name)(*ours, **named)
        total = _total(results)
    _close(results, _function(onp, name)(*args, **kwargs))
    total.backward()
    symmetric = name in ("linalg.cholesky", "linalg.eigvalsh")
    for position, array in enumerate(arrays):
        if array.dtype != onp.float64:
            continue
        grad = array.grad.asnumpy()
        if symmetric:
            grad = onp.tril(grad + grad.T - onp.diag(onp.diag(grad)))  # NumPy reads only the lower triangle
        slopes = [_slope(name, args, kwargs, position, index) for index in range(array.size)]
        onp.testing.assert_allclose(grad.ravel(), slopes, rtol=1e-4, atol=1e-5)


C, D = (onp.random.default_rng(seed).permutation(12).reshape(2, 2, 3) / 13 + 0.05 for seed in (1, 2))
MATRIX_FUNCTIONS = {"corrcoef", "cov", "diag"}


def _with_three_axes():
    """The rows of matrices whose functions also accept three axes."""
    for name, args, kwargs in ROWS:
        applies = name not in MATRIX_FUNCTIONS and kwargs.keys() <= {"axis", "keepdims", "ddof", "n"}
        if applies and all(arg is A or arg is B for arg in args):
            yield name, tuple(C if arg is A else D for arg in args), kwargs


@pytest.mark.parametrize("rows", [ROWS, [*_with_three_axes()]], ids=["rows", "with three axes"])
def test_functions_and_gradients_match_numpy(rows):
    """Compare each row with NumPy's function, and its gradient with finite differences."""
    assert len(rows) > 100
    failures = []
    for row in rows:
        try:
            _check_gradient(*row)
        except Exception as error:
            failures.append(f"{row[0]}{row[2]}: {type(error).__name__}: {str(error)[:300]}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("cumsum", (B, 1, None)), ("around", (B, 1)), ("fix", (B,)), ("isposinf", (B,)), ("sum", (B, 1, None)),
        ("max", (B, 0)), ("mean", (B, 0, None)), ("argmax", (B, 1)), ("concatenate", ([A, B], 1)), ("dot", (A, B.T)),
        ("all", (B, 0)), ("trace", (B, 0, 0, 1, None)), ("stack", ([A, B], 0)), ("median", (B, 0)), ("outer", (A, B)),
        ("clip", (B, 0.4, 1)), ("exp", (B,)), ("add", (A, B)),
    ],
)  # fmt: skip
def test_every_call_writes_the_out_array(name, args):
    expected = getattr(onp, "trunc" if name == "fix" else name)(*args)  # NumPy 2.5 deprecates fix
    for _ in range(3):
        out = np.zeros(expected.shape, dtype=expected.dtype)
        assert getattr(np, name)(*(_ours(arg, []) for arg in args), out) is out
        onp.testing.assert_allclose(out.asnumpy(), expected)


SCALAR_CALLS = [
    ("clip", (3, None, 2), {}), ("clip", (3.5, 4, None), {}), ("clip", (3,), {"a_min": 4, "a_max": None}),
    ("clip", (True, None, 1), {}), ("ldexp", (3, 4), {}), ("ldexp", (3.0, -1), {}), ("ldexp", (onp.float32(3), 2), {}),
    *(("nan_to_num", (number,), {"copy": False}) for number in (3, 2.5, True, onp.nan, -onp.inf)),
    ("nan_to_num", (onp.inf, False), {"posinf": 2.0}), ("around", (3.456, 2), {}), ("hypot", (3, 4), {}),
    ("flip", (3,), {}), ("unravel_index", (1621, (6, 7, 8, 9)), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), SCALAR_CALLS)
def test_functions_of_numbers_return_numpy_scalars(name, args, kwargs):
    result = getattr(np, name)(*args, **kwargs)
    if name == "nan_to_num":  # NumPy 2 cannot convert a number to an array without a copy
        args, kwargs = args[:1], {**kwargs, "copy": True}
    expected = getattr(onp, name)(*args, **kwargs)
    assert type(result) is type(expected)
    assert result == expected


def test_functions_of_numbers_with_lists():
    assert np.clip(3, a_min=[1, 4], a_max=9).asnumpy().tolist() == [3, 4]
    with pytest.raises(TypeError, match="out is list"):
        np.nan_to_num([1.0, onp.nan], copy=False)
    with pytest.raises(ValueError, match="axis -1 is out of bounds for array of dimension 0"):
        np.sort(3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_with_zeros_in_another_dtype(dtype):
    x = np.array(Z, dtype=dtype)
    x.attach_grad()
    with autograd.record():
        total = _total(np.cumprod(x, axis=1, dtype="float64"))
    total.backward()
    assert x.grad.dtype == dtype
    slopes = [_slope("cumprod", (x.asnumpy().astype("float64"),), {"axis": 1}, 0, index) for index in range(Z.size)]
    onp.testing.assert_allclose(x.grad.asnumpy().ravel(), slopes, rtol=1e-5 if dtype == "float32" else 2e-3, atol=1e-6)


def _call(name):
    return lambda np, z: _function(np, name)(z)


COMPLEX = {
    **{
        name: _call(name)
        for name in sorted(
            table.names("""
        absolute angle arcsinh arctan conjugate cos cosh exp exp2 expm1 imag log log10 log1p negative real reciprocal
        sin sinh sqrt square tan tanh cumsum cumprod mean prod sum transpose diff linalg.norm flip ravel
        fft.fft fft.ifft fft.rfft fft.ihfft fft.fftn fft.ifft2 fft.rfftn fft.hfft fft.irfft fft.irfftn fft.irfft2
        fft.fftshift fft.fft2 fft.ifftn fft.rfft2
    """)
        )
    },
    "arithmetic": lambda np, z: (z * z[0] - 2) / (z + 3j) + 1.5 * z,
    "power": lambda np, z: np.power(z, 3) + np.power(z, z),
    "fft, longer": lambda np, z: np.fft.fft(z, n=5, norm="ortho"),
    "fft, shorter": lambda np, z: np.fft.fft(z, n=2, axis=0, norm="forward"),
    "irfft, longer": lambda np, z: np.fft.irfft(z, n=7),
    "irfft, shorter": lambda np, z: np.fft.irfft(z, n=2, norm="ortho"),
    "rfft, longer": lambda np, z: np.fft.rfft(np.real(z), n=6, norm="forward"),
    "ihfft, shorter": lambda np, z: np.fft.ihfft(np.imag(z), n=2, axis=0),
    "hfft, ortho": lambda np, z: np.fft.hfft(z, n=5, norm="ortho"),
    "rfftn, sizes": lambda np, z: np.fft.rfftn(np.real(z), s=(4, 2), axes=(1, 0)),
    "irfftn, sizes": lambda np, z: np.fft.irfftn(z, s=(3, 5), axes=(0, 1)),
    "matmul": lambda np, z: np.matmul(z, z.T),
    "dot": lambda np, z: np.dot(z, z[0]),
    "vdot": lambda np, z: np.vdot(z, z * 1j),
    "vecdot": lambda np, z: np.vecdot(z, z * z),
    "einsum": lambda np, z: np.einsum("ij,kj->ik", z, z),
    "inv": lambda np, z: np.linalg.inv(z[:, :2]),
    "det": lambda np, z: np.linalg.det(z[:, :2]),
    "solve": lambda np, z: np.linalg.solve(z[:, :2], z),
    "where": lambda np, z: np.where(np.real(z) > 0.5, z, z * z),
    "eigenvalues of a rotation": lambda np, z: np.linalg.eigvals(
        np.real(z)[:, :2] + _array(np, [[0.0, 3.0], [-3.0, 0.0]])
    ),
}
"""Functions of complex numbers, called with a namespace and an array."""


def _array(namespace, values):
    return namespace.asarray(onp.array(values))


def _parts_total(np, result):
    total = 0.0
    for turn, part in enumerate((np.real(result), np.imag(result))):
        weights = onp.cos(onp.arange(part.size) + turn).reshape(part.shape)
        total = total + (part * _array(np, weights)).sum()
    return total


@pytest.mark.parametrize("name", COMPLEX)
def test_gradients_of_complex_numbers(name):
    """Compare the gradients of real and imaginary parts with finite differences of NumPy's results."""
    function = COMPLEX[name]
    a, b = np.array(A), np.array(B)
    a.attach_grad()
    b.attach_grad()
    with autograd.record():
        if name.startswith(("fft.rfft", "fft.ihfft")):
            total = _parts_total(np, function(np, a * b))
        else:
            total = _parts_total(np, function(np, a + b * 1j))
    total.backward()

    def value(a, b):
        real = name.startswith(("fft.rfft", "fft.ihfft"))
        return _parts_total(onp, function(onp, a * b if real else a + b * 1j))

    for position, ours in enumerate((a.grad, b.grad)):
        slopes = onp.zeros(A.shape)
        for place in onp.ndindex(A.shape):
            step = onp.zeros(A.shape)
            step[place] = 1e-6
            ends = [value(*[x + sign * step * (i == position) for i, x in enumerate((A, B))]) for sign in (1, -1)]
            slopes[place] = (ends[0] - ends[1]) / 2e-6
        onp.testing.assert_allclose(ours.asnumpy(), slopes, rtol=1e-5, atol=1e-5)


def test_functions_without_gradient():
    for name, args, kwargs in PLAIN:
        ours = [_ours(arg, []) for arg in args]
        _close(_function(np, name)(*ours, **kwargs), _function(onp, name)(*args, **kwargs))


def test_constants():
    for name, value in table.CONSTANTS.items():
        assert getattr(np, name) is value
    assert (np.pi, np.e, np.euler_gamma, np.newaxis) == (onp.pi, onp.e, onp.euler_gamma, None)
    for name, value in {"inf": "inf", "Inf": "inf", "PINF": "inf", "NINF": "-inf", "nan": "nan", "NaN": "nan",
                        "NAN": "nan", "PZERO": "0.0", "NZERO": "-0.0"}.items():  # fmt: skip
        assert repr(getattr(np, name)) == value


def test_every_name_of_the_table_exists():
    for module, space in ((np, onp), (np.linalg, onp.linalg), (np.fft, onp.fft)):
        for name in dir(module):
            value = getattr(module, name)
            if callable(value) and not isinstance(value, type) and hasattr(space, name):
                assert value.__doc__, name
    assert not {*gradients.ELEMENTWISE} - {*table.CALLS, *table.ALIASES.values()}
    with pytest.raises(AttributeError, match="did you mean"):
        np.concatenatee  # noqa: B018


def test_the_backward_pass_rejects_functions_without_a_gradient():
    x = np.array([1.0, 2.0, 3.0])
    x.attach_grad()
    for call in (lambda x: np.polyfit(x, x, 1), lambda x: np.unique(x).sum(), lambda x: np.cov(x, x)):
        with autograd.record():
            y = call(x)
        with pytest.raises(AutogradError, match="has no gradient"):
            y.backward()


def test_all_other_functions_have_a_gradient():
    functions = {*table.CALLS, *table.BLOCKING}
    functions |= {f"linalg.{name}" for name in table.LINALG | table.LINALG_BLOCKING}
    functions |= {f"fft.{name}" for name in table.FFT}
    assert {name for name in functions if not gradients.has_gradient(name)} == table.NOT_DIFFERENTIABLE


def test_second_derivatives_of_complex_numbers():
    x = np.array([0.5, 1.5, -0.3, 2.0])
    x.attach_grad()
    with autograd.record():
        power = np.abs(np.fft.rfft(x * x)) ** 2
        slope = autograd.grad(power.sum(), [x], create_graph=True)[0]
        total = slope.sum()
    total.backward()
    steps = []
    for position in range(4):
        ends = []
        for sign in (1, -1):
            y = np.array(x.asnumpy())
            y[position] += sign * 1e-3
            y.attach_grad()
            with autograd.record():
                out = (np.abs(np.fft.rfft(y * y)) ** 2).sum()
            out.backward()
            ends.append(float(y.grad.sum()))
        steps.append((ends[0] - ends[1]) / 2e-3)
    onp.testing.assert_allclose(x.grad.asnumpy(), steps, rtol=1e-2)


def test_gradients_in_graphs():
    """A hybridized block has the same gradients as arrays."""

    class Sorted(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return (
                F.np.median(x, axis=1) + F.np.quantile(x, 0.3, axis=1) + F.np.nanmean(F.np.cumprod(x, axis=1), axis=1)
            )

    slopes = []
    for active in (False, True):
        block = Sorted()
        block.hybridize(active)
        x = np.array(A.astype("float32"))
        x.attach_grad()
        with autograd.record():
            y = block(x)
        y.backward()
        slopes.append(x.grad.asnumpy())
    onp.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-5)


def test_gradients_with_recorded_and_list_arguments():
    x = np.array([3.0, 1.0, 2.0])
    x.attach_grad()
    for call, expected in (
        (lambda: np.extract(x > 1.5, x), [1, 0, 1]),
        (lambda: np.interp(x, [0.0, 4.0], [0.0, 8.0]), [2, 2, 2]),
        (lambda: np.interp(0.5, [0.0, 1.0, 2.0], x), [0.5, 0.5, 0]),
        (lambda: np.percentile(x, 50, interpolation="lower"), [0, 0, 1]),
    ):
        with autograd.record():
            y = call()
        y.backward()
        assert x.grad.asnumpy().tolist() == expected


def test_second_derivatives():
    x = np.array([0.5, 1.5])
    x.attach_grad()
    with autograd.record():
        y = np.power(x, 3).reshape(2, 1) * np.flip(x)
        (first,) = autograd.grad([np.sum(y)], [x], create_graph=True, retain_graph=True)
        total = first.sum()
    total.backward()
    # d/dx of sum over i, j of x_i^3 x_j, twice
    a, b = 0.5, 1.5
    second = onp.array([6 * a * (a + b) + 6 * a**2 + 3 * b**2, 6 * b * (a + b) + 6 * b**2 + 3 * a**2])
    expected = second + onp.array([3 * a**2, 3 * b**2])
    onp.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-4)


def test_dtypes():
    whole, small = np.array([1, 2], dtype="int32"), np.ones(2, dtype="float16")
    for array, expected in (
        (np.array([1, 2]), "float32"), (np.array(onp.array([1, 2])), "int64"), (np.zeros(2), "float32"),
        (np.arange(3), "float32"), (np.arange(3, dtype="int32"), "int32"), (np.asarray([1, 2]), "int64"),
        (np.full(2, True), "bool"), (whole + 1, "int32"), (whole + 1.5, "float32"), (whole / whole, "float32"),
        (np.sqrt(whole), "float32"), (np.mean(whole), "float32"), (np.sum(whole), "int64"), (small + 1.0, "float16"),
        (small + np.ones(2), "float32"), (small > 0, "bool"), (np.ones(2) + np.ones(2, dtype="float64"), "float64"),
        (np.array(1.0, dtype="complex64") * 2, "complex64"), (np.array([True], dtype="bool") + 1, "int64"),
        (np.ones(2) * onp.float64(2), "float32"), (np.random.normal(size=2), "float32"),
    ):  # fmt: skip
        assert onp.dtype(array.dtype) == expected, (array, expected)
    with mx.util.np_default_dtype():
        assert [array.dtype for array in (np.array([1]), np.zeros(1), np.arange(3), whole / 2)] == [
            onp.int64, onp.float64, onp.int64, onp.float64,
        ]  # fmt: skip


KEYS = [
    0, -1, (1, 2), (0, slice(None)), (slice(None), 1), (slice(None, None, -1), slice(None, None, 2)), (..., 0), None,
    (0, None, slice(1, 3)), ([0, 1, 1],), ([1, 0], [2, 0]), (range(2), [2, 0]),
    (slice(None), [2, 0]), A > 0.4, (A[:, 0] > 0.5, 1), (),
    onp.array([[0, 1], [1, 0]]), True, False, (slice(2, 2),), (onp.array(1), slice(None)),
]  # fmt: skip


def test_indexing_matches_numpy():
    for key in KEYS:
        ours = tuple(np.array(k) if isinstance(k, onp.ndarray) else k for k in key) if isinstance(key, tuple) else key
        ours = np.array(key) if isinstance(key, onp.ndarray) else ours
        x, host = np.array(A), A.copy()
        _close(x[ours], host[key])
        x[ours] = 5
        host[key] = 5
        _close(x, host)
        value = onp.arange(host[key].size).reshape(host[key].shape) * 0.5
        x[ours], host[key] = np.array(value), value
        _close(x, host)
    with pytest.raises(IndexError):
        np.array(A)[5]
    with pytest.raises(ValueError, match="shape"):
        np.array(A)[0] = [1, 2]


@pytest.mark.parametrize(
    "key",
    [
        (True,), (False,), (True, 0), (0, True, True), (0, True, A[:, 0] > 0.5, 1),
        (True, slice(None), onp.array([0, 1])), (False, slice(None), 1), (Ellipsis, True), (None, True, slice(0, 1)),
        (onp.stack([A, B])[:, :, 0] > 0.5, True), (onp.True_, onp.array([1])),
    ],
    ids=str,
)  # fmt: skip
def test_booleans_in_indices(key):
    source = onp.stack([A, B])
    flowmx_result = tuple(np.array(part, dtype=part.dtype) if isinstance(part, onp.ndarray) else part for part in key)
    x = np.array(source, dtype="float64")
    x.attach_grad()
    with autograd.record():
        y = x[flowmx_result]
        (y * y).sum().backward()
    onp.testing.assert_array_equal(y.asnumpy(), source[key])
    chosen = onp.zeros_like(source)
    chosen[key] = 1
    onp.testing.assert_allclose(x.grad.asnumpy(), 2 * source * chosen)
    z = np.array(source, dtype="float64")
    z[flowmx_result] = 7
    source[key] = 7
    onp.testing.assert_array_equal(z.asnumpy(), source)


def test_internal_mask_operators():
    x, mask = np.array([[1.0, 2], [3, 4]]), np.array([True, False], dtype=bool)
    assert np._internal.boolean_mask_assign_scalar(x, mask, 9.0, start_axis=1).tolist() == [[9, 2], [9, 4]]
    assert x.tolist() == [[1, 2], [3, 4]]
    np._internal.boolean_mask_assign_tensor(x, mask, np.array([5.0, 6]), out=x)
    assert x.tolist() == [[5, 6], [3, 4]]


def test_views_share_memory_and_the_tape_follows_them():
    x = np.array(A)
    part = x[1]
    part += 1
    assert x[1].asnumpy().tolist() == (A[1] + 1).tolist()
    assert np.shares_memory(x, part) and not np.shares_memory(x, x.copy())
    v = np.array([1.0, 2.0])
    v.attach_grad()
    with autograd.record():
        y = np.zeros(3)
        y[1:] = v * v
        z = (y * 2).sum()
    z.backward()
    assert v.grad.asnumpy().tolist() == [4, 8]
    assert isinstance(v.grad, ndarray)


def test_out_and_where():
    x, out = np.array([1.0, -4.0, 9.0]), np.zeros(3)
    assert np.sqrt(x, out=out, where=x > 0) is out
    assert out.asnumpy().tolist() == [1, 0, 3]
    assert np.add(x, np.ones((2, 1)), out=np.zeros((2, 3))).shape == (2, 3)
    assert np.sum(x, where=np.array([True, False, True])).item() == 10
    with pytest.raises(ValueError, match="out has shape"):
        np.exp(x, out=np.zeros(2))
    with pytest.raises(TypeError, match="cannot hold"):
        np.exp(x, out=np.zeros(3, dtype="int32"))
    whole = np.array([1, 2], dtype="int32")
    with pytest.raises(TypeError, match="cannot hold"):
        whole += 0.5


@pytest.mark.parametrize(
    "value", [0, 1, 2, -1.5, True, onp.float32(3), [1, 2, 3], (1, 2, 3), onp.array(4), np.array([5])]
)
def test_full_arrays_on_devices(value):
    elsewhere, plain = mx.cpu(1), getattr(value, "asnumpy", lambda: value)()
    like, out = np.zeros((2, 3), dtype="int32", device=elsewhere), np.zeros((2, 3))
    expected = onp.full((2, 3), plain)
    for array, dtype, context in (
        (np.full((2, 3), value, device=elsewhere), None, elsewhere),
        (np.full_like(like, value), "int32", elsewhere),
        (np.full_like(like, value, dtype="float32", ctx=mx.cpu()), "float32", mx.cpu()),
        (np.full_like([[0.0] * 3] * 2, value), "float32", mx.cpu()),
        (np.full_like(like, value, shape=(1, 2, 3)), "int32", elsewhere),
        (np.full_like(out, value, out=out), "float32", mx.cpu()),
    ):
        assert array.context == context and dtype in (None, array.dtype.name)
        onp.testing.assert_array_equal(array.asnumpy(), expected.astype(array.dtype).reshape(array.shape))
    assert array is out
    if not plain:
        assert np.full_like(like, value, shape=()).shape == ()


def test_axes_may_be_lists():
    x = np.array(A)
    assert x.sum(axis=[0, 1]).item() == pytest.approx(A.sum()) and np.mean(x, [0, 1]).item() == pytest.approx(A.mean())
    assert mx.sym.var("x").as_np_ndarray().sum(axis=[0, 1]).attr("axis") == "(0, 1)"


def test_shapes_without_axes_or_elements():
    assert np.sum(np.zeros((0, 3)), axis=0).asnumpy().tolist() == [0, 0, 0]
    x = np.array(3.0)
    assert x.shape == () and float(x + 1) == 4 and f"{x:.1f}" == "3.0" and (x * np.ones(2)).shape == (2,)
    assert np.concatenate([np.zeros((0, 2)), np.ones((1, 2))]).shape == (1, 2)
    assert np.ones((2, 0)).reshape(0, 5).shape == (0, 5)
    for x in (np.zeros((2, 0)), mx.nd.zeros((2, 0))):
        assert (x[1] + 1).shape == (0,)
    for array in (np.zeros(0), np.zeros(2)):
        with pytest.raises(ValueError, match="ambiguous"):
            bool(array)


def test_calls_with_numbers_return_numpy_scalars_as_in_mxnet():
    for result, expected in [
        (np.sin(1.0), onp.sin(1.0)), (np.log1p(1e-99), 1e-99), (np.add(1, 2), 3), (np.power(2, 3), 8),
        (np.isnan(1.0), False), (np.fix(3.7), 3.0), (np.clip(3, 1, 2), 2), (np.nan_to_num(onp.nan), 0.0),
    ]:  # fmt: skip
        assert isinstance(result, onp.generic)
        assert result == expected
    assert np.where(True, 1, 2) == 1
    assert isinstance(np.sin(np.array(1.0)), ndarray)


def test_float_is_float64_and_positions_are_int32():
    assert np.zeros(2, dtype=float).dtype == np.arange(3, dtype=float).astype(float).dtype == onp.float64
    assert np.sum(np.ones(2), dtype=float).dtype == onp.float64
    assert np.indices((2, 2)).dtype == onp.int32
    assert [indices.tolist() for indices in np.diag_indices_from(np.ones((2, 2)))] == [[0, 1], [0, 1]]
    assert np.delete(np.arange(5.0), np.array([1, 3])).tolist() == [0, 2, 4]
    assert "float32" not in repr(np.arange(12.0) * 30.0001)


@pytest.mark.parametrize(
    ("function", "args"),
    [("clip", (1, 2)), ("around", ()), ("cumsum", (1,)), ("sqrt", ()), ("nan_to_num", ()), ("maximum", (2.0,))],
)
def test_out_may_be_the_argument_itself(function, args):
    a = np.array(A) * 3
    expected = getattr(onp, function)(a.asnumpy(), *args)
    assert getattr(np, function)(a, *args, out=a) is a
    onp.testing.assert_allclose(a.asnumpy(), expected, 1e-6)


def test_out_as_positional_argument():
    x = np.array([-onp.inf, 0.0, onp.inf])
    y = np.array([True, True, True], dtype=bool)
    assert np.isposinf(x, y) is y
    assert y.tolist() == [False, False, True]
    a, products, sums = np.array(A), np.zeros((2, 2)), np.zeros((1, 3))
    assert np.dot(a, a.T, products) is products
    onp.testing.assert_allclose(products.asnumpy(), A @ A.T, 1e-6)
    assert np.sum(a, 0, None, sums, True) is sums
    onp.testing.assert_allclose(sums.asnumpy(), A.sum(0, keepdims=True), 1e-6)


def test_nd_and_np_share_memory_and_history():
    x = mx.nd.array([1, 2])
    x.attach_grad()
    with autograd.record():
        y = (x * 2).as_np_ndarray()
        z = np.sum(y * y).as_nd_ndarray()
    z.backward()
    assert x.grad.asnumpy().tolist() == [8, 16]
    assert type(z) is mx.nd.NDArray and isinstance(y, ndarray)
    same = x.as_np_ndarray()
    same[0] = 7
    assert x.asnumpy().tolist() == [7, 2]
    assert same.grad is x.grad


def test_numpys_functions_run_on_the_engine():
    x = np.array(A)
    x.attach_grad()
    with autograd.record():
        y = onp.exp(x) + onp.linalg.norm(x) + onp.concatenate([x, x])[:2]
        total = onp.sum(y)
    assert isinstance(total, ndarray)
    total.backward()
    assert x.grad.asnumpy().any()
    assert isinstance(A + x, ndarray) and isinstance(onp.add.reduce(x), ndarray)
    assert onp.asarray(x).dtype == onp.float64


def test_awaiting_pickles_and_dlpack():
    async def wait():
        return (await (np.ones(3) * 2)).tolist()

    assert asyncio.run(wait()) == [2, 2, 2]
    x = np.array(A)
    again = pickle.loads(pickle.dumps(x))
    assert isinstance(again, ndarray) and again.tolist() == A.tolist()
    shared = np.from_dlpack(onp.from_dlpack(x))
    shared[0, 0] = 9
    assert x[0, 0].item() == 9 and isinstance(shared, ndarray)


def test_array_api_namespace():
    space = np.ones(2).__array_namespace__("2024.12")
    assert space.all(np.ones(2)).item()
    assert space.arange(3).dtype == onp.int64 and space.asarray([1.0]).dtype == onp.float32
    assert space.__array_namespace_info__().default_dtypes()["real floating"] == onp.float32
    with pytest.raises(ValueError, match="not supported"):
        np.ones(2).__array_namespace__("1999.01")


def test_random_numbers():
    mx.random.seed(5)
    first = np.random.normal(size=(2, 3)).asnumpy()
    mx.random.seed(5)
    assert (np.random.normal(size=(2, 3)).asnumpy() == first).all()
    assert np.random.randint(5, size=100).asnumpy().max() == 4
    assert np.random.choice(np.array([7.0, 8.0]), size=(3,), p=np.array([0.0, 1.0])).tolist() == [8, 8, 8]
    assert np.random.multinomial(6, [0.5, 0.5]).sum().item() == 6
    assert np.random.uniform(np.zeros((2, 1)), np.ones(3)).shape == (2, 3)
    assert set(npx.random.bernoulli(np.full((50,), 0.5)).tolist()) <= {0.0, 1.0}
    order = np.arange(6)
    np.random.shuffle(order)
    assert sorted(order.tolist()) == list(range(6))
    scale = np.array([2.0])
    scale.attach_grad()
    with autograd.record():
        sample = np.random.normal(1.0, scale)
    sample.backward()
    onp.testing.assert_allclose(scale.grad.asnumpy() * 2 + 1, sample.asnumpy(), rtol=1e-5)


# -- mx.npx ---------------------------------------------------------------------------------------------------


def test_semantics_are_scoped():
    assert not npx.is_np_array()

    @npx.use_np
    def inside():
        return npx.is_np_array(), npx.is_np_shape()

    @npx.use_np
    class Block:
        def __init__(self):
            self.in_init = npx.is_np_array()

        @property
        def in_property(self):
            return npx.is_np_array()

    @npx.use_np
    async def later():
        return npx.is_np_array()

    assert inside() == (True, True) and Block().in_init and Block().in_property and asyncio.run(later())
    assert not npx.is_np_array()
    npx.set_np()
    assert npx.is_np_array() and not npx.is_np_default_dtype()
    npx.reset_np()
    assert not npx.is_np_array()
    with pytest.raises(ValueError, match="shape"):
        npx.set_np(shape=False)


def test_npx_functions(tmp_path):
    x = np.array([[1.0, 2.0], [3.0, -1.0]])
    _close(npx.softmax(x), (mx.nd.softmax(x)).asnumpy())
    assert npx.relu(x).tolist() == [[1, 2], [3, 0]] and isinstance(npx.relu(x), ndarray)
    assert npx.nonzero(x > 1).tolist() == [[0, 1], [1, 0]]
    z = np.zeros((2, 3, 4))
    for codes, shape in (((-2, -5), (2, 12)), ((-4,), (2, 3, 4)), ((-6, 1, 2, -4), (1, 2, 3, 4)), ((-1, 4), (6, 4))):
        assert npx.reshape(z, codes).shape == shape
    assert npx.reshape(z, (-5, -2), reverse=True).shape == (6, 4)
    npx.save(str(tmp_path / "a"), {"x": x})
    loaded = npx.load(str(tmp_path / "a"))["x"]
    assert isinstance(loaded, ndarray) and loaded.tolist() == x.tolist()


def test_gluon_trains_with_arrays_of_np():
    with mx.util.np_array():
        mx.random.seed(1)
        x = np.random.normal(size=(64, 3))
        y = np.dot(x, np.array([1.0, -2.0, 0.5]))
        for hybrid in (False, True):
            net = gluon.nn.HybridSequential()
            net.add(gluon.nn.Dense(8, activation="tanh"), gluon.nn.Dense(1))
            net.initialize(mx.init.Xavier())
            if hybrid:
                net.hybridize()
            trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
            loss = gluon.loss.L2Loss()
            losses = []
            for _ in range(20):
                for data, label in gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), 16):
                    with autograd.record():
                        batch = loss(net(data), label)
                    batch.backward()
                    trainer.step(16)
                losses.append(batch.mean().item())
            assert losses[-1] < losses[0] / 5
            assert all(
                isinstance(array, ndarray) for array in (data, batch, net[0].weight.data(), net[0].weight.grad())
            )


class _UserBlock(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.np.exp(x) + F.npx.relu(x) + (x > x)


def test_a_user_block_is_compiled():
    block, x = _UserBlock(), np.array([0.5, -1.0])
    x.attach_grad()
    results = []
    for hybrid in (False, True):
        block.hybridize(hybrid)
        with autograd.record():
            y = block(x)
        y.backward()
        assert isinstance(y, ndarray)
        results.append((y.tolist(), x.grad.tolist()))
    onp.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert [node.op.name for node in block._cached_graph[1].nodes() if node.op][:2] == ["_npi_exp", "relu"]


def test_elementwise_operators_take_the_fast_path(monkeypatch):
    """Arithmetic of arrays of the same dtype, and with numbers, does not process its arguments."""
    x = np.ones(3)
    np.exp(x), x + x, x * 2, x > x, np.maximum(x, x)

    def refuse(*args, **kwargs):
        raise AssertionError("the general path was taken")

    monkeypatch.setattr("flowmx.numpy.calls.ArgumentSplitter.split", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [np.exp(x), x + x, x * 2, x > x, np.maximum(x, x)]
    assert all(isinstance(result, ndarray) for result in results)


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.reshape((1,)),
        lambda a: mx.np.reshape(a, (-1, 3)),
        lambda a: mx.np.dot(a, mx.np.ones(3)),
        lambda a: mx.np.stack([a, mx.np.ones(3)]),
        lambda a: mx.np.random.normal(size=-1),
    ],
)
def test_numpy_errors_are_also_mxnet_errors(call):
    with pytest.raises(mx.MXNetError) as error:
        call(mx.np.ones((2, 5)))
    assert isinstance(error.value, ValueError)


def test_numpy_1_is_sufficient():
    """With NumPy 1 only the names that NumPy 2 introduced are missing."""
    program = """
import sys
import numpy
numpy.trapz = numpy.trapezoid
for name in sys.argv[1:]:
    *parts, last = name.split(".")
    vars(getattr(numpy, *parts) if parts else numpy).pop(last, None)
import flowmx as mx
x = mx.np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
print(x.mT.tolist(), x.T.shape, mx.np.trapz(x).tolist(), mx.np.linalg.norm(x[0]).item() ** 2)
missing = [name for name in mx.np.__all__ if not hasattr(mx.np, name)]
print(sorted(set(missing) - set(sys.argv[1:])))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, *table.NUMPY2_NAMES], capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    values, missing = run.stdout.splitlines()
    assert values.startswith("[[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]] (3, 2) [4.0, 10.0] 14.0")
    assert missing == "[]"


def test_mt_needs_two_axes():
    with pytest.raises(ValueError, match="last two axes"):
        np.ones(3).mT  # noqa: B018
