"""Behavior of the operators of tests/op_cases/extras.py beyond their tables: dtypes, states, symbols, errors."""

import numpy as np
import pytest

import flowmx as mx
from flowmx.errors import MXNetError, ParameterError, ShapeError
from flowmx.ndarray.functions import op
from flowmx.test_utils import check_numeric_gradient


def equal(array, expected, dtype=None):
    np.testing.assert_array_equal(array.asnumpy(), expected)
    assert dtype is None or array.dtype == np.dtype(dtype)


# -- statistics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype_in", "dtype_out"), [("int8", None), ("float16", None), ("int32", "float64")])
def test_cumsum_dtypes(dtype_in, dtype_out):
    x = mx.nd.array([[1, 2], [3, 4]], dtype=dtype_in)
    equal(mx.nd.cumsum(x, axis=0, dtype=dtype_out), [[1, 2], [4, 6]], dtype_out or dtype_in)
    equal(mx.nd.cumsum(x), [1, 3, 6, 10], dtype_in)


def test_moments_of_half_precision_are_summed_in_single():
    mean, variance = mx.nd.moments(mx.nd.ones((4, 3000), dtype="float16"), axes=(1,))
    equal(mean, np.ones(4), "float16")
    equal(variance, np.zeros(4), "float16")


def test_histogram():
    x = mx.nd.array([0.5, 1.5, 1.5, 9.0, np.nan])
    counts, edges = op("_histogram", x, bin_cnt=2, range=(0, 2))
    equal(counts, [1, 2], "int64")
    equal(edges, [0, 1, 2], "float32")
    counts, edges = op("_histogram", x, mx.nd.array([1.0, 2.0, 9.0]))
    equal(counts, [2, 1], "int64")
    with pytest.raises(ParameterError, match="expected both or neither"):
        op("_histogram", x, bin_cnt=2)
    with pytest.raises(ParameterError, match="expected the lowest and a higher edge"):
        op("_histogram", x, bin_cnt=2, range=(1, 1))
    with pytest.raises(ShapeError, match="at least 2 edges"):
        op("_histogram", x, mx.nd.array([1.0]))


def test_sums_of_squares_are_single_precision():
    equal(
        mx.nd.multi_sum_sq(mx.nd.array([1, 2], dtype="float16"), mx.nd.array([3], dtype="float16")), [5, 9], "float32"
    )


# -- mixed precision ---------------------------------------------------------------------------------------


def test_casts_do_not_change_integers():
    whole, half = mx.nd.array([1, 2], dtype="int32"), mx.nd.array([1, 2], dtype="float16")
    equal(mx.nd.amp_cast(whole, dtype="float16"), [1, 2], "int32")
    equal(mx.nd.amp_cast(half, dtype="float32"), [1, 2], "float32")
    single = mx.nd.array([3.0])
    for narrow, common in [(False, "float32"), (True, "float16")]:
        results = mx.nd.amp_multicast(single, whole, half, num_outputs=3, cast_narrow=narrow)
        assert [array.dtype for array in results] == [np.dtype(common), np.dtype("int32"), np.dtype(common)]


def test_the_gradients_of_casts_have_the_inputs_dtype():
    half, single = mx.nd.array([1, 2], dtype="float16"), mx.nd.array([3.0])
    half.attach_grad()
    single.attach_grad()
    with mx.autograd.record():
        wide = mx.nd.amp_multicast(half, single, num_outputs=2)
    mx.autograd.backward(wide)
    equal(half.grad, [1, 1], "float16")
    equal(single.grad, [1], "float32")


def test_finiteness_of_several_calls():
    answer = mx.nd.array([1.0])
    mx.nd.all_finite(mx.nd.array([np.inf]), init_output=False, out=answer)
    equal(answer, [0])
    mx.nd.multi_all_finite(mx.nd.ones((2,)), mx.nd.ones((3,)), init_output=False, out=answer)
    equal(answer, [0])  # the earlier result is kept
    mx.nd.all_finite(mx.nd.ones((2,), dtype="float16"), out=answer)
    equal(answer, [1])


def test_reset_arrays():
    first, second = mx.nd.ones((2, 3)), mx.nd.ones((4,), dtype="int32")
    assert mx.nd.reset_arrays(first, second) == []
    equal(first, np.zeros((2, 3)))
    equal(second, np.zeros(4))


# -- assignments -------------------------------------------------------------------------------------------


def test_assignments_to_their_input():
    x = mx.nd.array(np.arange(12).reshape(3, 4))
    op("_slice_assign", x, x[1:3, 1:3], begin=(0, 0), end=(2, 2), out=x)
    equal(x, [[5, 6, 2, 3], [9, 10, 6, 7], [8, 9, 10, 11]])
    op("_scatter_set_nd", x, mx.nd.array([-1, -2]), mx.nd.array([[0, 2], [3, -4]]), shape=(3, 4), out=x)
    equal(x, [[5, 6, 2, -1], [9, 10, 6, 7], [-2, 9, 10, 11]])
    filled = mx.nd.fill_element_0index(x, mx.nd.array([7, 7, 7]), mx.nd.array([0, 1, 2]))
    equal(filled, [[7, 6, 2, -1], [9, 7, 6, 7], [-2, 9, 7, 11]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: op("_slice_assign", mx.nd.ones((3, 4)), mx.nd.ones((2,)), begin=(0,), end=(2,)),
         r"_slice_assign: input rhs has shape \(2,\), expected \(2, 4\)"),
        (lambda: mx.nd.contrib.index_copy(mx.nd.ones((3, 4)), mx.nd.array([0]), mx.nd.ones((2, 4))),
         "new_tensor has shape"),
        (lambda: mx.nd.im2col(mx.nd.ones((1, 1, 2, 2)), kernel=(3, 3)), "smaller than one window"),
        (lambda: mx.nd.col2im(mx.nd.ones((1, 6, 4)), output_size=(3, 3), kernel=(2, 2)), "a multiple of 4 on axis 1"),
        (lambda: mx.nd.col2im(mx.nd.ones((1, 8, 5)), output_size=(3, 3), kernel=(2, 2)), "expected 4 windows"),
        (lambda: mx.nd.Crop(mx.nd.ones((1, 1, 4, 4)), h_w=(2, 5)), r"a part of \(2, 5\) at \(0, 0\)"),
        (lambda: mx.nd.Crop(mx.nd.ones((1, 1, 4, 4)), h_w=(2, 2), offset=(3, 0)), "does not fit in the image"),
        (lambda: mx.nd.khatri_rao(mx.nd.ones((2, 3)), mx.nd.ones((2, 4))), "expected 3 columns"),
        (lambda: mx.nd.contrib.ifft(mx.nd.ones((2, 3))), "expected an even length"),
        (lambda: mx.nd.contrib.count_sketch(mx.nd.ones((2, 3)), mx.nd.ones((1, 2)), mx.nd.ones((1, 3)), out_dim=4),
         r"h has shape \(1, 2\), expected \(1, 3\)"),
        (lambda: mx.nd.contrib.interleaved_matmul_selfatt_qk(mx.nd.ones((2, 3, 8)), heads=2), "a multiple of heads"),
        (lambda: mx.nd.contrib.interleaved_matmul_encdec_valatt(mx.nd.ones((2, 3, 8)), mx.nd.ones((2, 2, 2)), heads=2),
         "input attention has shape"),
        (lambda: mx.nd.cumsum(mx.nd.ones((2, 3)), axis=2), "axis is 2"),
    ],
)  # fmt: skip
def test_shape_errors(call, message):
    with pytest.raises(ShapeError, match=message):
        call()


def test_other_errors():
    with pytest.raises(ParameterError, match="stype is 'csr', expected 'default'"):
        mx.nd.cast_storage(mx.nd.ones((2,)), stype="csr")
    with pytest.raises((IndexError, MXNetError), match="index_copy"):
        mx.nd.contrib.index_copy(mx.nd.ones((3,)), mx.nd.array([3]), mx.nd.ones((1,))).asnumpy()


# -- transforms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fourier(dtype):
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(dtype)
    tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    pairs = mx.nd.contrib.fft(mx.nd.array(x, dtype=dtype))
    assert pairs.dtype == np.dtype(dtype)
    expected = np.fft.fft(x.astype("float64"))
    np.testing.assert_allclose(pairs.asnumpy()[..., ::2], expected.real, atol=5 * tolerance)
    np.testing.assert_allclose(pairs.asnumpy()[..., 1::2], expected.imag, atol=5 * tolerance)
    np.testing.assert_allclose(mx.nd.contrib.ifft(pairs).asnumpy() / 8, x, atol=5 * tolerance)


def test_count_sketch_keeps_products():
    data = mx.nd.array(np.eye(4) * [1, 2, 3, 4])
    h, s = mx.nd.array([[1, 0, 1, 1]]), mx.nd.array([[1, -1, 1, -1]])
    equal(mx.nd.contrib.count_sketch(data, h, s, out_dim=3), [[0, 1, 0], [-2, 0, 0], [0, 3, 0], [0, -4, 0]])


# -- layers and attention ----------------------------------------------------------------------------------


def penalty(average, target=0.2, factor=0.5):
    return factor * ((1 - target) / (1 - average) - target / average)


def test_sparse_activations_are_pushed():
    x = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3)).astype("float32")
    state = np.array([0.2, 0.1, 0.5], "float32")
    after = 0.5 * state + 0.5 * x.mean(axis=0)
    ways = {"sparseness_target": 0.2, "penalty": 0.5, "momentum": 0.5}
    data, average = mx.nd.array(x), mx.nd.array(state)
    data.attach_grad()
    with mx.autograd.record():
        result = mx.nd.IdentityAttachKLSparseReg(data, average, **ways)
    result.backward()
    np.testing.assert_allclose(average.asnumpy(), after, rtol=1e-6)
    np.testing.assert_allclose(data.grad.asnumpy(), 1 + np.broadcast_to(penalty(after), (4, 3)), rtol=1e-5)
    mx.nd.IdentityAttachKLSparseReg(data, average, **ways).wait_to_read()
    np.testing.assert_allclose(average.asnumpy(), after, rtol=1e-6)  # not while predicting


def test_sparse_activations_in_a_symbol():
    x = np.random.default_rng(0).uniform(0.1, 0.9, (4, 3)).astype("float32")
    symbol = mx.sym.IdentityAttachKLSparseReg(mx.sym.var("x"), sparseness_target=0.2, penalty=0.5, name="kl")
    assert symbol.list_auxiliary_states() == ["kl_moving_avg"]
    bound = symbol.simple_bind(mx.cpu(), x=(4, 3))
    bound.arg_dict["x"][:] = mx.nd.array(x)
    bound.aux_dict["kl_moving_avg"][:] = 0.3
    bound.forward(is_train=True)
    bound.backward(mx.nd.ones((4, 3)))
    after = 0.9 * 0.3 + 0.1 * x.mean(axis=0)
    np.testing.assert_allclose(bound.aux_dict["kl_moving_avg"].asnumpy(), after, rtol=1e-6)
    np.testing.assert_allclose(bound.grad_dict["x"].asnumpy(), 1 + np.broadcast_to(penalty(after), (4, 3)), rtol=1e-5)


def test_attention_as_a_symbol_and_by_hand():
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((5, 2, 3 * 4 * 6)).astype("float32")  # length 5, batch 2, 4 heads of size 6
    pair = mx.sym.var("qkv")
    scores = mx.sym.softmax(mx.sym.contrib.interleaved_matmul_selfatt_qk(pair, heads=4), axis=-1)
    result = mx.sym.contrib.interleaved_matmul_selfatt_valatt(pair, scores, heads=4)
    bound = result.simple_bind(mx.cpu(), qkv=inputs.shape)
    bound.arg_dict["qkv"][:] = mx.nd.array(inputs)
    actual = bound.forward(is_train=True)[0].asnumpy()
    q, k, v = inputs.reshape(5, 2, 4, 3, 6).transpose(3, 1, 2, 0, 4)
    weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(6))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(actual, (weights @ v).transpose(2, 0, 1, 3).reshape(5, 2, 24), rtol=1e-4, atol=1e-5)
    bound.backward(mx.nd.ones(actual.shape))
    array = mx.nd.array(inputs)
    array.attach_grad()
    with mx.autograd.record():
        weights = mx.nd.softmax(mx.nd.contrib.interleaved_matmul_selfatt_qk(array, heads=4), axis=-1)
        mx.nd.contrib.interleaved_matmul_selfatt_valatt(array, weights, heads=4).sum().backward()
    np.testing.assert_allclose(bound.grad_dict["qkv"].asnumpy(), array.grad.asnumpy(), rtol=1e-5, atol=1e-6)


# -- point processes ---------------------------------------------------------------------------------------

POINTS = {
    "lda": [[1.1, 0.7], [0.9, 0.8]],
    "alpha": [0.4, 0.6],
    "beta": [1.2, 0.8],
    "state": [[0.3, 0.1], [0.0, 0.5]],
    "lags": [[0.3, 0.5, 0.2], [1.0, 0.4, 9.0]],
    "marks": [[0, 1, 0], [1, 1, 0]],
    "valid_length": [3, 2],
    "max_time": [2.0, 3.0],
}


def test_likelihood_by_its_definition():
    likelihood, states = mx.nd.contrib.hawkesll(*(mx.nd.array(item, dtype="float64") for item in POINTS.values()))
    mu, alpha, beta, start = (np.array(POINTS[name]) for name in ("lda", "alpha", "beta", "state"))
    for sample, (count, end) in enumerate(zip(POINTS["valid_length"], POINTS["max_time"], strict=True)):
        times = np.cumsum(POINTS["lags"][sample])[:count]
        marks = np.array(POINTS["marks"][sample][:count])
        total = 0.0
        for mark in (0, 1):
            own = times[marks == mark]

            def state(t, own=own, mark=mark, first=start[sample, mark]):
                return first * np.exp(-beta[mark] * t) + np.exp(-beta[mark] * (t - own[own < t])).sum()

            total += sum(np.log(mu[sample, mark] + alpha[mark] * beta[mark] * state(t)) for t in own)
            faded = start[sample, mark] + len(own) - state(end)
            total -= mu[sample, mark] * end + alpha[mark] * faded
            np.testing.assert_allclose(states.asnumpy()[sample, mark], state(end), rtol=1e-12)
        np.testing.assert_allclose(likelihood.asnumpy()[sample], total, rtol=1e-12)


def test_the_gradient_of_the_likelihood():
    others = [mx.nd.array(item, dtype="float64") for item in list(POINTS.values())[3:]]

    def likelihood(mu, alpha, beta):
        return mx.nd.contrib.hawkesll(mu, alpha, beta, *others)[0]

    check_numeric_gradient(likelihood, [POINTS["lda"], POINTS["alpha"], POINTS["beta"]])


# -- functions that are not operators ----------------------------------------------------------------------


def test_histogram_of_the_whole_range():
    x = np.random.default_rng(0).standard_normal(100).astype("float32")
    for bins in (10, 3):
        counts, edges = mx.nd.histogram(mx.nd.array(x), bins=bins)
        expected = np.histogram(x, bins=bins)
        equal(counts, expected[0], "int64")
        np.testing.assert_allclose(edges.asnumpy(), expected[1], rtol=1e-5)
    counts, edges = mx.nd.histogram(mx.nd.array([2.0, 2.0]), bins=2)
    equal(counts, [0, 2])
    equal(edges, [1.5, 2, 2.5])
    counts, _ = mx.nd.histogram(mx.nd.array(x), bins=mx.nd.array([-1.0, 0.0, 1.0]))
    equal(counts, np.histogram(x, bins=[-1, 0, 1])[0])
    with pytest.raises(ValueError, match="expected a non-empty array"):
        mx.nd.histogram(mx.nd.zeros((0,)))


def test_histogram_as_a_symbol():
    result = mx.sym.histogram(mx.sym.var("x"), bins=4, range=(0, 4))
    assert result.infer_shape(x=(7,))[1] == [(4,), (5,)]
    assert mx.sym.histogram(mx.sym.var("x"), bins=mx.sym.var("e")).infer_shape(x=(7,), e=(3,))[1] == [(2,), (3,)]
    with pytest.raises(ValueError, match="range is missing"):
        mx.sym.histogram(mx.sym.var("x"))


def test_kinds_of_numbers():
    x = mx.nd.array([1.0, np.nan, np.inf, -np.inf, 0.0])
    equal(mx.nd.contrib.isnan(x), [0, 1, 0, 0, 0], "float32")
    equal(mx.nd.contrib.isinf(x), [0, 0, 1, 1, 0], "float32")
    equal(mx.nd.contrib.isfinite(x), [1, 0, 0, 0, 1], "float32")


def test_rand_zipfian():
    mx.random.seed(0)
    samples, of_true, of_drawn = mx.nd.contrib.rand_zipfian(mx.nd.array([3.0]), 20_000, 5)
    assert (samples.dtype, of_true.dtype, of_drawn.dtype) == (np.int64, np.float64, np.float64)
    counts = np.bincount(samples.asnumpy(), minlength=5)
    assert counts.sum() == 20_000
    expected = np.log((np.arange(5) + 2) / (np.arange(5) + 1)) / np.log(6) * 20_000
    np.testing.assert_allclose(counts, expected, rtol=0.1)
    np.testing.assert_allclose(of_true.asnumpy(), expected[3], rtol=1e-12)
    np.testing.assert_allclose(of_drawn.asnumpy(), expected[samples.asnumpy()], rtol=1e-12)
    symbols = mx.sym.contrib.rand_zipfian(mx.sym.var("c"), 8, 5)
    assert mx.sym.Group(list(symbols)).infer_shape(c=(2,))[1] == [(8,), (2,), (8,)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mx.nd.image.resize(mx.nd.ones((0, 4, 3)), size=2), r"data has shape \(0, 4, 3\), expected images"),
        (lambda: mx.nd.CTCLoss(mx.nd.ones((5, 2, 0)), mx.nd.ones((2, 2))), "expected at least 1 class"),
        (
            lambda: mx.nd.contrib.interleaved_matmul_selfatt_qk(mx.nd.ones((2, 2, 0)), heads=2),
            r"has shape \(2, 2, 0\), expected a multiple of heads · 3 = 6, and not 0",
        ),
        (
            lambda: mx.nd.histogram(mx.nd.array([1, 2]), mx.nd.array([3, 1, 2]))[0].asnumpy(),
            "_histogram: input bins holds .*, expected edges in ascending order",
        ),
    ],
)
def test_empty_inputs_are_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_broadcast_to_more_dimensions():
    assert (mx.nd.array([1, 2, 3]).broadcast_to((4, 3)).asnumpy() == np.tile([1, 2, 3], (4, 1))).all()
    with pytest.raises(ShapeError, match="does not broadcast to"):
        mx.nd.ones((2, 3)).broadcast_to((4, 3))
