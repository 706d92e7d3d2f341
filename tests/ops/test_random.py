"""Seeds reproduce numbers on every engine and device; the numbers have the right distributions."""

import math

import numpy as np
import pytest

import flowmx as mx

KINDS = ["NaiveEngine", "ThreadedEngine", "ThreadedEnginePerDevice"]


def draws(ctx=None):
    ctx = ctx or mx.cpu()
    actual = []
    for step in range(5):
        actual += [
            mx.random.uniform(shape=(3, 4), ctx=ctx),
            mx.nd.random.normal(step, 2.0, shape=(5,), ctx=ctx),
            mx.random.randint(0, 100, shape=(6,), ctx=ctx),
            mx.nd.random.poisson(mx.nd.array([4, 5], ctx), shape=(3,)),
            mx.random.shuffle(mx.nd.array(range(10), ctx=ctx)),
        ]
        with mx.autograd.train_mode():
            actual.append(mx.nd.Dropout(mx.nd.ones((8,), ctx=ctx)))
    return np.concatenate([array.asnumpy().ravel() for array in actual])


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_repeats_on_every_engine_kind(kind):
    mx.random.seed(11)
    expected = draws()
    with mx.engine.using(engine_type=kind):
        mx.random.seed(11)
        np.testing.assert_array_equal(draws(), expected)
        mx.random.seed(12)
        assert not np.array_equal(draws(), expected)


def test_a_seed_is_ordered_with_earlier_and_later_operations():
    mx.random.seed(1)
    first = mx.random.uniform(shape=(1000,))
    mx.random.seed(1)
    second = mx.random.uniform(shape=(1000,))
    third = mx.random.uniform(shape=(1000,))
    np.testing.assert_array_equal(first.asnumpy(), second.asnumpy())
    assert not np.array_equal(second.asnumpy(), third.asnumpy())


def test_devices_have_separate_streams_unless_seeded_individually():
    mx.random.seed(5)
    first, second = draws(mx.cpu(0)), draws(mx.cpu(1))
    assert not np.array_equal(first, second)
    mx.random.seed(5, ctx=mx.cpu(0))
    mx.random.seed(5, ctx=mx.cpu(1))
    np.testing.assert_array_equal(draws(mx.cpu(0)), draws(mx.cpu(1)))


def test_seeding_one_device_leaves_the_others_alone():
    mx.random.seed(5)
    expected = draws(mx.cpu(1))
    mx.random.seed(5)
    mx.random.seed(9, ctx=mx.cpu(0))
    np.testing.assert_array_equal(draws(mx.cpu(1)), expected)


def test_a_seed_applies_to_devices_created_later():
    def fresh(number):
        actual = mx.random.uniform(shape=(4,), ctx=mx.cpu(number)).asnumpy()
        mx.random.seed(21)
        return actual, mx.random.uniform(shape=(4,), ctx=mx.cpu(number)).asnumpy()

    mx.random.seed(21)
    made_after, seeded_again = fresh(77)
    np.testing.assert_array_equal(made_after, seeded_again)


@pytest.mark.parametrize("seed", ["7", 1.5, None])
def test_refuses_a_seed_that_is_not_an_integer(seed):
    with pytest.raises(TypeError, match="seed_state is"):
        mx.random.seed(seed)


def test_refuses_an_unknown_context():
    with pytest.raises(TypeError, match="ctx is 'some'"):
        mx.random.seed(1, ctx="some")


N = 40000
# name, arguments, mean, variance
MOMENTS = [
    ("uniform", (-1.0, 3.0), 1.0, 16 / 12),
    ("normal", (2.0, 3.0), 2.0, 9.0),
    ("gamma", (3.0, 0.5), 1.5, 0.75),
    ("exponential", (2.0,), 2.0, 4.0),
    ("poisson", (4.0,), 4.0, 4.0),
    ("negative_binomial", (5, 0.4), 7.5, 7.5 / 0.4),
    ("generalized_negative_binomial", (2.0, 0.5), 2.0, 2.0 + 0.5 * 4.0),
    ("generalized_negative_binomial", (2.0, 0.0), 2.0, 2.0),
    ("bernoulli", (0.3,), 0.3, 0.21),
]


def has_moments(result, mean, variance):
    for row in result.reshape(-1, N):
        assert abs(row.mean() - mean) < 5 * math.sqrt(variance / N)
        assert abs(row.var() / variance - 1) < 0.1


@pytest.mark.parametrize(("name", "arguments", "mean", "variance"), MOMENTS)
@pytest.mark.parametrize("arrays", [False, True], ids=["numbers", "arrays"])
def test_moments(name, arguments, mean, variance, arrays):
    mx.random.seed(3)
    if arrays:
        arguments = [mx.nd.array([value, value]) for value in arguments]
    result = getattr(mx.nd.random, name)(*arguments, shape=(N,)).asnumpy()
    assert result.shape == ((2, N) if arrays else (N,))
    assert result.dtype == np.float32
    has_moments(result, mean, variance)


IN_MXNET = [row for row in MOMENTS if row[0] != "bernoulli"]


@pytest.mark.parametrize(("name", "arguments", "mean", "variance"), IN_MXNET)
@pytest.mark.parametrize("by_symbols", [False, True], ids=["numbers", "symbols"])
def test_moments_of_symbols(name, arguments, mean, variance, by_symbols):
    mx.random.seed(4)
    values = {f"p{index}": mx.nd.array([value, value]) for index, value in enumerate(arguments)} if by_symbols else {}
    result = getattr(mx.sym.random, name)(
        *(map(mx.sym.Variable, values) if by_symbols else arguments), shape=N, name="r"
    )
    assert result.list_outputs() == ["r_output"]
    (samples,) = result.eval(ctx=mx.cpu(), **values)
    assert samples.shape == ((2, N) if by_symbols else (N,))
    has_moments(samples.asnumpy(), mean, variance)


@pytest.mark.parametrize(("name", "arguments", "mean", "variance"), IN_MXNET)
def test_moments_of_like_operators(name, arguments, mean, variance):
    mx.random.seed(5)
    like = mx.nd.zeros((2, N), dtype="float64")
    arguments = (1 / arguments[0],) if name == "exponential" else arguments  # a rate, as for the operator
    result = getattr(mx.nd.random, f"{name}_like")(like, *arguments)
    (composed,) = getattr(mx.sym.random, f"{name}_like")(mx.sym.Variable("x"), *arguments).eval(mx.cpu(), x=like)
    for array in (result, composed):
        assert array.shape == like.shape
        assert array.dtype == np.float64
        has_moments(array.asnumpy(), mean, variance)


def test_a_symbol_draws_new_numbers_in_every_forward():
    executor = mx.sym.random.randn(2, 3, scale=2.0).simple_bind(mx.cpu())
    first, second = executor.forward()[0].asnumpy(), executor.forward()[0].asnumpy()
    assert first.shape == (2, 3)
    assert not np.array_equal(first, second)


def test_integers_classes_and_permutations_as_symbols():
    x = mx.sym.Variable("x")
    random = mx.sym.random
    assert random.randint(1, 3, shape=2).infer_type()[1] == [np.int32]
    assert random.uniform(shape=2, dtype="float16").infer_type()[1] == [np.float16]
    assert random.multinomial(x, name="m").list_outputs() == ["m_output0", "m_output1"]
    assert random.multinomial(x, 5, get_prob=False).infer_shape(x=(2, 3))[1] == [(2, 5)]
    (rows,) = random.shuffle(x).eval(mx.cpu(), x=mx.nd.arange(20))
    assert sorted(rows.asnumpy()) == list(range(20))


def test_unique_zipfian():
    mx.random.seed(3)
    draw = mx.nd._internal._sample_unique_zipfian
    samples, trials = draw(range_max=8, shape=(20000, 2))
    result = samples.asnumpy()
    assert samples.dtype == trials.dtype == np.int64
    assert (result[:, 0] != result[:, 1]).all()
    shares = np.log((np.arange(8) + 2) / (np.arange(8) + 1)) / np.log(9)
    np.testing.assert_allclose(np.bincount(result[:, 0], minlength=8) / len(result), shares, atol=0.02)
    # Drawing the second class takes one more draw each time the first one is repeated.
    assert abs(trials.asnumpy().mean() - (1 + (shares / (1 - shares)).sum())) < 0.05
    samples, trials = draw(range_max=5, shape=(3, 5))
    assert (np.sort(samples.asnumpy()) == np.arange(5)).all()
    assert (trials.asnumpy() >= 5).all()
    assert draw(range_max=5, shape=(2, 0))[1].asnumpy().tolist() == [0, 0]


def test_integers_shapes_and_dtypes():
    mx.random.seed(3)
    result = mx.random.randint(-2, 3, shape=(500,))
    assert result.dtype == np.int32 and set(result.asnumpy()) == {-2, -1, 0, 1, 2}
    assert mx.random.randint(0, 2**40, shape=(2,), dtype="int64").dtype == np.int64
    assert mx.random.uniform().shape == (1,)
    assert mx.random.randn(2, 3, loc=1.0).shape == (2, 3)
    assert mx.random.uniform(shape=(3,), dtype="float16").dtype == np.float16
    out = mx.nd.array([0.0, 0.0])
    assert mx.random.normal(out=out) is out and out.asnumpy().any()
    assert mx.nd.random_uniform_like(out, low=5, high=6).asnumpy().min() >= 5


def test_multinomial_and_its_gradient():
    mx.random.seed(3)
    odds = mx.nd.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]])
    odds.attach_grad()
    with mx.autograd.record():
        result, log_prob = mx.nd.random.multinomial(odds, shape=(4000,), get_prob=True)
    log_prob.backward()
    samples = result.asnumpy()
    shares = np.stack([(samples == index).mean(axis=1) for index in range(3)], axis=1)
    np.testing.assert_allclose(shares, odds.asnumpy(), atol=0.03)
    selected_dtype = np.take_along_axis(odds.asnumpy(), samples, axis=1)
    np.testing.assert_allclose(log_prob.asnumpy(), np.log(selected_dtype), rtol=1e-5)
    counts = shares * 4000
    expected = np.divide(counts, odds.asnumpy(), out=np.zeros_like(counts), where=counts > 0)
    assert odds.grad is not None
    grads = odds.grad.asnumpy()
    np.testing.assert_allclose(grads[counts > 0], expected[counts > 0], rtol=1e-4)
    assert [array.shape for array in mx.nd.random.multinomial(mx.nd.array([0.0, 1.0]), get_prob=True)] == [(1,), (1,)]


def test_shuffle_keeps_rows_together():
    mx.random.seed(3)
    result = mx.random.shuffle(mx.nd.array(np.arange(40).reshape(10, 4))).asnumpy()
    assert sorted(result[:, 0]) == list(range(0, 40, 4))
    np.testing.assert_array_equal(result - result[:, :1], np.tile(np.arange(4), (10, 1)))
    assert list(result[:, 0]) != list(range(0, 40, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mx.random.normal(0, -1), "scale is -1.0, expected at least 0"),
        (lambda: mx.random.randint(3, 3), "high is 3, expected more than low 3"),
        (lambda: mx.random.uniform(mx.nd.array([1.0]), 2), "arrays for all"),
        (lambda: mx.random.bernoulli(2), "prob is 2"),
        (
            lambda: mx.sym.random.uniform(mx.sym.Variable("x"), 2),
            "low is Symbol, high is int; expected",
        ),
        (lambda: mx.sym.random.randint(0, mx.sym.Variable("x")), "high is a Symbol, expected a number"),
        (
            lambda: mx.nd._internal._sample_unique_zipfian(range_max=2, shape=(1, 3)),
            r"shape is \(1, 3\), expected",
        ),
    ],
)
def test_refuses_invalid_distributions(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def arrays(*shapes, dtype="float32"):
    return [mx.nd.ones(shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (arrays((3, 4), (3,), (4,)), r"input sigma has shape \(4,\), expected \(3,\)"),
        (arrays((3, 4), (4,), (4,)), r"input mu has shape \(4,\), expected \(3,\)"),
        (arrays((3,), (3, 4), (3, 4)), r"input sample has shape \(3,\), expected at least the 2 axes"),
        (arrays((3,), (3,), (3,), dtype="int32"), "dtype int32, expected a float"),
        ([*arrays((3,)), *arrays((3,), (3,), dtype="float64")], "input mu has dtype float64, expected float32"),
    ],
)
def test_densities_refuse_mismatched_inputs(inputs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        mx.nd.random_pdf_normal(*inputs)


def test_densities_of_vectors():
    with pytest.raises(ValueError, match=r"input alpha has shape \(3,\), expected \(4,\)"):
        mx.nd.random_pdf_dirichlet(*arrays((3, 4), (3,)))
    assert mx.nd.random_pdf_dirichlet(*arrays((4,), (4,))).shape == (1,)
    sample, concentration = mx.sym.Variable("x"), mx.sym.Variable("a")
    density = mx.sym.random_pdf_dirichlet(sample, concentration, is_log=True)
    assert density.infer_shape(x=(2, 3, 4), a=(2, 4))[1] == [(2, 3)]


def test_densities_of_large_arguments():
    # Logarithms of gamma functions near a million, which cancel.
    x, mean = (mx.nd.array([100_000.0], dtype="float32") for _ in range(2))
    actual = mx.nd.random_pdf_poisson(x, mean).asscalar()
    assert abs(actual * math.sqrt(2 * math.pi * 100_000.0) - 1) < 1e-5


def test_the_logarithms_of_a_density_in_half_precision():
    sample, mu, sigma = (mx.nd.array([value], dtype="float16") for value in (1.5, 0.5, 2.0))
    mu.attach_grad()
    with mx.autograd.record():
        actual = mx.nd.random_pdf_normal(sample, mu, sigma, is_log=True)
    actual.backward()
    assert actual.dtype == mu.grad.dtype == np.float16
    np.testing.assert_allclose(actual.asnumpy(), -0.125 - math.log(2 * math.sqrt(2 * math.pi)), rtol=1e-3)
    np.testing.assert_allclose(mu.grad.asnumpy(), 0.25, rtol=1e-3)


def test_a_seed_for_a_missing_device():
    mx.random.seed(7)
    expected = mx.nd.random.uniform(shape=3).asnumpy()
    mx.random.seed(7)
    mx.random.seed(128, ctx=mx.gpu(77))
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=3).asnumpy(), expected)
